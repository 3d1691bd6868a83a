"""A user's own file in a market's nights: audited when it is new, trained,
asked; what fails ends it alone.
"""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd

from dtml.errors import DtmlError, UsageError
from dtml.own.admission import past_of, require_admitted
from dtml.own.code import OWN, OwnCode, OwnCodeError
from dtml.own.process import Asked, Fitted
from dtml.ranking.panel import Grid, ranked
from dtml.ranking.rankers import Rankers, slope_of, spans_of
from dtml.ranking.walk import History
from flows.nightly.context import MarketContext

log = logging.getLogger(__name__)


def named(context: MarketContext) -> dict[str, Any]:
    """Return what is recorded of a market's file, by which a change is seen;
    nothing without one.
    """
    file = context.market.code
    if file is None:
        return {}
    told: dict[str, Any] = {"file": file.name, "sha256": OwnCode.read(file).sha256}
    if context.market.checks.max_rank_ic is not None:
        told["max_rank_ic"] = context.market.checks.max_rank_ic
    return {OWN: told}


def change(context: MarketContext, config: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether a market's file is another than a training recorded, and what to say of it."""
    try:
        now, then = (each.get(OWN, {}) for each in (named(context), config))
    except UsageError as error:
        return False, str(error)
    new, old = _words(now), _words(then)
    return (False, "") if new == old else (True, f"own code changed: {new}, was {old}")


def _words(told: Mapping[str, Any]) -> str:
    """Say which file a training saw, and what rank IC its market believes."""
    if not told:
        return "none"
    believed = f" with max_rank_ic {told['max_rank_ic']}" if "max_rank_ic" in told else ""
    return f"{told['file']} ({str(told['sha256'])[:12]}){believed}"


def train_own(
    context: MarketContext,
    history: History,
    bars: pd.DataFrame,
    rankers: Rankers,
    before: Mapping[str, Any],
) -> tuple[Rankers, dict[str, Any]]:
    """Return rankers with the market's own model, and what is recorded of it.

    It is audited, unless the config of a training `before` recorded it. Where it fails, the record
    says why.
    """
    if context.market.code is None:
        return rankers, {}
    told = {"file": context.market.code.name, "sha256": None}
    try:
        told, then = named(context)[OWN], before.get(OWN, {})
        known = "refused" not in then and _words(then) == _words(told)
        tried, whole = spans_of(history)
        scores, model = walk_own(
            context, history, bars, [tried, (whole, slice(0, 0))], audited=known
        )
        slope = slope_of(ranked(scores[tried[1]]), history.relative[tried[1]])
        rankers = Rankers(rankers.models, {**rankers.slopes, OWN: slope}, model)
        return rankers, {OWN: told | {"features": model.told["features"]}}
    except (OwnCodeError, UsageError) as error:
        return rankers, {OWN: told | {"refused": str(error)}}


def walk_own(
    context: MarketContext,
    history: History,
    bars: pd.DataFrame,
    folds: Sequence[Any],
    *,
    audited: bool = False,
    workers: int = 1,
) -> tuple[Grid, Fitted]:
    """Return the own model's scores over folds (days fitted, days scored), and the last;
    OwnCodeError if it fails.

    So many `workers` ask for a part of the folds each; what each fold draws begins anew.
    """
    assert context.market.code is not None
    asked = Asked(OwnCode.read(context.market.code))
    if not audited:
        require_admitted(asked, past_of(context.market, bars), context.market.leg)
    parts = [folds[at::workers] for at in range(min(workers, len(folds)))]
    with ThreadPoolExecutor(len(parts)) as pool:
        walked = list(
            pool.map(
                lambda part: asked.walk(history.panel, history.there, history.relative, part), parts
            )
        )
    return np.fmax.reduce([scores for scores, _ in walked]), walked[(len(folds) - 1) % workers][1]


def ask_own(
    context: MarketContext, fitted: Fitted, history: History
) -> tuple[dict[str, Grid], str]:
    """Return the scores of the last day, [stocks], by the code stored with the
    rankers, and why there are none.
    """
    try:
        return {OWN: Asked(fitted.code).night(history.panel, history.there, fitted)[0]}, ""
    except DtmlError as error:
        log.warning("the own model of %s says nothing tonight: %s", context.name, error)
        return {}, str(error)
