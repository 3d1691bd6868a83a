"""Where the folds run changes the time they take and nothing else: one process,
two, or a Dask cluster.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from db.connection.user_sql import select
from db.engine import open_engine
from tests.support.backtest_market import MARKET
from tests.support.commands import run_in

pytestmark = pytest.mark.slow

DTML = Path(sys.executable).with_name("dtml")
SPAN = ("--from", "2024-03-04", "--to", "2024-03-25", "--retrain-every", "7")
ROWS = {
    "run": "select id, checkpoint_hash, losses from run order by id",
    "prediction": "select run_id, target, instrument_id, probability, probability_std from "
    "prediction order by 1, 2, 3",
    "score": "select * from backtest_score order by slice, value, protocol, predictor",
    "portfolio": "select * from backtest_portfolio order by portfolio",
}


def environment_of(home):
    return {
        "DTML_DATA": str(home / "data"),
        "DTML_REPORTS": str(home / "reports"),
        "DTML_DATABASE_URL": f"sqlite:///{home / 'store.sqlite'}",
    }


def run_here(home, prefect_api, *arguments):
    """The command in this process."""
    return run_in(
        home,
        environment_of(home),
        prefect_api,
        "backtest",
        "--market-file",
        "past.toml",
        *SPAN,
        *arguments,
    )


def run_killed(home, prefect_api):
    """The command in a process of its own, two of whose workers train folds until one is killed."""
    command = [str(DTML), "backtest", "--market-file", "past.toml", *SPAN]
    with subprocess.Popen(
        [*command, "--source", "simulated", "--workers", "2"],
        cwd=home,
        env=os.environ | environment_of(home) | {"PREFECT_API_URL": prefect_api},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        kill_a_worker(process)
        try:
            said, erred = process.communicate(timeout=550)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(command, process.returncode, said, erred)


def kill_a_worker(process):
    """End one of the processes that train folds, as the system does when memory runs out."""
    while process.poll() is None:
        threads = Path(f"/proc/{process.pid}/task").glob("*/children")
        children = [each for thread in threads for each in thread.read_text().split()]
        workers = [
            each for each in children if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()
        ]
        if workers:
            os.kill(int(workers[0]), signal.SIGKILL)
            return
        time.sleep(0.05)


@contextmanager
def dask_cluster(home):
    """A scheduler and one worker process of its own, as on a cluster: the store
    and the folders are shared.
    """
    distributed = pytest.importorskip("distributed", reason="needs the extra `dask`")
    shared = {
        "DTML_DATA": str(home / "data"),
        "DTML_DATABASE_URL": f"sqlite:///{home / 'store.sqlite'}",
    }
    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        host="127.0.0.1",
        env=shared | {"OMP_NUM_THREADS": "1"},
    ) as cluster:
        yield cluster.scheduler_address


def rows(home):
    engine = open_engine(f"sqlite:///{home / 'store.sqlite'}", read_only=True)
    return {
        name: select(engine, sql).drop(columns="backtest_id", errors="ignore")
        for name, sql in ROWS.items()
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory, prefect_api):
    """A home in which the backtest ran in one process."""
    home = tmp_path_factory.mktemp("serial")
    (home / "past.toml").write_text(MARKET.format(normalisation="shared"))
    code, said, complaint = run_here(home, prefect_api, "--source", "simulated", "--json")
    assert code == 0, complaint
    found = json.loads(said)
    assert [fold["number"] for fold in found["folds"]] == [1, 2, 3]
    assert {row["portfolio"] for row in found["portfolios"]} >= {
        "long, next open",
        "index",
        "equal weight",
    }
    return home


def assert_same_rows(home, whole):
    expected = rows(whole)
    for name, frame in rows(home).items():
        pd.testing.assert_frame_equal(frame, expected[name], check_exact=True, obj=name)


@pytest.mark.soak
def test_folds_give_the_same_rows_on_a_cluster(whole, tmp_path, prefect_api):
    (tmp_path / "past.toml").write_text((whole / "past.toml").read_text())
    with dask_cluster(tmp_path) as address:
        code, _, complaint = run_here(
            tmp_path, prefect_api, "--source", "simulated", "--cluster", address
        )
    assert code == 0, complaint
    assert_same_rows(tmp_path, whole)


@pytest.mark.soak
def test_a_backtest_whose_worker_was_killed_says_why_it_ended_and_goes_on_to_the_same_rows(
    whole, tmp_path, prefect_api
):
    """Two processes train its folds both times, and the rows are those of one."""
    (tmp_path / "past.toml").write_text((whole / "past.toml").read_text())
    killed = run_killed(tmp_path, prefect_api)
    assert killed.returncode == 1
    assert "was killed" in killed.stderr, killed.stderr
    code, _, complaint = run_here(tmp_path, prefect_api, "--workers", "2")
    assert code == 0, complaint
    assert_same_rows(tmp_path, whole)
