"""`dtml serve` as its user meets it: schedules that really fire on a real
Prefect server, and what is left after it.
"""

import os
import re
import signal
import sys
from datetime import UTC, datetime

import pytest

from dtml.markets import load_market
from dtml.prices.sessions import last_closed_session
from flows.service.prefect_server import LOGIN
from flows.service.schedules import DELAY, TRANSLATING, WATCHING, Schedule, schedules_of
from tests.support.places import ROOT
from tests.support.service import (
    PATIENCE_S,
    asked,
    needs_proc,
    nights,
    processes_of,
    serving,
    waited,
)

pytestmark = pytest.mark.soak


@needs_proc
def test_services_of_two_folders_on_one_server_run_their_own_nights_alone_and_nothing_is_left(
    tmp_path,
):
    due = last_closed_session("XNYS", datetime.now(UTC), grace=DELAY)
    with serving(tmp_path / "one") as first:
        api = first.wait_for(r"export PREFECT_API_URL=(\S+)")[1]
        shared = {"PREFECT_API_URL": api, LOGIN: first.login}
        with serving(tmp_path / "two", **shared) as second:
            for service, folder in ((first, tmp_path / "one"), (second, tmp_path / "two")):
                service.wait_for(rf"small night done: {due}: 30 stocks predicted")
                (night,) = nights(folder)
                assert (night["status"], night["predictions"]) == ("complete", 30)
                assert service.said.count("night done") == 1
            first.wait_for(r"small night skipped:.*complete already")
            names = {each["name"] for each in asked(f"{api}/deployments/filter", first.login)}
            assert len(names) == len((first, second))
            second.process.send_signal(signal.SIGINT)
            assert second.process.wait(PATIENCE_S) == 0
            waited(lambda: not processes_of(tmp_path / "two"), lambda: "every process to end")
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(PATIENCE_S) == 0
        assert first.said.endswith("ended\n")
        assert "Traceback" not in first.said + second.said
        waited(lambda: not processes_of(tmp_path / "one"), lambda: "every process to end")


@pytest.mark.usefixtures("served")
def test_the_deployments_of_the_file_are_on_the_server_with_their_schedules(
    prefect_api, monkeypatch, capsys
):
    from prefect import cli  # late: it takes seconds

    monkeypatch.chdir(ROOT)
    asked(f"{prefect_api}/work_pools/", os.environ[LOGIN], {"name": "dtml", "type": "process"})
    monkeypatch.setattr(sys, "argv", ["prefect", "deploy", "--all", "--no-prompt"])
    with pytest.raises(SystemExit) as ended:
        sys.exit(cli.app())
    assert not ended.value.code, capsys.readouterr()
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
    (watched,) = (each for each in found if each["name"] == "watch")
    assert [each["schedule"]["cron"] for each in watched["schedules"]] == [WATCHING]
    (queue,) = (each for each in found if each["name"] == TRANSLATING.work)
    assert [each["schedule"]["cron"] for each in queue["schedules"]] == [TRANSLATING.cron]
    assert queue["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
    assert len(found) == 8


def test_without_a_market_and_a_night_there_is_nothing_to_serve(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [each for each in os.environ if each.startswith(("DTML_", "PREFECT_"))]:
        monkeypatch.delenv(name)
    code, said, complaint = command("serve")
    assert (code, said) == (2, "")
    assert re.fullmatch("error:.*no night .*:.*`dtml serve simulated`\n", complaint)
