"""Find, train and score the translation models of the data folder, and store
what is known of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from sqlalchemy import Engine

from db.engine import transaction
from db.rows import translations
from flows.translating.folder import chosen, models_folder, work_folder
from translation.cards import Card, receipt
from translation.data.corpus import Corpus, check_languages
from translation.data.corpus_cache import hash_of
from translation.decoding.beam_search import Search
from translation.errors import TranslationError, UsageError
from translation.models import Model, load_model
from translation.recipes import Recipe
from translation.scoring import Comparison, Score, compare, score
from translation.training.checkpoints import STATE
from translation.training.distributed import join_process_group
from translation.training.from_recipe import train_model
from translation.training.loop import Check
from translation.translate import translate

DEMO = Path(__file__).with_name("demo") / "demo.toml"  # a recipe, with its corpus beside it
TRAINED_BY = ("training", "rules", "decide_by", "processes", "seeds")


def open_model(name: str | None, device: torch.device) -> Model:
    """Load a model, ready to translate."""
    return load_model(chosen(name), device)


def train_and_store(
    recipe: Recipe,
    device: str,
    engine: Engine,
    say: Callable[[str], object],
    on_check: Callable[[Check], object],
) -> Model:
    """Train a recipe's model, store it and its progress; raise TranslationError
    while another process trains it.
    """
    work, name = work_folder(recipe.name), recipe.name
    work.mkdir(parents=True, exist_ok=True)
    process_group, place = join_process_group(device)
    try:
        with FileLock(work / "train.lock", timeout=0):
            if not (work / STATE).exists():
                with transaction(engine) as conn:
                    translations.forget_progress(conn, name)

            def keep(check: Check) -> None:
                row = {"model": name, "at": datetime.now(UTC)} | asdict(check)
                del row["seconds_left"]
                with transaction(engine) as conn:
                    translations.save_progress(conn, [row])
                on_check(check)

            model = train_model(recipe, models_folder(), work, place, process_group, keep, say)
    except Timeout:
        raise TranslationError(
            f"another process trains {name}: let it end, or name this one otherwise"
        ) from None
    assert model is not None, "the first of a group keeps the books"
    with transaction(engine) as conn:
        translations.save_model(conn, _model_row(model))
    return model


def assist(recipe: Recipe, device: str) -> None:
    """Take part in a training that another process of the group records."""
    process_group, place = join_process_group(device)
    train_model(recipe, models_folder(), work_folder(recipe.name), place, process_group)


def _model_row(model: Model) -> dict[str, Any]:
    card, made, progress = model.card, model.card.made, model.card.made["progress"]
    row = {
        name: getattr(card, name)
        for name in ("name", "kind", "size", "source_language", "target_language")
    }
    row |= {
        name: made[name] for name in ("pairs", "corpus_hash", "validation_loss", "validation_bleu")
    }
    row |= {
        "parameters": sum(each.numel() for each in model.network.parameters()),
        "vocabulary": model.target.size,
    }
    row |= {
        "steps": progress["step"],
        "epochs": progress["epoch"] + progress["place"] / progress["batches"],
    }
    row |= {
        "config": dict(card.network) | {name: made[name] for name in TRAINED_BY},
        "seed": made["training"]["seed"],
    }
    row |= {"code_version": version("dtml-nightshift"), "folder": str(models_folder() / card.name)}
    row |= {"checkpoint_hash": card.weights_hash, "tokenizer_hash": card.tokenizer_hashes[0]}
    return row | {"receipt": receipt(card), "created_at": datetime.now(UTC)}


def named_test(
    card: Card, test: str, references: Path | None = None, columns: tuple[int, int] = (0, 1)
) -> Corpus:
    """Return a test of the model's recipe by name, or files, a table's sentences being in these
    columns.

    Raises UsageError for a name that is neither, and for files in the other direction.
    """
    named: Mapping[str, Mapping[str, Any]] = card.made["tests"]
    if test in named and references is None:
        told = named[test]
        first, second = told["columns"]
        return Corpus(
            Path(told["source"]),
            told["target"] and Path(told["target"]),
            (first, second),
            name=test,
        )
    if not Path(test).exists():
        known = f"its tests are {', '.join(named)}" if named else "it has no test"
        raise UsageError(f"{test!r} is no test set of {card.name} ({known}) and no file")
    corpus = Corpus(Path(test), references, columns, name=Path(test).name)
    check_languages(corpus, card.source_language, card.target_language)
    return corpus


def score_on(
    model: Model, test: Corpus, how: Search, engine: Engine, against: Model | None = None
) -> tuple[Score, Comparison | None]:
    """Translate a test set, score it, alone or against another model, and store the scores."""
    pairs = list(test.pairs())
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    language = model.card.target_language
    said = [each.text for each in translate(model, sources, how)]
    found, compared = score(said, references, language=language), None
    row: dict[str, Any] = {"model": model.card.name, "test": test.name, "test_hash": hash_of(test)}
    row |= {"bleu": found.bleu, "bleu_low": found.low, "bleu_high": found.high, "chrf": found.chrf}
    row |= {"sentences": found.sentences, "signature": found.signature}
    row |= {"search": {"beams": how.beams, "alpha": how.alpha}, "scored_at": datetime.now(UTC)}
    if against is not None:
        others = [each.text for each in translate(against, sources, how)]
        compared = compare(said, others, references, language=language)
        row |= {"against": against.card.name, "difference": compared.difference, "p": compared.p}
    with transaction(engine) as conn:
        translations.save_score(conn, row)
    return found, compared
