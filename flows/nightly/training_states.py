"""What interrupted trainings go on from, a folder each: where it lies, and when it goes."""

import re
import shutil
from datetime import date
from pathlib import Path

from flows.settings import data_folder

OVER = ".over"  # ends the name of a state that nothing goes on from any more


def states_folder(kind: str) -> Path:
    """Where the states of the trainings of a kind, "nightly" or "backtest", lie."""
    return data_folder() / "training" if kind == "nightly" else data_folder() / "training" / "backtests"


def drop_states(market: str, as_of: date, kind: str = "nightly", run_id: str | None = None) -> None:
    """Remove the state of a run that is trained, or, of a market's nights, those up to `as_of`: none goes on from them.

    Each is taken away in one step: from half of it another model would come.
    """
    parent = states_folder(kind)
    for folder in sorted(parent.iterdir()) if parent.exists() else ():
        name = folder.name.removesuffix(OVER)
        day = re.fullmatch(rf"{re.escape(market)}-(\d{{4}}-\d\d-\d\d)-[0-9a-f]{{8}}", name)
        if day is None or (name != run_id if kind == "backtest" else date.fromisoformat(day[1]) > as_of):
            continue
        over = folder.with_name(f"{name}{OVER}")
        if folder != over:
            shutil.rmtree(over, ignore_errors=True)
            folder.rename(over)
        shutil.rmtree(over, ignore_errors=True)
