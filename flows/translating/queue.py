"""Look at the queue of texts before anything is loaded: whether there is something to do.

This file needs no torch.
"""

from collections.abc import Collection, Mapping

from sqlalchemy import Engine

from db.engine import reading
from db.rows import translation_queue
from flows.console import counted
from flows.translating.folder import model_names


def nothing_to_do(engine: Engine, models: Collection[str] | None) -> dict[str, int] | None:
    """Return the counts of a worker that would find no text to take, else None."""
    with reading(engine) as conn:
        if translation_queue.is_ready(conn, usable(models, ())):
            return None
    return {"done": 0, "failed": 0, "waiting": waiting(engine, models)}


def in_words(counts: Mapping[str, int]) -> str:
    """Return what a worker did, in a line."""
    said = f"{counted(counts['done'], 'text')} translated, {counts['failed']} failed"
    return (
        f"{said}; waiting for a model that can be opened: {counts['waiting']}"
        if counts["waiting"]
        else said
    )


def usable(models: Collection[str] | None, broken: Collection[str]) -> list[str]:
    """Return the models of this folder whose texts can be taken, of all or of those asked for."""
    return [
        name for name in model_names() if name not in broken and (models is None or name in models)
    ]


def waiting(engine: Engine, models: Collection[str] | None) -> int:
    """Count the texts that are still queued, and that no worker of this folder can translate."""
    with reading(engine) as conn:
        counts = translation_queue.queue_counts(conn)
    mine = counts["model"].isin(list(models)) if models is not None else True
    return int(counts.loc[(counts["status"] == "queued") & mine, "n"].sum())
