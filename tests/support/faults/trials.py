"""A work tried with a fault at each of its points, or with histories of several."""

import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module

from tests.support.faults.points import APPLIES, POSTGRESQL_ALONE, Fault, Kind, Point
from tests.support.faults.runs import Bench, Work, standing_in
from tests.support.faults.states import State, difference

MOST = 5  # faults of a history


@dataclass(frozen=True, order=True)
class Blow:
    """A fault in a try of one of a work's steps, the first being 1."""

    step: int
    point: int
    kind: Kind

    def __str__(self) -> str:
        return f"{self.step}:{self.kind}@{self.point}"

    @staticmethod
    def read(text: str) -> "Blow":
        """A blow from its words."""
        step, _, rest = text.partition(":")
        kind, _, point = rest.partition("@")
        assert kind in APPLIES, f"there is no fault {kind!r}"
        return Blow(int(step), int(point), kind)


@dataclass
class Tally:
    """What was tried of a work, and what came of it."""

    work: str
    engine: str
    points: int = 0
    tried: Counter[str] = field(default_factory=Counter)
    rows_lost: int = 0
    rows_more: int = 0
    other_weights: int = 0
    other_files: int = 0
    leftovers: int = 0
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Trials:
    """A work prepared, its points counted, and what it leaves when nobody disturbs it."""

    def __init__(self, bench: Bench, work: Work) -> None:
        self.bench, self.work = bench, work
        self.tally = Tally(work.name, bench.engine)
        self._begun = time.monotonic()
        bench.prepare(work)
        self.points, self.expected = self._undisturbed()
        self.tally.points = sum(map(len, self.points))

    def _undisturbed(self) -> tuple[list[Sequence[Point]], State]:
        """The points of each step, and the state after the last; run twice, as
        the first one says what to import.
        """
        states = []
        for again in (False, True):
            self.bench.renew()
            if again:
                with standing_in(self.bench):
                    self.work.warm(self.bench.home)
                self.bench.renew()
            points = []
            for step in self.work.steps:
                found = self.bench.attempt(step)
                assert found.ended == "done", f"{self.work.name}, undisturbed: {found.ended}"
                assert not found.unseen, f"{self.work.name}: nobody saw who wrote {found.unseen}"
                _import(found.modules)
                points.append(found.points)
            states.append(self.bench.state())
        apart = difference(*states)
        assert not apart, f"{self.work.name}, undisturbed, is not the same twice: {apart}"
        return points, states[0]

    def blows(self, kinds: Sequence[Kind] = tuple(APPLIES)) -> list[Blow]:
        """Every fault of these kinds that this engine can have, at every point."""
        kinds = [
            kind
            for kind in kinds
            if self.bench.engine == "postgresql" or kind not in POSTGRESQL_ALONE
        ]
        return [
            Blow(step, number, kind)
            for step, points in enumerate(self.points, start=1)
            for number, point in enumerate(points, start=1)
            for kind in kinds
            if point.suffers(kind)
        ]

    def try_each(self, blows: Sequence[Blow]) -> Tally:
        """Try these, each alone."""
        for blow in blows:
            complaint = self.complaint([blow], self.tally)
            self.tally.tried[blow.kind] += 1
            if complaint is not None:
                point = self.points[blow.step - 1][blow.point - 1]
                self.tally.broken.append(
                    f"{self.work.name} {blow} ({point.kind} {point.what}): {complaint}"
                )
        self.tally.seconds = time.monotonic() - self._begun
        return self.tally

    def try_histories(self, seed: int, count: int) -> Tally:
        """Deal so many histories of 2 to `MOST` faults and try them."""
        draw = random.Random(f"{self.work.name} {seed}")
        dealt = self.blows()
        for _ in range(count):
            history = sorted(
                draw.choices(dealt, k=draw.randint(2, MOST)), key=lambda blow: blow.step
            )
            self.tally.tried["history"] += 1
            complaint = self.complaint(history, self.tally)
            if complaint is not None:
                faults = " ".join(f"'{blow}'" for blow in history)
                self.tally.broken.append(
                    f"python -m benchmarks.faults --engine {self.bench.engine} --again "
                    f"'{self.work.name}' {faults}: {complaint}"
                )
        self.tally.seconds = time.monotonic() - self._begun
        return self.tally

    def complaint(self, history: Sequence[Blow], tally: Tally | None = None) -> str | None:
        """Run the steps, each with its faults and then without one; what is wrong then, or None."""
        tally = tally or Tally(self.work.name, self.bench.engine)
        self.bench.renew()
        for number, step in enumerate(self.work.steps, start=1):
            for blow in (each for each in history if each.step == number):
                ended = self.bench.attempt(step, Fault(blow.kind, blow.point)).ended
                if ended.startswith("died") or ended.endswith("said nothing"):
                    return f"the try {ended}"
                with standing_in(self.bench):
                    wrong = self.work.sound(self.bench.home)
                if wrong:
                    return f"after it: {'; '.join(wrong)}"
            if len(history) == 1 and self._is_end(history[0], number):
                continue  # nobody runs again what has ended
            ended = self.bench.attempt(step).ended
            if ended != "done" and not (self.work.again and self.work.again in ended):
                return f"run again: {ended}"
        apart = difference(self.expected, self.bench.state())
        tally.rows_lost += len(apart.lost)
        tally.rows_more += len(apart.more)
        tally.other_weights += len(apart.weights)
        tally.other_files += len(apart.changed) - len(apart.weights)
        tally.leftovers += len(apart.left)
        return str(apart) if apart else None

    def _is_end(self, blow: Blow, step: int) -> bool:
        return blow.step == step and blow.point == len(self.points[step - 1])


def _import(names: frozenset[str]) -> None:
    """Import what a try imported, so that the next one need not."""
    for name in sorted(names - set(sys.modules)):
        if not name.startswith("__"):
            with suppress(Exception):
                import_module(name)
