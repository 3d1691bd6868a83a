"""Prefect flows of translation: a training, and a worker that empties the queue of texts."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from sqlalchemy import Engine

from db.engine import open_store
from db.errors import StoreError
from dtml.errors import DtmlError
from dtml.inference import choose_device
from flows.log_lines import logged_run
from flows.service.tasks import as_task
from flows.settings import err
from flows.signals import begin_run, signals_of
from flows.translating.models import score_on, train_and_store
from flows.translating.queue import in_words
from flows.translating.worker import work_off
from translation.data.corpus import Corpus
from translation.decoding.beam_search import Search
from translation.errors import TranslationError
from translation.models import Model
from translation.recipes import Recipe
from translation.scoring import Score

log = logging.getLogger(__name__)


@flow(
    name="translate-train",
    flow_run_name="{recipe.name}",
    persist_result=False,
    validate_parameters=False,
)
def train_translator(
    recipe: Recipe, device: str, attended: bool = False
) -> tuple[Model, Mapping[str, Score]]:
    """Train a recipe's model, store it, and score it on the recipe's test sets.

    Returns the model and, by the name of the test set, its scores with the default `Search`.
    `attended` says that a command runs this: the first Ctrl-C ends it.
    """
    engine = open_store()
    place = choose_device(device)
    with logged_run("training") as run, signals_of(attended):
        model = as_task(
            "train",
            lambda: train_and_store(recipe, place.type, engine, say=say, on_check=say),
        )
        scores: dict[str, Score] = {}
        for name, test in recipe.tests.items():
            named_test = replace(test, name=name)  # as `dtml translate score` calls it
            score_test = partial(_score, model, named_test, engine)
            scores[name] = as_task("score", score_test)
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
    """Log a line about a training, and print it where standard error is no terminal.

    There the log shows only warnings, and a training that prints nothing for hours would seem to
    have stopped.
    """
    log.info("%s", line)
    if not err.is_terminal:
        err.print(str(line), markup=False, soft_wrap=True)


@flow(name="translate-queue", persist_result=False, validate_parameters=False)
def translate_queue(
    models: Sequence[str] = (),
    beams: int = 5,
    alpha: float = 0.6,
    device: str = "auto",
    attention: bool = False,
    attended: bool = False,
) -> State[Any]:
    """Translate the texts that are queued for these models until none is queued.

    Without `models`, these are the texts for any model. The data of the returned state are the
    counts of texts: done, failed, and waiting for a model that cannot be opened. `attended` says
    that a command runs this, to which errors are raised. In a run of the service, an expected error
    (of dtml, the store, a translation or the system) becomes a failed state instead.
    """
    begin_run()
    how = Search(beams=beams, alpha=alpha, with_attention=attention)
    try:
        with logged_run("translations") as run, signals_of(attended):
            engine = open_store()
            place = choose_device(device)
            counts: dict[str, int] = as_task(
                "translate",
                lambda: work_off(engine, models or None, how, place, attended=attended),
            )
            run.outcome = in_words(counts)
    except (DtmlError, StoreError, TranslationError, OSError) as error:
        if attended:
            raise
        return Failed(message=str(error))
    if not any(counts.values()):
        return Completed(name="Skipped", message="nothing is queued", data=counts)
    return Completed(message=in_words(counts), data=counts)
