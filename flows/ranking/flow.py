"""Run the walk that ranks the stocks of each day."""

from dtml.pages.ranking import Ranking
from flows.markets.opened import RunRequest
from flows.nightly.context import open_stored_context
from flows.ranking.walk import Plan, Walk, run_ranking
from flows.service.studies import as_task
from flows.signals import signals_of


def ranking(request: RunRequest, plan: Plan, workers: int = 1) -> Ranking:
    """Walk models and rules through the stored history of a market.

    See `flows.ranking.walk.run_ranking`.
    """
    with signals_of(request.attended):
        walk = Walk(context=open_stored_context(request), plan=plan)
        return run_ranking(walk, as_task, workers)
