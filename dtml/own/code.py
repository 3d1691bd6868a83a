"""The contents of a user's own file: features of a day's stocks, and perhaps a model of them."""

import copy
import hashlib
import inspect
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from dtml.errors import DtmlError, UsageError
from dtml.own.confinement import Arrays
from dtml.ranking.models import Boosting, BoostingConfig, fit_boosting
from dtml.ranking.panel import Features, Grid, Panel, There, ranked

OWN = "own"  # the name of the predictor
MODULE = "own_code"  # the name under which the file is imported
HISTORY = 260  # sessions that a feature may read unless the file sets another number
EPOCHS = 5  # a torch module's `epochs`
RATE = 0.001  # a torch module's `rate`

PRICES = ("open", "high", "low", "close", "volume", "value")


class Bars:
    """The input of a feature: a frame for each of PRICES, a row a session, a column a stock.

    NaN without a bar; the last row is the session computed. Prices are multiples of the stock's
    last close, `volume` is shares times it, `value` in currency units: no frame tells of later
    actions.
    """

    def __init__(self, window: Panel) -> None:
        self._window = window
        self._symbols = pd.Index(window.symbols)

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name not in PRICES:
            raise AttributeError(f"bars have no {name}: they have {', '.join(PRICES)}")
        # A frame of its own for each feature, which may write into it.
        grid = getattr(self._window, name).copy()
        return pd.DataFrame(grid, self._window.sessions, self._symbols)


Feature = Callable[[Bars], Any]


class OwnCodeError(DtmlError):
    """An error in a user's own file, which ends its model for the night, never the night."""


@dataclass(frozen=True)
class OwnCode:
    """The text of a user's file as it was read; a training stores it."""

    name: str
    text: str

    @classmethod
    def read(cls, file: Path) -> "OwnCode":
        """Read a file of UTF-8 text; raise UsageError where it cannot be read."""
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
    """What a file defined: features, MODEL (None: boosting), and the sessions that one reads."""

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

    Features are public functions of `bars`, and the entries of FEATURES. Resets this process's
    random generators. Raises OwnCodeError without a feature, and whatever the text raises.
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
    history = int(getattr(module, "HISTORY", HISTORY))
    if history < 1:
        raise OwnCodeError(f"HISTORY is {history}: set it to the number of sessions, 1 or more")
    return Loaded(features=features, model=getattr(module, "MODEL", None), history=history)


def _is_feature(name: str, value: Any) -> bool:
    """Return whether a name of the file is a public function of `bars` alone."""
    if not inspect.isfunction(value) or name[0] == "_":
        return False
    return list(inspect.signature(value).parameters) == ["bars"]


def window_of(panel: Panel, day: int, history: int) -> Panel:
    """Return the last `history` sessions of a panel up to a day, in units of `Bars`."""
    window = panel.cut(slice(max(0, day + 1 - history), day + 1))
    adjusted = pd.DataFrame(window.close).ffill().to_numpy()[-1]  # [stocks]
    traded = pd.DataFrame(window.value / window.volume).ffill().to_numpy()[-1]  # as it was then
    prices = {name: getattr(window, name) / adjusted for name in ("open", "high", "low", "close")}
    return replace(window, **prices, volume=window.volume * traded)


def values_of(loaded: Loaded, window: Panel) -> Float[ndarray, "stocks features"]:
    """Return every feature of the last session of a window; NaN where missing or infinite.

    A feature that fails on fewer than HISTORY sessions is missing. Raises OwnCodeError for an
    answer that is no frame or series of the stocks, and else what a feature raises.
    """
    bars = Bars(window)
    values = np.full((len(window.symbols), len(loaded.features)), np.nan)
    for column, (name, feature) in enumerate(loaded.features.items()):
        try:
            values[:, column] = _last_row(name, feature(bars), window.symbols)
        except Exception:
            if len(window.sessions) >= loaded.history:
                raise
    return np.where(np.isfinite(values), values, np.nan)


def _last_row(name: str, answer: Any, symbols: tuple[str, ...]) -> Float[ndarray, " stocks"]:
    row = answer.iloc[-1] if isinstance(answer, pd.DataFrame) else answer
    if not isinstance(row, pd.Series) or row.index.intersection(list(symbols)).empty:
        raise OwnCodeError(
            f"{name} returned {type(answer).__name__}: "
            "return a frame like bars.close, or a Series like its last row"
        )
    stocks: Float[ndarray, " stocks"] = row.reindex(list(symbols)).to_numpy(float, na_value=np.nan)
    return stocks


def ranks_of(values: Features, there: There) -> Features:
    """Return the rank of each value within its day, in [-0.5, 0.5], among `there`; else NaN."""
    ranks = [
        ranked(np.where(there, values[..., column], np.nan)) for column in range(values.shape[-1])
    ]
    return np.stack(ranks, axis=-1).astype(np.float32)


def fit(model: Any, ranks: Features, relative: Grid) -> Any:
    """Return a model fitted to the ranked outcomes of sessions.

    None stands for the product's boosting; a user's own model is copied, or created from a class.
    `ranks` are those of features, [sessions stocks features]; `relative` those of outcomes,
    [sessions stocks] in [-0.5, 0.5], NaN unknown. A classifier (`predict_proba`) learns whether the
    outcome's rank is above 0. A user's model reads a missing feature as 0; a torch module learns
    one day in each step.
    """
    has_outcome = np.isfinite(relative)  # [sessions stocks]
    x = ranks[has_outcome]  # [rows features], a row for each stock-day, in order of time
    y = relative[has_outcome]  # [rows]
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

    `stocks_by_day` counts the rows of each day. A module may set its `rate` and `epochs`; torch's
    generator is seeded.
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


def scored(model: Any, ranks: Features, there: There) -> Grid:
    """Return a model's scores, [days stocks], asked day by day; NaN where not `there`."""
    scores = np.full(there.shape, np.nan)
    if isinstance(model, Boosting):  # it scores each row alone, so all days can go at once
        scores[there] = model.score(ranks[there])
        return scores
    for day in np.flatnonzero(there.any(axis=1)):
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


def kept(model: Any, ranks: Features, relative: Grid) -> Arrays:
    """Return the arrays to store of a fitted model, from which `restored` makes it again.

    For boosting and torch modules these are its numbers. For another model they are the rows from
    which it learnt, because a pickle would run code when it is read.
    """
    if isinstance(model, Boosting) or hasattr(model, "state_dict"):
        numbers = asdict(model) if isinstance(model, Boosting) else model.state_dict()
        return {name: np.asarray(value) for name, value in numbers.items()}
    has_outcome = np.isfinite(relative)
    rows = ranks[has_outcome]  # [rows features]
    outcomes_of_rows = relative[has_outcome]  # [rows]
    return {"ranks": rows[None], "relative": outcomes_of_rows[None]}  # `fit` reads a day axis


def restored(loaded: Loaded, arrays: Arrays) -> Any:
    """Return the model whose arrays `kept` returned; from rows, it is fitted again."""
    if loaded.model is None:
        return Boosting(**arrays)
    model = _fresh(loaded.model)
    if not hasattr(model, "forward"):
        return fit(loaded.model, arrays["ranks"], arrays["relative"])
    import torch

    weights = {name: torch.from_numpy(value) for name, value in arrays.items()}
    model.load_state_dict(weights)
    return model
