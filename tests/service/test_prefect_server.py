"""Who reaches a Prefect server of ours: its own command and whoever holds its
login, no page of another origin.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError

import pytest
from filelock import FileLock

from dtml.errors import DtmlError
from flows.service import prefect_server
from flows.service.prefect_server import LOGIN
from flows.settings import prefect_folder
from tests.support.browser import browser
from tests.support.prefect_server import give_tables, plain_environment
from tests.support.service import (
    PATIENCE_S,
    answering,
    asked,
    cmdline,
    failed_service,
    needs_proc,
    processes_of,
    runs_of,
    serving,
    waited,
)

pytestmark = pytest.mark.soak

EVIL = "https://evil.example"
SECRET = {"MY_CLOUD_SECRET": "planted", "DTML_READER_PASSWORD": "planted"}
OF_RUNS = {"DTML_ALERTS": "http://127.0.0.1:9/planted"}  # nothing to the server
# what server and runs import, if it is found first
PLANTED = (
    "uvicorn.py",
    "orjson.py",
    "anyio.py",
)
RUN_ENDED = re.compile("small night (done|skipped)")
SCRIPT = [{"prefect.deployments.steps.run_shell_script": {"script": "touch attacked"}}]
# What made one run programs: a page lists the deployments, gives one a step of its own, and starts
# it.
ATTACK = """async ([url, steps]) => {
    const ask = async (method, path, body) => {
        const answer = await fetch(url + path, {
            method, body: JSON.stringify(body), headers: {"content-type": "application/json"}
        })
        return answer.status == 204 ? null : await answer.json()
    }
    const found = await ask("POST", "/deployments/filter", {})
    await ask("PATCH", `/deployments/${found[0].id}`, {pull_steps: steps})
    await ask("POST", `/deployments/${found[0].id}/create_flow_run`, {state: {type: "SCHEDULED"}})
    return found.length
}"""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A service whose nights are far off, started with secrets that are none of its business."""
    folder = tmp_path_factory.mktemp("service")
    plant(folder)
    with serving(folder, "--cron", "0 3 * * *", **SECRET, **OF_RUNS) as found:
        found.wait_for("press Ctrl-C to stop")
        yield found


def plant(folder):
    """Leave modules in a folder that say so when they are imported."""
    for name in PLANTED:
        (folder / name).write_text(f"open({str(folder / 'imported')!r}, 'w').close()")


@pytest.fixture(scope="module")
def api(service):
    return f"{service.wait_for(r'page (http://127[.]0[.]0[.]1:[0-9]+)')[1]}/api"


@contextmanager
def temporary(folder):
    """A process with a temporary server, as a night has: the address of its
    API, the login, and the process.
    """
    # Prefect is not imported while the server starts: it takes seconds, and no flow is run.
    code = "import os, sys; from types import ModuleType as Module; "
    code += "sys.modules |= {name: Module(name) for name in ('prefect', 'prefect.flow_engine')}; "
    code += "from flows.service.prefect_server import require_server; require_server(); "
    code += f"print(os.environ['PREFECT_API_URL'], os.environ['{LOGIN}'], flush=True); input()"
    environment = plain_environment() | {
        "DTML_DATA": str(folder / "data"),
        "PREFECT_HOME": str(folder / "data" / "prefect"),
    }
    give_tables(folder / "data" / "prefect")
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-P", "-c", code]
    with subprocess.Popen(command, env=environment, cwd=folder, text=True, **pipes) as process:
        assert process.stdout is not None
        url, login = process.stdout.readline().split()
        yield url, login, process
        process.kill()


def refusals(api, login):
    """The status with which each stranger is sent away from the list of what
    could be run; 200 for none.
    """
    strangers = {
        "without a login": (None, {}),
        "with another login": (f"{login}x", {}),
        "a page of another origin, with the login": (login, {"Origin": EVIL}),
        "a page of no origin": (login, {"Origin": "null"}),
        "a page of another port of this machine": (login, {"Origin": "http://127.0.0.1:1"}),
        "by a foreign name for this machine": (login, {"Host": "evil.example"}),
    }
    return {name: status(api, shown, headers) for name, (shown, headers) in strangers.items()}


def status(api, shown, headers):
    try:
        asked(f"{api}/deployments/filter", shown, **headers)
    except HTTPError as error:
        return HTTPStatus.OK if "access-control-allow-origin" in error.headers else error.code
    return HTTPStatus.OK


@needs_proc
def test_nobody_but_a_holder_of_the_login_is_heard_by_the_server_of_a_service(service, api):
    assert set(refusals(api, service.login).values()) <= {400, 401, 403}
    assert len(asked(f"{api}/deployments/filter", service.login)) == 4
    assert (
        len(asked(f"{api}/deployments/filter", service.login, Origin=api.removesuffix("/api"))) == 4
    )
    login = service.words.parent / "data" / "prefect" / "login"
    assert login.stat().st_mode & 0o777 == 0o600
    assert service.login not in service.said
    shown = [cmdline(pid) for pid in processes_of(service.words.parent)]
    assert not any(service.login.encode() in line for line in shown)


@needs_proc
def test_nobody_but_its_own_process_is_heard_by_a_temporary_server(tmp_path):
    plant(tmp_path)
    with temporary(tmp_path) as (api, login, _):
        assert set(refusals(api, login).values()) <= {400, 401, 403}
        assert asked(f"{api}/deployments/filter", login) == []
        assert (tmp_path / "data" / "prefect").stat().st_mode & 0o777 == 0o700
    waited(
        lambda: not processes_of(tmp_path),
        lambda: "the server to end with a process that was killed",
    )
    assert not (tmp_path / "imported").exists()


@needs_proc
def test_a_port_whose_server_died_is_nobodys_until_its_command_has_ended_too(tmp_path):
    with temporary(tmp_path) as (api, _, process):
        port = int(re.findall(r":(\d+)/", api)[0])
        (serving_pid,) = (
            pid for pid in processes_of(tmp_path) if b"flows.service.guarded_server" in cmdline(pid)
        )
        os.kill(serving_pid, signal.SIGKILL)
        while process.poll() is None:
            with suppress(OSError), socket.create_server(("127.0.0.1", port)):
                waited(
                    lambda: process.poll() is not None,
                    lambda: "the command to end: the port was free before",
                )
        assert process.stderr is not None
        assert re.search("error:.*exit code -9:.*same command", process.stderr.read())
        assert process.returncode == 1


@needs_proc
def test_a_real_page_of_another_origin_reaches_nothing(service, api, tmp_path):
    before = asked(f"{api}/deployments/filter", service.login)
    with browser() as opened, page_elsewhere() as elsewhere:
        page = opened.new_page()
        page.goto(elsewhere)
        with pytest.raises(Exception, match="Failed to fetch"):
            page.evaluate(ATTACK, [api, SCRIPT])
        closed = page.evaluate(
            """url => new Promise(done => {
                const socket = new WebSocket(url, ["prefect"])
                socket.onopen = () => done("open")
                socket.onerror = () => done("refused")
            })""",
            f"{api.replace('http', 'ws', 1)}/events/out",
        )
        assert closed == "refused"
    after = asked(f"{api}/deployments/filter", service.login)
    assert [each["pull_steps"] for each in after] == [each["pull_steps"] for each in before]


@contextmanager
def page_elsewhere():
    """An empty page of another origin of this machine, as any local user could serve."""
    with answering(lambda _: (200, b"<!doctype html><title>elsewhere</title>")) as port:
        yield f"http://127.0.0.1:{port}/"


def run_now(api, login):
    """Ask for another run of the service's night."""
    deployments = asked(f"{api}/deployments/filter", login)
    (night,) = (each for each in deployments if each["entrypoint"].endswith("scheduled_night"))
    asked(
        f"{api}/deployments/{night['id']}/create_flow_run",
        login,
        {"state": {"type": "SCHEDULED"}},
    )


@needs_proc
def test_a_run_inherits_what_it_needs_and_no_secret_beside_it(service, api):
    folder = service.words.parent
    service.wait_for(RUN_ENDED)  # of what was missed, which begins with the service
    before = len(RUN_ENDED.findall(service.said))
    run_now(api, service.login)
    seen = {}
    run_pids = set()
    (serving_pid,) = (
        pid for pid in processes_of(folder) if b"flows.service.guarded_server" in cmdline(pid)
    )

    def ended():
        run_pids.update(runs_of(folder))
        for pid in processes_of(folder):
            if pid != service.process.pid:
                with suppress(OSError):
                    lines = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
                    seen[pid] = {line.partition("=")[0] for line in lines}
        return len(RUN_ENDED.findall(service.said)) > before

    waited(ended, lambda: f"a run in {service.said}")
    runs = [seen[pid] for pid in run_pids if pid in seen]
    assert runs
    for names in runs:
        assert names >= {"DTML_DATA", "PATH", LOGIN}
        assert names >= set(OF_RUNS)
    for pid, names in seen.items():
        assert not names & set(SECRET)
        assert pid != serving_pid or not names & set(OF_RUNS)
    assert not (folder / "imported").exists()


@needs_proc
def test_two_services_that_start_together_have_a_server_each_and_the_death_of_one_is_its_own(
    tmp_path,
):
    """One ends with a reason when its server dies; the other goes on, and when it is killed, takes
    its server and its run along. The folder of a service is no other's while it is on.
    """
    any_port = {"PREFECT_SERVER_API_PORT": ""}
    with serving(tmp_path / "one", **any_port) as one, serving(tmp_path / "two", **any_port) as two:
        pages = [service.wait_for(r"page (\S+),")[1] for service in (one, two)]
        assert len(set(pages)) == 2
        one.wait_for("press Ctrl-C to stop")
        refused = failed_service(tmp_path / "one")
        assert refused.returncode == 1
        assert "another `dtml serve` uses" in refused.stdout
        (serving_pid,) = (
            pid
            for pid in processes_of(tmp_path / "one")
            if b"flows.service.guarded_server" in cmdline(pid)
        )
        os.kill(serving_pid, signal.SIGKILL)
        assert one.process.wait(PATIENCE_S) == 1
        assert re.search("error:.*exit code -9: run the same command", one.said)
        waited(lambda: not processes_of(tmp_path / "one"), lambda: "every process to end")
        two.wait_for(r"small night done:.* 30 stocks")
        assert "crashed" not in two.said
        assert two.process.poll() is None
        run_now(f"{pages[1]}/api", two.login)
        waited(lambda: runs_of(tmp_path / "two"), lambda: f"a run in {two.said}")
        two.process.kill()
        waited(lambda: not processes_of(tmp_path / "two"), lambda: "every process to end")


def test_a_server_waits_until_another_of_its_folder_has_made_its_tables(
    tmp_path, monkeypatch, capsys
):
    """Of three that started at once in a new folder, one died of the tables
    that another was making.
    """
    monkeypatch.setenv("DTML_DATA", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(prefect_server, "PATIENCE_S", 0.1)
    monkeypatch.setattr(prefect_server, "START_LIMIT_S", 0.2)
    monkeypatch.setattr(
        prefect_server, "_start", lambda *_, **__: pytest.fail("a second server was started")
    )
    with FileLock(prefect_folder() / "start.lock"):
        with pytest.raises(DtmlError, match=r"another Prefect server .*same command"):
            prefect_server.require_server()
        with (
            pytest.raises(DtmlError, match="another Prefect server"),
            prefect_server.own_server(prefect_folder()),
        ):
            pytest.fail("a service went on without its server")
    assert "waiting for Prefect's server" in capsys.readouterr().err
