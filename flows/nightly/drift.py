"""Measure, each night, whether inputs, skill and coverage are still what the model was trained on."""

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import date
from typing import Any

import numpy as np
import pandas as pd

from db.engine import reading, transaction
from db.rows import calibration, nights, rankings, runs
from dtml.errors import DtmlError
from dtml.evaluation.drift import RECENT, REFERENCE, Inputs, coverage_drift, skill_drift
from dtml.features import FEATURES, HISTORY, MAX_GAP, features
from dtml.prices.sessions import next_session, sessions_up_to
from dtml.windows import panel_on
from flows.nightly.context import MarketContext, read_bars
from flows.settings import data_folder
from translation.atomic_files import write_whole

log = logging.getLogger(__name__)


def watch_drift(context: MarketContext, as_of: date) -> None:
    """Store what has drifted in the night of `as_of`; what was stored stands, and a failure is a warning."""
    with reading(context.engine) as conn:
        night = nights.night(conn, context.name, as_of)
        assert night is not None
        run = runs.run(conn, night["run_id"])
    try:
        inputs = list(_learned(context, run).drift(_features(context, as_of, RECENT), FEATURES))
    except DtmlError as error:  # such as bars of the training that this store lacks
        log.warning("the inputs of %s are not compared with the training's: %s", context.name, error)
        inputs = []
    found = [*inputs, *(row for row in _outcomes(context, as_of) if row is not None)]
    with transaction(context.engine) as conn:
        if found:
            nights.save_drift(conn, context.name, as_of, pd.DataFrame(found))


def _learned(context: MarketContext, run: dict[str, Any]) -> Inputs:
    """Return the inputs that a run was trained on: those of a file, or measured anew where it is missing or damaged."""
    file = data_folder() / "models" / f"{run['id']}-inputs.json"
    with suppress(OSError, ValueError, TypeError):
        return Inputs(**json.loads(file.read_text()))
    inputs = Inputs.of(_features(context, run["train_last"], REFERENCE))
    write_whole(file, lambda path: path.write_text(json.dumps(asdict(inputs))))
    return inputs


def _features(context: MarketContext, last: date, sessions: int) -> np.ndarray:
    market = context.market
    grid = sessions_up_to(market.calendar, last, sessions + HISTORY + MAX_GAP)
    panel = panel_on(read_bars(context, grid[0].date(), last), grid, market.symbols, market.returns)
    bound = context.experiment.windows.largest_return
    return features(panel, z_close=market.z_close, max_return=bound)[-sessions:]


def _outcomes(context: MarketContext, as_of: date) -> Iterator[dict[str, Any] | None]:
    """Yield the drift of the rank IC of who orders the stocks, and of the band's coverage."""
    market = context.market
    with reading(context.engine) as conn:
        ranks = rankings.rank_scores(conn, context.name, span="night", leg=market.leg)
        speaker = rankings.chosen_predictor(conn, context.name, next_session(market.calendar, as_of))
        counts = calibration.band_counts(conn, context.name, as_of)
    own = ranks[(ranks["predictor"] == speaker) & (ranks["target"] <= pd.Timestamp(as_of))]
    yield skill_drift(own["rank_ic"].to_numpy(dtype=float))
    band = counts[np.isclose(counts["level"].astype(float), market.level)]
    yield coverage_drift((band["covered"] / band["n"]).to_numpy(dtype=float), market.level)
