"""Save and load a model: weights, tokenizers and card in one file, which runs no code."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import nn

from translation import artifacts
from translation.artifacts import Tensors, not_finite
from translation.cards import FILE, RESTORE, Card, read_card
from translation.data.tokenizer import Tokenizer
from translation.decoding.ensemble import Ensemble
from translation.errors import TranslationError, UsageError
from translation.seq2seq import RecurrentConfig, RecurrentTranslator
from translation.training.checkpoints import load_weights
from translation.transformer import Transformer, TransformerConfig

NetworkConfig = TransformerConfig | RecurrentConfig
Network = Transformer | RecurrentTranslator
KINDS: Mapping[str, type[NetworkConfig]] = {
    "transformer": TransformerConfig,
    "rnn": RecurrentConfig,
}

TOKENIZERS = ("source.model", "target.model")

# tiny has the sizes of Wu et al. (ACL 2021) for Multi30k, base and big are those of Vaswani et al.
SIZES: Mapping[str, Mapping[str, Any]] = {
    "tiny": {
        "d_model": 128,
        "heads": 4,
        "d_ff": 256,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "dropout": 0.2,
        "norm": "pre",
    },
    "small": {
        "d_model": 256,
        "heads": 4,
        "d_ff": 1024,
        "encoder_layers": 5,
        "decoder_layers": 5,
        "dropout": 0.3,
    },
    "base": {
        "d_model": 512,
        "heads": 8,
        "d_ff": 2048,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "dropout": 0.1,
    },
    "big": {
        "d_model": 1024,
        "heads": 16,
        "d_ff": 4096,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "dropout": 0.3,
    },
}
# The pairs of sentences that a size needs: with the 29,000 of Multi30k, d_model 512 loses 5 BLEU.
PAIRS_NEEDED = {"big": 10_000_000, "base": 1_000_000, "small": 100_000}
# How often a network must be able to read all pairs if the time of the training is limited. With
# 162,130 pairs, small learned nothing in half an epoch, and tiny reached 47 BLEU in three.
EPOCHS_NEEDED = 5.0


def size_for(pairs: int, epochs: Callable[[str], float] | None = None) -> str:
    """Return the largest named size that suits a corpus of `pairs` pairs of sentences.

    `epochs` returns how often a size can read all pairs in the time; None: no limit.
    """
    for size, pairs_needed in PAIRS_NEEDED.items():  # the largest size first
        if pairs < pairs_needed:
            continue
        if epochs is None or epochs(size) >= EPOCHS_NEEDED:
            return size
    return "tiny"


@dataclass(frozen=True)
class Model:
    """A trained network with its tokenizers."""

    card: Card
    network: Network | Ensemble
    source: Tokenizer
    target: Tokenizer

    @property
    def networks(self) -> list[nn.Module]:
        """Return the networks of an ensemble, or the only one."""
        if isinstance(self.network, Ensemble):
            return list(self.network.networks)
        return [self.network]

    @property
    def device(self) -> torch.device:
        """Return the device of the network."""
        return next(self.network.parameters()).device


def build_network(kind: str, values: Mapping[str, Any]) -> Network:
    """Build a network with new weights; UsageError for an unknown kind and impossible settings."""
    if kind not in KINDS:
        raise UsageError(
            f"unknown kind of network {kind!r}; this version knows {' and '.join(KINDS)}"
        )
    try:
        return KINDS[kind](**values).build()
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        first_line = str(error).splitlines()[0]
        raise UsageError(
            f"a network of the kind {kind} cannot have these settings: {first_line}"
        ) from error


def save_model(folder: Path, model: Model) -> Card:
    """Save a model atomically; return its card, with the hash of the weights.

    Raises TranslationError, naming the parameter, for a weight that is not finite.
    """
    fault = not_finite(model.network.state_dict())
    if fault is not None:
        raise TranslationError(
            f"{model.card.name} is not saved: {fault}; train the model again with a lower "
            "training.peak (the highest learning rate), and delete the folder of the saved "
            "training state if the next run names it"
        )

    parameters = dict(model.network.named_parameters())
    card = replace(model.card, weights_hash=artifacts.hash_of(parameters, {}))
    tokenizers = tokenizer_tensors(model.source, model.target)
    artifacts.write(folder / FILE, parameters | tokenizers, asdict(card))
    return read_card(folder)


def tokenizer_tensors(source: Tokenizer, target: Tokenizer) -> Tensors:
    """Return the bytes of two tokenizers as tensors, by name."""
    return {
        name: torch.frombuffer(bytearray(tokenizer.model), dtype=torch.uint8)
        for name, tokenizer in zip(TOKENIZERS, (source, target), strict=True)
    }


def tokenizers_in(tensors: Tensors, hashes: Sequence[str]) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of `tokenizer_tensors`, one object if they are equal.

    `hashes` are their SHA-256; raises KeyError if one is missing or has another.
    """
    models = [tensors[name].to(torch.uint8).numpy().tobytes() for name in TOKENIZERS]
    if [sha256(model).hexdigest() for model in models] != list(hashes):
        raise KeyError("a tokenizer was damaged")
    source, target = map(Tokenizer, models)
    return source, source if target.digest == source.digest else target


def load_model(folder: Path, device: torch.device) -> Model:
    """Load a model for evaluation.

    Raises UsageError without a model or for another version's network, TranslationError for a
    missing or damaged file.
    """
    card = read_card(folder)
    file = folder / FILE
    tensors, _ = artifacts.read(file)
    weights = {name: tensor for name, tensor in tensors.items() if name not in TOKENIZERS}
    tokenizers = None
    with suppress(KeyError):
        tokenizers = tokenizers_in(tensors, card.tokenizer_hashes)
    if tokenizers is None or artifacts.hash_of(weights, {}) != card.weights_hash:
        raise TranslationError(
            f"{file} is not that of the training run, or was damaged since: restore it from a "
            "backup, or train the model again"
        )
    source, target = tokenizers
    seeds = card.made["seeds"]
    try:
        networks = [build_network(card.kind, card.network) for _ in range(seeds)]
    except UsageError as error:
        raise UsageError(f"{file} is damaged or of another version ({error}): {RESTORE}") from error
    network = networks[0] if len(networks) == 1 else Ensemble(networks)
    try:
        load_weights(network, weights)
    except TranslationError as error:  # which says what is wrong, but not in which model
        raise TranslationError(f"{folder}: {error}") from error
    return Model(
        card=card,
        network=network.to(device).eval(),
        source=source,
        target=target,
    )
