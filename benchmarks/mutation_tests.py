"""Run a module's tests on each of its mutants, in a fork of a process that has collected them.

Heavy packages are imported once, before any fork. A mutant inside a function's body takes the place
of that function's code, wherever it was imported; one outside (a constant, a default) needs a fork
that has not imported the module yet.
"""

import functools
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
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

# A test of a mutant that takes so many times as long as without it, and as many seconds, is
# taken for one that never ends.
PATIENCE = 10
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-o", "timeout=0")
BROKEN = 70  # the exit code of a fork that failed by itself, not by a test in it
HEAVY = ("hypothesis", "pandas", "sklearn.linear_model", "sklearn.metrics", "sqlalchemy", "torch")

Noticed = Callable[[Mutant, bool], None]


def prepare() -> None:
    """Import what every fork needs, and nothing of the product.

    The tests add type checks to the product's modules when they are imported.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.dont_write_bytecode = True
    for name in HEAVY:
        import_module(name)


def run(mutants: Sequence[Mutant], files: Sequence[str], left_out: str, noticed: Noticed) -> None:
    """Call `noticed` with each mutant of a module, and whether a test of these files fails on it.

    Tests whose names have one of the words `left_out` are not run. Raises RuntimeError where the
    tests fail without a mutant.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        chosen_tests = " and ".join(f"not {word}" for word in left_out.split())
        arguments = [*OPTIONS, "-k", chosen_tests, f"--basetemp={folder}/tests", *files]
        inside = [mutant for mutant in mutants if mutant.inside]
        reading, writing = os.pipe()
        child = _fork(lambda: _collected(inside, arguments, writing))
        os.close(writing)
        with os.fdopen(reading, "rb") as verdicts:
            for mutant in inside:
                verdict = verdicts.read(1)
                if not verdict:  # the child has ended
                    break
                noticed(mutant, verdict == b"1")
        if _ended(child):
            raise RuntimeError(f"the tests fail without a mutant: {' '.join(files)}")
        for mutant in mutants:
            if not mutant.inside:
                child = _fork(functools.partial(_imported, mutant, arguments))
                noticed(mutant, _ended(child, seconds=600) != 0)


def _fork(work: Callable[[], int]) -> int:
    """Start a process that does the work silently and ends with its status; return its id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
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
    """Wait for a process, at most some `seconds` before it is killed; return its status."""
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
    file = Path(mutant.module).resolve()
    original_get_data = SourceFileLoader.get_data

    def get_data(self: SourceFileLoader, path: str) -> bytes:
        if path == str(file):
            return mutant.source.encode()
        if path.endswith(".pyc") and Path(path).name.startswith(f"{file.stem}."):
            raise OSError("what was compiled before is not the mutant")
        return original_get_data(self, path)

    SourceFileLoader.get_data = get_data
    return int(pytest.main(arguments))


def _collected(mutants: Sequence[Mutant], arguments: list[str], writing: int) -> int:
    return int(pytest.main(arguments, plugins=[_Trial(mutants, writing)]))


class _Trial:
    """A plugin that runs the tests once without a mutant, then on each mutant.

    The first run shows which lines each test runs. On a mutant run only the tests of its lines.
    """

    def __init__(self, mutants: Sequence[Mutant], writing: int) -> None:
        self.mutants = mutants
        self.writing = writing
        self.seconds: dict[str, float] = {}
        self.killers: list[str] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all, and write for each mutant 1 to the pipe if a test notices it, else 0."""
        if session.testsfailed or not session.items:
            pytest.exit("the tests cannot be collected", returncode=1)
        if not self.mutants:
            return True
        file = str(Path(self.mutants[0].module).resolve())
        lines_by_test = self._measure(session.items, file)
        _forget_results()
        functions = _functions(file)
        loader = _loader(file)
        gc.collect()
        gc.freeze()  # A collection in a fork would copy every page that it visits.
        for mutant in self.mutants:
            lines = set(mutant.lines)
            items = [
                item for item in session.items if lines & lines_by_test.get(item.nodeid, set())
            ]
            module_code = loader.source_to_code(mutant.source.encode(), file)
            code = _codes(module_code)[mutant.function]
            noticed = self._is_noticed(self._in_order(items), functions[mutant.function], code)
            os.write(self.writing, b"1" if noticed else b"0")
        return True

    def _measure(self, items: list[pytest.Item], file: str) -> dict[str, set[int]]:
        """Run every test once, keep its seconds, and return the lines of the file that it runs."""
        measuring = coverage.Coverage(data_file=None, include=[file], config_file=False)
        measuring.start()
        for item in items:
            measuring.switch_context(item.nodeid)
            start = perf_counter()
            if _fails(item):
                pytest.exit(f"{item.nodeid} fails without a mutant", returncode=1)
            self.seconds[item.nodeid] = perf_counter() - start
        measuring.stop()
        lines_by_test: dict[str, set[int]] = {}
        for line, tests in measuring.get_data().contexts_by_lineno(file).items():
            for test in tests:
                lines_by_test.setdefault(test, set()).add(line)
        return lines_by_test

    def _in_order(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Return the tests that noticed the last mutants first, then the quick ones."""
        rank = {name: place for place, name in enumerate(self.killers)}

        def order(item: pytest.Item) -> tuple[int, float]:
            return rank.get(item.nodeid, len(rank)), self.seconds[item.nodeid]

        return sorted(items, key=order)

    def _is_noticed(
        self, items: list[pytest.Item], functions: Sequence[FunctionType], code: CodeType
    ) -> bool:
        reading, writing = os.pipe()

        def work() -> int:
            for function in functions:
                function.__code__ = code
            # By default the alarm ends the fork, and no test can catch it.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            for place, item in enumerate(items):
                signal.setitimer(signal.ITIMER_REAL, PATIENCE * (1 + self.seconds[item.nodeid]))
                if _fails(item):
                    os.write(writing, place.to_bytes(4, "big"))
                    return 1
            return 0

        status = _ended(_fork(work))
        os.close(writing)
        place = os.read(reading, 4)
        if place:
            killer = items[int.from_bytes(place, "big")].nodeid
            others = [test for test in self.killers if test != killer]
            self.killers = [killer, *others][:3]
        os.close(reading)
        return status != 0


class _Same:
    """An item of the same session, and nothing else: so fixtures of the session stay for forks."""

    def __init__(self, session: pytest.Session) -> None:
        self.session = session

    def listchain(self) -> list[pytest.Session]:
        """Return the collectors that it belongs to."""
        return [self.session]


def _fails(item: pytest.Item) -> bool:
    following = cast("pytest.Item", _Same(item.session))
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))


def _functions(file: str) -> dict[str, list[FunctionType]]:
    """Return every function made from the file, by its dotted name, however it is wrapped."""
    functions: dict[str, list[FunctionType]] = {}
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename == file:
            functions.setdefault(thing.__code__.co_qualname, []).append(thing)
    return functions


def _loader(file: str) -> SourceFileLoader:
    """Return the loader that imported the file's module.

    One that adds type checks compiles otherwise than Python's own.
    """
    return next(
        module.__loader__
        for module in list(sys.modules.values())
        if getattr(module, "__file__", None) == file
    )


def _codes(code: CodeType) -> dict[str, CodeType]:
    """Return the code of every function in that of a module, by dotted name."""
    inner_codes = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    codes = {inner_code.co_qualname: inner_code for inner_code in inner_codes}
    for inner_code in inner_codes:
        codes |= _codes(inner_code)
    return codes


def _forget_results() -> None:
    """Clear the caches of functions of the product and the tests: a mutant would not be called."""
    for thing in gc.get_objects():
        if isinstance(thing, functools._lru_cache_wrapper):
            module = sys.modules.get(thing.__module__ or "")
            file = str(getattr(module, "__file__", "site-packages"))
            if "site-packages" not in file:
                thing.cache_clear()
