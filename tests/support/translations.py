"""Tiny corpora of the demonstration's sentences, networks and trainings of translation, each a
matter of a second.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flows.translating.models import DEMO
from translation import artifacts
from translation.cards import FILE, Card
from translation.data.corpus import Corpus, Examples, Rules, clean
from translation.data.tokenizer import Tokenizer
from translation.decoding.ensemble import Ensemble
from translation.models import Model, build_network
from translation.recipes import Recipe
from translation.training.checkpoints import Progress
from translation.training.loop import Check, TrainingConfig, TrainingContext, train_network

LANGUAGES = ("xa", "xb")
VOCABULARY, WIDTH, PAIRS = 350, 16, 96
CPU = torch.device("cpu")
NETWORK = {
    "d_model": WIDTH,
    "heads": 2,
    "d_ff": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "dropout": 0.1,
}
# 12 updates with a check at each third: about 6 batches an epoch.
CONFIG = TrainingConfig(
    batch_tokens=512,
    updates=12,
    schedule="inverse_sqrt",
    warmup=6,
    peak=0.01,
    check_every=3,
    average=3,
    seed=1,
)
# The first process has the mean of the kept weights, the others the last ones: of one check, these
# are the same.
LAST_WEIGHTS = replace(CONFIG, average=1)
# what no clock decides
CHECKS = [
    "step",
    "epoch",
    "tokens",
    "train_loss",
    "validation_loss",
    "learning_rate",
]


def made_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """So many sentences of the demonstration, others for each seed below 10."""
    lines = (DEMO.parent / "train.tsv").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("\t") for line in lines[400 * seed : 400 * seed + count])
    return [(source, target) for source, target in pairs]


@cache
def tokenizer(size: int = VOCABULARY) -> Tokenizer:
    return Tokenizer.train((text for pair in made_pairs(300, 0) for text in pair), size)


@cache
def examples(seed: int = 1, count: int = PAIRS) -> Examples:
    return clean(made_pairs(count, seed), tokenizer(), tokenizer(), Rules())


def values_of(kind: str = "transformer", **told: Any) -> dict[str, Any]:
    """The configuration of a network of the tokenizer's vocabulary."""
    values = {"d_model": WIDTH, "dropout": 0.1} if kind == "rnn" else NETWORK
    size = tokenizer().size
    return {"source_vocabulary": size, "target_vocabulary": size} | values | told


def drawn(seed: int = 0, kind: str = "transformer", **told: Any) -> nn.Module:
    """That network, with weights of a seed."""
    torch.manual_seed(seed)
    return build_network(kind, values_of(kind, **told))


def trained(
    folder: Path,
    config: TrainingConfig = CONFIG,
    *,
    on_check: Callable[[Check], object] = lambda _: None,
    seed: int = 1,
    **told: Any,
) -> tuple[nn.Module, Progress]:
    """A new network after a training in a folder; `told` is of the network."""
    network = drawn(**told)
    context = TrainingContext(folder=folder, key="made", on_check=on_check)
    return network, train_network(network, WIDTH, examples(seed), examples(2, 24), config, context)


def figures(check: Check) -> tuple[float, ...]:
    """What no clock decides of a check of a training."""
    return tuple(getattr(check, name) for name in CHECKS)


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether all weights are the same bit for bit."""
    weights, others = one.state_dict(), other.state_dict()
    return weights.keys() == others.keys() and all(
        torch.equal(weights[name], others[name]) for name in weights
    )


def model_of(
    network: nn.Module, kind: str = "transformer", target: Tokenizer | None = None, **told: Any
) -> Model:
    """A model of a network that was `drawn` as told."""
    source, other = tokenizer(), tokenizer() if target is None else target
    card = Card(
        name="made",
        kind=kind,
        size="tiny",
        source_language=LANGUAGES[0],
        target_language=LANGUAGES[1],
        network=values_of(kind, **told),
        tokenizer_hashes=(source.digest, other.digest),
        weights_hash="",
        made={
            "pairs": PAIRS,
            "seeds": len(network.networks) if isinstance(network, Ensemble) else 1,
        },
    )
    return Model(card, network.eval(), source, other)


def edit_card(folder: Path, **keys: object) -> None:
    """Change keys of the card of a saved model."""
    tensors, card = artifacts.read(folder / FILE)
    artifacts.write(folder / FILE, tensors, card | keys)


def written(file: Path, count: int, seed: int) -> Corpus:
    """A corpus as a table."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "".join(f"{source}\t{target}\n" for source, target in made_pairs(count, seed)),
        encoding="utf-8",
    )
    return Corpus(file, name=file.stem)


def recipe_of(folder: Path, **told: Any) -> Recipe:
    """How to train a made model in a second, of corpora in a folder."""
    recipe = Recipe(
        name="made",
        source_language=LANGUAGES[0],
        target_language=LANGUAGES[1],
        train=written(folder / "train.tsv", PAIRS, 1),
        validation=written(folder / "validation.tsv", 24, 2),
        vocabulary=VOCABULARY,
        size="tiny",
        network=NETWORK,
        training={
            "batch_tokens": 512,
            "accumulate": 1,
            "updates": 6,
            "schedule": "inverse_sqrt",
            "warmup": 6,
            "peak": 0.01,
            "check_every": 3,
            "average": 2,
        },
    )
    return replace(recipe, **told)
