"""Check, without torch, whether the queue has texts to translate."""

from collections.abc import Collection, Mapping

from sqlalchemy import Engine

from db.engine import reading
from db.rows import translations
from dtml.pages.figures import counted
from flows.translating.folder import model_names


def nothing_to_do(engine: Engine, models: Collection[str] | None) -> dict[str, int] | None:
    """Return what a worker of `models` (None: all) would count if there is no text, else None."""
    with reading(engine) as conn:
        if translations.is_ready(conn, usable(models, broken=())):
            return None
    return {"done": 0, "failed": 0, "waiting": waiting(engine, models)}


def in_words(counts: Mapping[str, int]) -> str:
    """Return the counts of a worker as one line."""
    line = f"{counted(counts['done'], 'text')} translated, {counts['failed']} failed"
    if counts["waiting"]:
        line += f"; {counts['waiting']} waiting for a model that can be opened"
    return line


def usable(models: Collection[str] | None, broken: Collection[str]) -> list[str]:
    """Return the models of the data folder, among `models` unless None, that are not `broken`."""
    return [
        name for name in model_names() if name not in broken and (models is None or name in models)
    ]


def waiting(engine: Engine, models: Collection[str] | None) -> int:
    """Return the number of texts that are still queued for `models`, or for any if it is None."""
    with reading(engine) as conn:
        queued = translations.queue_counts(conn, ["queued"])
    if models is not None:
        queued = queued[queued["model"].isin(list(models))]
    return int(queued["n"].sum())
