"""The queue of texts to translate: put in, taken by workers under a lease, finished or failed.

A text is queued, then taken, then done or failed. A worker holds what it took until its lease ends:
if it died, the text is queued again. Each worker needs a name of its own. Moments are those of the
workers' clocks.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, takewhile
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from db import tables
from db.connection.frames import frame, matching
from db.engine import reading, transaction
from db.errors import StoreUsageError
from db.tables import LONGEST_TEXT
from db.views import view

MAX_ATTEMPTS = 3
LEASE_S = 300.0
MOST_CHARACTERS = 5 * LONGEST_TEXT  # taken at once, unless the first text alone is longer
DIED = f"its worker died {MAX_ATTEMPTS} times while translating it"

text = tables.translation_text
TURN = (text.c.priority.desc(), text.c.id)


def queue_texts(conn: Connection, model: str, texts: Sequence[str], priority: int = 0) -> list[int]:
    """Put texts at the end of the queue of a model, which need not be stored; return their ids, in
    order.

    Raises StoreUsageError, naming it, for a text that no worker would translate, and puts in none.
    """
    if not texts:
        return []
    for number, source_text in enumerate(texts, start=1):
        reason = why_unfit(source_text)
        if reason is not None:
            raise StoreUsageError(f"text {number} of {len(texts)}: {reason}")
    rows = [
        {
            "model": model,
            "text": source_text,
            "priority": priority,
            "queued_at": datetime.now(UTC),
        }
        for source_text in texts
    ]
    insert = sa.insert(text).returning(text.c.id, sort_by_parameter_order=True)
    return list(conn.execute(insert, rows).scalars())


def why_unfit(said: str | bytes) -> str | None:
    """Say why no model can translate a text: it is no text, or longer than `LONGEST_TEXT`
    characters.
    """
    try:
        characters = len(said.decode() if isinstance(said, bytes) else said.encode().decode())
    except UnicodeError as error:
        return f"it is not valid UTF-8: {error}"
    if characters > LONGEST_TEXT:
        return (
            f"it has {characters:,} characters, but at most {LONGEST_TEXT:,} are translated: "
            "split it"
        )
    return None


def take_texts(
    engine: Engine,
    worker: str,
    models: Collection[str] | None,
    limit: int,
    lease_s: float = LEASE_S,
    now: datetime | None = None,
) -> list[dict[str, Any]]:
    """Take up to `limit` texts of one of the models (None: of any): the highest priority first,
    then the oldest.

    All are of the model of the first one. What a worker died of, or beside, is taken alone: so a
    text that kills its worker takes no other with it. Together they have `MOST_CHARACTERS`: so a
    long one keeps few waiting. Each is a mapping of id, model, text, priority, attempts, this one
    counted, and unfit: None, or why a text that was put in by an INSERT cannot be translated.
    Nobody else takes it for `lease_s` seconds. A text that was taken `MAX_ATTEMPTS` times and never
    finished is failed. Raises StoreUsageError for a limit below 1.
    """
    if limit < 1:
        raise StoreUsageError(f"a worker must take 1 text or more, not {limit}")
    moment = datetime.now(UTC) if now is None else now
    with reading(engine) as conn:  # a worker without work keeps no writer waiting
        if not is_ready(conn, models, moment):
            return []
    with transaction(engine) as conn:
        ended = sa.update(text).where(*_over(models, moment))
        failed = {"status": "failed", "reason": DIED, "finished_at": moment, "taken_until": None}
        conn.execute(ended.where(text.c.attempts >= MAX_ATTEMPTS).values(failed))
        conn.execute(ended.values(status="queued", taken_until=None))
        model = _first_model(conn, models)
        if model is None:
            return []
        return _take(conn, worker, model, limit, moment + timedelta(seconds=lease_s))


def is_ready(conn: Connection, models: Collection[str] | None, now: datetime | None = None) -> bool:
    """Return whether a worker would find a text of one of the models (None: of any): queued, or
    with an ended lease.
    """
    moment = datetime.now(UTC) if now is None else now
    ended = sa.select(text.c.id).where(*_over(models, moment)).limit(1)
    return _first_model(conn, models) is not None or conn.execute(ended).first() is not None


def renew(
    conn: Connection,
    worker: str,
    ids: Collection[int],
    lease_s: float = LEASE_S,
    now: datetime | None = None,
) -> int:
    """Let leases of a worker end `lease_s` seconds from now; return how many it still held."""
    moment = datetime.now(UTC) if now is None else now
    until = moment + timedelta(seconds=lease_s)
    held = sa.update(text).where(*_held_by(worker), text.c.id.in_(ids))
    return conn.execute(held.values(taken_until=until)).rowcount


def finish_texts(conn: Connection, worker: str, rows: Sequence[Mapping[str, object]]) -> int:
    """Store translations: id, translation, score, and any attention and reason to doubt; return how
    many were written.

    What the worker no longer holds, because its lease ended and the text was taken again, is left
    as it is.
    """
    if not rows:
        return 0
    done = sa.update(text).where(*_held_by(worker), text.c.id == sa.bindparam("of"))
    names = ("translation", "score", "attention", "reason")
    values = {name: sa.bindparam(f"new_{name}", type_=text.c[name].type) for name in names}
    statement = done.values(
        status="done", finished_at=datetime.now(UTC), taken_until=None, **values
    )
    parameters = []
    for row in rows:
        new_values = {f"new_{name}": row.get(name) for name in names}
        parameters.append({"of": row["id"], **new_values})
    return conn.execute(
        statement, parameters, execution_options={"preserve_rowcount": True}
    ).rowcount


def fail_texts(conn: Connection, worker: str, ids: Collection[int], reason: str) -> int:
    """Note why texts that a worker holds cannot be translated; return how many were written."""
    values = {
        "status": "failed",
        "reason": reason,
        "finished_at": datetime.now(UTC),
        "taken_until": None,
    }
    return conn.execute(
        sa.update(text).where(*_held_by(worker), text.c.id.in_(ids)).values(values)
    ).rowcount


def give_back(conn: Connection, worker: str) -> int:
    """Queue again, as if not taken, what a worker holds that ends in good
    order; return how many texts.
    """
    values = {"status": "queued", "taken_until": None, "attempts": text.c.attempts - 1}
    return conn.execute(sa.update(text).where(*_held_by(worker)).values(values)).rowcount


def queue_counts(conn: Connection) -> pd.DataFrame:
    """Return how many texts each model has of each status: model, status, n."""
    key = (text.c.model, text.c.status)
    return frame(conn, sa.select(*key, sa.func.count().label("n")).group_by(*key).order_by(*key))


def _held_by(worker: str) -> tuple[sa.ColumnElement[bool], ...]:
    return text.c.status == "taken", text.c.taken_by == worker


def _over(models: Collection[str] | None, now: datetime) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a text of one of the models (None: of any) whose lease ended."""
    conditions = [text.c.status == "taken", text.c.taken_until <= now]
    if models is not None:
        conditions.append(text.c.model.in_(models))
    return conditions


def _first_model(conn: Connection, models: Collection[str] | None) -> str | None:
    """Return the model whose turn it is.

    The first text of each is found in the index, however many wait behind it.
    """
    first = (
        sa.select(text.c.priority, text.c.id)
        .where(text.c.status == "queued")
        .order_by(*TURN)
        .limit(1)
    )
    turns = []
    for model in _waiting(conn) if models is None else models:
        head = conn.execute(first.where(text.c.model == model)).first()
        if head is not None:
            turns.append((_rank(head.priority), head.id, model))
    if not turns:
        return None
    _, _, first_model = min(turns)
    return first_model


def _rank(priority: object) -> float:
    """Return what is lower the earlier a priority comes.

    An INSERT into SQLite may name text or bytes, which it sorts above all numbers.
    """
    return -priority if isinstance(priority, int | float) else -math.inf


def _waiting(conn: Connection) -> list[str]:
    """Return the models that have queued texts; each is found in the index after the one before."""
    least = sa.select(sa.func.min(text.c.model)).where(text.c.status == "queued")
    models = [conn.execute(least).scalar_one()]
    # A name that is no text is not found by itself: it may come twice.
    while models[-1] is not None and models[-1] not in models[:-1]:
        models.append(conn.execute(least.where(text.c.model > models[-1])).scalar_one())
    return models[:-1]


def _take(
    conn: Connection, worker: str, model: str, limit: int, until: datetime
) -> list[dict[str, Any]]:
    """Take the texts of a model whose turn it is, as `take_texts` says, under a lease."""
    ids = _ids_to_take(conn, model, limit)
    values = {
        "status": "taken",
        "taken_by": worker,
        "taken_until": until,
        "attempts": text.c.attempts + 1,
    }
    taken = sa.update(text).where(text.c.id.in_(ids), text.c.status == "queued").values(values)
    # SQLite may hold bytes that are no UTF-8: read as they are, they can be judged.
    source_text: sa.ColumnElement[Any] = text.c.text
    if conn.dialect.name != "postgresql":
        source_text = sa.cast(text.c.text, sa.LargeBinary)
    returned = conn.execute(
        taken.returning(
            text.c.id,
            text.c.model,
            text.c.priority,
            text.c.attempts,
            source_text.label("text"),
        )
    )
    texts = []
    for row in returned.mappings().all():
        unfit = why_unfit(row["text"])
        texts.append({**row, "unfit": unfit, "text": _as_text(row["text"])})
    return sorted(texts, key=lambda row: ids.index(row["id"]))


def _ids_to_take(conn: Connection, model: str, limit: int) -> list[int]:
    """Return the next queued texts of a model: some that were never taken, or the first alone."""
    queued = sa.select(text.c.id, text.c.attempts, sa.func.length(text.c.text).label("characters"))
    queued = queued.where(text.c.status == "queued", text.c.model == model)
    turns = conn.execute(queued.order_by(*TURN).limit(limit)).all()
    never_taken = list(takewhile(lambda turn: turn.attempts == 0, turns))
    totals = accumulate(turn.characters for turn in never_taken)
    ids = [
        turn.id for turn, total in zip(never_taken, totals, strict=True) if total <= MOST_CHARACTERS
    ]
    return ids or [turns[0].id]


def _as_text(said: str | bytes) -> str:
    return said.decode("utf-8", "backslashreplace") if isinstance(said, bytes) else said


def newest(conn: Connection, model: str | None, status: str | None, limit: int) -> pd.DataFrame:
    """Return the texts queued last, of one model or status where given, as in the view
    translation_job.
    """
    job = view("translation_job").c
    statement = (
        sa.select(
            job.id,
            job.model,
            job.status,
            job.text,
            job.translation,
            job.score,
            job.attempts,
            job.reason,
            job.queued_at,
        )
        .where(*matching(view("translation_job"), model=model, status=status))
        .order_by(job.id.desc())
        .limit(limit)
    )
    jobs = frame(conn, statement)
    return jobs.assign(text=jobs["text"].map(_as_text))
