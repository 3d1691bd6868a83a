"""What a user's own file holds: features of the stocks of a day.

It may hold a model too, which orders the stocks by them.
"""

import copy
import hashlib
import inspect
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
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
HISTORY = 260  # sessions a feature may read
EPOCHS = 5  # a torch module's `epochs`
RATE = 0.001  # a torch module's `rate`

PRICES = ("open", "high", "low", "close", "volume", "value")
Arrays = dict[str, ndarray]


class Bars:
    """What a feature reads: a frame for each of PRICES, a row a session, a column a stock.

    NaN where there is no bar; prices are adjusted, `value` is the unadjusted close times the
    volume. The last row is the day that the feature is of. A frame is made when it is first read:
    most features read one or two, and a frame takes as long as a mean.
    """

    def __init__(self, panel: Panel) -> None:
        self._sessions = panel.sessions
        # A view, so that a name given to it reaches no other.
        self._symbols = _index_of(panel.symbols).view()
        # Copies, so that what a feature writes into its bars reaches no other, and a view of them
        # leads to no later day.
        self._prices = {name: getattr(panel, name).copy() for name in PRICES}

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name not in PRICES:
            raise AttributeError(f"bars have no {name}: they have {', '.join(PRICES)}")
        frame = pd.DataFrame(self._prices[name], index=self._sessions, columns=self._symbols)
        setattr(self, name, frame)
        return frame

    def is_shaped(self, answer: pd.DataFrame) -> bool:
        """Return whether a frame has the sessions and stocks of these, in their order."""
        return answer.index.is_(self._sessions) and answer.columns.is_(self._symbols)


@cache
def _index_of(symbols: tuple[str, ...]) -> pd.Index:
    """Return the columns of a panel: making them takes as long as four frames."""
    return pd.Index(symbols)


Feature = Callable[[Bars], Any]


class OwnCodeError(DtmlError):
    """Say what is wrong with a user's own file.

    It ends that file's model for the night, never the night.
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
    """A file that was run.

    It has its features by name, its MODEL or None, and the sessions that a feature may read.
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
    """Run the text anew, from fixed seeds.

    Features are its public functions of `bars`, and its dict FEATURES.
    """
    seed(code)
    module = ModuleType(MODULE)
    sys.modules[MODULE] = module
    exec(compile(code.text, code.name, "exec"), module.__dict__)  # noqa: S102 - it is what the user asks for
    features: dict[str, Feature] = {
        name: value for name, value in vars(module).items() if _is_feature(name, value)
    }
    features.update(getattr(module, "FEATURES", {}))
    if not features:
        raise OwnCodeError("no feature: write a function of one argument, `bars`")
    return Loaded(
        features=features,
        model=getattr(module, "MODEL", None),
        history=int(getattr(module, "HISTORY", HISTORY)),
    )


def _is_feature(name: str, value: Any) -> bool:
    """Return whether a name of the file is a public function of `bars` alone."""
    if not inspect.isfunction(value) or name[0] == "_":
        return False
    return list(inspect.signature(value).parameters) == ["bars"]


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
    grids = [
        _values(name, feature, loaded, panel, rows) for name, feature in loaded.features.items()
    ]
    values = np.stack(grids, axis=-1)
    return np.where(np.isfinite(values), values, np.nan)


def nights_of(
    loaded: Loaded, panel: Panel, days: Sequence[int], windows: Mapping[str, int]
) -> Features:
    """Return what nights would have said on these days: from the sessions up to each day alone.

    `windows` names the features that are asked, and the sessions that each may read. One that fails
    on fewer than its own history is missing there.
    """
    values = np.full((len(days), len(panel.symbols), len(loaded.features)), np.nan)
    pasts = {
        (day, sessions): _up_to(panel, day, sessions)
        for sessions in set(windows.values())
        for day in days
    }
    for column, (name, feature) in enumerate(loaded.features.items()):
        if name not in windows:
            continue
        for row, day in enumerate(days):
            seen = pasts[day, windows[name]]
            try:
                values[row, :, column] = _last_row(name, feature, seen)
            except Exception:
                if windows[name] >= loaded.history:
                    raise
    return np.where(np.isfinite(values), values, np.nan)


def _up_to(panel: Panel, day: int, sessions: int) -> Panel:
    """Return so many sessions of a panel, up to a day."""
    return cut(panel, slice(max(0, day + 1 - sessions), day + 1))


def _values(name: str, feature: Feature, loaded: Loaded, panel: Panel, days: Sequence[int]) -> Grid:
    """Ask a feature for all sessions at once; one that answers with the last alone, by session."""
    answer = feature(Bars(panel))
    if not isinstance(answer, pd.Series):
        return _grid(name, answer, panel.sessions[list(days)], panel)
    rows = []
    for day in days:
        seen = _up_to(panel, day, loaded.history)
        rows.append(_last_row(name, feature, seen))
    return np.stack(rows)


def _last_row(name: str, feature: Feature, panel: Panel) -> Float[ndarray, " stocks"]:
    """Return what a feature says of the last session: it answers with a frame or its last row."""
    bars = Bars(panel)
    answer = feature(bars)
    if isinstance(answer, pd.DataFrame) and bars.is_shaped(answer):  # a reindex takes longer
        last: Float[ndarray, " stocks"] = answer.to_numpy(dtype=float, na_value=np.nan)[-1]
        return last
    if isinstance(answer, pd.Series):
        answer = pd.DataFrame([answer], index=panel.sessions[-1:])
    row: Float[ndarray, " stocks"] = _grid(name, answer, panel.sessions[-1:], panel)[0]
    return row


def _grid(name: str, answer: Any, sessions: pd.DatetimeIndex, panel: Panel) -> Grid:
    if not isinstance(answer, pd.DataFrame):
        raise OwnCodeError(
            f"{name} returned {type(answer).__name__}: "
            "return a frame like bars.close, or its last row"
        )
    rows = answer.reindex(index=sessions, columns=list(panel.symbols))
    return rows.to_numpy(dtype=float, na_value=np.nan)


def ranks_of(values: Features, there: There) -> Features:
    """Return the rank of each value within its day among the stocks that are there.

    It is in [-0.5, 0.5].
    """
    ranks = [
        ranked(np.where(there, values[..., column], np.nan)) for column in range(values.shape[-1])
    ]
    return np.stack(ranks, axis=-1).astype(np.float32)


def fit(model: Any, ranks: Features, relative: Grid, days: slice) -> Any:
    """Return a model fitted to the ranked outcomes of some sessions.

    None stands for the product's boosting. Where a rank is missing, a user's model reads 0, the
    middle of the day. A torch module learns a day a step.
    """
    known = np.isfinite(relative[days])
    x = ranks[days][known]
    y = relative[days][known]
    if model is None:
        return fit_boosting(x, y, BoostingConfig())
    fresh = _fresh(model)
    filled = np.nan_to_num(x)
    if hasattr(fresh, "forward"):
        stocks_by_day = [int(stocks) for stocks in known.sum(axis=1) if stocks]
        return _fit_module(fresh, filled, y, stocks_by_day)
    is_classifier = hasattr(fresh, "predict_proba")
    return fresh.fit(filled, y > 0 if is_classifier else y)


def _fit_module(
    module: Any,
    x: Float[ndarray, "rows features"],
    y: Float[ndarray, " rows"],
    stocks_by_day: list[int],
) -> Any:
    """Return a torch module that has learned a day a step."""
    import torch

    torch.manual_seed(0)
    optimiser = torch.optim.Adam(module.parameters(), lr=getattr(module, "rate", RATE))
    features_by_day = torch.from_numpy(x).split(stocks_by_day)
    outcomes_by_day = torch.from_numpy(y).float().split(stocks_by_day)
    module.train()
    for _ in range(getattr(module, "epochs", EPOCHS)):
        for features, outcome in zip(features_by_day, outcomes_by_day, strict=True):
            optimiser.zero_grad()
            (module(features).reshape(-1) - outcome).square().mean().backward()
            optimiser.step()
    return module


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
