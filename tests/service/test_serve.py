"""`dtml serve` as its user meets it: schedules that really fire on a real
Prefect server, and what is left after it.
"""

import os
import signal
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dtml.markets import load_market
from dtml.prices.sessions import last_closed_session
from flows.service.prefect_server import LOGIN
from flows.service.schedules import DELAY, TRANSLATING, WATCHING, Schedule, schedules_of
from tests.support.commands import Command
from tests.support.places import ROOT
from tests.support.service import (
    BIN,
    PATIENCE_S,
    asked,
    cmdline,
    needs_proc,
    nights,
    processes_of,
    runs_of,
    serving,
    waited,
)

pytestmark = pytest.mark.soak


@pytest.mark.soak
@needs_proc
def test_services_of_two_folders_on_one_server_run_their_own_nights_alone_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    due = last_closed_session("XNYS", datetime.now(UTC), grace=DELAY)
    with serving(tmp_path / "one") as first:
        page = first.wait_for(r"page (http://127\.0\.0\.1:\d+)")[1]
        shared = {"PREFECT_API_URL": f"{page}/api", LOGIN: first.login}
        with serving(tmp_path / "two", **shared) as second:
            for service, folder in ((first, tmp_path / "one"), (second, tmp_path / "two")):
                service.wait_for(rf"small night done: {due}: 30 stocks predicted")
                (night,) = nights(folder)
                assert (night["status"], night["predictions"]) == ("complete", 30)
                assert service.said.count("night done") == 1
            first.wait_for(r"small night skipped: the night of .* is complete already")
            names = {each["name"] for each in asked(f"{page}/api/deployments/filter", first.login)}
            assert len(names) == 2 * len(["small", "all"])
            second.process.send_signal(signal.SIGINT)
            assert second.process.wait(PATIENCE_S) == 0
            waited(lambda: not processes_of(tmp_path / "two"), lambda: "every process to end")
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(PATIENCE_S) == 0
        assert first.said.endswith("ended\n")
        assert "Traceback" not in first.said + second.said
        waited(lambda: not processes_of(tmp_path / "one"), lambda: "every process to end")


@needs_proc
def test_a_service_that_is_killed_takes_its_runs_and_its_server_along(tmp_path: Path) -> None:
    with serving(tmp_path / "one") as service:
        waited(lambda: runs_of(tmp_path / "one"), lambda: f"a run in {service.said}")
        service.process.kill()
        waited(lambda: not processes_of(tmp_path / "one"), lambda: "every process to end")


@needs_proc
@pytest.mark.soak
def test_a_server_that_dies_ends_the_service_with_a_reason(tmp_path: Path) -> None:
    with serving(tmp_path / "one") as service:
        service.wait_for("press Ctrl-C to stop")
        (server,) = (
            pid
            for pid in processes_of(tmp_path / "one")
            if b"flows.service.guarded_server" in cmdline(pid)
        )
        refused = subprocess.run(
            [BIN / "dtml", "serve", "simulated"],
            env=os.environ | {"DTML_DATA": str(tmp_path / "one" / "data")},
            cwd=tmp_path / "one",
            capture_output=True,
            text=True,
            check=False,
        )
        assert refused.returncode == 1
        assert "another `dtml serve` uses" in refused.stderr
        os.kill(server, signal.SIGKILL)
        assert service.process.wait(PATIENCE_S) == 1
        assert "error: Prefect's server ended with exit code -9" in service.said
        waited(lambda: not processes_of(tmp_path / "one"), lambda: "every process to end")


def test_the_deployments_of_the_file_are_on_the_server_with_their_schedules(
    tmp_path: Path, prefect_api: str
) -> None:
    environment = os.environ | {
        "PREFECT_API_URL": prefect_api,
        "PREFECT_HOME": str(tmp_path / "home"),
    }
    for arguments in (
        ("work-pool", "create", "dtml", "--type", "process"),
        ("deploy", "--all", "--no-prompt"),
    ):
        ended = subprocess.run(
            [BIN / "prefect", *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
    found = asked(f"{prefect_api}/deployments/filter", os.environ[LOGIN])
    now = datetime.now(UTC)
    for name in ("sp500", "kospi200"):
        for expected in schedules_of(load_market(name), now):
            (deployment,) = (each for each in found if each["name"] == f"{name}-{expected.work}")
            (schedule,) = (each["schedule"] for each in deployment["schedules"])
            said = Schedule(name, expected.work, schedule["cron"], schedule["timezone"])
            assert said == expected
            assert deployment["parameters"] == {"request": {"market": name}}
            assert deployment["global_concurrency_limit"]["limit"] == 1
            others = "ENQUEUE" if expected.work == "night" else "CANCEL_NEW"
            assert deployment["concurrency_options"]["collision_strategy"] == others
    (watched,) = (each for each in found if each["name"] == WATCHING.work)
    assert [each["schedule"]["cron"] for each in watched["schedules"]] == [WATCHING.cron]
    (queue,) = (each for each in found if each["name"] == TRANSLATING.work)
    assert [each["schedule"]["cron"] for each in queue["schedules"]] == [TRANSLATING.cron]
    assert queue["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
    assert len(found) == 8


def test_without_a_market_and_a_night_there_is_nothing_to_serve(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [each for each in os.environ if each.startswith(("DTML_", "PREFECT_"))]:
        monkeypatch.delenv(name)
    words = (
        "error: the store has no night of any market yet: name one, as in `dtml serve simulated`\n"
    )
    assert command("serve") == (2, "", words)
