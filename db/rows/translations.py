"""Translation models, the progress of their training, their scores, and the queue of texts.

A text is queued, then taken, then done or failed; once a worker's lease ends, it is queued again.
Each worker needs a name of its own. Moments are those of the workers' clocks.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from db import tables, where
from db.connection.frames import frame
from db.engine import reading, transaction
from db.errors import StoreUsageError
from db.read import read
from db.tables import LONGEST_TEXT
from db.views import view


def save_model(conn: Connection, model: Mapping[str, object]) -> int:
    """Store a model in place of the one of its name; return 1 when the name is new, else 0.

    Scores of other weights are deleted.
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


def forget_progress(conn: Connection, model: str) -> int:
    """Delete the stored progress of a model, whose training begins again; return how many rows."""
    table = tables.translation_progress
    return conn.execute(sa.delete(table).where(table.c.model == model)).rowcount


def save_score(conn: Connection, score: Mapping[str, object]) -> int:
    """Store a score in place of the one with its key; return 1 when it is new, else 0.

    The key: model, test set, search settings, and the model compared with, or None.
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


MAX_ATTEMPTS = 3  # Each is a worker that took the text and died.
LEASE_S = 300.0
MOST_CHARACTERS = 5 * LONGEST_TEXT  # of all texts that a worker takes at once
DIED = f"its worker died {MAX_ATTEMPTS} times while translating it"

text = tables.translation_text.c
QUEUE_ORDER = (text.priority.desc(), text.id)


def queue_texts(conn: Connection, model: str, texts: Sequence[str], priority: int = 0) -> list[int]:
    """Put texts into a model's queue by priority; return their ids in order.

    The model may be unknown. Raises StoreUsageError for a text that no worker can translate, and
    queues none.
    """
    if not texts:
        return []
    for number, source_text in enumerate(texts, start=1):
        reason = why_unfit(source_text)
        if reason is not None:
            raise StoreUsageError(
                f"text {number} of {len(texts)}, which begins with {source_text[:40]!r}, cannot be "
                f"translated, so no text was queued: {reason}"
            )
    rows = [
        {
            "model": model,
            "text": source_text,
            "priority": priority,
            "queued_at": datetime.now(UTC),
        }
        for source_text in texts
    ]
    insert = sa.insert(tables.translation_text).returning(text.id, sort_by_parameter_order=True)
    return list(conn.execute(insert, rows).scalars())


def why_unfit(source_text: str | bytes) -> str | None:
    """Return why a text is unfit: invalid UTF-8, or over `LONGEST_TEXT`; else None."""
    try:
        encoded = source_text if isinstance(source_text, bytes) else source_text.encode()
        characters = len(encoded.decode())
    except UnicodeError as error:
        return f"it is not valid UTF-8 ({error}): convert it to UTF-8"
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
    """Take up to `limit` queued texts of one model, by priority, then age.

    They are taken in a transaction of its own. The model is that of the first text queued for one
    of `models` (None: any). A text that was taken and lost is taken alone, so that one that kills
    its worker affects no other. Together the texts have at most `MOST_CHARACTERS`, unless the first
    has more.

    Each has id, model, text, priority, attempts (with this one), and unfit: why it cannot be
    translated, or None. Nobody else takes them for `lease_s` seconds from `now`. A text whose lease
    has expired is queued again, or failed after `MAX_ATTEMPTS`. Raises StoreUsageError for a limit
    below 1.
    """
    if limit < 1:
        raise StoreUsageError(f"a worker cannot take {limit} texts: let it take 1 or more")
    moment = now or datetime.now(UTC)
    # A transaction keeps other writers waiting: begin none where there is no work.
    with reading(engine) as conn:
        if not is_ready(conn, models, moment):
            return []
    of_models = [] if models is None else [text.model.in_(models)]
    with transaction(engine) as conn:
        expired = sa.update(tables.translation_text).where(_is_expired(moment), *of_models)
        failed = {"status": "failed", "reason": DIED, "finished_at": moment, "taken_until": None}
        conn.execute(expired.where(text.attempts >= MAX_ATTEMPTS).values(failed))
        # Those that have failed are no longer taken, so that this queues only the others again.
        conn.execute(expired.values(status="queued", taken_until=None))
        model = _first_model(conn, models)
        if model is None:  # another worker has taken the last texts since `is_ready`
            return []
        next_texts = (
            sa.select(text.id, text.attempts, sa.func.length(text.text).label("characters"))
            .where(text.status == "queued", text.model == model)
            .order_by(*QUEUE_ORDER)
            .limit(limit)
        )
        rows = conn.execute(next_texts).all()  # one at least, as the model has a queued text
        # A text that was taken before comes alone. The first comes even above MOST_CHARACTERS.
        ids = []
        characters = 0
        for waiting in rows:
            characters += waiting.characters
            if waiting.attempts != 0 or characters > MOST_CHARACTERS:
                break
            ids.append(waiting.id)
        ids = ids or [rows[0].id]
        values = {
            "status": "taken",
            "taken_by": worker,
            "taken_until": moment + timedelta(seconds=lease_s),
            "attempts": text.attempts + 1,
        }
        update = (
            sa.update(tables.translation_text)
            .where(text.id.in_(ids), text.status == "queued")
            .values(values)
        )
        # In SQLite a text may hold bytes that are not UTF-8: read as bytes, they can be checked.
        source_text: sa.ColumnElement[Any] = text.text
        if conn.dialect.name != "postgresql":
            source_text = sa.cast(text.text, sa.LargeBinary)
        returned = conn.execute(
            update.returning(
                text.id,
                text.model,
                text.priority,
                text.attempts,
                source_text.label("text"),
            )
        )
        texts = []
        for row in returned.mappings().all():
            unfit = why_unfit(row["text"])
            texts.append({**row, "unfit": unfit, "text": _as_text(row["text"])})
        # The database returns updated rows in any order.
        return sorted(texts, key=lambda row: ids.index(row["id"]))


def is_ready(conn: Connection, models: Collection[str] | None, now: datetime | None = None) -> bool:
    """Return whether a text of one of the models (None: any) is queued or its lease has expired."""
    if _first_model(conn, models) is not None:
        return True
    of_models = [] if models is None else [text.model.in_(models)]
    expired = sa.select(text.id).where(_is_expired(now or datetime.now(UTC)), *of_models).limit(1)
    return conn.execute(expired).first() is not None


def renew(
    conn: Connection,
    worker: str,
    ids: Collection[int],
    lease_s: float = LEASE_S,
    now: datetime | None = None,
) -> int:
    """Let a worker's leases end `lease_s` seconds from now; return how many it still had."""
    until = (now or datetime.now(UTC)) + timedelta(seconds=lease_s)
    update = sa.update(tables.translation_text).where(*_is_taken_by(worker), text.id.in_(ids))
    return conn.execute(update.values(taken_until=until)).rowcount


def finish_texts(conn: Connection, worker: str, rows: Sequence[Mapping[str, object]]) -> int:
    """Store translations of a worker's texts; return how many it still had.

    `rows` hold id, translation, score and, optionally, attention.
    """
    if not rows:
        return 0
    done = sa.update(tables.translation_text).where(
        *_is_taken_by(worker), text.id == sa.bindparam("of")
    )
    names = ("translation", "score", "attention")
    # With a prefix, because SQLAlchemy reserves the columns' own names for parameters of its own.
    values = {name: sa.bindparam(f"new_{name}", type_=text[name].type) for name in names}
    statement = done.values(
        status="done", finished_at=datetime.now(UTC), taken_until=None, **values
    )
    parameters = []
    for row in rows:
        new_values = {f"new_{name}": row.get(name) for name in names}
        parameters.append({"of": row["id"], **new_values})
    options = {"preserve_rowcount": True}
    return conn.execute(statement, parameters, execution_options=options).rowcount


def fail_texts(conn: Connection, worker: str, ids: Collection[int], reason: str) -> int:
    """Fail a worker's texts, for the reason why they cannot be translated; return how many."""
    values = {
        "status": "failed",
        "reason": reason,
        "finished_at": datetime.now(UTC),
        "taken_until": None,
    }
    update = sa.update(tables.translation_text).where(*_is_taken_by(worker), text.id.in_(ids))
    return conn.execute(update.values(values)).rowcount


def give_back(conn: Connection, worker: str) -> int:
    """Queue a worker's texts again, as if it had never taken them; return how many."""
    values = {"status": "queued", "taken_until": None, "attempts": text.attempts - 1}
    update = sa.update(tables.translation_text).where(*_is_taken_by(worker))
    return conn.execute(update.values(values)).rowcount


def queue_counts(conn: Connection, statuses: Collection[str] | None = None) -> pd.DataFrame:
    """Return how many texts each model has of each of `statuses` (None: all): model, status, n."""
    job = view("translation_job").c  # The view, because a role that only reads may read it.
    key = (job.model, job.status)
    counts = sa.select(*key, sa.func.count().label("n")).group_by(*key).order_by(*key)
    return frame(conn, counts if statuses is None else counts.where(job.status.in_(statuses)))


def _is_taken_by(worker: str) -> tuple[sa.ColumnElement[bool], ...]:
    return text.status == "taken", text.taken_by == worker


def _first_model(conn: Connection, models: Collection[str] | None) -> str | None:
    """Return which of the models (None: any) has the first queued text, or None, by an index."""
    first = (
        sa.select(text.priority, text.id)
        .where(text.status == "queued")
        .order_by(*QUEUE_ORDER)
        .limit(1)
    )
    first_texts = []
    candidates = _queued_models(conn) if models is None else models
    for model in candidates:
        head = conn.execute(first.where(text.model == model)).first()
        if head is not None:
            # SQLite stores a priority of any type, and sorts text and bytes above all numbers.
            is_number = isinstance(head.priority, int | float)
            rank = -head.priority if is_number else -math.inf
            first_texts.append((rank, head.id, model))
    if not first_texts:
        return None
    _, _, first_model = min(first_texts)
    return first_model


def _queued_models(conn: Connection) -> list[str]:
    """Return the models that have queued texts, in order, by an index."""
    first = sa.select(sa.func.min(text.model)).where(text.status == "queued")
    models: list[str] = []
    model = conn.execute(first).scalar_one()
    # In SQLite a name may be bytes, which are not found as text: such a name would come again.
    while model is not None and model not in models:
        models.append(model)
        model = conn.execute(first.where(text.model > model)).scalar_one()
    return models


def _is_expired(now: datetime) -> sa.ColumnElement[bool]:
    return sa.and_(text.status == "taken", text.taken_until <= now)


def _as_text(source_text: str | bytes) -> str:
    if isinstance(source_text, bytes):
        return source_text.decode("utf-8", "backslashreplace")
    return source_text


def newest(conn: Connection, model: str | None, status: str | None, limit: int) -> pd.DataFrame:
    """Return the `limit` texts queued last, the newest first; None selects any model or status."""
    jobs = read(
        conn,
        "translation_job",
        columns="id, model, status, text, translation, score, attempts, reason, queued_at",
        model=where.given(model),
        status=where.given(status),
        order="-id",
        limit=limit,
    )
    # In SQLite a text that an INSERT put in may be bytes.
    return jobs.assign(text=jobs["text"].map(_as_text))
