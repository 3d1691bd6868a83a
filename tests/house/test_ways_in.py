"""Ways to run it other than a checkout: the container file, the units of systemd, and a system
that it does not run on.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import whole_command
from tests.support.places import ROOT

PAGE = (ROOT / "flows" / "README.md").read_text(encoding="utf-8")
CONTAINER = (ROOT / "Containerfile").read_text(encoding="utf-8")
# What Windows lacks and the product imports; the rest of a Windows is not played.
ON_WINDOWS = """
import sys, typer, rich.console
for name in ("fcntl", "resource", "pwd", "termios"):
    sys.modules[name] = None
sys.platform = "win32"
"""
COMMANDS = {
    "dtml": "from flows.cli import main; sys.argv = ['dtml', 'status']; main()",
    "translation": (
        "import runpy; sys.argv = ['translation', '--help']; "
        "runpy.run_module('translation', run_name='__main__')"
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_on_windows_a_command_says_in_one_line_where_it_runs(command):
    ended = subprocess.run(
        [sys.executable, "-c", ON_WINDOWS + COMMANDS[command]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert "Windows" in line
    assert "WSL" in line


def instructions():
    """The instructions of the container file with their arguments, in order."""
    lines = [line for line in CONTAINER.splitlines() if line and not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, argument = line.strip().partition(" ")
        yield name, " ".join(argument.split())


def arguments_of(wanted):
    return [argument for name, argument in instructions() if name == wanted]


def test_the_container_copies_files_that_are_there_and_that_its_context_holds():
    kept = re.findall(
        r"^!(.+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE
    )
    copied = [
        name
        for argument in arguments_of("COPY")
        if not argument.startswith("--from")
        for name in argument.split()[:-1]
    ]
    assert {"flows", "dtml", "db", "translation", "constraints.txt"} <= set(copied)
    for name in copied:
        assert (ROOT / name).exists(), name
        assert name in kept, f"{name} is not in .dockerignore"


def test_the_container_serves_pinned_versions_as_its_own_user_with_its_data_in_a_volume():
    variables = dict(re.findall(r"(\w+)=(\S+)", " ".join(arguments_of("ENV"))))
    (user,), (volume,) = arguments_of("USER"), arguments_of("VOLUME")
    builds, installs, makes = arguments_of("RUN")
    assert "pip wheel" in builds
    assert "--no-deps" in builds
    assert re.search("--constraint /wheels/constraints.txt .*/wheels/.*whl", installs)
    assert int(user) > 1000
    assert f"useradd --uid {user} " in makes
    assert makes.endswith(f"--owner=dtml --group=dtml --mode=0700 {volume}")
    assert variables["DTML_DATA"] == volume
    assert variables["DTML_REPORTS"].startswith(f"{volume}/")
    words = [word for name in ("ENTRYPOINT", "CMD") for word in json.loads(*arguments_of(name))]
    assert words[:2] == ["dtml", "serve"]
    whole_command().commands["serve"].make_context("serve", words[2:])
    (check,) = arguments_of("HEALTHCHECK")
    python, option, program = json.loads(check.partition("CMD ")[2])
    assert (python, option) == ("python", "-c")
    compile(program, "the health check", "exec")
    assert f"127.0.0.1:{variables['PREFECT_SERVER_API_PORT']}/api/health" in program


def units():
    """The units of systemd that the page of running shows, by the names of their files."""
    service, check, timer = re.findall(r"^```ini\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return {"dtml.service": service, "dtml-check.service": check, "dtml-check.timer": timer}


def test_the_units_of_systemd_run_commands_that_parse():
    started = [
        line.partition("=")[2].split()
        for text in units().values()
        for line in text.splitlines()
        if line.startswith("ExecStart=")
    ]
    assert [words[1] for words in started] == ["serve", "status"]
    for program, name, *rest in started:
        assert Path(program).name == "dtml"
        whole_command().commands[name].make_context(name, rest)
