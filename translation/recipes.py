"""Read a recipe: the TOML file in which a user names the corpora of a model and
changes defaults of its size.
"""

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
    "tiny": {"batch_tokens": 1024, "optimiser": "muon", "peak": 0.0035, "updates": 20_000},
    "small": {"batch_tokens": 4096, "accumulate": 2, "peak": 0.002, "updates": 30_000},
    "base": {"batch_tokens": 12_500, "accumulate": 2, "warmup": 0.04},
    "big": {"batch_tokens": 12_500, "accumulate": 2, "warmup": 0.04, "updates": 300_000},
}
UNLIMITED = 10**9  # updates of a training of minutes
VOCABULARY = {"tiny": 8000, "small": 16_000, "base": 32_000, "big": 32_000}
TABLES = dict.fromkeys(
    ("train", "validation", "test", "tokens", "network", "training", "rules"), dict
)
WORDS = dict.fromkeys(("name", "source_language", "target_language"), str)
OF_TOKENS = {
    "source_vocabulary",
    "target_vocabulary",
    "shared_embeddings",
}  # set by [tokens], not by [network]
TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
TYPES |= {list: "a list", dict: "a table"}


@dataclass(frozen=True)
class Recipe:
    """What a model is trained from and how; None stands for the default of its
    size, which the corpus decides.
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
    seeds: int = 1  # networks that are trained apart, from `seed` on, and translate together

    def vocabulary_for(self, size: str) -> int:
        """Return the limit of subwords."""
        return VOCABULARY[size] if self.vocabulary is None else self.vocabulary

    def network_for(self, size: str) -> dict[str, Any]:
        """Return the network's configuration without vocabularies; an RNN has
        twice the width and the same dropout.
        """
        named = dict(SIZES[size])
        if self.kind == "rnn":
            named = {"d_model": 2 * named["d_model"], "dropout": named["dropout"]}
        return named | {"shared_embeddings": self.joint} | dict(self.network)

    def training_for(self, size: str) -> TrainingConfig:
        """Return the settings of the training; what the file leaves out follows
        from the size and the budget.
        """
        told = dict(TRAININGS[size]) | (
            {"updates": UNLIMITED} if "minutes" in self.training else {}
        )
        if self.training.get("schedule", "linear") != "linear":
            told["warmup"] = WARMUP
        if self.kind == "rnn":  # of which Muon has not been measured
            told.pop("optimiser", None)
        return TrainingConfig(**told | dict(self.training))

    def key(self, size: str, corpus_hash: str, number: int = 0) -> str:
        """Return a hash of all settings but when the training is checked and ends: one resumes
        another of its hash.

        `number` is that of the seed, from 0 on.
        """
        training = asdict(self.training_for(size))
        training["seed"] += number
        # A rate that falls to the end of the budget depends on it.
        budget = ("updates", "minutes") if training["schedule"] == "inverse_sqrt" else ()
        for end in (*budget, "check_every"):
            training.pop(end)
        text = [self.vocabulary_for(size), asdict(self.rules), corpus_hash]
        said = [self.kind, self.network_for(size), training, self.decide_by, *text]
        return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


def read_recipe(file: Path) -> Recipe:
    """Read a recipe from a TOML file, whose paths are relative to it; raises
    UsageError for any mistake.
    """
    try:
        told = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not valid TOML: {error}") from error
    _require_known(file, "", told, WORDS | TABLES)
    missing = sorted((WORDS.keys() | {"train", "validation"}) - told.keys())
    if missing:
        raise UsageError(f"{file} lacks {', '.join(missing)}")
    tokens, network, training = (
        dict(told.get(name, {})) for name in ("tokens", "network", "training")
    )
    _require_known(file, "tokens", tokens, {"vocabulary": int, "joint": bool})
    _require_known(
        file, "network", network, _network_keys(file, network.get("kind", "transformer"))
    )
    _require_known(
        file,
        "training",
        training,
        {"decide_by": Decider, "seeds": int} | get_type_hints(TrainingConfig),
    )
    _require_known(file, "test", told.get("test", {}), dict.fromkeys(told.get("test", {}), dict))
    named = _name(file, told["name"]), told["source_language"], told["target_language"]
    train, validation = (_corpus(file, name, told[name]) for name in ("train", "validation"))
    tests = {
        name: _corpus(file, f"test.{name}", each) for name, each in told.get("test", {}).items()
    }
    rules = _rules(file, told.get("rules", {}))
    for table in (network, training):  # what of them is neither the network's nor the loop's
        tokens |= {
            key: table.pop(key) for key in ("kind", "size", "decide_by", "seeds") if key in table
        }
    recipe = Recipe(
        *named, train, validation, tests, network=network, training=training, rules=rules, **tokens
    )
    _refuse_impossible(file, recipe)
    return recipe


def _require_known(
    file: Path, table: str, told: Mapping[str, Any], types: Mapping[str, Any]
) -> None:
    """Raise UsageError for an unknown key, and for a value that is not of its key's type."""
    unknown = sorted(told.keys() - types.keys())
    if unknown:
        place = f" of [{table}]" if table else ""
        raise UsageError(
            f"{file} has unknown {', '.join(unknown)}{place}: the known are "
            f"{', '.join(sorted(types))}"
        )
    for key, value in told.items():
        if not _is_of(value, types[key]):
            name = f"{table}.{key}" if table else key
            raise UsageError(f"{file}: {name} is {value!r}, but must be {_spoken(types[key])}")


def _is_of(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is UnionType:
        return any(_is_of(value, each) for each in get_args(kind))
    if kind is float:
        return type(value) in {int, float} and math.isfinite(value)
    return type(value) is kind  # to Python, true is a number


def _spoken(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if get_origin(kind) is UnionType:
        return " or ".join(_spoken(each) for each in get_args(kind) if each is not NoneType)
    return TYPES[kind]


def _network_keys(file: Path, kind: Any) -> dict[str, Any]:
    """Return the keys of [network] and their types, without those that [tokens] sets."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise UsageError(f"{file}: network.kind is {kind!r}, but must be one of {', '.join(KINDS)}")
    named = {"kind": str, "size": Literal[*SIZES]} | get_type_hints(KINDS[kind])
    return {name: each for name, each in named.items() if name not in OF_TOKENS}


def _refuse_impossible(file: Path, recipe: Recipe) -> None:
    """Raise UsageError for values of the right type that cannot work; an
    undecided size is taken for tiny.
    """
    if recipe.vocabulary is not None and recipe.vocabulary < SMALLEST:
        raise UsageError(
            f"{file}: tokens.vocabulary is {recipe.vocabulary}, but must be {SMALLEST} or more"
        )
    if recipe.seeds < 1:
        raise UsageError(f"{file}: training.seeds is {recipe.seeds}, but must be 1 or more")
    least = {"learned_positions": 0}
    for name, value in recipe.network.items():
        if type(value) is int and value < least.get(name, 1):
            raise UsageError(
                f"{file}: network.{name} is {value}, but must be {least.get(name, 1)} or more"
            )
    size = recipe.size or "tiny"
    network = recipe.network_for(size) | dict.fromkeys(
        ("source_vocabulary", "target_vocabulary"), SMALLEST
    )
    if network["d_model"] % 2:
        raise UsageError(f"{file}: network.d_model is {network['d_model']}, but must be even")
    try:
        with torch.device("meta"):
            build_network(recipe.kind, network)
    except UsageError as error:
        raise UsageError(f"{file}: [network] {error}") from error
    try:
        recipe.training_for(size)
    except UsageError as error:
        raise UsageError(f"{file}: [training] {error}") from error


def _name(file: Path, name: str) -> str:
    if (
        not name
        or name.startswith(".")
        or not all(each.isalnum() or each in "-_." for each in name)
    ):
        raise UsageError(
            f"{file}: the name {name!r} must be letters, digits, -, _ and dots, and begin "
            "with no dot"
        )
    return name


def _corpus(file: Path, table: str, told: Mapping[str, Any]) -> Corpus:
    _require_known(file, table, told, {"source": str, "target": str, "columns": list})
    if "source" not in told:
        raise UsageError(f"{file}: [{table}] must name source, and target unless it is a TSV")
    columns = told.get("columns", [0, 1])
    if [type(each) for each in columns] != [int, int]:
        raise UsageError(
            f"{file}: columns of [{table}] must be two numbers from 0 on, of the source and "
            "the target"
        )
    folder = file.parent.resolve()  # absolute, as a model stores where its tests are
    target = folder / told["target"] if "target" in told else None
    try:
        return Corpus(folder / told["source"], target, (columns[0], columns[1]), name=table)
    except UsageError as error:
        raise UsageError(f"{file}: [{table}] {error}") from error


def _rules(file: Path, told: Mapping[str, Any]) -> Rules:
    _require_known(file, "rules", told, get_type_hints(Rules))
    try:
        return Rules(**told)
    except UsageError as error:
        raise UsageError(f"{file}: [rules] {error}") from error
