"""Translation models, the progress of their training, and their scores.

The texts that they translate are in translation_queue.py.
"""

import json
from collections.abc import Mapping
from datetime import datetime

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import Rows, upsert
from db.connection.frames import frame
from db.views import view


def save_model(conn: Connection, model: Mapping[str, object]) -> int:
    """Store a model in place of the one of its name; return 1 when the name is new, else 0.

    The stored scores of that name are deleted if the model has other weights than before.
    """
    table = tables.translation_model
    score = tables.translation_score
    same = (table.c.name == model["name"], table.c.checkpoint_hash == model["checkpoint_hash"])
    if conn.execute(sa.select(table.c.name).where(*same)).first() is None:
        # The weights that were scored are gone.
        conn.execute(sa.delete(score).where(score.c.model == model["name"]))
    deleted = conn.execute(sa.delete(table).where(table.c.name == model["name"])).rowcount
    conn.execute(sa.insert(table), [dict(model)])
    return 1 - deleted


def save_progress(conn: Connection, rows: Rows) -> int:
    """Store or update the progress of a training; return how many rows were new.

    `rows` have every column of translation_progress, a row for each step.
    """
    return upsert(conn, tables.translation_progress, rows, stamps=("at", "tokens_per_second"))


def forget_progress(conn: Connection, model: str) -> int:
    """Delete the stored progress of a model, whose training begins again; return how many rows."""
    table = tables.translation_progress
    return conn.execute(sa.delete(table).where(table.c.model == model)).rowcount


def trainings(conn: Connection, since: datetime) -> pd.DataFrame:
    """Return the last logged step of each training that logged it at `since` or later.

    There is a row for each model, with the columns of the view translation_training.
    """
    log = view("translation_training")
    newest = sa.select(log.c.model, sa.func.max(log.c.step).label("step")).group_by(log.c.model)
    last = newest.subquery()
    is_last = sa.and_(log.c.model == last.c.model, log.c.step == last.c.step)
    statement = sa.select(log).join(last, is_last).where(log.c.at >= since).order_by(log.c.model)
    return frame(conn, statement)


def save_score(conn: Connection, score: Mapping[str, object]) -> int:
    """Store a score in place of the one with its key; return 1 when it is new, else 0.

    The key is its model, test set, search settings and the model that it is compared with, which
    may be None. `score` has the columns of translation_score by name but id and search_text;
    optional ones may be left out, and are then NULL.
    """
    table = tables.translation_score
    values: dict[str, object] = {
        "bleu_low": None,
        "bleu_high": None,
        "against": None,
        "difference": None,
        "p": None,
        **score,
    }
    # The same text for equal settings, so that they can be part of the key.
    values["search_text"] = json.dumps(values["search"], sort_keys=True)
    has_key = [
        table.c[name].is_not_distinct_from(values[name])
        for name in ("model", "test_hash", "search_text", "against")
    ]
    if conn.execute(sa.update(table).where(*has_key).values(values)).rowcount:
        return 0
    conn.execute(sa.insert(table), [values])
    return 1


def scores(conn: Connection) -> pd.DataFrame:
    """Return scores by model and moment: the columns of translation_score but search_text."""
    table = tables.translation_score
    columns = [column for column in table.c if column.name != "search_text"]
    statement = sa.select(*columns).order_by(table.c.model, table.c.scored_at, table.c.id)
    return frame(conn, statement)
