"""Translate the texts in the queue: take some, translate them, store them, until none is queued."""

import logging
import os
import platform
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from sqlalchemy import Engine

from db.engine import open_store, transaction
from db.errors import StoreError
from db.rows import translations
from dtml.devices import choose_device
from flows.log_lines import logged_run
from flows.service.tasks import as_task
from flows.signals import handled_by, signals_of
from flows.translating.models import open_model
from flows.translating.queue import in_words, usable, waiting
from translation.decoding.beam_search import Search
from translation.errors import TranslationError
from translation.models import Model
from translation.translate import Attention, Translation, translate

log = logging.getLogger(__name__)

AT_ONCE = 256  # texts that a worker takes at once
LEASE_S = translations.LEASE_S  # after this time, other workers may take its texts


def work_queue(
    models: Collection[str], how: Search, device: str, *, attended: bool = False
) -> dict[str, int]:
    """Empty the queue (`work_off`), as one run of the log; if `attended`, a signal may end it."""
    place = choose_device(device)
    with logged_run("translations") as run, signals_of(attended):
        engine = open_store()
        counts = as_task(
            "translate",
            lambda: work_off(engine, models or None, how, place, attended=attended),
        )
        run.outcome = in_words(counts)
    return counts


def work_off(
    engine: Engine,
    models: Collection[str] | None,
    how: Search,
    device: torch.device,
    *,
    attended: bool = False,
) -> dict[str, int]:
    """Take texts, translate and store them, model by model, until none is queued.

    Of `models` (None: all). Returns how many are done, failed, and wait. A text fails alone; texts
    of a missing or broken model wait. After an error, and if `attended` after SIGINT and SIGTERM,
    texts are given back.
    """
    worker = f"{platform.node()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    counts = Counter(done=0, failed=0)
    model: Model | None = None
    broken: set[str] = set()
    with _unwound_first(attended):
        try:
            while texts := translations.take_texts(
                engine, worker, usable(models, broken), AT_ONCE, LEASE_S
            ):
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
    """Let SIGINT or SIGTERM unwind `attended` work, then reach the handler set before."""
    if not attended:
        yield
        return

    def unwind(number: int, _frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)  # a second signal would interrupt the unwinding
        raise _SignalReceived(number)

    received: int | None = None
    with handled_by(unwind):
        try:
            yield
        except _SignalReceived as signalled:
            (received,) = signalled.args
    if received is not None:
        signal.raise_signal(received)


def _translate_and_store(
    engine: Engine, worker: str, model: Model, texts: Sequence[Mapping[str, Any]], how: Search
) -> dict[str, int]:
    """Translate and store texts of `take_texts`, renewing their lease; return how many done and
    failed.

    Texts that another worker has meanwhile are neither.
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
    results = _translations(translate_all, [text["text"] for text in fit_texts])
    reasons = {text["id"]: text["unfit"] for text in texts}
    rows = []
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
            reasons[text["id"]] = result
    with transaction(engine) as conn:
        done = translations.finish_texts(conn, worker, rows)
        failed = 0
        for text_id, reason in reasons.items():
            if reason is not None:
                failed += translations.fail_texts(conn, worker, [text_id], reason)
    return {"done": done, "failed": failed}


def _translations(
    translate_all: Callable[[Sequence[str]], list[Translation]], sources: Sequence[str]
) -> Sequence[Translation | str]:
    """Return for each text its translation, or the reason why it cannot be translated."""
    if not sources:
        return []
    try:
        return translate_all(sources)
    except StoreError:  # no fault of a text: the lease could not be renewed
        raise
    except Exception as error:  # noqa: BLE001 - if it were given back, the text would break every worker
        if len(sources) == 1:
            is_expected = isinstance(error, TranslationError)
            return [str(error) if is_expected else f"{type(error).__name__}: {error}"]
    # One of the texts fails, so each is translated alone.
    return [result for source in sources for result in _translations(translate_all, [source])]


def _attention(part: Attention) -> dict[str, Any]:
    return {
        "source": part.source,
        "target": part.target,
        "weights": part.weights.double().round(decimals=4).tolist(),
        "heads": {
            name: weights.double().round(decimals=3).tolist()
            for name, weights in part.heads.items()
        },
    }
