"""A week in which everything goes wrong once: sources fail, processes die,
disks fill, and the store stays whole.
"""

from pathlib import Path

import pytest

from tests.support.chaos.nights import run

NIGHTS, SEED = 6, 1


@pytest.mark.soak
def test_a_store_stays_whole_through_nights_of_chaos(tmp_path: Path, prefect_api: str) -> None:
    """On SQLite; `python -m benchmarks.chaos --engine postgresql` does it on a server."""
    tally = run(tmp_path, NIGHTS, SEED, server=prefect_api)
    assert tally.broken == []
    assert tally.rows_lost == tally.duplicates == tally.mismatches == 0
    assert sum(tally.nights.values()) == NIGHTS
