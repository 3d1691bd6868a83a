"""`dtml serve` as its user meets it: schedules that really fire on a real Prefect server, and what is left after it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from made_nights import small_market

from db import queries
from db.engine import open_engine, reading
from dtml.markets import load_market
from dtml.sessions import last_closed_session
from flows.schedules import DELAY, Schedule, schedules_of, translation_schedule, watch_schedule

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[1]
PATIENCE_S = 300.0  # for a machine that is busy with other tests


@dataclass
class Serving:
    """A `dtml serve` that is on: its process and what it has said."""

    process: "subprocess.Popen[bytes]"
    words: Path

    @property
    def said(self) -> str:
        return self.words.read_text()

    def wait_for(self, pattern: str) -> "re.Match[str]":
        return waited(lambda: re.search(pattern, self.said), lambda: f"{pattern!r} in:\n{self.said}")


def waited(look: Callable[[], Any], what: Callable[[], str]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited in vain for {what()}"
        time.sleep(0.2)
    return found


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@contextmanager
def serving(folder: Path, *arguments: str, **environment: str) -> Iterator[Serving]:
    """Serve a small market every minute, with all of it below a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "small.toml").write_text(small_market())
    own = {"DTML_DATA": str(folder / "data"), "PREFECT_SERVER_API_PORT": free_port()}
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DTML_", "PREFECT_"))}
    command = [str(BIN / "dtml"), "serve", "--market-file", "small.toml", "--cron", "* * * * *", *arguments]
    words = folder / "said"
    with words.open("wb") as said:
        process = subprocess.Popen(
            command, cwd=folder, env=clean | own | environment, stdout=said, stderr=said, start_new_session=True
        )
    try:
        yield Serving(process, words)
    finally:
        for pid in processes_of(folder):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def processes_of(folder: Path) -> list[int]:
    """Every process whose data folder lies here: the command, its server, its runs."""
    mine = f"DTML_DATA={folder / 'data'}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mine in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue  # it has ended, or is another user's
    return found


def nights(folder: Path) -> list[dict[str, Any]]:
    engine = open_engine(f"sqlite:///{folder / 'data' / 'dtml.sqlite'}", read_only=True)
    with reading(engine) as conn:
        return queries.nights(conn).to_dict("records")  # type: ignore[return-value]


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")


@needs_proc
def test_a_schedule_fires_once_a_night_beside_a_second_service_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    due = last_closed_session("XNYS", datetime.now(UTC), grace=DELAY)
    with serving(tmp_path / "one") as first:
        page = first.wait_for(r"page (http://127\.0\.0\.1:\d+)")[1]
        store = {"DTML_DATABASE_URL": f"sqlite:///{tmp_path / 'one' / 'data' / 'dtml.sqlite'}"}
        with serving(tmp_path / "two", PREFECT_API_URL=f"{page}/api", **store) as second:
            first.wait_for(rf"small night done: {due}: 30 stocks predicted")
            second.wait_for("Ctrl-C ends it")
            first.wait_for(r"small night skipped: the night of .* is complete already")
            (night,) = nights(tmp_path / "one")
            assert (night["status"], night["predictions"]) == ("complete", 30)
            assert (first.said + second.said).count("night done") <= 2  # both list the one run
            second.process.send_signal(signal.SIGINT)
            assert second.process.wait(PATIENCE_S) == 0
            assert processes_of(tmp_path / "two") == []
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(PATIENCE_S) == 0
        assert first.said.endswith("ended\n")
        assert "Traceback" not in first.said
        assert processes_of(tmp_path / "one") == []


@needs_proc
def test_a_server_that_dies_ends_the_service_with_a_reason(tmp_path: Path) -> None:
    with serving(tmp_path / "one") as service:
        service.wait_for("Ctrl-C ends it")
        (server,) = (pid for pid in processes_of(tmp_path / "one") if b"flows.server" in cmdline(pid))
        refused = subprocess.run(
            [BIN / "dtml", "serve", "simulated"],
            env=os.environ | {"DTML_DATA": str(tmp_path / "one" / "data")},
            cwd=tmp_path / "one",
            capture_output=True,
            text=True,
            check=False,
        )
        assert refused.returncode == 1
        assert "another `dtml serve` is at" in refused.stderr
        os.kill(server, signal.SIGKILL)
        assert service.process.wait(PATIENCE_S) == 1
        assert "error: Prefect's server ended with -9" in service.said
        waited(lambda: not processes_of(tmp_path / "one"), lambda: "every process to end")


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_the_deployments_of_the_file_are_on_the_server_with_their_schedules(tmp_path: Path, prefect_api: str) -> None:
    environment = os.environ | {"PREFECT_API_URL": prefect_api, "PREFECT_HOME": str(tmp_path / "home")}
    for arguments in (("work-pool", "create", "dtml", "--type", "process"), ("deploy", "--all", "--no-prompt")):
        ended = subprocess.run(
            [BIN / "prefect", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
    request = urllib.request.Request(f"{prefect_api}/deployments/filter", b"{}", {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        found = json.load(answer)
    now = datetime.now(UTC)
    for name in ("sp500", "kospi200"):
        for expected in schedules_of(load_market(name), now):
            (deployment,) = (each for each in found if each["name"] == f"{name}-{expected.work}")
            (schedule,) = (each["schedule"] for each in deployment["schedules"])
            said = Schedule(name, expected.work, schedule["cron"], schedule["timezone"])
            assert said == expected
            assert deployment["parameters"] == {"order": {"market": name}}
            assert deployment["global_concurrency_limit"]["limit"] == 1
            others = "ENQUEUE" if expected.work == "night" else "CANCEL_NEW"
            assert deployment["concurrency_options"]["collision_strategy"] == others
    (watched,) = (each for each in found if each["name"] == watch_schedule().work)
    assert [each["schedule"]["cron"] for each in watched["schedules"]] == [watch_schedule().cron]
    (queue,) = (each for each in found if each["name"] == translation_schedule().work)
    assert [each["schedule"]["cron"] for each in queue["schedules"]] == [translation_schedule().cron]
    assert queue["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
    assert len(found) == 8


def test_without_a_market_and_a_night_there_is_nothing_to_serve(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DTML_", "PREFECT_"))}
    command = [BIN / "dtml", "serve"]
    ended = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "error: the store has no night of any market yet: name one, as in `dtml serve simulated`\n"
