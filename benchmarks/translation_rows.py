"""Make rows of translations for a filled store: models, progress, scores and a long queue."""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.rows import translations
from db.save import save

MODELS = tuple(f"model-{number}" for number in range(20))
CHECKS = 200  # of a model's training
TEXTS = 200_000  # that are done
WAITING = 20  # queued texts of a model
MOMENT = datetime(2025, 6, 30, 22, tzinfo=UTC)


def write_translations(conn: Connection) -> None:
    """Write models with their progress, scores and queued texts, and the texts that are done."""
    for number, name in enumerate(MODELS):
        translations.save_model(conn, _model(name, number))
        save(conn, "translation_progress", [_check(name, step) for step in range(CHECKS)])
        translations.save_score(conn, _score(name))
        waiting = [f"Text {text} waits." for text in range(WAITING)]
        translations.queue_texts(conn, name, waiting)
    rows = [_done_text(number) for number in range(TEXTS)]
    conn.execute(sa.insert(tables.translation_text), rows)


def _done_text(number: int) -> dict[str, Any]:
    return {
        "model": MODELS[number % len(MODELS)],
        "text": f"Text {number}.",
        "translation": f"Der Text {number}.",
        "status": "done",
        "queued_at": MOMENT,
        "finished_at": MOMENT,
        "attempts": 1,
        "priority": 0,
        "score": -0.5,
    }


def _model(name: str, number: int) -> dict[str, Any]:
    some_hash = f"{number:064d}"
    return {
        "name": name,
        "kind": "transformer",
        "size": "tiny",
        "source_language": "en",
        "target_language": "de",
        "parameters": 2_600_000,
        "vocabulary": 10_000,
        "pairs": 29_000,
        "steps": 8000,
        "epochs": 60.0,
        "seed": number,
        "checkpoint_hash": some_hash,
        "tokenizer_hash": some_hash,
        "corpus_hash": some_hash,
        "config": {"d_model": 128},
        "code_version": "0.1.0",
        "folder": f"data/{name}",
        "receipt": f"{name}/1/2",
        "validation_loss": 1.8,
        "validation_bleu": 38.0,
        "created_at": MOMENT,
    }


def _check(name: str, step: int) -> dict[str, Any]:
    return {
        "model": name,
        "step": step,
        "epoch": step / 2,
        "tokens": 3600 * step,
        "tokens_per_second": 9000.0,
        "at": MOMENT,
        "train_loss": 3.0,
        "validation_loss": 2.0,
        "validation_bleu": 30.0,
        "learning_rate": 0.004,
    }


def _score(name: str) -> dict[str, Any]:
    return {
        "model": name,
        "test": "flickr2016",
        "test_hash": "0" * 64,
        "bleu": 39.0,
        "bleu_low": 37.5,
        "bleu_high": 40.5,
        "chrf": 62.0,
        "sentences": 1000,
        "signature": "nrefs:1|tok:13a",
        "search": {"beams": 5, "alpha": 0.6},
        "scored_at": MOMENT,
    }
