"""What `dtml doctor` says of a healthy machine, and of one that lacks a
database, Prefect, room or a network.
"""

import json
import re
import shutil
import socket
from collections import namedtuple
from datetime import date, timedelta

import pytest
import torch

import flows.upkeep.doctor
from dtml import self_test as trial
from dtml.errors import DtmlError
from dtml.sources.simulated import SimulatedSource
from tests.support.fake_yahoo import FakeYahoo

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
def home(tmp_path, monkeypatch):
    """A folder of one's own, and a network that leads nowhere."""
    monkeypatch.setenv("DTML_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DTML_REPORTS", str(tmp_path / "reports"))
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


@pytest.fixture
def examine(command, served):
    """Run the command: its exit code, and its findings by part."""

    def run():
        code, said, _ = command("doctor", "--json")
        return code, {found["part"]: found for found in json.loads(said)}

    return run


def index_bars():
    bars = SimulatedSource().bars(date.today() - timedelta(days=1))  # noqa: DTZ011 - the doctor asks for the last week
    return bars[bars["symbol"] == "SIMX"].tail(9)


@pytest.mark.soak
def test_a_healthy_machine_is_well_in_every_part(examine, monkeypatch):
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
def test_what_is_not_well_is_named_part_by_part_and_no_secret_with_it(
    examine, tmp_path, monkeypatch
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
    database = f"postgresql+psycopg://reader:secret@{nobody}/nothing"
    monkeypatch.setenv("DTML_DATABASE_URL", database)
    monkeypatch.setenv("PREFECT_API_URL", f"http://{nobody}/api")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2**40, 2**40, 2**20))
    (tmp_path / "reports").touch()
    known = flows.upkeep.doctor.version
    monkeypatch.setattr(
        flows.upkeep.doctor, "version", lambda name: "99.0" if name == "torch" else known(name)
    )
    code, found = examine()
    assert code == 1
    for part, said in {
        "database": "refused",
        "prefect": nobody,
        "data folder": "1 MiB free,.*1024 MiB:.*DTML_DATA",
        "reports folder": "set DTML_REPORTS to another",
        "packages": r"torch 99\.0 .*tested versions ",
        "yahoo": "files .*simulated .*no network",
    }.items():
        assert not found[part]["is_well"], part
        assert re.search(said, found[part]["said"]), part
    assert "secret" not in json.dumps(found)


def test_a_device_that_computes_something_else_fails_its_self_test(tmp_path, monkeypatch):
    folder, cpu = tmp_path, torch.device("cpu")
    right = trial.member_probabilities
    runs = []

    def wrong(*given):
        runs.append(given)
        # the one on the CPU that it is compared with
        return right(*given) + (1e-6 if len(runs) == 3 else 0.0)

    monkeypatch.setattr(trial, "member_probabilities", wrong)
    with pytest.raises(DtmlError, match=r"an equal one on the CPU .*memory"):
        trial.self_test(cpu, folder)
