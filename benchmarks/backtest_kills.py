"""Kill and resume a small backtest at 20 random moments, and compare its rows.

They must be those of an undisturbed run.

`python -m benchmarks.backtest_kills [KILLS]`
"""

import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import pandas as pd

from db.connection.user_sql import select
from db.engine import open_engine, reading
from flows.markets.opened import RunRequest
from flows.nightly.context import open_context
from flows.nightly.fetch import fetch_bars
from flows.studies.backtest import Plan, open_backtest
from flows.studies.study import run_study

MARKET = """
title = "A small simulated market"
calendar = "XNYS"
timezone = "America/New_York"
currency = "USD"
source = "simulated"
[index]
symbol = "SIMX"
name = "An index"
[model]
window = 5
hidden = 16
heads = 2
epochs = 6
first_kept_epoch = 1
train_sessions = 252
validation_sessions = 63
"""
PLAN = Plan(date(2023, 1, 3), date(2023, 6, 30), retrain_every=21)
# Every row that a backtest writes, without the columns of moments and seconds.
TABLES = {
    "run": (
        "select id, config, seeds, checkpoint_hash, losses, train_first, train_last from run "
        "order by id"
    ),
    "prediction": (
        "select run_id, target, instrument_id, as_of, probability, probability_std "
        "from prediction order by 1, 2, 3"
    ),
    "outcome": (
        "select instrument_id, session, realised_return, rise, label from outcome order by 1, 2"
    ),
    "fold": (
        "select number, run_id, as_of, first, last, predictions, refused from backtest_fold "
        "order by 1"
    ),
    "score": "select * from backtest_score order by slice, value, protocol, predictor",
    "return": "select * from backtest_return order by portfolio, session",
    "portfolio": "select * from backtest_portfolio order by portfolio",
}


def main() -> None:
    """Run the backtest undisturbed, then killed and resumed, and compare the rows."""
    kills = int(sys.argv[1]) if sys.argv[1:] else 20
    if os.environ.get("KILLS_CHILD"):
        run_study(open_backtest(_request(), PLAN))
        return
    with tempfile.TemporaryDirectory() as folder:
        homes = [_prepare(Path(folder) / "whole")]
        seconds = _run(homes[0], None)
        print(f"undisturbed: {seconds:.1f} s")
        generator = random.Random(0)  # noqa: S311
        died = 0
        while died < kills:
            home = _prepare(Path(folder) / f"killed-{len(homes)}")
            homes.append(home)
            while died < kills and _run(home, generator.uniform(0, seconds)) < 0:
                died += 1
            _run(home, None)
        expected = _digest(homes[0])
        if any(_digest(home) != expected for home in homes[1:]):
            raise SystemExit(f"killed {died} times: the rows are not those of an undisturbed run")
        print(
            f"killed {died} times in {len(homes) - 1} backtests, resumed each time: the rows are "
            "the same"
        )


def _request() -> RunRequest:
    return RunRequest("small", market_file=Path("small.toml"), source="simulated", device="cpu")


def _prepare(home: Path) -> Path:
    """Make a folder with the market's file and a store of its bars, known since one moment."""
    home.mkdir()
    (home / "small.toml").write_text(MARKET)
    os.chdir(home)
    context = open_context(_request())
    moment = pd.Timestamp("2023-12-29", tz="UTC").to_pydatetime()
    for day in (date(2023, 1, 2), date(2023, 9, 29)):
        fetch_bars(context, day, known_at=moment)
    return home


def _run(home: Path, kill_after: float | None) -> float:
    """Run the backtest; return its seconds from its first file on; -1 when it was killed.

    It is killed `kill_after` seconds after its first file.
    """
    environment = os.environ | {"KILLS_CHILD": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "benchmarks.backtest_kills"]
    with subprocess.Popen(command, cwd=home, env=environment) as child:
        while child.poll() is None and not (home / "data" / "backtests").exists():
            time.sleep(0.01)
        return seconds_to_end(child, kill_after, "the backtest")


def seconds_to_end(child: subprocess.Popen[bytes], kill_after: float | None, what: str) -> float:
    """Return the seconds until a process ends, -1 if it was killed after `kill_after`.

    Raises SystemExit, naming `what` it does, if it fails.
    """
    start = time.monotonic()
    try:
        child.wait(kill_after)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
        return -1
    if child.returncode:
        raise SystemExit(f"{what} ended with {child.returncode}")
    return time.monotonic() - start


def _digest(home: Path) -> dict[str, str]:
    """Return a digest of the rows of each table."""
    os.chdir(home)
    engine = open_engine(read_only=True)
    digests = {}
    with reading(engine):
        for name, sql in TABLES.items():
            text = select(engine, sql, is_trusted=True).to_csv(index=False)
            digests[name] = hashlib.sha256(text.encode()).hexdigest()
    return digests


if __name__ == "__main__":
    main()
