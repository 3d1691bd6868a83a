"""Find, train and score the translation models of the data folder, and store their facts."""

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from sqlalchemy import Engine

from db.engine import open_store, transaction
from db.rows import translations
from db.save import save
from dtml.devices import Load, choose_device
from flows.log_lines import logged_run
from flows.service.tasks import as_task
from flows.settings import err, tell
from flows.signals import signals_of
from flows.translating.folder import chosen, models_folder, work_folder
from translation.cards import Card, receipt
from translation.data.corpus import Corpus, check_languages
from translation.data.corpus_cache import hash_of
from translation.data.languages import BleuTokenizer
from translation.decoding.beam_search import Search
from translation.errors import TranslationError, UsageError
from translation.models import Model, build_network, load_model
from translation.recipes import Recipe
from translation.scoring import Comparison, Score, bleu_metric, compare, score
from translation.training.checkpoints import STATE
from translation.training.distributed import join_process_group
from translation.training.from_recipe import train_model
from translation.training.loop import Check
from translation.translate import translate

log = logging.getLogger(__name__)

# Measured seconds: benchmarks/README.md, "On a GPU".
TOKEN_S = 1.3e-10  # of a core, for a target token and a weight, forward and backward
GPU_BATCH_S = 0.035  # of a GPU, for a batch of a small network
DEMO = Path(__file__).with_name("demo") / "demo.toml"  # a recipe, with its corpus beside it
# What a model's card says as the columns of translation_model do, itself and of its making.
FACTS = ("name", "kind", "size", "source_language", "target_language")
MADE = ("pairs", "corpus_hash", "validation_loss", "validation_bleu")
TRAINED_BY = (  # settings in a model's card
    "training",
    "rules",
    "decide_by",
    "processes",
    "seeds",
    "unicode_form",
    "bleu_tokenizer",
)


def open_model(name: str | None, device: torch.device) -> Model:
    """Load a model, ready to translate."""
    return load_model(chosen(name), device)


def device_for(recipe: Recipe, device: str) -> str:
    """Return the device that trains a recipe.

    "auto" is a GPU that there is for a budget in minutes, in which it reads more, and in one of
    several processes, which must agree. It is one for RNNs, of which no speed was measured.
    """
    if "minutes" in recipe.training or "RANK" in os.environ or recipe.kind == "rnn":
        return choose_device(device).type
    size = recipe.size or "tiny"
    config = recipe.training_for(size)
    vocabulary = recipe.vocabulary_for(size)
    vocabularies = {"source_vocabulary": vocabulary, "target_vocabulary": vocabulary}
    with torch.device("meta"):  # without memory for the weights
        network = build_network(recipe.kind, recipe.network_for(size) | vocabularies)
    weights = sum(parameter.numel() for parameter in network.parameters())
    batches = recipe.seeds * config.updates * config.accumulate
    load = Load(
        core_seconds=batches * config.batch_tokens * weights * TOKEN_S,
        cores=os.cpu_count() or 1,
        gpu_seconds=batches * GPU_BATCH_S,
    )
    return choose_device(device, [load]).type


def train_and_score(recipe: Recipe, device: str) -> tuple[Model, dict[str, Score]]:
    """Train a recipe's model, store it, and score it on its test sets; return it and the scores."""
    engine = open_store()
    place = device_for(recipe, device)
    with logged_run("training") as run, signals_of(attended=True):
        model = as_task("train", lambda: train_and_store(recipe, place, engine))
        scores = {}
        for name, test in recipe.tests.items():
            named_test = replace(test, name=name)  # as `dtml translate score` calls it
            scores[name] = as_task("score", partial(_score, model, named_test, engine))
        run.outcome = f"trained the translation model {recipe.name}"
    return model, scores


def _score(model: Model, test: Corpus, engine: Engine) -> Score:
    """Score a trained model on a test set; an error says that the training is not lost."""
    try:
        test_score, _ = score_on(model, test, Search(), engine)
    except TranslationError as error:
        name = model.card.name
        raise type(error)(
            f"{name} is trained and stored, but not scored on {test.name}: {error}; then run "
            f"`dtml translate score {test.name} --model {name}`"
        ) from error
    return test_score


def say(line: object) -> None:
    """Log a line about a training, and print it where standard error is no terminal."""
    log.info("%s", line)
    if not err.is_terminal:
        tell(str(line))


def train_and_store(recipe: Recipe, device: str, engine: Engine) -> Model:
    """Train a recipe's model, resuming, and store it and its progress.

    The first of several processes calls this, others `assist`. Raises TranslationError while
    another trains it.
    """
    name = recipe.name
    work = work_folder(name)
    work.mkdir(parents=True, exist_ok=True)
    process_group, place = join_process_group(device)
    try:
        with FileLock(work / "train.lock", timeout=0):
            # Without a state the training begins anew: the progress of an earlier one is deleted.
            if not (work / STATE).exists():
                with transaction(engine) as conn:
                    translations.forget_progress(conn, name)

            def store_check(check: Check) -> None:
                """Store a check at once, so that the progress can be read during the training."""
                row = asdict(check) | {"model": name, "at": datetime.now(UTC)}
                del row["seconds_left"]
                with transaction(engine) as conn:
                    save(conn, "translation_progress", [row])
                say(check)

            model = train_model(
                recipe,
                models_folder(),
                work,
                place,
                process_group,
                on_check=store_check,
                on_message=say,
            )
    except Timeout:
        raise TranslationError(
            f"another process is training {name}: wait until it ends or, if the recipe is your "
            "own, give it another name"
        ) from None
    assert model is not None, "only the other processes of a group get no model"
    with transaction(engine) as conn:
        translations.save_model(conn, _row_of(model))
    return model


def _row_of(model: Model) -> dict[str, Any]:
    card = model.card
    made = card.made
    progress = made["progress"]
    return {
        **{name: getattr(card, name) for name in FACTS},
        **{name: made[name] for name in MADE},
        "parameters": sum(parameter.numel() for parameter in model.network.parameters()),
        "vocabulary": model.target.size,
        "steps": progress["step"],
        # Whole epochs, and the share of the batches of the last one that were used.
        "epochs": progress["epoch"] + progress["place"] / progress["batches"],
        "config": {**card.network, **{name: made[name] for name in TRAINED_BY}},
        "seed": made["training"]["seed"],
        "code_version": version("dtml-nightshift"),
        "folder": str(models_folder() / card.name),
        "checkpoint_hash": card.weights_hash,
        "tokenizer_hash": card.tokenizer_hashes[0],
        "receipt": receipt(card),
        "created_at": datetime.now(UTC),
    }


def assist(recipe: Recipe, device: str) -> None:
    """Take part in a training whose results another process of the group stores."""
    process_group, place = join_process_group(device)
    train_model(recipe, models_folder(), work_folder(recipe.name), place, process_group)


def named_test(
    card: Card, test: str, references: Path | None = None, columns: tuple[int, int] = (0, 1)
) -> Corpus:
    """Return the test set `test` of the model's recipe, or one of files.

    With `references`, `test` has the sources; without, it is a table with both in `columns`. Raises
    UsageError for neither, and for names of the other direction, as test.de from English.
    """
    recipe_tests: Mapping[str, Mapping[str, Any]] = card.made["tests"]
    if test in recipe_tests and references is None:
        fields = recipe_tests[test]
        source_column, target_column = fields["columns"]
        return Corpus(
            source=Path(fields["source"]),
            target=fields["target"] and Path(fields["target"]),
            columns=(source_column, target_column),
            name=test,
        )
    if not Path(test).exists():
        available = ", ".join(recipe_tests) or "it has none"
        raise UsageError(
            f"{test!r} is neither a file nor a test set of {card.name} ({available}) without "
            "--references: name a file that exists, or a test set alone"
        )
    corpus = Corpus(source=Path(test), target=references, columns=columns, name=Path(test).name)
    check_languages(corpus, card.source_language, card.target_language)
    return corpus


def score_on(
    model: Model,
    test: Corpus,
    how: Search,
    engine: Engine,
    against: Model | None = None,
    tokenizer: BleuTokenizer | None = None,
) -> tuple[Score, Comparison | None]:
    """Translate a test set, score, compare with `against`, if given, and store.

    `tokenizer` is by default that of the references; raises UsageError for one not installed.
    """
    if tokenizer is not None:
        bleu_metric(tokenizer)  # only to raise now, not after the translation
    pairs = list(test.pairs())
    sources = [source for source, _ in pairs]
    references = [target for _, target in pairs]

    def translated_by(translator: Model) -> list[str]:
        found = translate(translator, sources, how)
        return [translation.text for translation in found]

    output = translated_by(model)
    test_score = score(output, references, tokenizer=tokenizer)
    row: dict[str, Any] = {
        "model": model.card.name,
        "test": test.name,
        "test_hash": hash_of(test),
        "bleu": test_score.bleu,
        "bleu_low": test_score.low,
        "bleu_high": test_score.high,
        "chrf": test_score.chrf,
        "sentences": test_score.sentences,
        "signature": test_score.signature,
        "search": {"beams": how.beams, "alpha": how.alpha},
        "scored_at": datetime.now(UTC),
    }
    comparison = None
    if against is not None:
        comparison = compare(
            output,
            translated_by(against),
            references,
            tokenizer=tokenizer,
        )
        row["against"] = against.card.name
        row["difference"] = comparison.difference
        row["p"] = comparison.p
    with transaction(engine) as conn:
        translations.save_score(conn, row)
    return test_score, comparison
