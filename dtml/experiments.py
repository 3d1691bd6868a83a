"""What a market's nightly model is and how it is trained, in one value.

A variant is a `dataclasses.replace` of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date
from typing import Any

import pandas as pd

from dtml.errors import DtmlError, UsageError
from dtml.markets.definition import Returns, ZClose
from dtml.model import ModelConfig
from dtml.training.recipe import Member, TrainingConfig
from dtml.windows import WindowConfig, Windows

MINIMUM_TRAIN_DAYS = 64  # below that there is nothing to learn from


@dataclass(frozen=True)
class Experiment:
    """Everything but bars and seeds that decides the result of a training."""

    windows: WindowConfig = field(default_factory=WindowConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seeds: int = 2  # seeds 0, 1, ... of the ensemble
    train_sessions: int | None = None  # days of the training span; None: all there are
    validation_sessions: int = 126  # days before `as_of` that choose the epoch
    # days left out before and after them, so that no close is part of labels on both sides
    gap_sessions: int = 1
    warm_start: bool = False  # start from the weights of the previous model, not from fresh ones

    def __post_init__(self) -> None:
        counts = (
            self.seeds,
            1 if self.train_sessions is None else self.train_sessions,
            self.validation_sessions,
        )
        if min(counts) < 1 or self.gap_sessions < 0:
            raise UsageError(
                "seeds, train_sessions and validation_sessions must be 1 or more, gap_sessions "
                f"0 or more; got {counts} and {self.gap_sessions}"
            )

    def members_of(self, *seeds: int) -> list[Member]:
        """Return the members of its ensemble, or those of other seeds."""
        return [Member(seed, self.model, self.training) for seed in seeds or range(self.seeds)]

    @property
    def history(self) -> int | None:
        """Return the number of sessions of bars that a training reads; None is all there are."""
        if self.train_sessions is None:
            return None
        return (
            self.train_sessions
            + self.validation_sessions
            + 2 * self.gap_sessions
            + self.windows.history
        )

    def spans(self, windows: Windows, as_of: date) -> tuple[Windows, Windows]:
        """Return the training days, then the validation days that choose the epoch; no target lies
        after `as_of`.

        A gap of `gap_sessions` days parts them from each other and from the first session
        predicted. Raises DtmlError when the history is too short.
        """
        known = windows.between(last=pd.Timestamp(as_of))
        stop = len(known) - self.gap_sessions
        cut = stop - self.validation_sessions
        end = cut - self.gap_sessions
        begin = 0 if self.train_sessions is None else max(0, end - self.train_sessions)
        if end - begin < MINIMUM_TRAIN_DAYS:
            raise DtmlError(
                f"{len(known)} days up to {as_of} have a whole window; training needs at least "
                f"{MINIMUM_TRAIN_DAYS} before the {self.validation_sessions} validation sessions: "
                "fetch a longer history"
            )
        return known.days(slice(begin, end)), known.days(slice(cut, stop))


def nightly() -> Experiment:
    """Return the experiment of a night: the paper's network, its gains shared, stopped early."""
    training = TrainingConfig(epochs=15, first_kept_epoch=3, patience=5)
    return Experiment(model=ModelConfig(normalisation="shared"), training=training)


def nightly_of(
    overrides: Mapping[str, Any], z_close: ZClose, returns: Returns, max_return: float | None
) -> Experiment:
    """Return `nightly` with what a market's file says of bars and under `[model]`."""
    of_bars = {"z_close": z_close, "returns": returns, "max_return": max_return}
    return vary(nightly(), {**of_bars, **overrides})


def vary(experiment: Experiment, overrides: Mapping[str, Any]) -> Experiment:
    """Return the experiment with parameters replaced by name, whichever part of
    it they belong to.
    """
    parts = {}
    for part in ("windows", "model", "training"):
        config = getattr(experiment, part)
        parts[part] = replace(
            config, **{f.name: overrides[f.name] for f in fields(config) if f.name in overrides}
        )
    own = {
        f.name: overrides[f.name]
        for f in fields(experiment)
        if f.name in overrides and f.name not in parts
    }
    return replace(experiment, **parts, **own)
