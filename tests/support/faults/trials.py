"""A work tried with a fault at each of its points."""

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
        self.tally.points = len(self.points)

    def _undisturbed(self) -> tuple[Sequence[Point], State]:
        """The points of the work, and the state after it; run twice, as the first one says what to
        import.
        """
        states = []
        for again in (False, True):
            self.bench.renew()
            if again:
                with standing_in(self.bench):
                    self.work.warm(self.bench.home)
                self.bench.renew()
            found = self.bench.attempt(self.work.step)
            assert found.ended == "done", f"{self.work.name}, undisturbed: {found.ended}"
            assert not found.unseen, f"{self.work.name}: nobody saw who wrote {found.unseen}"
            _import(found.modules)
            states.append(self.bench.state())
        apart = difference(*states)
        assert not apart, f"{self.work.name}, undisturbed, is not the same twice: {apart}"
        return found.points, states[0]

    def faults(self, kinds: Sequence[Kind] = tuple(APPLIES)) -> list[Fault]:
        """Every fault of these kinds that this engine can have, at every point."""
        is_server = self.bench.engine == "postgresql"
        return [
            Fault(kind, number)
            for number, point in enumerate(self.points, start=1)
            for kind in kinds
            if point.suffers(kind) and (is_server or kind not in POSTGRESQL_ALONE)
        ]

    def try_each(self, faults: Sequence[Fault]) -> Tally:
        """Try these, each alone."""
        for fault in faults:
            self.tally.tried[fault.kind] += 1
            complaint = self._complaint(fault)
            if complaint is not None:
                point = self.points[fault.point - 1]
                self.tally.broken.append(
                    f"{self.work.name} {fault} ({point.kind} {point.what}): {complaint}"
                )
        self.tally.seconds = time.monotonic() - self._begun
        return self.tally

    def _complaint(self, fault: Fault) -> str | None:
        """Run the work with a fault and then without one; what is wrong then, or None."""
        self.bench.renew()
        ended = self.bench.attempt(self.work.step, fault).ended
        if ended.startswith("died") or ended.endswith("said nothing"):
            return f"the try {ended}"
        with standing_in(self.bench):
            wrong = self.work.sound(self.bench.home)
        if wrong:
            return f"after it: {'; '.join(wrong)}"
        if fault.point < len(self.points):  # nobody runs again what has ended
            ended = self.bench.attempt(self.work.step).ended
            if ended != "done" and not (self.work.again and self.work.again in ended):
                return f"run again: {ended}"
        apart = difference(self.expected, self.bench.state())
        self.tally.rows_lost += len(apart.lost)
        self.tally.rows_more += len(apart.more)
        self.tally.other_weights += len(apart.weights)
        self.tally.other_files += len(apart.changed) - len(apart.weights)
        self.tally.leftovers += len(apart.left)
        return str(apart) if apart else None


def _import(names: frozenset[str]) -> None:
    """Import what a try imported, so that the next one need not."""
    for name in sorted(names - set(sys.modules)):
        if not name.startswith("__"):
            with suppress(Exception):
                import_module(name)
