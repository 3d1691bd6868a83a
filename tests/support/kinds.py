"""Which tests `make test` and `make soak` run: each test is of exactly one of them.

`make test` runs in minutes what a change must pass; `make soak` runs the rest: what repeats, kills,
fuzzes, drives a browser, builds a wheel or takes more than a few seconds (marked `soak`), and
further cases of a law that one case states (marked `one_case`). Of these cases, of those of a law
marked `by_quarters` and of the moments at which a night is killed, a run of `make soak` has a
quarter, by the day; DTML_TESTS_QUARTER=all has all, and
runs on PostgreSQL also what does the same there as on SQLite.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar
from zlib import crc32

import pytest

T = TypeVar("T")
ENGINES = ("sqlite", "postgresql")
# Of a law that one engine alone can break, or that is the same on both.
sqlite_alone, postgresql_alone = (
    pytest.mark.parametrize("store_url", [engine], indirect=True) for engine in ENGINES
)
# Files of laws about SQL, locks, roles and limits, which differ between the engines.
OF_ENGINES = (
    "test_answer_limits",
    "test_engine",
    "test_night_rows",
    "test_prediction_rows",
    "test_price_rows",
    "test_roles",
    "test_rows",
    "test_schema",
    "test_service_rows",
    "test_sql_limits",
    "test_translation_queue",
    "test_views",
)

QUARTERS = 4
# Set here for the workers of a run, so that midnight finds them agreed.
QUARTER = os.environ.setdefault(
    "DTML_TESTS_QUARTER", str(datetime.now(UTC).date().toordinal() % QUARTERS)
)

# A file is one worker's (`--dist loadfile`): those that take longest begin first, so that none ends
# after all others.
LONG = (
    "test_markets_times_verbs",
    "test_command",
    "test_ranking_of_a_night",
    "test_night",
    "test_audit",
    "test_questions",
    "test_serve",
    "test_secrets",
    "test_faults",
    "test_own_code_nights",
    "test_backtest_workers",
    "test_backtest",
)


def begins(item: pytest.Item) -> int:
    """Return the place of a test's file in the order in which files begin."""
    return LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG)


def choose_kinds(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Mark each test that `make soak` runs and not `make test`; return those that are left out."""
    cases: set[tuple[str, str]] = set()
    left_out = set()
    for item in items:
        is_further = _is_a_further_case(item, cases)
        is_on_the_other_engine = _is_on_the_other_engine(item)
        if is_further or is_on_the_other_engine:
            item.add_marker("soak")
        is_in_soak = item.get_closest_marker("soak") is not None
        is_case_of_many = is_in_soak and item.get_closest_marker("by_quarters") is not None
        is_of_another_quarter = (is_further or is_case_of_many) and _quarter_of(item) != QUARTER
        if QUARTER != "all" and (is_on_the_other_engine or is_of_another_quarter):
            left_out.add(item)
    return left_out


def of_this_quarter(all_of_them: Sequence[T]) -> Sequence[T]:
    """Return every fourth of some things, beginning with that of this run's quarter."""
    return all_of_them if QUARTER == "all" else all_of_them[int(QUARTER) :: QUARTERS]


def _quarter_of(item: pytest.Item) -> str:
    """Return the quarter of a test: the file, the function and the case decide it."""
    return str(crc32(f"{item.path.stem}::{item.name}".encode()) % QUARTERS)


def _is_a_further_case(item: pytest.Item, seen: set[tuple[str, str]]) -> bool:
    """Whether a test is another case of a law than the one that `make test` runs.

    The mark `one_case` names that one; without a name it is the first.
    """
    mark = item.get_closest_marker("one_case")
    if mark is None:
        return False
    law = (str(item.path), getattr(item, "originalname", item.name))
    named = mark.args[0] in item.name if mark.args else True
    if not named or law in seen:
        return True
    seen.add(law)
    return False


def _is_on_the_other_engine(item: pytest.Item) -> bool:
    """Whether a test runs on PostgreSQL and states nothing of PostgreSQL.

    What does is in a file of OF_ENGINES, or marked `on_postgresql`.
    """
    given = getattr(item, "callspec", None)
    params = {} if given is None else given.params
    engine = params.get("store_url") or params.get("site")
    if (
        engine != "postgresql"
        or item.path.stem in OF_ENGINES
        or item.get_closest_marker("on_postgresql")
    ):
        return False
    return not is_postgresql_alone(item)


def is_postgresql_alone(item: pytest.Item) -> bool:
    """Whether a test asks for PostgreSQL by name and never runs on SQLite."""
    marks = item.iter_markers("parametrize")
    return any(
        mark.args[0] == "store_url" and list(mark.args[1]) == ["postgresql"] for mark in marks
    )
