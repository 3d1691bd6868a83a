"""Read the card of a model: its languages, its sizes, and how it was trained.

This file needs no torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translation.data.languages import UNICODE_FORM
from translation.errors import TranslationError, UsageError, unreadable

CONFIG = "model.json"
BY_CHARACTER_BEFORE = ("ja", "ko", "zh")  # in models whose cards name no tokenizer


@dataclass(frozen=True)
class Card:
    """Describe a model.

    `size` is the name of its network's size, such as tiny. `network` has the configuration that the
    network's kind takes (`translation.models.KINDS`). `tokenizer_hashes` are those of the source's
    and the target's vocabulary. `made` says how the model was trained, and with which figures on
    the validation set.
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


def unicode_form(card: Card) -> str:
    """Return the Unicode form of the text that a model was trained with, such as NFC.

    Older cards do not say it: their tokenizers composed the text too, which is NFC.
    """
    return str(card.made.get("unicode_form", UNICODE_FORM))


def bleu_tokenizer(card: Card) -> str:
    """Return sacreBLEU's tokenizer of a model's BLEU on the validation set.

    Older cards do not say it: then it was "char" for the codes ja, ko and zh, and "13a" for all
    others, Thai and the code zho among them.
    """
    code, _, _ = card.target_language.lower().replace("_", "-").partition("-")
    by_older_rule = "char" if code in BY_CHARACTER_BEFORE else "13a"
    return str(card.made.get("bleu_tokenizer", by_older_rule))


def recipe_of(card: Card) -> str:
    """Return a line that says how a model was trained, to be shown beside its scores.

    Defaults stand for keys that the cards of older models lack.
    """
    training = card.made["training"]
    processes = card.made["processes"]
    schedule = training.get("schedule", "inverse_sqrt")
    warmup = training["warmup"]
    # Below 1, the warm-up is a share of the training; otherwise a number of updates.
    length = f"{warmup:.0%}" if warmup < 1 else f"{warmup:,}"
    peak = "as published" if training["peak"] is None else f"to {training['peak']:g}"
    parts = [
        f"{card.made['progress']['step']:,} updates of {training['accumulate']} x "
        f"{training['batch_tokens']:,} positions",
        training.get("optimiser", "adam"),
        f"{schedule} rate, warm-up {length} {peak}",
        f"dropout {card.network['dropout']:g}",
        f"{card.network['target_vocabulary']:,} subwords of {unicode_form(card)} text",
        training["precision"],
        _seeds(card),
    ]
    if processes > 1:
        parts.append(f"{processes} processes")
    settings = ", ".join(parts)
    return f"{settings}; weights by validation {card.made['decide_by']}: {_weights(card)}"


def _seeds(card: Card) -> str:
    seeds = card.made.get("seeds", 1)
    first = card.made["training"]["seed"]
    if seeds == 1:
        return f"seed {first}"
    bleu_by_seed = card.made.get("validation_bleu_by_seed", [])
    figures = ", ".join(f"{bleu:.1f}" for bleu in bleu_by_seed)
    return f"an ensemble of {seeds} seeds from {first}, validation BLEU of each alone {figures}"


def _weights(card: Card) -> str:
    if card.made.get("seeds", 1) != 1:
        return "each seed's best"
    saved = card.made["progress"]["saved"]
    if len(saved) > 1:
        return f"mean of {len(saved)} checks to {saved[-1]:,}"
    return f"check at {saved[0]:,}"


def read_card(folder: Path) -> Card:
    """Read the card of a model.

    Raises UsageError if there is no model, and TranslationError if the card cannot be read or is
    damaged.
    """
    if not (folder / CONFIG).exists():
        raise UsageError(
            f"there is no model in {folder}: name the folder of a trained model, which has the "
            f"file {CONFIG}"
        )
    values = read_json(folder / CONFIG)
    try:
        card = Card(**values)
        values["tokenizer_hashes"] = tuple(card.tokenizer_hashes)
        return Card(**values)
    except TypeError as error:
        _, _, reason = str(error).rpartition("() ")  # without the name of the class
        raise TranslationError(
            f"{folder / CONFIG} is damaged or of another version ({reason}): restore it, or train "
            "the model again"
        ) from error


def read_json(file: Path) -> Any:
    """Read a file of a model; raises TranslationError if it cannot be read or is damaged."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(file, error, "restore it, or train the model again") from error
    except ValueError as error:
        raise TranslationError(
            f"{file} is damaged ({error}): restore it, or train the model again"
        ) from error
