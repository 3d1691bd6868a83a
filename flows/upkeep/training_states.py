"""Find and remove the states from which interrupted trainings of a market resume."""

import re
import shutil
from datetime import date
from pathlib import Path

from flows.settings import data_folder

REMOVING = ".over"  # suffix of the folder of a state that is being removed


def states_folder(kind: str) -> Path:
    """Return the folder of the training states of a kind, "nightly" or "backtest"."""
    training = data_folder() / "training"
    return training if kind == "nightly" else training / "backtests"


def drop_states(market: str, as_of: date, kind: str = "nightly", run_id: str | None = None) -> None:
    """Remove the states of trainings that are finished, from which none will resume.

    For the kind "backtest", the state of `run_id` alone is removed, whatever `as_of` is; for
    "nightly", the states of all trainings of the market as of sessions up to `as_of`. Each folder
    is renamed before it is removed: a training that resumed from half a state would make another
    model.
    """
    parent = states_folder(kind)
    if not parent.exists():
        return
    state_name = re.compile(rf"{re.escape(market)}-(\d{{4}}-\d\d-\d\d)-[0-9a-f]{{8}}")
    for folder in sorted(parent.iterdir()):
        name = folder.name.removesuffix(REMOVING)
        match = state_name.fullmatch(name)
        if match is None:  # another market's, or no state
            continue
        night = date.fromisoformat(match[1])
        is_finished = name == run_id if kind == "backtest" else night <= as_of
        if is_finished:
            renamed = folder.with_name(f"{name}{REMOVING}")
            if folder != renamed:
                shutil.rmtree(renamed, ignore_errors=True)
                folder.rename(renamed)
            shutil.rmtree(renamed, ignore_errors=True)
