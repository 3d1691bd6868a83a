"""Work off the queue of texts: take some, translate them, store them, until nothing is queued."""

import logging
import os
import platform
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
from translation.translate import Attention, Translation, translate

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
    """Take texts, translate and store them, model by model, until nothing is queued.

    Returns how many were done, failed and wait. A text that cannot be translated fails alone, with
    the reason. Texts of a model that is missing or cannot be opened wait, as it may be in training.
    """
    worker = f"{platform.node()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    counts = Counter({"done": 0, "failed": 0})
    model: Model | None = None
    broken: set[str] = set()
    with _unwound_first(attended):
        try:
            while taken := translation_queue.take_texts(
                engine, worker, usable(models, broken), AT_ONCE, LEASE_S
            ):
                name = taken[0]["model"]
                try:
                    if model is None or model.card.name != name:
                        model = open_model(name, device)
                except TranslationError as error:
                    log.warning("texts for the model %s stay in the queue: %s", name, error)
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
    """Let a signal unwind the work, which gives back its texts.

    Then the handler that was there before ends it.
    """
    if not attended:
        yield
        return

    def unwind(number: int, _frame: FrameType | None) -> None:
        for handled in handlers_before:
            signal.signal(handled, signal.SIG_IGN)  # a second one would interrupt the unwinding
        received.append(number)
        raise _Ended

    received: list[int] = []
    handlers_before = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
    }
    for number in handlers_before:
        signal.signal(number, unwind)
    try:
        with suppress(_Ended):
            yield
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
    for received_number in received:
        signal.raise_signal(received_number)


def _translated(
    engine: Engine, worker: str, model: Model, taken: Sequence[Mapping[str, Any]], how: Search
) -> dict[str, int]:
    """Translate taken texts, renewing their lease.

    Returns how many were stored as done and as failed. A text that was taken as `unfit` fails for
    that reason.
    """
    ids = [text["id"] for text in taken]
    renewed = time.monotonic()

    def renew_lease(_done: int) -> None:
        nonlocal renewed
        if time.monotonic() - renewed > LEASE_S / 4:
            renewed = time.monotonic()
            with transaction(engine) as conn:
                translation_queue.renew(conn, worker, ids, LEASE_S)

    def translate_texts(texts: Sequence[str]) -> list[Translation]:
        return translate(model, texts, how=how, report=renew_lease)

    fit_texts = [text for text in taken if text["unfit"] is None]
    failures = {text["id"]: text["unfit"] for text in taken if text["unfit"] is not None}
    rows = []
    if fit_texts:
        results = _translations(translate_texts, [text["text"] for text in fit_texts])
        for text, result in zip(fit_texts, results, strict=True):
            if isinstance(result, Translation):
                rows.append(_row(text["id"], result))
            else:
                failures[text["id"]] = result
    with transaction(engine) as conn:
        done = translation_queue.finish_texts(conn, worker, rows)
        failed = 0
        for text_id in ids:
            if text_id in failures:
                failed += translation_queue.fail_texts(conn, worker, [text_id], failures[text_id])
    return {"done": done, "failed": failed}


def _translations(
    translate_texts: Callable[[Sequence[str]], list[Translation]], texts: Sequence[str]
) -> Sequence[Translation | str]:
    """Return the translation of each text, or why there is none."""
    try:
        return translate_texts(texts)
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 - given back, a text that breaks a worker would break each next one
        if len(texts) == 1:
            return [_reason(error)]
    # One by one: some text breaks the others.
    results: list[Translation | str] = []
    for text in texts:
        results.extend(_translations(translate_texts, [text]))
    return results


def _reason(error: Exception) -> str:
    """Return why a text cannot be translated, with the kind of an error that is not ours."""
    if isinstance(error, TranslationError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _row(text_id: int, translation: Translation) -> dict[str, Any]:
    """Return what the queue stores of a translated text."""
    return {
        "id": text_id,
        "translation": translation.text.replace("\0", ""),  # which PostgreSQL cannot hold
        "score": translation.score,
        "attention": [_attention(part) for part in translation.attention] or None,
        "reason": translation.warning,
    }


def _attention(part: Attention) -> dict[str, Any]:
    """Return the attention of a part of a text, rounded, as plain values."""
    weights = part.weights.double().round(decimals=4)
    heads = {}
    for name, head_weights in part.heads.items():
        heads[name] = head_weights.double().round(decimals=3).tolist()
    return {
        "source": part.source,
        "target": part.target,
        "weights": weights.tolist(),
        "heads": heads,
    }
