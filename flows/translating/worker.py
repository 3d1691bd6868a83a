"""Work off the queue of texts: take some, translate them, store the
translations, until nothing is queued.
"""

import logging
import os
import platform
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import torch
from sqlalchemy import Engine

from db.engine import transaction
from db.errors import StoreError
from db.rows import translation_queue
from flows.translating.models import open_model
from flows.translating.queue import usable, waiting
from translation.decoding.beam_search import Search
from translation.errors import TranslationError
from translation.models import Model
from translation.translate import Translation, translate

log = logging.getLogger(__name__)

AT_ONCE = 256  # texts that a worker takes
LEASE_S = translation_queue.LEASE_S


def work_off(
    engine: Engine,
    models: Collection[str] | None,
    how: Search,
    device: torch.device,
    *,
    attended: bool = False,
) -> dict[str, int]:
    """Take texts, translate them and store the translations, model by model, until nothing is
    queued.

    A text that cannot be translated fails alone, with the reason. Texts of a model that is missing
    or cannot be opened wait, as it may be in training.
    """
    worker, counts = (
        f"{platform.node()}-{os.getpid()}-{uuid.uuid4().hex[:6]}",
        Counter({"done": 0, "failed": 0}),
    )
    model: Model | None = None
    broken: set[str] = set()
    with _unwound_first(attended):
        try:
            while taken := translation_queue.take_texts(
                engine, worker, usable(models, broken), AT_ONCE, LEASE_S
            ):
                name = taken[0]["model"]
                try:
                    model = (
                        model
                        if model is not None and model.card.name == name
                        else open_model(name, device)
                    )
                except TranslationError as error:
                    log.warning("the texts of %s wait: %s", name, error)
                    broken.add(name)
                    _give_back(engine, worker)
                    continue
                counts.update(_translated(engine, worker, model, taken, how))
        finally:
            _give_back(engine, worker)
    return dict(counts) | {"waiting": waiting(engine, models)}


def _give_back(engine: Engine, worker: str) -> None:
    with transaction(engine) as conn:
        translation_queue.give_back(conn, worker)


class _Ended(BaseException):
    """Say that a signal came; nothing but what waits for it may catch it."""


@contextmanager
def _unwound_first(attended: bool) -> Iterator[None]:
    """Let a signal unwind the work, which gives back its texts, before the
    handler that was there ends it.
    """
    if not attended:
        yield
        return

    def unwind(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # a second one would interrupt the unwinding
        received.append(number)
        raise _Ended

    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, unwind)
    try:
        with suppress(_Ended):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for caught in received:
        signal.raise_signal(caught)


def _translated(
    engine: Engine, worker: str, model: Model, taken: Sequence[Mapping[str, Any]], how: Search
) -> dict[str, int]:
    """Translate taken texts, renewing their lease; return how many were stored
    as done and as failed.
    """
    ids, renewed = [each["id"] for each in taken], time.monotonic()

    def hold(_done: int) -> None:
        nonlocal renewed
        if time.monotonic() - renewed > LEASE_S / 4:
            renewed = time.monotonic()
            with transaction(engine) as conn:
                translation_queue.renew(conn, worker, ids, LEASE_S)

    translated = partial(translate, model, how=how, report=hold)
    fit = [each for each in taken if each["unfit"] is None]
    said = _translations(translated, [each["text"] for each in fit]) if fit else ()
    found = {each["id"]: each["unfit"] for each in taken} | dict(
        zip([each["id"] for each in fit], said, strict=True)
    )
    rows = [_row(number, said) for number, said in found.items() if isinstance(said, Translation)]
    failures = {number: said for number, said in found.items() if isinstance(said, str)}
    with transaction(engine) as conn:
        done = translation_queue.finish_texts(conn, worker, rows)
        failed = sum(
            translation_queue.fail_texts(conn, worker, [number], why)
            for number, why in failures.items()
        )
    return {"done": done, "failed": failed}


def _translations(
    translated: Callable[[Sequence[str]], list[Translation]], texts: Sequence[str]
) -> Sequence[Translation | str]:
    """Return the translation of each text, or why there is none."""
    try:
        return translated(texts)
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 - given back, a text that breaks a worker would break each next one
        if len(texts) == 1:
            said = str(error)
            return [
                said if isinstance(error, TranslationError) else f"{type(error).__name__}: {said}"
            ]
    return [said for text in texts for said in _translations(translated, [text])]


def _row(number: int, said: Translation) -> dict[str, Any]:
    attention = [
        {
            "source": part.source,
            "target": part.target,
            "weights": part.weights.double().round(decimals=4).tolist(),
        }
        | {
            "heads": {
                name: each.double().round(decimals=3).tolist() for name, each in part.heads.items()
            }
        }
        for part in said.attention
    ]
    text = said.text.replace("\0", "")  # which PostgreSQL cannot hold
    found = {"id": number, "translation": text, "score": said.score}
    return found | {"attention": attention or None, "reason": said.warning}
