"""The dashboard as a process of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection

PROGRAM = """
import sys
from flows.commands.dashboard import commands
from flows.failures import run_command
code = run_command(commands)
print("loaded", sorted({"torch", "prefect"} & set(sys.modules)))
sys.exit(code)
"""


@contextmanager
def started(url: str, *options: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", PROGRAM, *options]
    environment = os.environ | {"DTML_DATABASE_URL": url}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def port_of(process: "subprocess.Popen[str]") -> int:
    """The port of the line in which the command says where it is."""
    assert process.stdout
    found = re.match(r"http://\S+:(\d+) ", line := process.stdout.readline())
    assert found, line
    return int(found[1])


def ask(port: int, address: str, host: str = "127.0.0.1") -> tuple[int, str]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=550)) as connection:
        connection.request("GET", address, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
