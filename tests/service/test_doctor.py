"""What `dtml doctor` says of a healthy machine, and of one that lacks a
database, Prefect, room or a network.
"""

import json
import re
import shutil
import socket
from collections import namedtuple
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import flows.upkeep.doctor
from dtml import self_test as trial
from dtml.errors import DtmlError
from dtml.sources.simulated import SimulatedSource
from dtml.training import Fit
from tests.support.commands import Command
from tests.support.fake_yahoo import FakeYahoo

pytestmark = pytest.mark.slow
Examine = Callable[[], tuple[int, dict[str, dict[str, Any]]]]
PARTS = [
    "python",
    "packages",
    "processor",
    "data folder",
    "reports folder",
    "database",
    "clock",
    "calendars",
    "prefect",
    "yahoo",
    "feeds",
    "cpu",
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of one's own, and a network that leads nowhere."""
    monkeypatch.setenv("DTML_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DTML_REPORTS", str(tmp_path / "reports"))
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


@pytest.fixture
def examine(command: Command, served: None) -> Examine:
    """Run the command: its exit code, and its findings by part."""

    def run() -> tuple[int, dict[str, dict[str, Any]]]:
        code, said, _ = command("doctor", "--json")
        return code, {found["part"]: found for found in json.loads(said)}

    return run


def index_bars() -> pd.DataFrame:
    bars = SimulatedSource().bars(date.today() - timedelta(days=1))  # noqa: DTZ011 - the doctor asks for the last week
    return bars[bars["symbol"] == "SIMX"].tail(9)


@pytest.mark.soak
def test_a_healthy_machine_is_well_in_every_part(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeYahoo({"^GSPC": index_bars()}) as yahoo:
        for name, value in yahoo.environment().items():
            monkeypatch.setenv(name, value)
        code, found = examine()
    assert [name for name in found if not name.startswith("cuda")] == PARTS
    assert [found[name]["said"] for name in found if not found[name]["is_well"]] == []
    assert code == 0
    assert re.search("equal.* last bit, translated", str(found["cpu"]["said"]))
    assert "the server at http" in found["prefect"]["said"]


@pytest.mark.soak
def test_without_a_network_nights_from_files_can_run(examine: Examine) -> None:
    code, found = examine()
    assert code == 0
    assert not found["yahoo"]["is_well"]
    assert re.search("files .*simulated .*no network", str(found["yahoo"]["said"]))


@pytest.mark.soak
def test_a_database_that_is_not_there_is_named(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv(
        "DTML_DATABASE_URL", f"postgresql+psycopg://reader:secret@127.0.0.1:{port}/nothing"
    )
    code, found = examine()
    assert code == 1
    assert "refused" in str(found["database"]["said"])
    assert "secret" not in json.dumps(found)


@pytest.mark.soak
def test_a_prefect_server_that_does_not_answer_is_named(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
    code, found = examine()
    assert (code, found["prefect"]["is_well"]) == (1, False)
    assert f"127.0.0.1:{port}" in found["prefect"]["said"]


@pytest.mark.soak
def test_a_full_disk_and_a_folder_that_is_a_file_are_named(
    examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2**40, 2**40, 2**20))
    (tmp_path / "reports").touch()
    code, found = examine()
    assert code == 1
    assert re.search("1 MiB free,.*1024 MiB:.*DTML_DATA", str(found["data folder"]["said"]))
    assert "set DTML_REPORTS to another" in found["reports folder"]["said"]


@pytest.mark.soak
def test_a_package_outside_its_tested_range_is_named(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = flows.upkeep.doctor.version
    monkeypatch.setattr(
        flows.upkeep.doctor, "version", lambda name: "99.0" if name == "torch" else known(name)
    )
    code, found = examine()
    assert code == 1
    assert re.match(r"torch 99\.0 .*tested versions ", str(found["packages"]["said"]))


def test_a_device_that_computes_something_else_fails_its_self_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cpu = tmp_path, torch.device("cpu")
    right: Any = trial.member_probabilities
    runs: list[Any] = []

    def wrong(*given: Any) -> torch.Tensor:
        runs.append(given)
        # the one on the CPU that it is compared with
        return right(*given) + (1e-6 if len(runs) == 3 else 0.0)

    monkeypatch.setattr(trial, "member_probabilities", wrong)
    with pytest.raises(DtmlError, match=r"an equal one on the CPU .*memory"):
        trial.self_test(cpu, folder)


def test_a_device_that_loses_the_state_of_a_training_fails_its_self_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = Fit.restore

    def damaged(fit: Fit, folder: Path) -> bool:
        """It finds what was kept, but for the order of the days."""
        found = restore(fit, folder)
        fit.order.manual_seed(99)
        return found

    monkeypatch.setattr(Fit, "restore", damaged)
    with pytest.raises(DtmlError, match="interrupted and resumed"):
        trial.self_test(torch.device("cpu"), tmp_path)
