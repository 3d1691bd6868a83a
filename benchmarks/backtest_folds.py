"""Time a backtest of kdd17's 50 stocks with 4 and with 8 folds, with and without its trainings.

They are trained on a rolling span. Doubling the history must not more than double the time. Needs
the shared data.
"""

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from benchmarks.shared_data import SHARED
from db.engine import location
from dtml.prices.sessions import sessions_up_to
from flows.markets.opened import RunRequest
from flows.nightly.context import open_context
from flows.nightly.fetch import fetch_bars
from flows.studies.backtest import FoldRun, Job, Plan, one_by_one, open_backtest
from flows.studies.study import run_study
from translation.environment import prepare_torch

LAST = date(2016, 12, 28)
EVERY = 63
OVERRIDES = {"train_sessions": 504, "epochs": 3, "first_kept_epoch": 1}


def main() -> None:
    """Print seconds and their ratio, after a shorter backtest that fills the process's caches."""
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
        seconds_by_folds = {}
        for folds in (1, 4, 8):
            seconds, training_seconds = _timed(run_request, folds)
            seconds_by_folds[folds] = seconds
            print(
                f"{folds} folds: {seconds:.1f} s, {seconds - training_seconds:.1f} s of it to "
                "store, score and publish"
            )
        ratio = seconds_by_folds[8] / seconds_by_folds[4]
        print(f"twice the history takes {ratio:.2f} times the time")


def _first(folds: int) -> date:
    return sessions_up_to("XNYS", LAST, folds * EVERY)[0].date()


def _timed(run_request: RunRequest, folds: int) -> tuple[float, float]:
    """Return the seconds of a backtest, and of its folds alone.

    A setting without effect gives each backtest a name of its own.
    """
    own_request = replace(run_request, overrides={**OVERRIDES, "patience": 100 + folds})
    backtest = open_backtest(own_request, Plan(_first(folds), LAST, EVERY))
    training_seconds = []

    def timed(jobs: Sequence[Job]) -> list[FoldRun]:
        start = time.perf_counter()
        fold_runs = list(one_by_one(jobs))
        training_seconds.append(time.perf_counter() - start)
        return fold_runs

    start = time.perf_counter()
    run_study(replace(backtest, runner=timed))
    return time.perf_counter() - start, training_seconds[0]


if __name__ == "__main__":
    main()
