"""The command that writes a night's page again: it reads the store, writes nothing to it, and needs no Prefect."""

from datetime import date

from db.engine import reading
from db.rows import predictions
from dtml.errors import UsageError
from dtml.markets.definition import LEVELS
from flows.nightly.context import Order
from flows.nightly.report import publish_night
from flows.replay.archive import open_archive, stocks_of
from flows.settings import out


def write_report(order: Order, as_of: date | None, level: float | None) -> None:
    """Write the page of a complete night, by default the last, at a level of its band of no call; print its path."""
    if level is not None and level not in LEVELS:
        raise UsageError(f"--level is one of {', '.join(f'{each:g}' for each in LEVELS)}; got {level:g}")
    archive = open_archive(order)
    night = archive.night(as_of)
    with reading(archive.engine) as conn:
        predicted = predictions.night_calls(conn, archive.market.name, night["as_of"])["symbol"]
    desk = archive.desk(stocks_of(night, predicted))
    out.print(str(publish_night(desk, night["as_of"], level)), soft_wrap=True)
