"""The `dtml db` commands: they look after the store."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import AsJson

store_commands = typer.Typer(help="Look after the database.", no_args_is_help=True)


@store_commands.command()
def upgrade() -> None:
    """Bring the database to this program's schema; nothing is lost.

    Example: dtml db upgrade
    """
    from flows.commands.database_work import upgrade_store

    upgrade_store()


@store_commands.command()
def dictionary() -> None:
    """Print the meaning of every view, table and column, as Markdown.

    Example: dtml db dictionary
    """
    from db.views.dictionary import data_dictionary

    print(data_dictionary())  # noqa: T201 - Markdown is for a file as much as for a person


@store_commands.command()
def check(as_json: AsJson = False) -> None:
    """Check that the database is sound: its file, its schema, what its rows say of each other, every model's weights.

    Example: dtml db check
    """
    from flows.commands import database_work as maintenance

    maintenance.check(as_json=as_json)


@store_commands.command()
def copy(file: Annotated[Path, typer.Argument(help="An SQLite store, such as data/dtml.sqlite.")]) -> None:
    """Copy FILE into the empty database that DTML_DATABASE_URL names, and compare every row.

    Example: DTML_DATABASE_URL=postgresql://dtml@localhost/dtml dtml db copy data/dtml.sqlite
    """
    from flows.commands import database_work as maintenance

    maintenance.copy_store(file)


@store_commands.command()
def backup(folder: Annotated[Path, typer.Argument(help="A folder that is not there yet, or empty.")]) -> None:
    """Keep the database, as it is at one moment, and its models in a folder, while nights go on.

    Example: dtml db backup /backups/2026-11-20
    """
    from flows.commands import database_work as maintenance

    maintenance.backup(folder)


@store_commands.command()
def restore(folder: Annotated[Path, typer.Argument(help="What `dtml db backup` made.")]) -> None:
    """Bring a backup back into the empty database of DTML_DATABASE_URL and the models into DTML_DATA.

    Example: dtml db restore /backups/2026-11-20
    """
    from flows.commands import database_work as maintenance

    maintenance.restore(folder)


@store_commands.command()
def redate(market: Annotated[str, typer.Argument(help="A market whose newest fetch is dated ahead.")]) -> None:
    """Date anew, as of now, what was fetched under a clock that was a day or more ahead; keep a backup first.

    Example: dtml db redate ndx100
    """
    from flows.commands import database_work as maintenance

    maintenance.redate(market)


@store_commands.command("grant-reader")
def grant_reader(name: Annotated[str, typer.Argument(help="A role of PostgreSQL; it is made where missing.")]) -> None:
    """Let a role read the documented views alone; its password, if it is to have one, is in DTML_READER_PASSWORD.

    Example: dtml db grant-reader analyst
    """
    from flows.commands import database_work as maintenance

    maintenance.grant_reader(name)
