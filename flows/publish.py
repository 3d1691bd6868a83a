"""Write a night's report from what the store holds."""

from datetime import date
from pathlib import Path

import pandas as pd

from db import queries
from db.engine import reading
from dtml.report import night_report
from dtml.sessions import sessions_up_to
from flows.desk import Desk
from flows.settings import reports_folder, write_whole

REFUSED_SESSIONS = 30
RECEIPT = (
    "id",
    "model",
    "created_at",
    "train_first",
    "train_last",
    "seeds",
    "code_version",
    "data_watermark",
    "checkpoint_hash",
)


def _dated(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with their sessions as plain dates."""
    return rows.assign(session=rows["session"].dt.date)


def publish_night(desk: Desk, as_of: date) -> Path:
    """Write reports/MARKET/AS_OF.html, whole or not at all, and return its path."""
    since = sessions_up_to(desk.market.calendar, as_of, REFUSED_SESSIONS)[0].date()
    with reading(desk.engine) as conn:
        night = queries.night(conn, desk.name, as_of)
        assert night is not None
        run = queries.run(conn, night["run_id"])
        page = night_report(
            title=desk.market.title,
            night=night,
            predictions=queries.predictions(conn, desk.name, target=night["target"], run_id=night["run_id"]),
            scores=queries.scores(conn, desk.name, last=as_of, span="running"),
            refused=_dated(queries.refused_bars(conn, desk.name, since, as_of)),
            refused_sessions=REFUSED_SESSIONS,
            receipt={name: run[name] for name in RECEIPT}
            | {"inputs known at": night["known_at"], "config": run["config"]},
        )
    file = reports_folder() / desk.name / f"{as_of}.html"
    write_whole(file, lambda partial: partial.write_text(page, encoding="utf-8"))
    return file
