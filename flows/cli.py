"""The `dtml` command: its commands under their headings, the options they share, its exit code."""

import gc
import os
import sys
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_group

from translation.environment import exit_on_windows, prepare_output, prepare_torch

COMMANDS = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
MODULES = {name: module for listed in COMMANDS.values() for name, (module, _) in listed.items()}


class LateCommand(TyperCommand):
    """Stand in for a command, whose module is imported when called: `--help` waits for none."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Return the context of the real command: Typer then parses its options and runs it."""
        return load(str(self.name)).make_context(info_name, args, parent, **extra)


def load(name: str) -> Any:
    """Return the command or the group of commands of this name, with its options."""
    module = import_module(f"flows.commands.{MODULES[name]}")
    return get_group(module.commands).commands[name]


def _listed() -> None:
    """Do nothing: Typer wants a function, but a `LateCommand` never calls it."""


app = typer.Typer(
    name="dtml",
    help="Nightly stock movement predictions with DTML, scored honestly and kept in SQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for heading, listed in COMMANDS.items():
    for command, (_, line) in listed.items():
        app.command(command, cls=LateCommand, help=line, rich_help_panel=heading)(_listed)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"dtml {version('dtml-nightshift')}")
        raise typer.Exit


@app.callback()
def common(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks and every log line.")
    ] = False,
    _: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_say_version, is_eager=True),
    ] = False,
) -> None:
    """Set up what all commands share: logging, Prefect's settings, torch, and the environment.

    Child processes get DTML_DEBUG and PYTHONSAFEPATH.
    """
    # Imported here: Windows lacks modules that these import, and `main` has a message for it.
    from flows.log_lines import set_up_logging
    from flows.settings import prepare_prefect

    os.environ["DTML_DEBUG"] = "1" if debug else ""
    # Child processes import no module that somebody left in the working folder.
    os.environ["PYTHONSAFEPATH"] = "1"
    set_up_logging(debug=debug)
    prepare_prefect(quiet=not debug)
    prepare_torch()


def main() -> None:
    """Run a command and exit: 2 after a user's mistake, 130 an interrupt, 1 other failures."""
    exit_on_windows()
    prepare_output()
    # Imports make many objects and no garbage: the default threshold costs a short command a tenth
    # of its time.
    gc.set_threshold(20_000, 20, 20)
    from flows.failures import run_command

    sys.exit(run_command(app))
