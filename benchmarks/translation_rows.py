"""Make rows of translations for a filled store: models, their progress and
scores, and a long queue.
"""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.rows import translation_queue, translations

MODELS = tuple(f"model-{number}" for number in range(20))
# checks of a model; texts that are done; of a model, that are queued
CHECKS, TEXTS, WAITING = (
    200,
    200_000,
    20,
)
MADE = datetime(2025, 6, 30, 22, tzinfo=UTC)


def write_translations(conn: Connection) -> None:
    """Write all of it."""
    for number, name in enumerate(MODELS):
        translations.save_model(conn, _model(name, number))
        translations.save_progress(conn, [_check(name, step) for step in range(CHECKS)])
        translations.save_score(conn, _score(name))
        translation_queue.queue_texts(
            conn, name, [f"Text {text} waits." for text in range(WAITING)]
        )
    done = {
        "status": "done",
        "queued_at": MADE,
        "finished_at": MADE,
        "attempts": 1,
        "priority": 0,
        "score": -0.5,
    }
    rows = [
        done
        | {
            "model": MODELS[text % len(MODELS)],
            "text": f"Text {text}.",
            "translation": f"Der Text {text}.",
        }
        for text in range(TEXTS)
    ]
    conn.execute(sa.insert(tables.translation_text), rows)


def _model(name: str, number: int) -> dict[str, Any]:
    words = {
        "kind": "transformer",
        "size": "tiny",
        "source_language": "en",
        "target_language": "de",
    }
    counts = {
        "parameters": 2_600_000,
        "vocabulary": 10_000,
        "pairs": 29_000,
        "steps": 8000,
        "epochs": 60.0,
        "seed": number,
    }
    hashes = dict.fromkeys(("checkpoint_hash", "tokenizer_hash", "corpus_hash"), f"{number:064d}")
    told = {
        "config": {"d_model": 128},
        "code_version": "0.1.0",
        "folder": f"data/{name}",
        "receipt": f"{name}/1/2",
    }
    found = {"validation_loss": 1.8, "validation_bleu": 38.0, "created_at": MADE}
    return {"name": name, "seed": number} | words | counts | hashes | told | found


def _check(name: str, step: int) -> dict[str, Any]:
    counts = {
        "step": step,
        "epoch": step / 2,
        "tokens": 3600 * step,
        "tokens_per_second": 9000.0,
        "at": MADE,
    }
    losses = {
        "train_loss": 3.0,
        "validation_loss": 2.0,
        "validation_bleu": 30.0,
        "learning_rate": 0.004,
    }
    return {"model": name} | counts | losses


def _score(name: str) -> dict[str, Any]:
    figures = {"bleu": 39.0, "bleu_low": 37.5, "bleu_high": 40.5, "chrf": 62.0, "sentences": 1000}
    words = {
        "signature": "nrefs:1|tok:13a",
        "search": {"beams": 5, "alpha": 0.6},
        "scored_at": MADE,
    }
    return {"model": name, "test": "flickr2016", "test_hash": "0" * 64} | figures | words
