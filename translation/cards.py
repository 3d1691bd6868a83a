"""Read the card of a model, without torch: its languages, its sizes, and how it was trained."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from translation.errors import TranslationError, UsageError

FILE = "model.safetensors"  # the weights of a model, with its tokenizers and its card
RESTORE = "restore it, or train the model again"


@dataclass(frozen=True)
class Card:
    """Describe a model.

    `size` is a name such as tiny; `network` is the configuration of its kind
    (`translation.models.KINDS`). `tokenizer_hashes` are those of the source's and the target's
    tokenizer. `made` says how it was trained, with figures on the validation set.
    """

    name: str
    kind: str
    size: str
    source_language: str
    target_language: str
    network: Mapping[str, Any]
    tokenizer_hashes: tuple[str, str]
    weights_hash: str
    made: Mapping[str, Any]

    @property
    def languages(self) -> str:
        """Return both languages, such as en-de."""
        return f"{self.source_language}-{self.target_language}"


def receipt(card: Card) -> str:
    """Return a name that identifies a model's weights and its corpus."""
    return f"{card.name}/{card.weights_hash[:12]}/{card.made['corpus_hash'][:12]}"


def recipe_of(card: Card) -> str:
    """Return a line that says how a model was trained, to be shown beside its scores."""
    training = card.made["training"]
    processes = card.made["processes"]
    warmup = training["warmup"]
    # Below 1, the warm-up is a share of the training; otherwise a number of updates.
    length = f"{warmup:.0%}" if warmup < 1 else f"{warmup:,}"
    peak = "as published" if training["peak"] is None else f"to {training['peak']:g}"
    parts = [
        f"{card.made['progress']['step']:,} updates of {training['accumulate']} x "
        f"{training['batch_tokens']:,} positions",
        training["optimiser"],
        f"{training['schedule']} rate, warm-up {length} {peak}",
        f"dropout {card.network['dropout']:g}",
        f"{card.network['target_vocabulary']:,} subwords of {card.made['unicode_form']} text",
        _seeds(card),
    ]
    if processes > 1:
        parts.append(f"{processes} processes")
    settings = ", ".join(parts)
    return f"{settings}; weights by validation {card.made['decide_by']}: {_weights(card)}"


def _seeds(card: Card) -> str:
    seeds = card.made["seeds"]
    first = card.made["training"]["seed"]
    if seeds == 1:
        return f"seed {first}"
    figures = ", ".join(f"{bleu:.1f}" for bleu in card.made["validation_bleu_by_seed"])
    return f"an ensemble of {seeds} seeds from {first}, validation BLEU of each alone {figures}"


def _weights(card: Card) -> str:
    if card.made["seeds"] != 1:
        return "each seed's best"
    saved = card.made["progress"]["saved"]
    if len(saved) > 1:
        return f"mean of {len(saved)} checks to {saved[-1]:,}"
    return f"check at {saved[0]:,}"


def read_card(folder: Path) -> Card:
    """Read a model's card; UsageError without a model, TranslationError if damaged."""
    file = folder / FILE
    if not file.exists():
        raise UsageError(
            f"there is no model in {folder}: name the folder of a trained model, which has the "
            f"file {FILE}"
        )
    try:
        file.open("rb").close()  # safetensors calls every file that it cannot open missing
        with safe_open(file, framework="numpy") as stream:
            values = json.loads(stream.metadata()["card"])
        source_hash, target_hash = values["tokenizer_hashes"]
        return Card(**{**values, "tokenizer_hashes": (source_hash, target_hash)})
    except OSError as error:
        raise TranslationError(
            f"cannot read {file}: {error.strerror}; correct the permissions of the file and of its "
            f"folder, or {RESTORE}"
        ) from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise TranslationError(
            f"{file} is damaged or of another version ({error}): {RESTORE}"
        ) from error
