"""The page of one market: a night's ranking and orders, and how good its rankings have been.

Its template is rendered from a mapping, NaN and None as "-".
"""

from collections.abc import Mapping
from datetime import date, datetime
from functools import partial
from operator import itemgetter

from sqlalchemy import Connection

from db import where
from db.read import read, read_row, read_rows
from db.rows import nights
from dtml.baselines.naive_rules import MODEL
from dtml.pages.charts import Panel, over_sessions
from dtml.pages.figures import Page, records
from dtml.pages.night import by_rank_ic, ranking_words
from flows.dashboard.markets import STOCKS, NotThereError, require_market
from flows.dashboard.running import REFRESH_S, other_work, state_of_night
from flows.markets.files import market_of_store
from flows.morning import contradicts, morning
from flows.night_facts import NightFacts, night_facts
from flows.service.timeliness import Timeliness

NIGHTS = 30  # in the table of a market, at most
STUDIES = 10  # of each kind, in the lists of a market, at most
NOTHING: Page = {"morning": None, "ranking": [], "account": None, "counts": {}}


def market_page(
    conn: Connection,
    market: str,
    as_of: date | None,
    every: int,
    now: datetime,
    times: Mapping[str, Timeliness],
) -> Page:
    """Return the page of the night whose last session was `as_of`, by default of the newest.

    `shown` is the night of ranking and directions: this or the last complete one before, or None.
    `times` is shown only for the newest. `before` and `after` are neighbouring nights. Without
    nights, it has the market's models. Raises NotThereError for an unknown market or night.
    """
    require_market(conn, market)
    night = night_of(conn, market, as_of)
    page = {
        "market": market,
        "night": night and night.row,
        "every": every,
        "choices": REFRESH_S,
        "works": [work for work in other_work(conn, now) if work.market == market],
    }
    if night is None:
        models = read_rows(
            conn,
            "run_log",
            columns="run_id, kind, model, train_last",
            market=market,
            order="-created_at, run_id",
            limit=NIGHTS,
        )
        return {**page, "models": models}
    before, after = nights.neighbours(conn, market, night.as_of)
    shown = night if night.row["status"] in nights.COMPLETE else night.before
    newest_nights = read(
        conn,
        "night_log",
        market=market,
        as_of=where.until(night.as_of),
        order="-as_of",
        limit=NIGHTS,
    )
    scores = read(
        conn,
        "daily_score",
        columns="target, acc, mcc",
        market=market,
        target=where.until(night.target),
        protocol="all",
        predictor=MODEL,
        order="-target",
        limit=NIGHTS,
    )
    studies = partial(read_rows, conn, market=market, limit=STUDIES)
    # After the newest night there may be alerts about a night that never began.
    last_alerts = night.as_of if after else None
    return {
        **page,
        "state": state_of_night(conn, market, night.row, now, None if after else times.get(market)),
        "before": before,
        "after": after,
        "shown": shown,
        **(_ranking_and_directions(shown, last_alerts) if shown else NOTHING),
        "has_report": shown and market_of_store(conn.engine, market) is not None,
        "nights": records(newest_nights.merge(scores, on="target", how="left")),
        "backtests": studies("backtest", finished_at=where.stored, order="-finished_at"),
        "walks": studies("ranking_summary", order="-read_at"),
        "run": read_row(conn, "run_log", run_id=night.row["run_id"]),
    }


def _ranking_and_directions(night: NightFacts, last_alerts: date | None) -> Page:
    """Return a night's ranking with `direction` and `weight`, orders, and how good it was."""
    found = morning(night.conn, night.market, night, last_alerts)
    predictions = read(
        night.conn,
        "prediction_history",
        columns="symbol, decision",
        market=night.market,
        run_id=night.row["run_id"],
        target=night.target,
        order="symbol",
        limit=STOCKS,
    )
    directions = predictions.set_index("symbol")["decision"].to_dict()
    weights = {order["symbol"]: order["weight"] for order in found.orders if order["weight"]}
    symbols = found.ranking["symbol"]
    ranking = records(
        found.ranking.assign(direction=symbols.map(directions), weight=symbols.map(weights))
    )
    scores = night.rank_scores
    # Without costs too, and beside equal parts and the index.
    equities = found.paper.pivot(index="session", columns="portfolio", values="equity")
    lines = {str(name): line for name, line in equities.items()}
    account = Panel(title="value of 1", lines=lines, base=1.0)
    return {
        "morning": found,
        "ranking": ranking,
        "ranking_words": ranking and ranking_words(night.ranking, scores, night.champion),
        "disagreeing": [
            row for row in ranking if contradicts(row["place"], len(ranking), row["direction"])
        ],
        "rank_scores": sorted(by_rank_ic(scores), key=itemgetter("is_rule")),
        "account": over_sessions("Paper account", [account], dashed=["account, no costs"]),
        "stocks": list(directions),
        "counts": predictions["decision"].value_counts().to_dict(),
    }


def night_of(conn: Connection, market: str, as_of: date | None) -> NightFacts | None:
    """Return the night whose last session was `as_of`, by default the newest, scored by its target.

    None for a market without nights; raises NotThereError, naming the nearest, for an unknown day.
    """
    night = night_facts(conn, market, settled=True, as_of=where.given(as_of))
    if night is not None or as_of is None:
        return night
    nearest = [str(day) for day in nights.neighbours(conn, market, as_of) if day is not None]
    advice = f"choose the nearest, {' or '.join(nearest)}"
    if not nearest:
        advice = f"the market has no night yet; `dtml nightly {market}` runs one"
    raise NotThereError(f"there is no night of {market} as of {as_of}: {advice}")
