"""The contents of a user's own file: features of the stocks of a day.

It may hold a model too, which ranks the stocks by their features.
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
MODULE = "own_code"  # the name under which the file is imported
HISTORY = 260  # sessions that a feature may read unless the file sets another number
EPOCHS = 5  # a torch module's `epochs`
RATE = 0.001  # a torch module's `rate`

PRICES = ("open", "high", "low", "close", "volume", "value")
Arrays = dict[str, ndarray]


class Bars:
    """The input of a feature: a frame for each of PRICES, a row a session, a column a stock.

    NaN where there is no bar; prices are adjusted, `value` is the unadjusted close times the
    volume. The last row is the day whose feature is computed. A frame is created when it is first
    read: most features read one or two, and creating a frame takes as long as a mean.
    """

    def __init__(self, panel: Panel) -> None:
        self._sessions = panel.sessions
        # A view, so that a name set on it does not appear on the cached index.
        self._symbols = _index_of(panel.symbols).view()
        # Copies, so that a feature that writes into its bars affects no other feature, and no view
        # of them gives access to a later day.
        self._prices = {name: getattr(panel, name).copy() for name in PRICES}

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name not in PRICES:
            raise AttributeError(f"bars have no {name}: they have {', '.join(PRICES)}")
        frame = pd.DataFrame(self._prices[name], index=self._sessions, columns=self._symbols)
        setattr(self, name, frame)  # Python calls `__getattr__` only for what is not set
        return frame

    def is_shaped(self, answer: pd.DataFrame) -> bool:
        """Return whether a frame's index and columns are the very objects of these bars.

        A frame whose index is only equal gives False, and is read in a slower way.
        """
        return answer.index.is_(self._sessions) and answer.columns.is_(self._symbols)


@cache
def _index_of(symbols: tuple[str, ...]) -> pd.Index:
    """Return the columns of a panel; creating them takes as long as four frames."""
    return pd.Index(symbols)


Feature = Callable[[Bars], Any]


class OwnCodeError(DtmlError):
    """An error in a user's own file.

    It ends that file's model for the night, never the night itself.
    """


@dataclass(frozen=True)
class OwnCode:
    """The text of a user's file as it was read; a training stores it."""

    name: str
    text: str

    @classmethod
    def read(cls, file: Path) -> "OwnCode":
        """Read a file of UTF-8 text; raise UsageError where it cannot be read.

        A byte order mark, with which some editors begin a file, is no part of the text.
        """
        try:
            return cls(file.name, file.read_text(encoding="utf-8-sig"))
        except OSError as problem:
            raise UsageError(
                f"{file}: your own code cannot be read ({problem.strerror or problem}): check the "
                "file's path and permissions"
            ) from problem
        except UnicodeDecodeError as problem:
            raise UsageError(
                f"{file}: your own code cannot be read ({problem}): save it as UTF-8 text"
            ) from problem

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class Loaded:
    """The contents of a file that was run.

    These are its features by name, its MODEL (None: the product's boosting), and the number of
    sessions that a feature may read.
    """

    features: Mapping[str, Feature]
    model: Any
    history: int


def seed(code: OwnCode) -> None:
    """Reset the random generators that a text may use."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in code.text:
        import torch

        torch.manual_seed(0)


def load(code: OwnCode) -> Loaded:
    """Run the text in a new module, from fixed seeds, and return what it defines.

    Features are its public functions of `bars`, and the entries of its dict FEATURES, which replace
    functions of the same name. The random generators of this process are reset (`seed`), and the
    module stays in `sys.modules`. Raises OwnCodeError where there is no feature, and whatever the
    text raises.
    """
    seed(code)
    module = ModuleType(MODULE)
    sys.modules[MODULE] = module  # where `dataclass`, for one, looks up the module of a class
    exec(compile(code.text, code.name, "exec"), module.__dict__)  # noqa: S102 - it is what the user asks for
    features: dict[str, Feature] = {
        name: value for name, value in vars(module).items() if _is_feature(name, value)
    }
    features.update(getattr(module, "FEATURES", {}))
    if not features:
        raise OwnCodeError(
            "no feature is defined: write a function whose only argument is called `bars` and "
            "whose own name does not begin with _"
        )
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
    """Return every feature of these days of a panel (None: of all days): [days stocks features].

    Missing and infinite values are NaN. A feature that returns a frame reads the whole panel,
    whatever the days; one that returns a series is called for each of the days (`_values`).
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
    """Return the features that nights would have computed, from the sessions up to each day alone.

    They are [days stocks features], NaN where missing or infinite. `windows` maps the features that
    are computed to the number of sessions that each may read; others are NaN. A feature that may
    read fewer sessions than HISTORY is NaN where it fails; the error of one that may read as many
    as HISTORY is raised.
    """
    values = np.full((len(days), len(panel.symbols), len(loaded.features)), np.nan)
    # Each past is cut once, for all features that read as many sessions.
    pasts: dict[tuple[int, int], Panel] = {}
    for sessions in set(windows.values()):
        for day in days:
            pasts[day, sessions] = _up_to(panel, day, sessions)
    for column, (name, feature) in enumerate(loaded.features.items()):
        if name not in windows:
            continue
        for row, day in enumerate(days):
            past = pasts[day, windows[name]]
            try:
                values[row, :, column] = _last_row(name, feature, past)
            except Exception:
                # A short window was only a try; with its whole history a feature must not fail.
                if windows[name] >= loaded.history:
                    raise
    return np.where(np.isfinite(values), values, np.nan)


def _up_to(panel: Panel, day: int, sessions: int) -> Panel:
    """Return the last sessions of a panel up to a day, at most `sessions` of them."""
    stop = day + 1
    return cut(panel, slice(max(0, stop - sessions), stop))


def _values(name: str, feature: Feature, loaded: Loaded, panel: Panel, days: Sequence[int]) -> Grid:
    """Return a feature of some days, [days stocks], from one call or from a call for each day.

    If the feature returns a frame, that covers all sessions, and its rows of these days are
    returned. If it returns a series, that is the last row alone: the feature is called once more
    for each day, with the last HISTORY sessions up to that day.
    """
    answer = feature(Bars(panel))
    if not isinstance(answer, pd.Series):
        return _grid(name, answer, panel.sessions[list(days)], panel)
    rows = []
    for day in days:
        past = _up_to(panel, day, loaded.history)
        rows.append(_last_row(name, feature, past))
    return np.stack(rows)


def _last_row(name: str, feature: Feature, panel: Panel) -> Float[ndarray, " stocks"]:
    """Return a feature's values in the last session; it may return a frame or only its last row."""
    bars = Bars(panel)
    answer = feature(bars)
    if isinstance(answer, pd.DataFrame) and bars.is_shaped(answer):  # faster than a reindex
        last: Float[ndarray, " stocks"] = answer.to_numpy(dtype=float, na_value=np.nan)[-1]
        return last
    last_session = panel.sessions[-1:]
    if isinstance(answer, pd.Series):
        answer = pd.DataFrame([answer], index=last_session)
    row: Float[ndarray, " stocks"] = _grid(name, answer, last_session, panel)[0]
    return row


def _grid(name: str, answer: Any, sessions: pd.DatetimeIndex, panel: Panel) -> Grid:
    """Return a feature's frame on these sessions and the stocks of a panel, NaN where it has none.

    Raises OwnCodeError if the feature did not return a frame.
    """
    if not isinstance(answer, pd.DataFrame):
        raise OwnCodeError(
            f"{name} returned {type(answer).__name__}: "
            "return a frame like bars.close, or a Series like its last row"
        )
    rows = answer.reindex(index=sessions, columns=list(panel.symbols))
    return rows.to_numpy(dtype=float, na_value=np.nan)


def ranks_of(values: Features, there: There) -> Features:
    """Return the rank of each value within its day, in [-0.5, 0.5], among the stocks of `there`.

    It is NaN for other stocks and for missing values.
    """
    ranks = [
        ranked(np.where(there, values[..., column], np.nan)) for column in range(values.shape[-1])
    ]
    return np.stack(ranks, axis=-1).astype(np.float32)


def fit(model: Any, ranks: Features, relative: Grid, days: slice) -> Any:
    """Return a model fitted to the ranked outcomes of some sessions.

    A `model` of None stands for the product's boosting. A user's own is copied first, or created if
    it is a class. `ranks` are those of the features, [sessions stocks features]; `relative` are the
    ranks of the outcomes, [sessions stocks] in [-0.5, 0.5]. The model learns from the stock-days of
    `days` that have an outcome; a classifier, which is a model with `predict_proba`, learns whether
    the rank is above 0. Where a feature's rank is missing, a user's model reads 0, the middle of
    the day. A torch module learns one day in each step.
    """
    has_outcome = np.isfinite(relative[days])  # [days stocks]
    x = ranks[days][has_outcome]  # [rows features], a row for each stock-day, in order of time
    y = relative[days][has_outcome]  # [rows]
    if model is None:
        return fit_boosting(x, y, BoostingConfig())
    fresh = _fresh(model)
    filled = np.nan_to_num(x)
    if hasattr(fresh, "forward"):
        # A day without any outcome has no rows, and so no step.
        stocks_by_day = [int(stocks) for stocks in has_outcome.sum(axis=1) if stocks]
        return _fit_module(fresh, filled, y, stocks_by_day)
    is_classifier = hasattr(fresh, "predict_proba")
    labels = y > 0 if is_classifier else y
    fresh.fit(filled, labels)
    return fresh


def _fit_module(
    module: Any,
    x: Float[ndarray, "rows features"],
    y: Float[ndarray, " rows"],
    stocks_by_day: list[int],
) -> Any:
    """Return a torch module that has learned one day in each step, by Adam on squared errors.

    The rows are those of all days, one day after the other; `stocks_by_day` counts those of each.
    A module may set its learning `rate` and its `epochs`. It is changed in place, and torch's
    global generator is seeded.
    """
    import torch

    torch.manual_seed(0)  # for dropout and other draws while it learns
    optimiser = torch.optim.Adam(module.parameters(), lr=getattr(module, "rate", RATE))
    features_by_day = torch.from_numpy(x).split(stocks_by_day)
    outcomes_by_day = torch.from_numpy(y).float().split(stocks_by_day)
    module.train()
    for _ in range(getattr(module, "epochs", EPOCHS)):
        for features, outcome in zip(features_by_day, outcomes_by_day, strict=True):
            optimiser.zero_grad()
            error = module(features).reshape(-1) - outcome
            error.square().mean().backward()
            optimiser.step()
    return module


def _fresh(model: Any) -> Any:
    return model() if isinstance(model, type) else copy.deepcopy(model)


def scored(model: Any, ranks: Features, there: There, *, backwards: bool = False) -> Grid:
    """Return the scores, [days stocks], of a model that scores one day at a time, as in nights.

    `ranks` are [days stocks features]. Scores are NaN where `there`, [days stocks], is false. With
    `backwards`, the days are scored from the last to the first; the rows of the result keep their
    order.
    """
    scores = np.full(there.shape, np.nan)
    if isinstance(model, Boosting):  # it scores each row alone, so all days can go at once
        scores[there] = model.score(ranks[there])
        return scores
    days = np.flatnonzero(there.any(axis=1))
    for day in days[::-1] if backwards else days:
        is_there = there[day]
        filled = np.nan_to_num(ranks[day][is_there])
        if hasattr(model, "forward"):
            import torch

            scores_of_day = model.eval()(torch.from_numpy(filled)).detach().numpy()
        elif hasattr(model, "predict_proba"):
            scores_of_day = model.predict_proba(filled)[:, -1]
        else:
            scores_of_day = model.predict(filled)
        scores[day, is_there] = np.asarray(scores_of_day, dtype=float).reshape(-1)
    return scores


def kept(model: Any, ranks: Features, relative: Grid, days: slice) -> Arrays:
    """Return the arrays to store of a fitted model, from which `restored` makes it again.

    Of the product's boosting and of a torch module these are its numbers. Any other model could be
    stored only as a pickle, which would run code when it is read. So the rows from which it learnt
    are stored, as `ranks` and `relative` of a single day, and it is fitted to them again.
    """
    if isinstance(model, Boosting) or hasattr(model, "state_dict"):
        numbers = asdict(model) if isinstance(model, Boosting) else model.state_dict()
        return {name: np.asarray(value) for name, value in numbers.items()}
    has_outcome = np.isfinite(relative[days])
    rows = ranks[days][has_outcome]  # [rows features]
    outcomes_of_rows = relative[days][has_outcome]  # [rows]
    return {"ranks": rows[None], "relative": outcomes_of_rows[None]}  # `fit` reads a day axis


def restored(loaded: Loaded, arrays: Arrays) -> Any:
    """Return the model whose arrays `kept` returned; from rows, it is fitted again."""
    if loaded.model is None:
        depth = int(arrays["depth"])  # stored as an array without axes
        return Boosting(**cast(Any, arrays | {"depth": depth}))
    model = _fresh(loaded.model)
    if not hasattr(model, "forward"):
        return fit(loaded.model, arrays["ranks"], arrays["relative"], slice(None))
    import torch

    weights = {name: torch.from_numpy(value) for name, value in arrays.items()}
    model.load_state_dict(weights)
    return model
