"""Export a market's views after each night, if the user has asked for that."""

import logging
from typing import Final

from sqlalchemy import Engine

from db.admin.exporting import export
from db.errors import StoreError
from flows.settings import export_folder

VIEWS: Final = ("prediction_history", "daily_score", "run_score")

log = logging.getLogger(__name__)


def export_if_asked(engine: Engine, market: str) -> None:
    """Export a market's part of VIEWS to DTML_EXPORT, if set; a failure is a warning."""
    folder = export_folder()
    if folder is None:
        return
    try:
        files = export(engine, folder, VIEWS, [market])
    except (StoreError, OSError) as error:
        log.warning(
            "the night is stored, but %s was not exported to %s, the folder that DTML_EXPORT "
            "names: %s; the next night tries again, and so does `dtml db export %s`",
            market,
            folder,
            error,
            folder,
        )
    else:
        log.info("%s: %d Parquet files of %s written", folder, len(files), market)
