"""Read what a model says of itself: its languages, its sizes, and how it was trained.

This file needs no torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translation.errors import TranslationError, UsageError

CONFIG = "model.json"


@dataclass(frozen=True)
class Card:
    """The description of a model; `network` is the configuration of its kind,
    `made` how it was trained.
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
    """Return a name of a model's weights and what they were trained on."""
    return f"{card.name}/{card.weights_hash[:12]}/{card.made['corpus_hash'][:12]}"


def recipe_of(card: Card) -> str:
    """Return how a model was trained, in a line: a figure of it means nothing without."""
    training, progress, seeds = (
        card.made["training"],
        card.made["progress"],
        card.made.get("seeds", 1),
    )
    peak = "as published" if training["peak"] is None else f"to {training['peak']:g}"
    saved = progress["saved"]
    weights = (
        f"mean of {len(saved)} checks to {saved[-1]:,}"
        if len(saved) > 1
        else f"check at {saved[0]:,}"
    )
    weights = weights if seeds == 1 else "each seed's best"
    updates = (
        f"{progress['step']:,} updates of {training['accumulate']} x "
        f"{training['batch_tokens']:,} positions"
    )
    schedule, warmup = (
        training.get("schedule", "inverse_sqrt"),
        training["warmup"],
    )  # a share, or updates
    warm = f"warm-up {warmup:{'.0%' if warmup < 1 else ','}}"
    rates = (
        f"{training.get('optimiser', 'adam')}, {schedule} rate, {warm} {peak}, dropout "
        f"{card.network['dropout']:g}"
    )
    rest = f"{card.network['target_vocabulary']:,} subwords, {training['precision']}, "
    alone = ", ".join(f"{each:.1f}" for each in card.made.get("validation_bleu_by_seed", []))
    together = (
        f"an ensemble of {seeds} seeds from {training['seed']}, alone of validation BLEU {alone}"
    )
    rest += f"seed {training['seed']}" if seeds == 1 else together
    rest += f", {card.made['processes']} processes" if card.made["processes"] > 1 else ""
    return f"{updates}, {rates}, {rest}; weights by validation {card.made['decide_by']}: {weights}"


def read_card(folder: Path) -> Card:
    """Read the card of a model; raises UsageError if there is no model and
    TranslationError if the card is damaged.
    """
    if not (folder / CONFIG).exists():
        raise UsageError(
            f"no model in {folder}: train one with dtml translate train, or name another"
        )
    values = read_json(folder / CONFIG)
    try:
        return Card(**values | {"tokenizer_hashes": tuple(values["tokenizer_hashes"])})
    except (TypeError, KeyError) as error:
        raise TranslationError(
            f"{folder / CONFIG} is damaged ({error}): train the model again"
        ) from error


def read_json(file: Path) -> Any:
    """Read a file of a model; raises TranslationError if it cannot be read or is damaged."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise TranslationError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise TranslationError(f"{file} is damaged ({error}): train the model again") from error
