"""Laws of the command line as a whole: examples that parse, one name for one thing, completion."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from dtml.errors import UsageError
from flows.cli import COMMANDS, app, load
from flows.commands.options import request_of
from flows.signals import GO_ON
from tests.support.commands import Command, whole_command


def commands(
    group: Any = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command by its path."""
    group = whole_command() if group is None else group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_the_version_is_that_of_the_package(command: Command) -> None:
    assert command("--version") == (0, f"dtml {version('dtml-nightshift')}\n", "")


def test_markets_say_how_many_stocks_each_has(command: Command) -> None:
    code, said, _ = command("markets", "--json")
    listed = {market["market"]: market["constituents"] for market in json.loads(said)}
    assert code == 0
    assert (listed["simulated"], listed["kospi100"]) == ("30, simulated", "from a file")
    assert listed["kdd17"] == "50 of 2016-12-30"


def test_every_command_is_under_a_heading_of_the_help_which_begins_as_its_own() -> None:
    said = CliRunner().invoke(app, ["--help"]).output
    headings = [
        "Every night",
        "Read the history",
        "Test the model",
        "Maintain the store",
        "Translate",
    ]
    assert (
        re.findall(r"^╭─ (.+?) ─+╮$", said, re.MULTILINE)
        == ["Options", *headings]
        == ["Options", *COMMANDS]
    )
    for listed in COMMANDS.values():
        for name, (_, line) in listed.items():
            assert re.search(rf"^│ {name} ", said, re.MULTILINE)
            assert load(name).help.split("\n\n")[0] == line


@pytest.mark.parametrize(
    ("path", "command"),
    list(commands()),
    ids=lambda each: " ".join(each) if type(each) is tuple else "",
)
def test_every_command_has_an_example_that_parses(path: tuple[str, ...], command: Any) -> None:
    examples = [
        line.split("Example: ")[1] for line in command.help.splitlines() if "Example: " in line
    ]
    assert examples
    for example in examples:
        variable, *rest = shlex.split(example)  # one of the environment may come first
        words = rest[1:] if "=" in variable else rest
        assert tuple(words[: len(path)]) == path
        command.make_context(" ".join(path), words[len(path) :], resilient_parsing=False)


def test_a_market_s_file_may_be_given_with_its_name_and_with_no_other() -> None:
    file = Path("my.toml")
    assert request_of("my", file) == request_of(None, file)
    with pytest.raises(UsageError, match="give one market"):
        request_of("mine", file)


def test_an_interrupt_before_anything_is_done_says_how_to_go_on_and_a_second_one_breaks_nothing(
    command: Callable[..., tuple[int, str, str]],
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    (impatient := typer.Typer()).command()(interrupted)
    before = signal.getsignal(signal.SIGINT)
    try:
        code, _, complaint = command(of=impatient)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert (code, complaint.strip().splitlines()[-1]) == (130, GO_ON)


def test_an_option_of_one_name_is_of_one_type() -> None:
    kinds: defaultdict[str, set[str]] = defaultdict(set)
    for _, command in commands():
        for option in command.params:
            for name in option.opts:
                if name.startswith("--"):
                    kinds[name].add(option.bare_type().removeprefix("list[").removesuffix("]"))
    # A span ends with a day, a file's translations with a file.
    assert {name for name, types in kinds.items() if len(types) > 1} == {"--to"}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("dtml nig", ["nightly"]),
        ("dtml nightly k", ["kdd17", "kospi100", "kospi200"]),
        ("dtml questions --market nd", ["ndx100"]),
    ],
)
def test_a_shell_completes_commands_and_markets(typed: str, offered: list[str]) -> None:
    place = str(len(typed.split()) - 1)
    asked = {"_DTML_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": place}
    code = "import sys; sys.argv = ['dtml']; from flows.cli import main; main()"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout.split() == offered, said.stderr
