"""Run a module's tests on each of its mutants: pytest collects them once, then forks a process for
each mutant.

What is heavy is imported once, before any fork. A mutant inside a function's body takes the place
of that function's code, wherever it was imported; one outside (a constant, a default) needs a fork
that has imported nothing of it yet.
"""

import functools
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from time import perf_counter
from types import CodeType, FunctionType
from typing import cast

import coverage
import pytest
from _pytest.runner import runtestprotocol

from benchmarks.mutants import Mutant

# a test that takes so many times as long as without a mutant, and as many seconds, never ends
PATIENCE = 10
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-o", "timeout=0")
BROKEN = 70  # what a fork ends with that failed by itself, and no test in it
HEAVY = ("hypothesis", "pandas", "sklearn.linear_model", "sklearn.metrics", "sqlalchemy", "torch")

Noticed = Callable[[Mutant, bool], None]


def prepare() -> None:
    """Import what every fork needs, and nothing of the product: the tests' type
    checks come in at its import.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.dont_write_bytecode = True
    for name in HEAVY:
        import_module(name)


def run(mutants: Sequence[Mutant], files: Sequence[str], left_out: str, noticed: Noticed) -> None:
    """Say of each mutant, all of one module, whether a test of these files fails on it.

    `left_out` are words, of which none is in the name of a test that is run. Raises RuntimeError
    where the tests fail without a mutant.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        words = " and ".join(f"not {each}" for each in left_out.split())
        arguments = [*OPTIONS, "-k", words, f"--basetemp={folder}/tests", *files]
        inside = [each for each in mutants if each.inside]
        reading, writing = os.pipe()
        child = _fork(lambda: _collected(inside, arguments, writing))
        os.close(writing)
        with os.fdopen(reading, "rb") as told:
            for each, told_of in zip(inside, iter(lambda: told.read(1), b""), strict=False):
                noticed(each, told_of == b"1")
        if _ended(child):
            raise RuntimeError(f"the tests fail without a mutant: {' '.join(files)}")
        for each in mutants:
            if not each.inside:
                noticed(
                    each, _ended(_fork(functools.partial(_imported, each, arguments)), 600) != 0
                )


def _fork(work: Callable[[], int]) -> int:
    """The id of a process that does the work, says nothing, and ends with the work's status."""
    sys.stdout.flush()
    if child := os.fork():
        return child
    status = BROKEN
    try:
        if "MUTATION_SAYS" not in os.environ:
            with Path(os.devnull).open("w") as nothing:
                os.dup2(nothing.fileno(), 1)
                os.dup2(nothing.fileno(), 2)
        status = work()
    finally:
        os._exit(status)


def _ended(child: int, seconds: float | None = None) -> int:
    """The status that a process ended with, or was ended with after some seconds."""
    if seconds is not None:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, seconds)
    status = os.waitpid(child, 0)[1]
    signal.setitimer(signal.ITIMER_REAL, 0)
    if os.waitstatus_to_exitcode(status) == BROKEN:
        raise RuntimeError("a fork failed by itself: MUTATION_SAYS=1 shows why")
    return status


def _imported(mutant: Mutant, arguments: list[str]) -> int:
    """Run the tests with a module whose source is the mutant's."""
    of, plain = str(Path(mutant.module).resolve()), SourceFileLoader.get_data

    def get_data(self: SourceFileLoader, path: str) -> bytes:
        if path == of:
            return mutant.source.encode()
        if path.endswith(".pyc") and Path(path).name.startswith(f"{Path(of).stem}."):
            raise OSError("what was compiled before is not the mutant")
        return plain(self, path)

    SourceFileLoader.get_data = get_data
    return int(pytest.main(arguments))


def _collected(mutants: Sequence[Mutant], arguments: list[str], writing: int) -> int:
    return int(pytest.main(arguments, plugins=[_Trial(mutants, writing)]))


class _Trial:
    """Collect tests, run them once to see which lines each runs, then on each
    mutant those that run its lines.
    """

    def __init__(self, mutants: Sequence[Mutant], writing: int) -> None:
        self.mutants, self.writing = mutants, writing
        self.seconds: dict[str, float] = {}
        self.killers: list[str] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do it all."""
        if session.testsfailed or not session.items:
            pytest.exit("the tests cannot be collected", returncode=1)
        if not self.mutants:
            return True
        file = str(Path(self.mutants[0].module).resolve())
        ran = self._measured(session.items, file)
        _forget_results()
        functions, loader = _functions(file), _loader(file)
        gc.collect()
        gc.freeze()  # a collection in a fork would copy every page that it looks at
        for mutant in self.mutants:
            chosen = self._in_order(
                [each for each in session.items if ran.get(each.nodeid, set()) & set(mutant.lines)]
            )
            code = _codes(loader.source_to_code(mutant.source.encode(), file))[mutant.function]
            os.write(
                self.writing,
                b"1" if self._is_noticed(chosen, functions[mutant.function], code) else b"0",
            )
        return True

    def _measured(self, items: list[pytest.Item], file: str) -> dict[str, set[int]]:
        """Which lines of the file each test runs."""
        measuring = coverage.Coverage(data_file=None, include=[file], config_file=False)
        measuring.start()
        for each in items:
            measuring.switch_context(each.nodeid)
            begun = perf_counter()
            if _fails(each):
                pytest.exit(f"{each.nodeid} fails without a mutant", returncode=1)
            self.seconds[each.nodeid] = perf_counter() - begun
        measuring.stop()
        ran: dict[str, set[int]] = {}
        for line, tests in measuring.get_data().contexts_by_lineno(file).items():
            for test in tests:
                ran.setdefault(test, set()).add(line)
        return ran

    def _in_order(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Those first that noticed mutants last, then the quick ones."""
        rank = {name: place for place, name in enumerate(self.killers)}
        return sorted(
            items, key=lambda each: (rank.get(each.nodeid, len(rank)), self.seconds[each.nodeid])
        )

    def _is_noticed(
        self, items: list[pytest.Item], functions: Sequence[FunctionType], code: CodeType
    ) -> bool:
        reading, writing = os.pipe()

        def work() -> int:
            for function in functions:
                function.__code__ = code
            # which ends the fork: a test cannot catch that
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            for place, each in enumerate(items):
                signal.setitimer(signal.ITIMER_REAL, PATIENCE * (1 + self.seconds[each.nodeid]))
                if _fails(each):
                    os.write(writing, place.to_bytes(4, "big"))
                    return 1
            return 0

        status = _ended(_fork(work))
        os.close(writing)
        if place := os.read(reading, 4):
            killer = items[int.from_bytes(place, "big")].nodeid
            self.killers = [killer, *(each for each in self.killers if each != killer)][:3]
        os.close(reading)
        return status != 0


class _Same:
    """An item of the same session, of which nothing else is known: what lives
    for a session stays for the forks.
    """

    def __init__(self, session: pytest.Session) -> None:
        self.session = session

    def listchain(self) -> list[pytest.Session]:
        """Where it lies."""
        return [self.session]


def _fails(item: pytest.Item) -> bool:
    following = cast("pytest.Item", _Same(item.session))
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))


def _functions(file: str) -> dict[str, list[FunctionType]]:
    """Every function made from the file, by its dotted name, however it is wrapped."""
    found: dict[str, list[FunctionType]] = {}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename == file:
            found.setdefault(each.__code__.co_qualname, []).append(each)
    return found


def _loader(file: str) -> SourceFileLoader:
    """What the module was imported by; the one that checks types compiles
    otherwise than Python's.
    """
    return next(
        each.__loader__
        for each in list(sys.modules.values())
        if getattr(each, "__file__", None) == file
    )


def _codes(code: CodeType) -> dict[str, CodeType]:
    """The code of every function in a module's, by dotted name."""
    inner: Iterable[CodeType] = [each for each in code.co_consts if isinstance(each, CodeType)]
    return {each.co_qualname: each for each in inner} | {
        name: found for each in inner for name, found in _codes(each).items()
    }


def _forget_results() -> None:
    """Clear what functions of the tests keep of earlier calls: a mutant would not be asked."""
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper) and "site-packages" not in str(
            getattr(sys.modules.get(each.__module__ or ""), "__file__", "site-packages")
        ):
            each.cache_clear()
