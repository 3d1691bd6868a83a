"""Translate the texts in the queue: take some, translate them, store them, until none is queued."""

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
from db.rows import translations
from flows.translating.models import open_model
from flows.translating.queue import usable, waiting
from translation.decoding.beam_search import Search
from translation.errors import TranslationError
from translation.models import Model
from translation.translate import Attention, Translation, translate

log = logging.getLogger(__name__)

AT_ONCE = 256  # texts that a worker takes at once
LEASE_S = translations.LEASE_S  # after this time, other workers may take its texts


def work_off(
    engine: Engine,
    models: Collection[str] | None,
    how: Search,
    device: torch.device,
    *,
    attended: bool = False,
) -> dict[str, int]:
    """Take texts, translate and store them, model by model, until none is queued.

    `models` are those whose texts are taken, None for all. Returns how many texts are done, have
    failed, and wait. A text that cannot be translated fails alone, with the reason. Texts of a
    model that is missing or cannot be opened wait, because the model may still be in training.
    After an error, the texts that were taken are given back to the queue; if `attended`, also after
    SIGINT and SIGTERM (`_unwound_first`).
    """
    worker = f"{platform.node()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    counts = Counter({"done": 0, "failed": 0})
    model: Model | None = None
    broken: set[str] = set()
    with _unwound_first(attended):
        try:
            while True:
                names = usable(models, broken)
                texts = translations.take_texts(engine, worker, names, AT_ONCE, LEASE_S)
                if not texts:
                    break
                name = texts[0]["model"]  # texts that are taken together are for one model
                try:
                    if model is None or model.card.name != name:
                        model = open_model(name, device)
                except TranslationError as error:
                    log.warning("texts for the model %s stay in the queue: %s", name, error)
                    broken.add(name)  # so that its texts are not taken again by this worker
                    _give_back(engine, worker)
                    continue
                counts.update(_translate_and_store(engine, worker, model, texts, how))
        finally:
            _give_back(engine, worker)  # texts that were taken when a failure or a signal came
    return {**counts, "waiting": waiting(engine, models)}


def _give_back(engine: Engine, worker: str) -> None:
    with transaction(engine) as conn:
        translations.give_back(conn, worker)


class _SignalReceived(BaseException):
    """Unwind the work after a signal; only `_unwound_first` may catch it."""


@contextmanager
def _unwound_first(attended: bool) -> Iterator[None]:
    """Let SIGINT or SIGTERM unwind the work inside, so that it gives back its texts.

    Afterwards the signal is raised again, for the handler that was set before. Unless `attended`,
    signals are left to that handler.
    """
    if not attended:
        yield
        return

    def unwind(number: int, _frame: FrameType | None) -> None:
        """Note the signal, and raise an exception that ends the work inside."""
        for ignored_number in handlers_before:
            # A second signal would interrupt the unwinding.
            signal.signal(ignored_number, signal.SIG_IGN)
        received.append(number)
        raise _SignalReceived

    received: list[int] = []
    handlers_before = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
    }
    for number in handlers_before:
        signal.signal(number, unwind)
    try:
        with suppress(_SignalReceived):
            yield
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
    for received_number in received:  # one at most, because further signals were ignored
        signal.raise_signal(received_number)


def _translate_and_store(
    engine: Engine, worker: str, model: Model, texts: Sequence[Mapping[str, Any]], how: Search
) -> dict[str, int]:
    """Translate and store texts that the worker has taken, renewing their lease.

    `texts` are as `take_texts` returns them. Returns how many were stored as done and as failed;
    texts that another worker has taken meanwhile count as neither. A text whose `unfit` has a
    reason fails for that reason.
    """
    ids = [text["id"] for text in texts]
    last_renewal = time.monotonic()

    def renew_lease(_parts: int) -> None:
        nonlocal last_renewal
        if time.monotonic() - last_renewal > LEASE_S / 4:  # long before the lease ends
            last_renewal = time.monotonic()
            with transaction(engine) as conn:
                translations.renew(conn, worker, ids, LEASE_S)

    def translate_all(sources: Sequence[str]) -> list[Translation]:
        return translate(model, sources, how=how, report=renew_lease)

    fit_texts = [text for text in texts if text["unfit"] is None]
    failures = {text["id"]: text["unfit"] for text in texts if text["unfit"] is not None}
    rows: list[dict[str, Any]] = []
    if fit_texts:
        results = _translations(translate_all, [text["text"] for text in fit_texts])
        for text, result in zip(fit_texts, results, strict=True):
            if isinstance(result, Translation):
                rows.append(
                    {
                        "id": text["id"],
                        # PostgreSQL cannot store a NUL.
                        "translation": result.text.replace("\0", ""),
                        "score": result.score,
                        "attention": [_attention(part) for part in result.attention] or None,
                    }
                )
            else:
                failures[text["id"]] = result
    with transaction(engine) as conn:
        finished_count = translations.finish_texts(conn, worker, rows)
        failed_count = 0
        for text_id in ids:
            if text_id in failures:
                reason = failures[text_id]
                # 0 for a text that another worker has taken meanwhile
                failed_count += translations.fail_texts(conn, worker, [text_id], reason)
    return {"done": finished_count, "failed": failed_count}


def _translations(
    translate_all: Callable[[Sequence[str]], list[Translation]], sources: Sequence[str]
) -> Sequence[Translation | str]:
    """Return for each text its translation, or the reason why it cannot be translated.

    Raises StoreError where the lease of the texts cannot be renewed.
    """
    try:
        return translate_all(sources)
    except StoreError:  # no fault of a text: the lease could not be renewed
        raise
    except Exception as error:  # noqa: BLE001 - if it were given back, the text would break every worker
        if len(sources) == 1:
            is_expected = isinstance(error, TranslationError)
            return [str(error) if is_expected else f"{type(error).__name__}: {error}"]
    # One of the texts fails, so each is translated alone.
    results: list[Translation | str] = []
    for source in sources:
        results.extend(_translations(translate_all, [source]))
    return results


def _attention(part: Attention) -> dict[str, Any]:
    weights = part.weights.double().round(decimals=4)
    heads: dict[str, Any] = {}
    for name, head_weights in part.heads.items():
        heads[name] = head_weights.double().round(decimals=3).tolist()
    return {
        "source": part.source,
        "target": part.target,
        "weights": weights.tolist(),
        "heads": heads,
    }
