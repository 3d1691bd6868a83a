"""Write the page of a night."""

import logging
from pathlib import Path

from db.engine import reading
from dtml.attention import Attention
from dtml.errors import DtmlError
from flows.markets.stored_night import page_file
from flows.night_page import night_page
from flows.nightly.context import Tonight
from flows.nightly.predict import first_needed, look
from flows.nightly.train import load_run
from flows.settings import write_page

log = logging.getLogger(__name__)


def publish_night(tonight: Tonight, level: float | None = None) -> Path:
    """Write the page of a complete night, whole, and return its path: reports/MARKET/AS_OF.html.

    At another `level` than the market's, AS_OF-level-0.9.html.
    """
    context = tonight.context
    attention = tonight.attention or seen(tonight)
    with reading(context.engine) as conn:
        page = night_page(conn, context.market, dict(tonight.row), level=level, attention=attention)
    level = context.market.level if level is None else level
    file = page_file(context, tonight.as_of, level)
    write_page(file, page)
    return file


def seen(tonight: Tonight) -> Attention | None:
    """Return which stocks looked at which; None, with a warning, if model or bars are lost."""
    context = tonight.context
    try:
        model = load_run(context, tonight.run)
        bars, _ = tonight.known(first_needed(context, model.ensemble.windows, tonight.as_of))
        return look(context, model, tonight.as_of, bars)
    except (DtmlError, OSError) as error:
        log.warning(
            "%s: the page of the night of %s shows only the stored part of its attention: %s",
            context.name,
            tonight.as_of,
            error,
        )
        return None
