"""Watch for drift after each night: in inputs, in the ranker's skill, in the band's coverage."""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from db.engine import reading, transaction
from db.read import read
from db.rows import rankings
from db.rows.calibration import night_counts
from db.save import save
from dtml.errors import DtmlError
from dtml.evaluation.drift import RECENT, REFERENCE, Inputs, coverage_drift, skill_drift
from dtml.features import FEATURES, HISTORY, MAX_GAP, features
from dtml.prices.returns import traded
from dtml.prices.sessions import next_session, sessions_up_to
from dtml.ranking.outcomes import overlap_of
from dtml.windows import panel_on
from flows.nightly.context import MarketContext, Tonight
from flows.settings import data_folder
from translation.atomic_files import write_whole

log = logging.getLogger(__name__)


def watch_drift(tonight: Tonight) -> None:
    """Store a row for each measure of drift that can be judged yet; stored rows stay.

    Where inputs cannot be compared, a warning says so.
    """
    context = tonight.context
    as_of = tonight.as_of
    try:
        reference = _inputs_of_training(context, tonight.run)
        # These are more sessions than the mean needs: one without bars does not end the watch.
        recent = _last_features(tonight, RECENT + MAX_GAP)
        input_drifts = list(reference.drift(recent, FEATURES))
    except DtmlError as error:  # such as bars of the training that this store lacks
        log.warning(
            "the inputs of %s cannot be compared with those of its training: %s",
            context.name,
            error,
        )
        input_drifts = []
    market = context.market
    target = next_session(market.calendar, as_of)
    with reading(context.engine) as conn:
        ranks = read(conn, "rank_score", market=context.name, span="night", leg=market.leg)
        shown_ranker = rankings.chosen_predictor(conn, context.name, target)
        counts = night_counts(conn, "abstention_count", context.name, as_of)
    is_of_shown = ranks["predictor"] == shown_ranker
    is_known_by_night = ranks["target"] <= pd.Timestamp(as_of)
    shown_ranks = ranks[is_of_shown & is_known_by_night]
    skill = skill_drift(
        shown_ranks["rank_ic"].to_numpy(dtype=float), overlap=overlap_of(market.leg)
    )
    band = counts[np.isclose(counts["level"].astype(float), market.level)]
    covered = (band["covered"] / band["n"]).to_numpy(dtype=float)
    coverage = coverage_drift(covered, market.level)
    drifts = input_drifts + [drift for drift in (skill, coverage) if drift is not None]
    if not drifts:
        return
    with transaction(context.engine) as conn:
        save(conn, "night_drift", pd.DataFrame(drifts), market=context.name, as_of=as_of)


def _inputs_of_training(context: MarketContext, run: Mapping[str, Any]) -> Inputs:
    """Return a summary of the inputs that a run was trained on, from its file or measured anew."""
    file = data_folder() / "models" / f"{run['id']}-inputs.json"
    with suppress(OSError, ValueError, TypeError):
        return Inputs(**json.loads(file.read_text()))
    then = Tonight(context, run["train_last"])
    inputs = Inputs.of(_last_features(then, REFERENCE))
    write_whole(file, lambda path: path.write_text(json.dumps(asdict(inputs))))
    return inputs


def _last_features(tonight: Tonight, sessions: int) -> np.ndarray:
    """Return the features of the last `sessions` up to a night, [sessions, stocks, features]."""
    market = tonight.context.market
    # The features of the first of them read HISTORY bars, MAX_GAP sessions of which may be missing.
    grid = sessions_up_to(market.calendar, tonight.as_of, sessions + HISTORY + MAX_GAP)
    bars = tonight.newest_or_error(grid[0].date())
    panel = panel_on(bars[traded(bars)], grid, market.symbols, market.returns)
    largest_return = tonight.context.experiment.windows.largest_return
    values = features(panel, z_close=market.z_close, max_return=largest_return)
    return values[-sessions:]
