"""The `dtml db` commands: they look after the store."""

import typer

store_commands = typer.Typer(help="Look after the database.", no_args_is_help=True)


@store_commands.command()
def upgrade() -> None:
    """Bring the database to this program's schema; nothing is lost.

    Example: dtml db upgrade
    """
    from flows.asking import upgrade_store

    upgrade_store()


@store_commands.command()
def dictionary() -> None:
    """Print the meaning of every view, table and column, as Markdown.

    Example: dtml db dictionary
    """
    from flows.asking import data_dictionary

    print(data_dictionary())  # noqa: T201 - Markdown is for a file as much as for a person
