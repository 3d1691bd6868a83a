"""Time a backtest of kdd17's 50 stocks on a rolling span with 4 and with 8 folds, and all of it but
the trainings.

Doubling the history must not more than double the time. Needs the shared data.
"""

import os
import tempfile
import time
from dataclasses import replace
from datetime import date

from benchmarks.shared_data import SHARED
from db.engine import location
from dtml.prices.sessions import sessions_up_to
from flows.backtest.folds import Plan, jobs_of, one_by_one, open_backtest
from flows.backtest.results import run_backtest
from flows.nightly.context import RunRequest, open_context
from flows.nightly.fetch import fetch_bars
from translation.environment import prepare_torch

LAST = date(2016, 12, 28)
EVERY = 63
OVERRIDES = {"train_sessions": 504, "epochs": 3, "first_kept_epoch": 1}


def main() -> None:
    """Print seconds and their ratio; a training run before the clock starts
    builds what is built once a process.
    """
    prepare_torch()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "DTML_DATA": folder,
            "DTML_REPORTS": folder,
            "DTML_DATABASE_URL": f"sqlite:///{folder}/s.sqlite",
        }
        files = {
            "prices": SHARED / "prices" / "kdd17.parquet",
            "index": SHARED / "index" / "GSPC.parquet",
        }
        run_request = RunRequest("kdd17", **files, overrides=OVERRIDES, device="cpu")
        context = open_context(run_request)
        for day in (_first(8), date(2016, 12, 30)):
            fetch_bars(context, day)
        print(
            f"store {location(context.engine)}, {len(context.market.symbols)} stocks, {EVERY} "
            "sessions a fold"
        )
        took = {}
        for folds in (1, 4, 8):
            seconds, training = _timed(run_request, folds)
            took[folds] = seconds
            print(
                f"{folds} folds: {seconds:.1f} s, {seconds - training:.1f} s of it to store, score "
                "and publish"
            )
        print(f"twice the history takes {took[8] / took[4]:.2f} times the time")


def _first(folds: int) -> date:
    return sessions_up_to("XNYS", LAST, folds * EVERY)[0].date()


def _timed(run_request: RunRequest, folds: int) -> tuple[float, float]:
    """Seconds of the whole, and of the folds alone; a setting that matters to
    nothing keeps runs apart.
    """
    own = replace(run_request, overrides={**OVERRIDES, "patience": 100 + folds})
    backtest = open_backtest(own, Plan(_first(folds), LAST, EVERY))
    begun = time.perf_counter()
    for _ in one_by_one(jobs_of(backtest)):
        pass
    training = time.perf_counter() - begun
    run_backtest(backtest)
    return time.perf_counter() - begun, training


if __name__ == "__main__":
    main()
