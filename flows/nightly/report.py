"""Write a night's report from what the store holds."""

import logging
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
from sqlalchemy import Connection

from db import where
from db.engine import reading
from db.read import read
from db.rows import prices
from db.rows.calibration import night_counts
from db.rows.nights import COMPLETE
from dtml.attention import Attention
from dtml.errors import DtmlError
from dtml.evaluation.breakdowns import rolling_scores
from dtml.evaluation.calibration import Calibration, coverage
from dtml.evaluation.drift import drift_words
from dtml.evaluation.survivorship import Survivorship, date_of
from dtml.pages.night import night_report, ranking_part
from dtml.pages.survivorship import survivorship_words
from dtml.prices.sessions import sessions_up_to
from flows.freezing import link_of_night
from flows.markets.stored_night import page_file
from flows.night_facts import NightFacts
from flows.nightly.context import MarketContext, Tonight
from flows.nightly.predict import first_needed, look
from flows.nightly.score import day_counts
from flows.nightly.train import load_run
from flows.second_source import page_words
from flows.service.status import REJECTED_SESSIONS
from flows.settings import write_page

log = logging.getLogger(__name__)

# What the reason of a stock that a night left out begins with, where the stock had no price.
WITHOUT_BAR = ("no bar", "bar rejected")

ROLLED_NIGHTS = 250  # from whose outcomes the chart of rolling scores is drawn
TRAINED = ("model", "created_at", "train_first", "train_last", "seeds")
# The columns of a run that the receipt of a night shows.
RECEIPT = ("id", *TRAINED, "code_version", "data_watermark", "checkpoint_hash")


def publish_night(tonight: Tonight, level: float | None = None) -> Path:
    """Write reports/MARKET/AS_OF.html, whole or not at all, and return its path.

    The night must be complete. Directions are decided at a nominal level, one of
    `dtml.markets.definition.LEVELS`. None is the market's own; the name of a page at another level
    says so, as in AS_OF-level-0.9.html.
    """
    context = tonight.context
    as_of = tonight.as_of
    night = tonight.row
    run = tonight.run
    since = sessions_up_to(context.market.calendar, as_of, REJECTED_SESSIONS)[0].date()
    level = context.market.level if level is None else level
    with reading(context.engine) as conn:
        facts = NightFacts(conn, night, scored_until=as_of)
        bands = read(conn, "abstention_band", columns="level, threshold, days, n", run_id=run["id"])
        scores = read(conn, "score", market=context.name, target=where.until(as_of), span="running")
        rejected = prices.rejected_bars(conn, context.name, since, as_of)
        directions = facts.directions(level)
        threshold = directions["high"].max()  # of all stocks; NaN without a band
        stored: dict[str, Any] = {
            "directions": directions,
            "threshold": None if pd.isna(threshold) else threshold,
            "coverage": coverage(facts.band_counts),
            "scores": scores,
            "rolling": rolling(conn, tonight, scores),
            "bins": night_counts(conn, "calibration_bin", context.name, as_of),
            "warnings": read(conn, "price_warning", market=context.name, order="symbol, reason"),
            "rejected": rejected.assign(session=rejected["session"].dt.date),
            "ranking": ranking_part(facts.ranking, facts.rank_scores, facts.champion),
            "drift": drift_words(facts.drift),
            "calibrations": calibrations(
                read(conn, "run", market=context.name, order="created_at, id")
            ),
            "second_source": page_words(conn, context.name, since, as_of),
            "frozen": link_of_night(context.name, as_of),
            "survivorship": survivorship_words(survivorship_of_nights(conn, context, as_of)),
        }
    page = night_report(
        title=context.market.title,
        night=night,
        level=level,
        attention=tonight.attention or seen(tonight),
        rejected_sessions=REJECTED_SESSIONS,
        receipt=receipt(night, run, bands),
        **stored,
    )
    file = page_file(context, as_of, level)
    write_page(file, page)
    return file


def survivorship_of_nights(conn: Connection, context: MarketContext, as_of: date) -> Survivorship:
    """Count the constituents of all complete nights up to one, as those nights recorded them.

    A stock that a night left out counts as one without a price if the recorded reason is about its
    bar (`WITHOUT_BAR`). Names are those that the market's list has on these days. As nights record
    no other prices, `first_priced` is the number of stocks that the first night predicted.
    """
    rows = read(conn, "night", market=context.name)
    is_complete = rows["status"].isin(COMPLETE) & (rows["as_of"] <= pd.Timestamp(as_of))
    complete = rows[is_complete].sort_values("as_of")
    reasons = [[gap["reason"] for gap in gaps] for gaps in complete["gaps"]]
    is_constituent = context.market.is_constituent(pd.DatetimeIndex(complete["as_of"]))
    predicted = complete["predictions"].astype(int)
    return Survivorship(
        list_date=date_of(context.market),
        is_dated=not context.market.is_snapshot,
        names=int(is_constituent.any(axis=0).sum()),
        first_names=int(is_constituent[:1].sum()),
        last_names=int(is_constituent[-1:].sum()),
        first_priced=int(predicted.iloc[:1].sum()),
        constituent_days=int(predicted.sum()) + sum(map(len, reasons)),
        without_price=sum(
            reason.startswith(WITHOUT_BAR) for of_night in reasons for reason in of_night
        ),
        of_prices=context.market.of_prices,
    )


def rolling(conn: Connection, tonight: Tonight, scores: pd.DataFrame) -> pd.DataFrame:
    """Return the curve of each predictor's rolling scores over the last `ROLLED_NIGHTS` sessions.

    A row is a session and has the scores of a window of sessions that ends with it, as
    `rolling_scores` computes them; sessions before the first whole window have no row. Columns:
    those of `rolling_scores` and `predictor`. All stock-days count, not only those that the
    published protocol labels. `scores` are the stored running scores: if none is of one of these
    sessions, no prediction of them has an outcome, and the result has no rows and no columns.
    """
    as_of = tonight.as_of
    first = sessions_up_to(tonight.context.market.calendar, as_of, ROLLED_NIGHTS)[0]
    if scores.empty or scores["target"].max() < first:
        return pd.DataFrame()
    counted = day_counts(conn, tonight, as_of, first.date()).loc["all"]
    frames = []
    for predictor, counts in counted.groupby("predictor", sort=False):
        target = pd.DatetimeIndex(counts.index.get_level_values("target"))
        rolled = rolling_scores(counts.to_numpy(), target)
        frames.append(rolled.assign(predictor=predictor))
    # The columns of a frame without rows have no types of their own: `concat` would mix them with
    # those of the others, and give dates and numbers the type `object`.
    curves = [frame for frame in frames if len(frame)]
    if not curves:
        curves = frames[:1]  # without rows, but `concat` needs a frame
    return pd.concat(curves, ignore_index=True)


def seen(tonight: Tonight) -> Attention:
    """Return which stocks looked at which, by asking the model again about what the night knew.

    Where the model or its bars are lost, a warning says so, and what is stored of the night is
    returned, so that it still gets its page.
    """
    context = tonight.context
    night = tonight.row
    try:
        model = load_run(context, tonight.run)
        first = first_needed(context, model.ensemble.windows, tonight.as_of)
        bars, _ = tonight.known(first)
        return look(context, model, tonight.as_of, bars)
    except (DtmlError, OSError) as error:
        log.warning(
            "%s: the page of the night of %s shows only the stored part of its attention: %s",
            context.name,
            night["as_of"],
            error,
        )
        with reading(context.engine) as conn:
            return Attention.of(
                read(
                    conn,
                    "attention_weight",
                    columns="symbol, source, weight",
                    run_id=night["run_id"],
                    target=night["target"],
                )
            )


def receipt(
    night: Mapping[str, Any], run: Mapping[str, Any], bands: pd.DataFrame
) -> dict[str, object]:
    """Return what made a night's predictions, each value under the name that the page shows.

    It covers the model, what it was trained and calibrated on, and the inputs of the night.
    """
    lines = {name: run[name] for name in RECEIPT}
    coefficients = {name: run[name] for name in ("slope", "intercept") if run[name] is not None}
    if coefficients:
        lines["calibration"] = ", ".join(
            f"{name} {value:.4f}" for name, value in coefficients.items()
        )
    if len(bands):
        # All bands of a run were measured on the same days.
        days = int(bands.iloc[0]["days"])
        stock_days = int(bands.iloc[0]["n"])
        lines["abstention band"] = (
            f"measured on {days:,} validation days, {stock_days:,} stock-days"
        )
    lines["inputs known at"] = night["known_at"]
    lines["inputs hash"] = night["inputs_hash"]
    lines["config"] = run["config"]
    return lines


def calibrations(stored_runs: pd.DataFrame) -> dict[str, Calibration]:
    """Return the calibration of each run that has one, by its id.

    It has only the slope and the intercept, which the page applies to bins of probabilities.
    """
    fitted = stored_runs.dropna(subset=["slope", "intercept"])
    by_run = {}
    for run_id, slope, intercept in zip(
        fitted["id"], fitted["slope"], fitted["intercept"], strict=True
    ):
        by_run[run_id] = Calibration(
            slope=float(slope), intercept=float(intercept), thresholds={}, days=0, directions=0
        )
    return by_run
