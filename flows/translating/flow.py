"""The flow of `dtml serve` that empties the queue of texts."""

from collections.abc import Sequence
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from db.errors import StoreError
from dtml.errors import DtmlError
from flows.signals import begin_run
from flows.translating.queue import in_words
from flows.translating.worker import work_queue
from translation.decoding.beam_search import Search
from translation.errors import TranslationError


@flow(name="translate-queue", persist_result=False, validate_parameters=False)
def translate_queue(
    models: Sequence[str] = (),
    beams: int = 5,
    alpha: float = 0.6,
    device: str = "auto",
    attention: bool = False,
) -> State[Any]:
    """Translate queued texts of `models`, or all; an expected error is a failed state."""
    begin_run()
    how = Search(beams=beams, alpha=alpha, with_attention=attention)
    try:
        counts = work_queue(models, how, device)
    except (DtmlError, StoreError, TranslationError, OSError) as error:
        return Failed(message=str(error))
    if not any(counts.values()):
        return Completed(name="Skipped", message="nothing is queued")
    return Completed(message=in_words(counts))
