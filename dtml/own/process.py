"""A user's own features and model, which run in processes of their own."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dtml.own.code import PRICES, OwnCode, OwnCodeError, ranks_of, window_of
from dtml.own.confinement import Answer, Arrays, Description
from dtml.own.sandbox import Sandbox
from dtml.ranking.panel import Features, Grid, Panel, There


@dataclass(frozen=True)
class Fitted:
    """A fitted model of a user's code: the code, its description, and the arrays that it learnt.

    The description has the names of its `features`, its `history`, the number of sessions that a
    feature may read, and `model`, whether it has one of its own. The names of the arrays begin
    with `own.`, as they are stored beside those of other rankers.
    """

    code: OwnCode
    description: Description
    arrays: Arrays


@dataclass(frozen=True)
class IsolatedCode:
    """A user's code that runs apart; every method raises an OwnCodeError where it fails.

    A feature of a session is computed once, in a process without later ones, and kept in `folder`
    by text, window and session.
    """

    code: OwnCode
    folder: Path | None = None

    @cached_property
    def description(self) -> Description:
        """Return what the code says of itself."""
        description, _ = self._ask("describe")
        return description

    def values(
        self, panel: Panel, days: Sequence[int], on_day: Callable[[], object] = lambda: None
    ) -> Features:
        """Return the features of these positions, [days stocks features], by all processors."""
        history = int(self.description["history"])
        shape = (len(panel.symbols), len(self.description["features"]))
        files = {day: self._file(window_of(panel, day, history)) for day in days}
        values: dict[int, Float[ndarray, "stocks features"]] = {}
        # It must not keep what it saw of a session for another one, not even in shared memory.
        question = {"symbols": panel.symbols, "shares_memory": False}

        def compute(day: int) -> None:
            window = _message(window_of(panel, day, history))
            _, answer = self._ask("values", window, question)
            if answer["values"].shape != shape:
                raise OwnCodeError(f"{self.code.name} has other features on other sessions")
            values[day] = answer["values"]
            _keep(files[day], values[day])
            on_day()

        for day, file in files.items():
            kept = _kept(file)
            if kept is not None and kept.shape == shape:
                values[day] = kept
                on_day()
        pool = ThreadPoolExecutor(os.cpu_count())
        try:
            asked = [pool.submit(compute, day) for day in files if day not in values]
            for ended in as_completed(asked):  # the first failure ends all
                ended.result()
        finally:
            # After an error or an interruption, no other session is begun.
            pool.shutdown(cancel_futures=True)
        return np.stack([values[day] for day in days])

    def walk(
        self,
        panel: Panel,
        there: There,
        relative: Grid,
        folds: Sequence[tuple[slice, slice]],
        on_day: Callable[[], object] = lambda: None,
    ) -> tuple[Grid, Fitted]:
        """Fit a model for each fold, a pair of the days to train on and the days to score.

        `relative` (ranks of outcomes) and `there` are [sessions stocks]. Returns the scores, NaN
        outside, and the last model.
        """
        days = np.unique(np.r_[tuple(part for fold in folds for part in fold)]).tolist()
        ranks = np.full((*there.shape, len(self.description["features"])), np.nan, np.float32)
        ranks[days] = self._ranks(panel, days, there[days], on_day)

        def fold(trained: slice, scored: slice) -> tuple[Grid, Arrays]:
            arrays = {"learnt": ranks[trained], "relative": relative[trained]}
            arrays |= {"ranks": ranks[scored], "there": there[scored]}
            _, answer = self._ask("fold", arrays)
            return answer.pop("scores"), answer  # what is left are the arrays of the model

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            fitted = list(pool.map(fold, *zip(*folds, strict=True)))
        scores = np.full(there.shape, np.nan)
        for (_, scored), (scores_of_fold, _) in zip(folds, fitted, strict=True):
            scores[scored] = scores_of_fold
        _, arrays = fitted[-1]
        return scores, Fitted(self.code, self.description, arrays)

    def night(self, panel: Panel, there: There, fitted: Fitted) -> Grid:
        """Return the last day's scores, [1 stocks]; NaN where not `there`, [sessions stocks]."""
        there = there[-1:]
        ranks = self._ranks(panel, [len(panel.sessions) - 1], there)
        _, answers = self._ask("night", {"ranks": ranks, "there": there, **fitted.arrays})
        return answers["scores"]

    def _ranks(
        self,
        panel: Panel,
        days: Sequence[int],
        there: There,
        on_day: Callable[[], object] = lambda: None,
    ) -> Features:
        """Return the ranks of the features of these positions; `there` is [days stocks]."""
        ranks = ranks_of(self.values(panel, days, on_day), there)
        if np.isnan(ranks).all():  # a model would give all stocks the same score
            first, last = (panel.sessions[days[end]].date() for end in (0, -1))
            span = f"on {last}" if first == last else f"from {first} to {last}"
            raise OwnCodeError(
                f"{self.code.name}: no feature has a value {span}: let one return numbers"
            )
        return ranks

    def _file(self, window: Panel) -> Path | None:
        """Return where the features of the last session of a window are kept."""
        if self.folder is None:
            return None
        digest = hashlib.sha256(json.dumps(window.symbols).encode())
        for array in _message(window).values():
            # Rounded, so that the last bits of a later dividend's factor make no difference.
            rounded = array.astype(np.float32) if array.dtype.kind == "f" else array
            digest.update(rounded.tobytes())
        name = f"{window.sessions[-1].date()}-{digest.hexdigest()[:16]}.npy"
        return self.folder / self.code.sha256[:16] / name

    def _ask(
        self, task: str, arrays: Arrays | None = None, details: Mapping[str, Any] | None = None
    ) -> Answer:
        """Let a fresh process do a task of `dtml.own.work`."""
        question = {"task": task, "text": self.code.text, **(details or {})}
        return SANDBOX.ask(self.code.name, question, arrays or {})


def _message(window: Panel) -> Arrays:
    sessions = window.sessions.to_numpy("datetime64[ns]")
    return {"sessions": sessions} | {name: getattr(window, name) for name in PRICES}


def _kept(file: Path | None) -> Float[ndarray, "stocks features"] | None:
    """Return the values of a file; None where it is missing or damaged."""
    try:
        return None if file is None else cast(ndarray, np.load(file))
    except (OSError, ValueError, EOFError):
        return None


def _keep(file: Path | None, values: Float[ndarray, "stocks features"]) -> None:
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}.npy")
        np.save(part, values)
        part.replace(file)  # whole or not at all


SANDBOX = Sandbox(
    program="dtml.own.work", limits="DTML_CODE", seconds="600", error=OwnCodeError, stays=True
)
