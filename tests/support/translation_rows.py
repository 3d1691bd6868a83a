"""A translation model, its training and its scores, as db/rows/translations.py takes them."""

from datetime import UTC, datetime
from typing import Any

NOW = datetime(2024, 1, 5, 2, 30, tzinfo=UTC)


def model(name: str = "en-de", **changed: Any) -> dict[str, Any]:
    said = {"kind": "transformer", "size": "tiny", "source_language": "en", "target_language": "de"}
    counts = {
        "parameters": 5_000_000_000,
        "vocabulary": 8000,
        "pairs": 29000,
        "steps": 200,
        "epochs": 1.5,
    }
    hashes = {f"{each}_hash": each for each in ("checkpoint", "tokenizer", "corpus")}
    told = {
        "config": {"layers": 4},
        "seed": 17,
        "code_version": "1",
        "folder": f"models/{name}",
        "receipt": "r",
    }
    figures = {"validation_loss": 2.5, "validation_bleu": None, "created_at": NOW}
    return {"name": name, **said, **counts, **hashes, **told, **figures} | changed


def score(**changed: Any) -> dict[str, Any]:
    measured = {
        "bleu": 34.5,
        "bleu_low": 33.25,
        "bleu_high": 35.75,
        "chrf": 60.5,
        "signature": "nrefs:1|case:mixed",
    }
    named = {
        "model": "en-de",
        "test": "multi30k 2016",
        "test_hash": "abc",
        "sentences": 1000,
        "scored_at": NOW,
    }
    return {**named, **measured, "search": {"beams": 5, "length_penalty": 0.6}} | changed
