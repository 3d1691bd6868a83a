"""The `dtml db` commands: check a store, copy it, back it up, restore it, prune it, share it."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from sqlalchemy import Engine

from db.admin.checks import Finding, check_store, finding_of
from db.admin.copying import NO_PROGRESS, Progress, snapshot
from db.admin.copying import copy_store as copy_rows
from db.admin.exporting import export
from db.admin.pruning import compact
from db.admin.roles import grant_reader as restrict_to_reading
from db.engine import (
    URL_VARIABLE,
    database_url,
    location,
    open_engine,
    open_reader,
    require_current_schema,
)
from db.engine import upgrade as upgrade_schema
from db.errors import StoreError
from db.views import data_dictionary
from dtml.errors import UsageError
from dtml.pages.figures import counted
from flows.commands.history import require_market
from flows.commands.options import AsJson
from flows.console import ConsoleTable, print_json, rendered, say
from flows.settings import data_folder, err, print_text, tell
from flows.upkeep.backups import NOT_A_MODEL, Manifest, back_up, checkpoints, read_backup
from flows.upkeep.backups import restore as restore_backup
from flows.upkeep.parquet_export import VIEWS
from flows.upkeep.pruning import KEPT_NIGHTS
from flows.upkeep.pruning import plan as plan_of_pruning
from flows.upkeep.pruning import prune as prune_store

commands = typer.Typer()
store_commands = typer.Typer(
    no_args_is_help=True, help="Check, back up, prune, copy and upgrade the database."
)
commands.add_typer(store_commands, name="db")

READER_PASSWORD = "DTML_READER_PASSWORD"  # noqa: S105 - the name of a variable


@store_commands.command()
def upgrade() -> None:
    """Upgrade the database to this version's schema; no data is lost.

    Example: dtml db upgrade
    """
    engine = open_engine()
    upgrade_schema(engine)
    say(f"{location(engine)} has the schema of this version")


@store_commands.command()
def dictionary() -> None:
    """Print the meaning of every view, table and column, as Markdown.

    Example: dtml db dictionary
    """
    print_text(data_dictionary())


@store_commands.command()
def check(as_json: AsJson = False) -> None:
    """Check the database: the file, the schema, the consistency of its rows, the weights of every
    model.

    The exit code is 1 if a check failed.

    Example: dtml db check
    """
    engine = open_engine(read_only=True, unlimited=True)
    findings = []
    for finding in _findings(engine):
        findings.append(finding)
        if not as_json:
            say(rendered("finding.txt", finding=finding))
    if as_json:
        print_json(list(map(vars, findings)))
    if any(finding.state == "failed" for finding in findings):
        raise typer.Exit(1)


@store_commands.command()
def copy(
    file: Annotated[Path, typer.Argument(help="An SQLite store, such as data/dtml.sqlite.")],
) -> None:
    """Copy FILE into the empty database that DTML_DATABASE_URL names, and compare them.

    Example: DTML_DATABASE_URL=postgresql://dtml@localhost/dtml dtml db copy data/dtml.sqlite
    """
    if not file.is_file():
        raise UsageError(f"there is no store at {file}: give an SQLite file")
    source = open_engine(f"sqlite:///{file.absolute()}", read_only=True)
    # The variable names the destination here, so the command that upgrades the file sets another.
    require_current_schema(
        source, command=f"{URL_VARIABLE}=sqlite:///{file.absolute()} dtml db upgrade"
    )
    target = open_engine()
    with _progress() as progress, snapshot(source) as conn:
        rows = copy_rows(conn, target, progress)
    say(f"{location(target)}: {_counted(rows)} copied; both stores are equal")
    say(f"the weights of its models stay in {data_folder()}")


@store_commands.command()
def backup(folder: Annotated[Path, typer.Argument(help="A new or empty folder.")]) -> None:
    """Back up a snapshot of the database and its models into a folder, while nights continue.

    Example: dtml db backup /backups/2026-11-20
    """
    engine = open_reader(unlimited=True)
    with _progress() as progress:
        manifest = back_up(engine, folder, progress)
    say(f"{folder}: {_counted(manifest.rows)} and {_models(manifest)} of {location(engine)}")
    _warn_of_absent(manifest)


@store_commands.command()
def restore(
    folder: Annotated[Path, typer.Argument(help="A folder that `dtml db backup` wrote.")],
) -> None:
    """Restore a backup: rows into the empty DTML_DATABASE_URL, models into DTML_DATA.

    Example: dtml db restore /backups/2026-11-20
    """
    manifest = read_backup(folder)
    target = open_engine()
    with _progress() as progress:
        restore_backup(folder, manifest, target, progress)
    say(f"{location(target)}: {_counted(manifest.rows)} restored; they equal the backup")
    say(
        f"{_models(manifest)} restored in {data_folder()}; the backup is from {manifest.made_at}",
    )
    _warn_of_absent(manifest)


@store_commands.command("export")
def export_views(
    folder: Annotated[Path, typer.Argument(help="A new folder, or one that this command wrote.")],
    market: Annotated[
        list[str] | None, typer.Option(help="Export only this market; can be repeated.")
    ] = None,
    view: Annotated[
        list[str] | None,
        typer.Option(help=f"A view to export, by default {', '.join(VIEWS)}; can be repeated."),
    ] = None,
) -> None:
    """Export views to Parquet files by market and year; a rerun replaces them.

    Example: dtml db export exported
    """
    engine = open_reader()
    for name in market or []:
        require_market(engine, name)  # raises an error for a market that the store lacks
    with _progress() as progress:
        files = export(engine, folder, view or VIEWS, market or [], progress)
    say(f"{folder}: {counted(len(files), 'file')} written ({counted(sum(files), 'row')})")


@store_commands.command()
def prune(
    keep: Annotated[
        int, typer.Option(help="Nights of each market, the last ones, that keep everything.")
    ] = KEPT_NIGHTS,
    apply: Annotated[
        bool, typer.Option("--apply", help="Remove it; without this, it is only listed.")
    ] = False,
) -> None:
    """List what no replay needs, and with --apply remove it: every night still replays.

    That is the attention and the pages of old nights, models that no prediction, ranking or study
    names, states of work that nobody resumed for 30 days, and old runs of Prefect.

    Example: dtml db prune --keep 252 --apply
    """
    if apply:
        engine = _open_existing()
        require_current_schema(engine)
        planned = prune_store(engine, keep)
    else:
        engine = open_reader(unlimited=True)
        planned = plan_of_pruning(engine, keep)
    for market, first in planned.first_kept.items():
        say(f"{market}: the last {keep} nights keep everything, from {first} on")
    if not planned.first_kept:
        say(f"no market has {keep} complete nights")
    heading = "removed" if apply else "to remove"
    rows = pd.DataFrame(planned.removals).set_axis([heading, "count", "MB"], axis="columns")
    rows["MB"] = rows["MB"] / 1e6
    say(ConsoleTable(rows, None, {"MB": "{:.1f}".format}, prose=(heading,)))
    if not apply:
        if not planned.is_empty:
            say("nothing was removed: add --apply")
        return
    try:
        sizes = compact(engine)  # gives the free space in an SQLite file back to the disk
    except StoreError as error:
        tell(
            f"warning: the rows are removed, but the file is as large as before: {error}; run the "
            "same command again to make it smaller",
        )
        return
    if sizes is not None:
        before, after = sizes
        say(f"{location(engine)}: {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB now")


@store_commands.command("grant-reader")
def grant_reader(
    name: Annotated[str, typer.Argument(help="A PostgreSQL role; it is created if missing.")],
) -> None:
    """Let a PostgreSQL role read the documented views, and what studies and nights found, alone.

    The role loses its other rights in this database, and so do roles that have theirs only because
    every role has them. DTML_DATABASE_URL must name a superuser. DTML_READER_PASSWORD, if set,
    becomes the role's password.

    Example: dtml db grant-reader analyst
    """
    password = os.environ.get(READER_PASSWORD)
    engine = _open_existing()
    is_new = restrict_to_reading(engine, name, password)
    what_was_done = "was created and may" if is_new else "may"
    say(
        f"role {name} {what_was_done} read the views and the results of studies in "
        f"{location(engine)}, and nothing else",
    )
    if is_new and not password:
        tell(
            f"note: role {name} has no password; set {READER_PASSWORD} and run this command again, "
            "or configure the role's login on the server",
        )
    say(
        "run this command again after each `dtml db upgrade`, so that the role can read new views",
    )


def _open_existing() -> Engine:
    """Return the engine of the environment's store; StoreUsageError for a missing file."""
    url = database_url()
    if url.get_backend_name() == "sqlite":
        open_engine(read_only=True).dispose()  # only for the error about a missing file
    return open_engine()


def _findings(engine: Engine) -> Iterator[Finding]:
    """Yield what each check of a store found; the files of its models' weights are checked last.

    The weights are not checked in a store of another schema.
    """
    yield from check_store(engine)
    try:
        require_current_schema(engine)
    except StoreError:  # the schema is old, which is a finding already
        return
    wrong_checkpoints = [
        {"run_id": run_id, "path": path, "why": why}
        for run_id, path, _sha, why in checkpoints(engine)
        if why
    ]
    yield finding_of("every model's weights are as its run recorded them", wrong_checkpoints)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Yield the function that a copy calls with its progress, shown on a terminal alone."""
    if not err.is_terminal:
        yield NO_PROGRESS
        return
    with err.status("beginning") as status:

        def show(done: str, table: str, rows: int) -> None:
            of_rows = f", {counted(rows, 'row')}" if rows else ""
            status.update(f"{done} {table}{of_rows}")

        yield show


def _counted(rows: Mapping[str, int]) -> str:
    return f"{counted(len(rows), 'table')}, {counted(sum(rows.values()), 'row')}"


def _models(manifest: Manifest) -> str:
    return counted(len(manifest.checkpoints), "checkpoint")


def _warn_of_absent(manifest: Manifest) -> None:
    for absent in manifest.absent:
        advice = (
            "to replay the nights of these weights, copy the file from another backup to "
            f"{data_folder() / absent['path']} or, unless they are those of rankers, recreate it "
            "from the receipt of one of the nights' predictions with `dtml replay RECEIPT "
            "--retrain`"
        )
        if absent["why"] == NOT_A_MODEL:
            advice = "dtml reads no weights there, so no night of these weights can be replayed"
        lacking = "the backup lacks {path}, the weights of {run_id} ({why})".format_map(absent)
        tell(f"warning: {lacking}; {advice}")
