"""Read a recipe: the TOML file that names a model's corpora and changes defaults of its size."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import torch
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass as definition

from translation.data.corpus import Corpus, Rules
from translation.data.tokenizer import SMALLEST
from translation.definitions import (
    STRICT,
    Count,
    Definition,
    DefinitionError,
    FilePath,
    Flag,
    Text,
    Whole,
    checked,
    checked_settings,
    must,
    parse,
)
from translation.errors import UsageError
from translation.models import KINDS, SIZES, build_network
from translation.training.loop import WARMUP, TrainingConfig

T = TypeVar("T")
Decider = Literal["bleu", "loss"]

# tiny is the best found on Multi30k (benchmarks/README.md); the batches of base and big are those
# of Vaswani et al.
TRAININGS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {
        "batch_tokens": 1024,
        "optimiser": "muon",
        "peak": 0.0035,
        "updates": 20_000,
    },
    "small": {
        "batch_tokens": 4096,
        "accumulate": 2,
        "peak": 0.002,
        "updates": 30_000,
    },
    "base": {
        "batch_tokens": 12_500,
        "accumulate": 2,
        "warmup": 0.04,
    },
    "big": {
        "batch_tokens": 12_500,
        "accumulate": 2,
        "warmup": 0.04,
        "updates": 300_000,
    },
}
UNLIMITED = 10**9  # updates of a training whose budget is in minutes
VOCABULARY = {"tiny": 8000, "small": 16_000, "base": 32_000, "big": 32_000}
# Fields of a network's configuration that follow from [tokens], and that [network] may not set.
OF_TOKENS = ("source_vocabulary", "target_vocabulary", "shared_embeddings")


@dataclass(frozen=True)
class Recipe:
    """Describe the corpora of a model and its training.

    A `size` of None is chosen from the corpus, a `vocabulary` from the size. `network` and
    `training` have what the file sets; `network_for` and `training_for` add defaults.
    """

    name: str
    source_language: str
    target_language: str
    train: Corpus
    validation: Corpus
    tests: Mapping[str, Corpus] = field(default_factory=dict)
    vocabulary: int | None = None
    joint: bool = True  # one vocabulary for both languages
    kind: str = "transformer"
    size: str | None = None
    network: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    decide_by: Decider = "bleu"  # of the validation set
    seeds: int = 1  # networks that are trained separately, from `seed` on, and translate together

    def vocabulary_for(self, size: str) -> int:
        """Return the largest number of subwords that each vocabulary may have."""
        return VOCABULARY[size] if self.vocabulary is None else self.vocabulary

    def network_for(self, size: str) -> dict[str, Any]:
        """Return the network's configuration without vocabularies; an RNN is twice as wide."""
        defaults = dict(SIZES[size])
        if self.kind == "rnn":
            defaults = {"d_model": 2 * defaults["d_model"], "dropout": defaults["dropout"]}
        return {**defaults, "shared_embeddings": self.joint, **self.network}

    def training_for(self, size: str) -> TrainingConfig:
        """Return the settings of the training, by size, budget, schedule and kind where not set.

        Raises UsageError for impossible ones.
        """
        defaults = dict(TRAININGS[size])
        if "minutes" in self.training:
            defaults["updates"] = UNLIMITED
        if self.training.get("schedule", "linear") != "linear":
            defaults["warmup"] = WARMUP  # of this schedule: a number of updates, not a share
        if self.kind == "rnn":  # Muon has not been measured with it
            defaults.pop("optimiser", None)
        settings = {**defaults, **self.training}
        return TrainingConfig(**settings)

    def key(self, size: str, corpus_hash: str, number: int = 0) -> str:
        """Return a hash of corpus and settings that a resumed training must share.

        Not `check_every`, nor, with inverse_sqrt, `updates` and `minutes`. `number` is the seed's,
        from 0.
        """
        training = asdict(self.training_for(size))
        training["seed"] += number
        del training["check_every"]
        if training["schedule"] == "inverse_sqrt":
            # Only this rate does not depend on the budget, which may then be raised later.
            del training["updates"]
            del training["minutes"]
        settings = [
            self.kind,
            self.network_for(size),
            training,
            self.decide_by,
            self.vocabulary_for(size),
            asdict(self.rules),
            corpus_hash,
        ]
        text = json.dumps(settings, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


FolderName = Annotated[
    Text,
    must(
        re.compile(r"[\w-][\w.-]*").fullmatch,
        "the name of a folder: letters, digits, -, _ and dots, the first of which is no dot",
    ),
]


def _network(values: dict[str, Any]) -> dict[str, Any]:
    kind = values.get("kind", Recipe.kind)
    if not isinstance(kind, str) or kind not in KINDS:
        raise DefinitionError("kind", f"expected one of {', '.join(KINDS)}, got {kind!r}")
    checked_settings(KINDS[kind], values, left_out=OF_TOKENS, kind=str, size=Literal[*SIZES] | None)
    whole_numbers = {name for name, of in get_type_hints(KINDS[kind]).items() if of is int}
    for name in whole_numbers & values.keys():
        # 0 learned positions mean sinusoids; every other whole number is a size.
        least = 0 if name == "learned_positions" else 1
        if values[name] < least:
            raise DefinitionError(name, f"expected {least} or more, got {values[name]}")
    return values


def _training(values: dict[str, Any]) -> dict[str, Any]:
    checked_settings(TrainingConfig, values, decide_by=Decider, seeds=Count)
    return values


@definition(frozen=True, config=STRICT)
class CorpusFiles(Definition):
    """The files of a corpus."""

    source: FilePath
    """A file of sentences, or a TSV file with both languages."""
    target: FilePath | None = None
    """The file of their translations."""
    columns: Annotated[tuple[Whole, ...], Field(min_length=2, max_length=2)] = Corpus.columns
    """The columns of a TSV file, from 0 on: the source's and the target's."""


@definition(frozen=True, config=STRICT)
class Tokens(Definition):
    """The vocabularies."""

    vocabulary: Annotated[Whole, Field(ge=SMALLEST)] | None = None
    """The most subwords of a vocabulary. Default: that of the size."""
    joint: Flag = Recipe.joint
    """One vocabulary for both languages."""


@definition(frozen=True, config=STRICT)
class RecipeFile(Definition):
    """What the file of a recipe says."""

    name: FolderName
    source_language: Text
    target_language: Text
    train: CorpusFiles
    validation: CorpusFiles
    test: dict[str, CorpusFiles] = field(default_factory=dict)
    tokens: Tokens = Tokens()
    network: Annotated[dict[str, Any], AfterValidator(_network)] = field(default_factory=dict)
    training: Annotated[dict[str, Any], AfterValidator(_training)] = field(default_factory=dict)
    rules: Rules = Rules()


def read_recipe(file: Path) -> Recipe:
    """Read a recipe, to which its paths are relative; raises UsageError for any mistake."""
    said = checked(RecipeFile, parse(file, None, UsageError), file, UsageError)
    network, training = dict(said.network), dict(said.training)
    recipe = Recipe(
        name=said.name,
        source_language=said.source_language,
        target_language=said.target_language,
        train=_corpus(file, "train", said.train),
        validation=_corpus(file, "validation", said.validation),
        tests={name: _corpus(file, f"test.{name}", files) for name, files in said.test.items()},
        vocabulary=said.tokens.vocabulary,
        joint=said.tokens.joint,
        kind=network.pop("kind", Recipe.kind),
        size=network.pop("size", None),
        decide_by=training.pop("decide_by", Recipe.decide_by),
        seeds=training.pop("seeds", Recipe.seeds),
        network=network,
        training=training,
        rules=said.rules,
    )
    _refuse_impossible(file, recipe)
    return recipe


def _made(place: str, make: Callable[[], T]) -> T:
    """Return what is made of a table; name its place in the UsageError of impossible values."""
    try:
        return make()
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from error


def _corpus(file: Path, table: str, files: CorpusFiles) -> Corpus:
    # Absolute paths: the model's card stores those of its tests. Links stay: their names tell the
    # language, and what they lead to may not.
    target = None if files.target is None else files.target.absolute()
    first, second = files.columns
    return _made(
        f"{file}: [{table}]",
        lambda: Corpus(files.source.absolute(), target, (first, second), name=table),
    )


def _refuse_impossible(file: Path, recipe: Recipe) -> None:
    """Raise UsageError for values that cannot work together, by default with the size tiny."""
    size = recipe.size or "tiny"
    network = recipe.network_for(size)
    network["source_vocabulary"] = SMALLEST  # the corpus is not read yet; any number will do
    network["target_vocabulary"] = SMALLEST
    # Sinusoids come in pairs of sine and cosine, and an RNN reads in both directions with half of
    # d_model each.
    if network["d_model"] % 2:
        rule = "even"
        if "heads" in network:  # the Transformer's; `build_network` divides d_model by them
            rule = f"even and a multiple of heads ({network['heads']})"
        raise UsageError(f"{file}: network.d_model is {network['d_model']}, but must be {rule}")
    with torch.device("meta"):  # without memory for the weights
        with_size = "" if recipe.size else f" with size {size}"
        _made(f"{file}: [network]{with_size}", lambda: build_network(recipe.kind, network))
    _made(f"{file}: [training]", lambda: recipe.training_for(size))
