"""The `dtml` command: its commands under their headings, the options they share, and how it ends."""

import gc
import os
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_group

from flows.settings import prepare_prefect, prepare_torch, set_up_logging

# By heading: each command, the module in flows/commands that holds it, and its line in `dtml --help`.
COMMANDS = {
    "Every night": (
        ("nightly", "nightly", "Run a night: fetch, check, store, train if due, predict, score, report."),
        ("fetch", "nightly", "Fetch what the store lacks, check it, and store it."),
        ("train", "nightly", "Train the market's model on what is stored; interrupted, it resumes when run again."),
        ("predict", "nightly", "Predict the next session from what is stored, with the latest model."),
        ("score", "nightly", "Score every past prediction whose outcome is stored, beside the naive rules."),
        ("report", "report", "Write the HTML page of a past night again, and print its path."),
        ("serve", "serve", "Run nights, trainings and refetches on schedule, missed nights first."),
        ("status", "status", "Show the state of each market: last night, next night, model, scores, unsent alerts."),
    ),
    "Read the history": (
        ("query", "query", "Run one SQL statement on the database, read-only."),
        ("questions", "questions", "List twenty questions about the history of predictions, or answer one."),
        ("history", "query", "Show what was predicted of a stock and what happened."),
        ("runs", "query", "List the trained models and what they were trained on."),
        ("markets", "query", "List the markets that can be named."),
        ("dashboard", "dashboard", "Serve the prediction history as read-only pages on this machine."),
    ),
    "Test the model": (
        ("replay", "replay", "Make a past night, or one prediction, again and compare it to the last bit."),
        ("backtest", "studies", "Walk forward through history as the nights would have."),
        ("ranking", "ranking", "Order the stocks of each day by models and one-line rules, walked forward."),
        ("benchmark", "studies", "Run the published experiment with every model of its table."),
        ("audit", "studies", "Look for look-ahead in the stored prices, the training and the model of a market."),
        ("explain", "explain", "Test whether the latest model's attention explains anything."),
    ),
    "Maintain the store": (
        ("db", "database", "Check, back up, copy and upgrade the database."),
        ("doctor", "status", "Examine this machine: can it run nights, and if not, what has to be done?"),
    ),
    "Translate": (("translate", "translate", "Train and run translation models on the Transformer of DTML."),),
}
MODULES = {name: module for listed in COMMANDS.values() for name, module, _ in listed}


class LateCommand(TyperCommand):
    """A command whose module is imported when it is called: `dtml --help` waits for none of them."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the command itself."""
        return load(str(self.name)).make_context(info_name, args, parent, **extra)


def load(name: str) -> Any:
    """Return the command of this name, or the group, with its options."""
    return get_group(import_module(f"flows.commands.{MODULES[name]}").commands).commands[name]


def _listed() -> None: ...


app = typer.Typer(
    name="dtml",
    help="Nightly stock movement predictions with DTML, scored honestly and kept in SQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for heading, listed in COMMANDS.items():
    for command, _, line in listed:
        app.command(command, cls=LateCommand, help=line, rich_help_panel=heading)(_listed)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"dtml {version('dtml-nightshift')}")
        raise typer.Exit


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and every log line.")] = False,
    _: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Set up what all commands share."""
    os.environ["DTML_DEBUG"] = "1" if debug else ""
    os.environ["PYTHONSAFEPATH"] = "1"  # no process of ours imports what somebody left in the working folder
    set_up_logging(debug=debug)
    prepare_prefect(quiet=not debug)
    prepare_torch()


def main() -> None:
    """Run a command; every failure is one line on standard error, 2 for the user's mistakes and 1 for the rest."""
    gc.set_threshold(20_000, 20, 20)  # imports make many objects and no garbage: a tenth of a short command
    from flows.failures import run_command

    sys.exit(run_command(app))
