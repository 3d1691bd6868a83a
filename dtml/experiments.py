"""A market's nightly model and its training, as one value, varied by `dataclasses.replace`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import pandas as pd

from dtml.errors import DtmlError, UsageError
from dtml.evaluation.splits import hold_out, known_before
from dtml.markets.definition import Returns, ZClose
from dtml.model import ModelConfig
from dtml.training import Member, TrainingConfig, settings_of
from dtml.windows import WindowConfig, Windows

MINIMUM_TRAIN_DAYS = 64  # fewer days teach nothing


@dataclass(frozen=True)
class Experiment:
    """The settings of a training, which with bars, and a `warm_start`, decide its result."""

    windows: WindowConfig = field(default_factory=WindowConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seeds: int = 2  # seeds 0, 1, ... of the ensemble
    train_sessions: int | None = None  # days of the training span; None: all available
    validation_sessions: int = 126  # days before `as_of` that choose the epoch
    # Days left out before and after the validation days: without a gap, the labels on both sides of
    # a boundary would share a close.
    gap_sessions: int = 1
    warm_start: bool = False  # start from the weights of the previous model, not from fresh ones

    def __post_init__(self) -> None:
        for name in ("seeds", "train_sessions", "validation_sessions"):
            number = getattr(self, name)
            # None is valid for `train_sessions`: it stands for all sessions.
            if number is not None and number < 1:
                raise UsageError(f"{name} must be 1 or more, got {number}")
        if self.gap_sessions < 0:
            raise UsageError(f"gap_sessions must be 0 or more, got {self.gap_sessions}")

    def members_of(self, *seeds: int) -> list[Member]:
        """Return the members of the ensemble: those of the given seeds, or of all its own seeds."""
        member_seeds = seeds or range(self.seeds)
        return [Member(seed, self.model, self.training) for seed in member_seeds]

    @property
    def history(self) -> int | None:
        """Return the number of sessions of bars that a training reads; None means all."""
        if self.train_sessions is None:
            return None
        return (
            self.train_sessions
            + self.validation_sessions
            + 2 * self.gap_sessions  # before and after the validation days
            + self.windows.history
        )

    @property
    def needed_days(self) -> int:
        """Return the number of days with a whole window that a training needs at least."""
        left_out = 2 * self.gap_sessions  # before and after the validation days
        trained = min(MINIMUM_TRAIN_DAYS, self.train_sessions or MINIMUM_TRAIN_DAYS)
        return trained + left_out + self.validation_sessions

    def spans(self, windows: Windows, as_of: date) -> tuple[Windows, Windows]:
        """Return the training days, and the validation days that choose the epoch.

        No target is after `as_of`. There are `validation_sessions` and, before them, at most
        `train_sessions`; `gap_sessions` days are left out between the two, and before the first day
        predicted. Raises DtmlError for fewer than `MINIMUM_TRAIN_DAYS` training days.
        """
        past = windows.between(last=pd.Timestamp(as_of))
        # The outcome of a day is the return to the next session: its horizon is 1.
        known_days = known_before(len(past), horizon=1, gap=self.gap_sessions)
        split = hold_out(known_days, self.validation_sessions, horizon=1, gap=self.gap_sessions)
        # `hold_out` trains on all days from the first: only the last `train_sessions` are kept.
        stop = split.trained.stop  # below 0 where there are too few days
        start = 0 if self.train_sessions is None else max(0, stop - self.train_sessions)
        if stop - start < MINIMUM_TRAIN_DAYS:
            raise DtmlError(self._why_too_few(len(past), as_of))
        return past.days(slice(start, stop)), past.days(split.scored)

    def _why_too_few(self, days: int, as_of: date) -> str:
        """Say why the `days` with a whole window, up to `as_of`, are too few to train on."""
        if self.train_sessions is not None and self.train_sessions < MINIMUM_TRAIN_DAYS:
            return (
                f"train_sessions is {self.train_sessions}, but training needs at least "
                f"{MINIMUM_TRAIN_DAYS}: raise it in [model] of the market's file"
            )
        left_out = 2 * self.gap_sessions  # before and after the validation days
        # With `train_sessions`, no more bars are read than these need (`history`).
        more = "Fetch a longer history, choose a later day"
        if self.train_sessions is not None:
            more += f", raise train_sessions (now {self.train_sessions})"
        return (
            f"{days} days up to {as_of} have a whole window, but training needs at least "
            f"{self.needed_days}: "
            f"{MINIMUM_TRAIN_DAYS} to train on, {left_out} left out and {self.validation_sessions} "
            f"for validation. {more} or lower validation_sessions in [model] of the market's file"
        )


def nightly() -> Experiment:
    """Return a night's experiment: the paper's network, shared gains, early stopping."""
    training = TrainingConfig(epochs=15, first_kept_epoch=3, patience=5)
    return Experiment(model=ModelConfig(normalisation="shared"), training=training)


def nightly_of(
    overrides: Mapping[str, Any], z_close: ZClose, returns: Returns, max_return: float | None
) -> Experiment:
    """Return `nightly` with a market's settings: `[model]` of its file, and how it reads bars.

    Raises UsageError for an override out of its range.
    """
    bar_settings = {"z_close": z_close, "returns": returns, "max_return": max_return}
    try:
        return vary(nightly(), {**bar_settings, **overrides})
    except UsageError as problem:  # whose message begins with the key
        raise UsageError(f"[model] of the market's file: {problem}") from problem


def vary(experiment: Experiment, overrides: Mapping[str, Any]) -> Experiment:
    """Return the experiment with settings replaced in every part that has one of that name.

    Other names are ignored. Raises UsageError for a value that a part refuses.
    """
    parts = {}
    for part in ("windows", "model", "training"):
        config = getattr(experiment, part)
        parts[part] = replace(config, **settings_of(config, overrides))
    own = settings_of(experiment, overrides)
    return replace(experiment, **{**own, **parts})
