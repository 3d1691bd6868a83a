"""The page of a night, which the dashboard shows and a night writes to a file, from the store."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import date

import pandas as pd
from sqlalchemy import Connection

from db import where
from db.read import read, read_row
from db.rows import prices, runs
from db.rows.calibration import night_counts
from db.rows.nights import COMPLETE
from dtml.attention import Attention
from dtml.errors import DtmlError
from dtml.evaluation.breakdowns import rolling_scores
from dtml.evaluation.calibration import Calibration, coverage
from dtml.evaluation.drift import drift_words
from dtml.evaluation.survivorship import Survivorship, date_of
from dtml.markets import Market
from dtml.pages.figures import Row, records
from dtml.pages.night import ends, night_report, ranking_words
from dtml.pages.second_source import comparison_words, differences
from dtml.pages.survivorship import survivorship_words
from dtml.prices.sessions import session_open, sessions_up_to
from flows.freezing import link_of_night
from flows.morning import morning
from flows.night_facts import NightFacts, stored_counts
from flows.service.status import REJECTED_SESSIONS

# What the reason of a stock that a night left out begins with, where the stock had no price.
WITHOUT_BAR = ("no bar", "bar rejected")
ROLLED_NIGHTS = 250  # from whose outcomes the chart of rolling scores is drawn
# The columns of a run that the receipt of a night shows.
RECEIPT = (
    *("id", "model", "created_at", "train_first", "train_last", "seeds"),
    *("code_version", "data_watermark", "checkpoint_hash"),
)


def night_page(
    conn: Connection,
    market: Market,
    night: Row,
    *,
    level: float | None = None,
    attention: Attention | None = None,
    served: bool = False,
) -> str:
    """Render the page of a complete night, a row of the view night_log.

    `level` is that of directions, by default the market's; `attention` by default the strongest
    sources stored. A page `served` by the dashboard has its menu.
    """
    as_of = night["as_of"]
    since = sessions_up_to(market.calendar, as_of, REJECTED_SESSIONS)[0].date()
    facts = NightFacts(conn, night, scored_until=as_of)
    level = market.level if level is None else level
    directions = facts.directions(level)
    threshold = directions["high"].max()  # of all stocks; NaN without a band
    rejected = prices.rejected_bars(conn, market.name, since, as_of)
    warnings = read(conn, "price_warning", market=market.name, order="symbol, reason")
    ranking, champion = facts.ranking, facts.champion
    words = None if ranking.empty else ranking_words(ranking, facts.rank_scores, champion)
    opens_at = None
    with suppress(DtmlError):  # the calendar may end
        opens_at = session_open(market.calendar, facts.target)
    if attention is None:
        of_night = {"run_id": night["run_id"], "target": night["target"]}
        sources = read(conn, "attention_weight", columns="symbol, source, weight", **of_night)
        attention = Attention.of(sources)
    comparison = read_row(conn, "comparison_log", market=market.name, as_of=as_of)
    second_source = None
    if comparison:
        differing = read(conn, "price_disagreement", market=market.name, as_of=as_of)
        second_source = {
            "words": comparison_words(comparison),
            "differences": differences(differing, comparison["symbols"]),
        }
    return night_report(
        night=night,
        level=level,
        directions=directions,
        threshold=None if pd.isna(threshold) else threshold,
        scores=read(conn, "score", market=market.name, target=where.until(as_of), span="running"),
        rolling=rolling(conn, market, as_of),
        bins=night_counts(conn, "calibration_bin", market.name, as_of),
        coverage=coverage(facts.band_counts),
        attention=attention,
        calibrations=calibrations(conn, market.name),
        facts={
            "title": market.title,
            "morning": morning(conn, market.name, facts, as_of),
            "opens_at": opens_at,
            "ranking": ends(ranking),
            "ranking_words": words,
            "drift": drift_words(facts.drift),
            "survivorship": survivorship_words(survivorship_of_nights(conn, market, as_of)),
            "rejected": records(rejected.assign(session=rejected["session"].dt.date)),
            "rejected_sessions": REJECTED_SESSIONS,
            "warnings": records(warnings),
            "second_source": second_source,
            "frozen": link_of_night(market.name, as_of),
            "receipt": receipt(conn, night, runs.run(conn, night["run_id"])),
        },
        served=served,
    )


def survivorship_of_nights(conn: Connection, market: Market, as_of: date) -> Survivorship:
    """Count the constituents of all complete nights up to one, as those nights recorded them.

    A stock left out because of its bar (`WITHOUT_BAR`) has no price; `first_priced` counts those
    that the first night predicted.
    """
    nights = read(
        conn,
        "night",
        market=market.name,
        as_of=where.until(as_of),
        status=COMPLETE,
        order="as_of",
    )
    reasons = [gap["reason"] for gaps in nights["gaps"] for gap in gaps]
    is_constituent = market.is_constituent(pd.DatetimeIndex(nights["as_of"]))
    predicted = nights["predictions"].astype(int)
    return Survivorship(
        list_date=date_of(market),
        is_dated=not market.is_snapshot,
        names=int(is_constituent.any(axis=0).sum()),
        first_names=int(is_constituent[:1].sum()),
        last_names=int(is_constituent[-1:].sum()),
        first_priced=int(predicted.iloc[:1].sum()),
        constituent_days=int(predicted.sum()) + len(reasons),
        without_price=sum(reason.startswith(WITHOUT_BAR) for reason in reasons),
        of_prices=market.of_prices,
    )


def rolling(conn: Connection, market: Market, as_of: date) -> pd.DataFrame:
    """Return `rolling_scores` of each `predictor` at the end of each window.

    A window has `ROLLED_NIGHTS` sessions; every stock-day in it counts alike.
    """
    first = sessions_up_to(market.calendar, as_of, ROLLED_NIGHTS)[0].date()
    of_nights = read(
        conn,
        "score",
        market=market.name,
        target=where.between(first, as_of),
        span="night",
        protocol="all",
        order="predictor, target",
    )
    curves = []
    for predictor, counts in stored_counts(of_nights).groupby("predictor", sort=False):
        targets = pd.DatetimeIndex(counts.index.get_level_values("target"))
        curve = rolling_scores(counts.to_numpy(), targets)
        if len(curve):
            curves.append(curve.assign(predictor=predictor))
    return pd.concat(curves, ignore_index=True) if curves else pd.DataFrame()


def receipt(conn: Connection, night: Row, run: Row) -> dict[str, object]:
    """Return what made a night's predictions, each value under the name that the page shows."""
    lines = {name: run[name] for name in RECEIPT}
    coefficients = [
        f"{name} {run[name]:.4f}" for name in ("slope", "intercept") if run[name] is not None
    ]
    if coefficients:
        lines["calibration"] = ", ".join(coefficients)
    band = read_row(conn, "abstention_band", columns="days, n", run_id=run["id"])
    if band is not None:  # all bands of a run were measured on the same days
        lines["abstention band"] = (
            f"measured on {band['days']:,} validation days, {band['n']:,} stock-days"
        )
    inputs = {"inputs known at": night["known_at"], "inputs hash": night["inputs_hash"]}
    return {**lines, **inputs, "config": run["config"]}


def calibrations(conn: Connection, market: str) -> Mapping[str, Calibration]:
    """Return the slope and the intercept of each run that has been calibrated, by its id."""
    fitted = read(conn, "run", columns="id, slope, intercept", market=market).dropna()
    return {
        run_id: Calibration(float(slope), float(intercept))
        for run_id, slope, intercept in fitted.itertuples(index=False)
    }
