"""What a user's own file holds: features of the stocks of a day, and maybe a
model that orders the stocks by them.
"""

import copy
import hashlib
import inspect
import random
import sys
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from dtml.errors import DtmlError, UsageError
from dtml.ranking.models import Boosting, BoostingConfig, fit_boosting
from dtml.ranking.panel import Features, Grid, Panel, There, ranked

OWN = "own"  # the name of the predictor
MODULE = "own_code"  # under which the file is imported
HISTORY, EPOCHS, RATE = (
    260,
    5,
    0.001,
)  # sessions a feature may read; a torch module's `epochs` and `rate`

# What a feature reads: a frame for each price, a row a session, a column a stock, NaN where there
# is no bar; prices are adjusted, `value` is the unadjusted close times the volume. The last row is
# the day that the feature is of.
Bars = namedtuple("Bars", "open high low close volume value")
PRICES = Bars._fields
Feature = Callable[[Bars], Any]
Arrays = dict[str, ndarray]


class OwnCodeError(DtmlError):
    """Say what is wrong with a user's own file; it ends that file's model for
    the night, never the night.
    """


@dataclass(frozen=True)
class OwnCode:
    """The text of a user's file, as read; what a training stores."""

    name: str
    text: str

    @classmethod
    def read(cls, file: Path) -> "OwnCode":
        """Read a file of UTF-8 text; raise UsageError where it cannot be."""
        try:
            return cls(file.name, file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as problem:
            raise UsageError(f"{file}: cannot read the market's own code: {problem}") from problem

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class Loaded:
    """A file that was run: its features by name, its MODEL or None, and the
    sessions that a feature may read.
    """

    features: Mapping[str, Feature]
    model: Any
    history: int


def seed(code: OwnCode) -> None:
    """Let what a text draws begin anew."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in code.text:
        import torch

        torch.manual_seed(0)


def load(code: OwnCode) -> Loaded:
    """Run the text anew, from fixed seeds; features are its public functions of
    `bars`, and its dict FEATURES.
    """
    seed(code)
    module = sys.modules[MODULE] = ModuleType(MODULE)
    exec(compile(code.text, code.name, "exec"), module.__dict__)  # noqa: S102 - it is what the user asks for
    functions = {
        name: each
        for name, each in vars(module).items()
        if inspect.isfunction(each) and name[0] != "_"
    }
    found = {
        name: each
        for name, each in functions.items()
        if [*inspect.signature(each).parameters] == ["bars"]
    }
    features = found | getattr(module, "FEATURES", {})
    if not features:
        raise OwnCodeError("no feature: write a function of one argument, `bars`")
    return Loaded(
        features, getattr(module, "MODEL", None), int(getattr(module, "HISTORY", HISTORY))
    )


def cut(panel: Panel, days: slice) -> Panel:
    """Return some sessions of a panel."""
    return replace(
        panel,
        sessions=panel.sessions[days],
        **{name: getattr(panel, name)[days] for name in PRICES},
    )


def values_of(loaded: Loaded, panel: Panel, days: Sequence[int] | None = None) -> Features:
    """Return every feature of these days of a panel (None: of all), and of every stock.

    Missing and infinite values are NaN. Features see the whole panel, whatever days are asked for.
    """
    rows = range(len(panel.sessions)) if days is None else days
    grids = [_values(name, each, loaded, panel, rows) for name, each in loaded.features.items()]
    found = np.stack(grids, axis=-1)
    return np.where(np.isfinite(found), found, np.nan)


def nights_of(
    loaded: Loaded, panel: Panel, days: Sequence[int], windows: Mapping[str, int]
) -> Features:
    """Return what nights would have said on these days: from the sessions up to each day alone.

    `windows` names the features that are asked, and the sessions that each may read. One that fails
    on fewer than its own history is missing there.
    """
    found = np.full((len(days), len(panel.symbols), len(loaded.features)), np.nan)
    for column, (name, feature) in enumerate(loaded.features.items()):
        for row, day in enumerate(days if name in windows else ()):
            seen = cut(panel, slice(max(0, day + 1 - windows[name]), day + 1))
            try:
                found[row, :, column] = _last_row(name, feature(_bars(seen)), seen)
            except Exception:
                if windows[name] >= loaded.history:
                    raise
    return np.where(np.isfinite(found), found, np.nan)


def _values(name: str, feature: Feature, loaded: Loaded, panel: Panel, days: Sequence[int]) -> Grid:
    """Ask a feature for all sessions at once; one that answers with the last alone, by session."""
    found = feature(_bars(panel))
    if isinstance(found, pd.Series):
        seen = (cut(panel, slice(max(0, day + 1 - loaded.history), day + 1)) for day in days)
        return np.stack([_last_row(name, feature(_bars(each)), each) for each in seen])
    return _grid(name, found, panel.sessions[list(days)], panel)


def _last_row(name: str, found: Any, panel: Panel) -> Float[ndarray, " stocks"]:
    """Return what a feature's answer, a frame or its last row, says of a panel's last session."""
    if isinstance(found, pd.Series):
        found = pd.DataFrame([found], index=panel.sessions[-1:])
    row: Float[ndarray, " stocks"] = _grid(name, found, panel.sessions[-1:], panel)[0]
    return row


def _grid(name: str, found: Any, sessions: pd.DatetimeIndex, panel: Panel) -> Grid:
    if not isinstance(found, pd.DataFrame):
        answer = type(found).__name__
        wanted = "return a frame like bars.close, or its last row"
        raise OwnCodeError(f"{name} returned {answer}: {wanted}")
    rows = found.reindex(index=sessions, columns=list(panel.symbols))
    return rows.to_numpy(dtype=float, na_value=np.nan)


def _bars(panel: Panel) -> Bars:
    columns = pd.Index(panel.symbols)
    # Copies, so that what a feature writes into its bars reaches no other.
    grids = (getattr(panel, name).copy() for name in PRICES)
    return Bars(*(pd.DataFrame(each, index=panel.sessions, columns=columns) for each in grids))


def ranks_of(values: Features, there: There) -> Features:
    """Return the rank of each value within its day, in [-0.5, 0.5], among the
    stocks that are there.
    """
    ranks = [
        ranked(np.where(there, values[..., column], np.nan)) for column in range(values.shape[-1])
    ]
    return np.stack(ranks, axis=-1).astype(np.float32)


def fit(model: Any, ranks: Features, relative: Grid, days: slice) -> Any:
    """Return a model fitted to the ranked outcomes of some sessions; None stands for the product's
    boosting.

    Where a rank is missing, a user's model reads 0, the middle of the day. A torch module learns a
    day a step.
    """
    known = np.isfinite(relative[days])
    x, y = ranks[days][known], relative[days][known]
    if model is None:
        return fit_boosting(x, y, BoostingConfig())
    made, filled = _fresh(model), np.nan_to_num(x)
    if not hasattr(made, "forward"):
        return made.fit(filled, y > 0 if hasattr(made, "predict_proba") else y)
    import torch

    torch.manual_seed(0)
    optimiser = torch.optim.Adam(made.parameters(), lr=getattr(made, "rate", RATE))
    counts = [int(each) for each in known.sum(axis=1) if each]
    steps = list(
        zip(
            torch.from_numpy(filled).split(counts),
            torch.from_numpy(y).float().split(counts),
            strict=True,
        )
    )
    made.train()
    for features, outcome in steps * getattr(made, "epochs", EPOCHS):
        optimiser.zero_grad()
        (made(features).reshape(-1) - outcome).square().mean().backward()
        optimiser.step()
    return made


def _fresh(model: Any) -> Any:
    return model() if isinstance(model, type) else copy.deepcopy(model)


def scored(model: Any, ranks: Features, there: There, *, backwards: bool = False) -> Grid:
    """Return the scores of a model, asked day by day as nights ask it.

    They are NaN for the stocks that are not there. `backwards`: the last day is asked first.
    """
    found = np.full(there.shape, np.nan)
    if isinstance(model, Boosting):  # ours looks at no other row: it may be asked all days at once
        found[there] = model.score(ranks[there])
        return found
    days = np.flatnonzero(there.any(axis=1))
    for day in days[::-1] if backwards else days:
        said = _score(model, ranks[day][there[day]])
        found[day, there[day]] = np.asarray(said, dtype=float).reshape(-1)
    return found


def _score(model: Any, ranks: Float[ndarray, "stocks features"]) -> Any:
    filled = np.nan_to_num(ranks)
    if hasattr(model, "forward"):
        import torch

        return model.eval()(torch.from_numpy(filled)).detach().numpy()
    return (
        model.predict_proba(filled)[:, -1]
        if hasattr(model, "predict_proba")
        else model.predict(filled)
    )


def kept(model: Any, ranks: Features, relative: Grid, days: slice) -> Arrays:
    """Return what is kept of a fitted model: its numbers; of one that only a
    pickle holds, the rows it learnt from.
    """
    if isinstance(model, Boosting) or hasattr(model, "state_dict"):
        numbers = asdict(model) if isinstance(model, Boosting) else model.state_dict()
        return {name: np.asarray(each) for name, each in numbers.items()}
    known = np.isfinite(relative[days])
    return {"ranks": ranks[days][known][None], "relative": relative[days][known][None]}


def restored(loaded: Loaded, held: Arrays) -> Any:
    """Return the model that `kept` kept."""
    if loaded.model is None:
        return Boosting(**cast(Any, held | {"depth": int(held["depth"])}))
    made = _fresh(loaded.model)
    if not hasattr(made, "forward"):
        return fit(loaded.model, held["ranks"], held["relative"], slice(None))
    import torch

    made.load_state_dict({name: torch.from_numpy(each) for name, each in held.items()})
    return made
