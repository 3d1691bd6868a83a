"""Processes of a test's own, forked from one that has imported what takes them long.

That one has no thread and no connection, so a fork shares nothing with the test but what it is
given; started anew, each process would import for a second or two.
"""

from collections.abc import Iterator
from multiprocessing import get_context, util
from multiprocessing.context import ForkServerContext

import pytest

IMPORTED = ("pandas", "pytest", "psycopg", "db.admin.checks", "tests.support.stores")


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServerContext]:
    """What makes such processes, and their queues, events and barriers."""
    context = get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    yield context
    util._run_finalizers()  # at exit, the folder of its socket is gone with those of the test run
