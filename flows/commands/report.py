"""The command that writes the page of a past night again: it reads the store and writes nothing to it."""

from typing import Annotated

import typer

from db.engine import reading
from db.rows import predictions, runs
from dtml.errors import UsageError
from dtml.markets.definition import LEVELS
from flows.commands.options import AsOf, day_of, of_a_market
from flows.nightly.context import RunRequest
from flows.nightly.report import publish_night
from flows.replay.archive import open_archive, stocks_of
from flows.settings import out

commands = typer.Typer()


@commands.command()
@of_a_market("device")
def report(
    request: RunRequest,
    as_of: AsOf = None,
    level: Annotated[
        float | None, typer.Option(help="Level of the abstention band, such as 0.9; by default the market's own.")
    ] = None,
) -> None:
    """Write the HTML page of a past night again, and print its path.

    By default that of the last complete night. With --level, it shows the directions at another level: a higher one
    decides fewer stocks.

    Example: dtml report simulated --level 0.9
    """
    if level is not None and level not in LEVELS:
        raise UsageError(f"--level is one of {', '.join(f'{each:g}' for each in LEVELS)}; got {level:g}")
    archive = open_archive(request)
    night = archive.night(day_of(as_of))
    with reading(archive.engine) as conn:
        predicted = predictions.night_directions(conn, archive.market.name, night["as_of"])["symbol"]
        run = runs.run(conn, night["run_id"])
    context = archive.context(run, stocks_of(night, predicted))
    out.print(str(publish_night(context, night["as_of"], level)), soft_wrap=True)
