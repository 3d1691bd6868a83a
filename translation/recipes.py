"""Read a recipe: the TOML file that names a model's corpora and changes defaults of its size."""

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

from translation.data.corpus import Corpus, Rules
from translation.data.tokenizer import SMALLEST
from translation.errors import UsageError
from translation.models import KINDS, SIZES, build_network
from translation.training.loop import WARMUP, TrainingConfig

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
# The keys of a recipe that are not in a table, and the tables.
TEXT_KEYS = {
    "name": str,
    "source_language": str,
    "target_language": str,
}
TABLE_KEYS = {
    "train": dict,
    "validation": dict,
    "test": dict,
    "tokens": dict,
    "network": dict,
    "training": dict,
    "rules": dict,
}
# Fields of a network's configuration that follow from [tokens], and that [network] may not set.
OF_TOKENS = {"source_vocabulary", "target_vocabulary", "shared_embeddings"}
TYPE_NAMES = {
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "a table",
}


@dataclass(frozen=True)
class Recipe:
    """Describe the corpora of a model and its training.

    A `size` of None is chosen from the corpus (`translation.data.corpus_cache`), a `vocabulary` of
    None from the size. `network` and `training` have only what the file sets; `network_for` and
    `training_for` add the defaults.
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
        """Return the network's configuration without vocabularies.

        An RNN has twice the width of a Transformer of that size, and the same dropout.
        """
        defaults = dict(SIZES[size])
        if self.kind == "rnn":
            defaults = {"d_model": 2 * defaults["d_model"], "dropout": defaults["dropout"]}
        return {**defaults, "shared_embeddings": self.joint, **self.network}

    def training_for(self, size: str) -> TrainingConfig:
        """Return the settings of the training; raises UsageError for impossible ones.

        What the file leaves out follows from the size, the budget, the schedule and the kind of
        network.
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
        """Return a hash of the corpus and the settings that a resumed training must have in common.

        `check_every` is left out: it may change when a training resumes. So may the budget,
        `updates` and `minutes`, with the schedule inverse_sqrt. `number` is the position of the
        seed among the recipe's seeds, from 0 on.
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


def read_recipe(file: Path) -> Recipe:
    """Read a recipe from a TOML file; its paths are relative to the file.

    Raises UsageError for any mistake in the file; the corpora are not read.
    """
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read the recipe {file}: {error.strerror}; check its path and your right to "
            "read it"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{file} is not UTF-8 at byte {error.start + 1}: save it as UTF-8"
        ) from error
    # Invalid TOML and a number of 5,000 digits raise ValueError, deep nesting RecursionError.
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not valid TOML: {error}; correct the file") from error
    _check_keys(file, "", document, TEXT_KEYS | TABLE_KEYS)
    required = TEXT_KEYS.keys() | {"train", "validation"}
    missing = sorted(required - document.keys())
    if missing:
        raise UsageError(f"{file} lacks {', '.join(missing)}: add what is missing")
    tokens = document.get("tokens", {})
    network = document.get("network", {})
    training = document.get("training", {})
    tests = document.get("test", {})
    _check_keys(file, "tokens", tokens, {"vocabulary": int, "joint": bool})
    kind = network.get("kind", Recipe.kind)
    if not isinstance(kind, str) or kind not in KINDS:
        raise UsageError(f"{file}: network.kind is {kind!r}, but must be one of {', '.join(KINDS)}")
    types = {"kind": str, "size": Literal[*SIZES]} | get_type_hints(KINDS[kind])
    _check_keys(file, "network", network, _without(types, *OF_TOKENS), f" with kind {kind}")
    training_keys = {"decide_by": Decider, "seeds": int} | get_type_hints(TrainingConfig)
    _check_keys(file, "training", training, training_keys)
    _check_keys(file, "test", tests, dict.fromkeys(tests, dict))  # any names, but of tables
    # The checks above have made sure of the keys that have no default.
    recipe = Recipe(
        name=_name(file, document["name"]),
        source_language=document["source_language"],
        target_language=document["target_language"],
        train=_corpus(file, "train", document["train"]),
        validation=_corpus(file, "validation", document["validation"]),
        tests={name: _corpus(file, f"test.{name}", table) for name, table in tests.items()},
        vocabulary=tokens.get("vocabulary"),
        joint=tokens.get("joint", Recipe.joint),
        kind=kind,
        size=network.get("size"),
        network=_without(network, "kind", "size"),
        training=_without(training, "decide_by", "seeds"),
        rules=_rules(file, document.get("rules", {})),
        decide_by=training.get("decide_by", Recipe.decide_by),
        seeds=training.get("seeds", Recipe.seeds),
    )
    _refuse_impossible(file, recipe)
    return recipe


def _without(table: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}


def _check_keys(
    file: Path, table: str, values: Mapping[str, Any], types: Mapping[str, Any], condition: str = ""
) -> None:
    """Raise UsageError for an unknown key of a table, and for a value of the wrong type.

    `types` has the type of each known key. `table` is the table's name, "" for the whole file.
    `condition` follows the name in a message if the known keys depend on something.
    """
    unknown = sorted(values.keys() - types.keys())
    if unknown:
        place = f" of [{table}]{condition}" if table else ""
        raise UsageError(
            f"{file} has unknown keys {', '.join(unknown)}{place}; use only "
            f"{', '.join(sorted(types))}"
        )
    for key, value in values.items():
        if not _has_type(value, types[key]):
            name = f"{table}.{key}" if table else key
            raise UsageError(f"{file}: {name} is {value!r}, but must be {_type_name(types[key])}")


def _has_type(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is UnionType:
        return any(_has_type(value, option) for option in get_args(kind))
    if kind is float:
        return type(value) in {int, float} and math.isfinite(value)
    return type(value) is kind  # isinstance would take true for a whole number


def _type_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if get_origin(kind) is UnionType:
        options = [option for option in get_args(kind) if option is not NoneType]
        return " or ".join(_type_name(option) for option in options)
    return TYPE_NAMES[kind]


def _refuse_impossible(file: Path, recipe: Recipe) -> None:
    """Raise UsageError for values of the right type that cannot work.

    Without a size, which is chosen later from the corpus, the settings are tried with that of tiny.
    """
    if recipe.vocabulary is not None and recipe.vocabulary < SMALLEST:
        raise UsageError(
            f"{file}: tokens.vocabulary is {recipe.vocabulary}, but must be {SMALLEST} or more"
        )
    if recipe.seeds < 1:
        raise UsageError(f"{file}: training.seeds is {recipe.seeds}, but must be 1 or more")
    for name, value in recipe.network.items():
        # 0 learned positions mean sinusoids; every other whole number is a size.
        least = 0 if name == "learned_positions" else 1
        if type(value) is int and value < least:
            raise UsageError(f"{file}: network.{name} is {value}, but must be {least} or more")
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
    # The network and the settings of the training are made only for the errors that they raise.
    try:
        with torch.device("meta"):  # without memory for the weights
            build_network(recipe.kind, network)
    except UsageError as error:
        place = "[network]" if recipe.size else f"[network] with size {size}"
        raise UsageError(f"{file}, {place}: {error}") from error
    try:
        recipe.training_for(size)
    except UsageError as error:
        raise UsageError(f"{file}, [training]: {error}") from error


def _name(file: Path, name: str) -> str:
    has_other_characters = any(
        not character.isalnum() and character not in "-_." for character in name
    )
    if not name or name.startswith(".") or has_other_characters:
        raise UsageError(
            f"{file}: the name {name!r} cannot be that of a folder: use letters, digits, -, _ and "
            "dots, and do not begin with a dot"
        )
    return name


def _corpus(file: Path, table: str, values: Mapping[str, Any]) -> Corpus:
    """Return the corpus of a table such as [train]; raises UsageError for any mistake in it.

    Its files are not opened, and need not exist.
    """
    _check_keys(file, table, values, {"source": str, "target": str, "columns": list})
    if "source" not in values:
        raise UsageError(
            f"{file}: [{table}] lacks source: set source to a file of sentences and target to the "
            "file of their translations, or source alone to a TSV file with both"
        )
    columns = values.get("columns", [0, 1])
    if [type(column) for column in columns] != [int, int]:
        raise UsageError(
            f"{file}: columns of [{table}] is {columns}, but must be two different whole numbers "
            "of 0 or more: the columns of the source and the target"
        )
    folder = file.parent.resolve()  # absolute: the model's card stores the paths of its tests
    target = folder / values["target"] if "target" in values else None
    try:
        return Corpus(
            source=folder / values["source"],
            target=target,
            columns=(columns[0], columns[1]),
            name=table,
        )
    except UsageError as error:
        raise UsageError(f"{file}, [{table}]: {error}") from error


def _rules(file: Path, values: Mapping[str, Any]) -> Rules:
    _check_keys(file, "rules", values, get_type_hints(Rules))
    try:
        return Rules(**values)
    except UsageError as error:
        raise UsageError(f"{file}, [rules]: {error}") from error
