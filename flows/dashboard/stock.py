"""The page of one stock: prices, predicted directions and what came of them, and whom it looks at."""

from datetime import date
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db.connection.frames import head
from db.rows import attention, markets, predictions, prices, runs, scores
from dtml.attention.weights import words
from dtml.baselines.naive_rules import MODEL, NAIVE_RULES
from dtml.errors import UsageError
from dtml.evaluation.metrics import accuracy, confusion, mcc
from dtml.pages.charts import Chart, Panel, over_sessions
from dtml.pages.figures import records
from flows.dashboard.market import STOCKS, NotThereError, require_market

SHOWN = 250  # rows of a stock's table, and sessions of its charts unless a span is asked for
LONGEST = 3000  # sessions of its charts
ATTENDED = 5  # nights whose attention is averaged
SOURCES = 10  # stocks of a table of attention
KINDS = ("nightly", "backtest", "benchmark")

WAYS = ("rise, correct", "rise, wrong", "fall, correct", "fall, wrong")


def stock_page(
    conn: Connection, market: str, symbol: str, kind: str, first: date | None, last: date | None
) -> dict[str, Any]:
    """Return a stock over a span of sessions, by default the newest: what was said and what happened."""
    require_span(kind, first, last)
    require_stock(conn, market, symbol)
    most = SHOWN if first is None and last is None else LONGEST
    directions = head(conn, predictions.stock_directions(market, symbol, kind, first, last), most)
    bars = head(conn, prices.newest_prices(market, symbol, first, last), most)
    listed = head(conn, predictions.newest_directions(market), STOCKS)
    own = listed[listed["symbol"] == symbol]
    run = runs.latest_model(conn, market)
    days = [*directions["target"], *bars["session"]]
    return {
        "market": market, "symbol": symbol, "stock": None if own.empty else records(own)[0],
        "stocks": listed["symbol"].tolist(), "kind": kind, "kinds": KINDS, "first": first, "last": last,
        "shown": (min(days), max(days)) if days else None, "directions": records(directions.head(SHOWN)),
        "held": len(directions), "spans": records(span_scores(directions)),
        "whole": records(head(conn, scores.symbol_scores(market, symbol), len(KINDS))),
        "chart": stock_chart(symbol, directions, bars), "marks": way_counts(directions),
        **attention_tables(conn, market, symbol),
        "explained": words(None if run is None else attention.explanation_log(conn, run["run_id"])),
    }  # fmt: skip


def require_stock(conn: Connection, market: str, symbol: str) -> None:
    """Raise NotThereError for a market that is not stored, and for a symbol without a prediction or a price."""
    require_market(conn, market)
    if not markets.is_known(conn, market, symbol):
        raise NotThereError(f"no prediction and no price of {symbol!r} in market {market}: check its spelling")


def require_span(kind: str, first: date | None, last: date | None) -> None:
    """Raise UsageError for a purpose that no model has, and for a span that ends before it begins."""
    if kind not in KINDS:
        raise UsageError(f"kind {kind!r} is none of {', '.join(KINDS)}")
    if first is not None and last is not None and first > last:
        raise UsageError(f"the span ends before it begins: from {first} to {last}")


def span_scores(directions: pd.DataFrame) -> pd.DataFrame:
    """Score a stock's directions that have an outcome beside the naive rules, on sessions that all of them predict.

    Columns: predictor, n, rises, acc, mcc (0 when one class is never predicted); no row without an outcome.
    """
    settled = directions.dropna(subset=["realised_return"]).drop_duplicates("target")
    with_rules = settled.dropna(subset=list(NAIVE_RULES))
    used = with_rules if len(with_rules) else settled
    said = {MODEL: used["direction"]} | ({rule: used[rule] for rule in NAIVE_RULES} if len(with_rules) else {})
    rose = (used["realised_return"] > 0).to_numpy()
    rows = []
    for predictor, predicted in said.items() if len(used) else ():
        counts = confusion((predicted == "rise").to_numpy(), rose, np.ones_like(rose)).sum(axis=0)
        figures = {"acc": float(accuracy(counts)), "mcc": float(mcc(counts))}
        rows.append({"predictor": predictor, "n": len(used), "rises": int(rose.sum())} | figures)
    return pd.DataFrame(rows, columns=["predictor", "n", "rises", "acc", "mcc"])


def stock_chart(symbol: str, directions: pd.DataFrame, bars: pd.DataFrame) -> Chart | None:
    """Return a stock's prices, its directions by how they came out, and its probabilities, on one axis of time.

    The close is as it was traded and, where it is known, as adjusted for splits and dividends; the band is a standard
    deviation over the seeds around the probability of a rise.
    """
    by_session = bars.set_index("session").sort_index()
    by_target = directions.drop_duplicates("target").set_index("target").sort_index()
    prices = {"close": by_session["close"]}
    if (by_session["adj_close"] - by_session["close"]).abs().max() > 0:
        prices |= {"adjusted close": by_session["adj_close"]}
    said, std = by_target["probability"].astype(float), by_target["probability_std"].astype(float)
    band = pd.DataFrame({"low": (said - std).clip(0, 1), "high": (said + std).clip(0, 1)})
    bands = {"probability": band} if std.notna().any() else {}
    found = way_of(by_target)
    ways = {
        way: pd.Series(place, found.index[found == way], dtype=float)
        for place, way in zip((4, 3, 2, 1), WAYS, strict=True)
    }
    likely = {name: by_target[name].astype(float) for name in ("probability", "calibrated")}
    panels = [Panel("close, as traded", prices, "price")]
    panels += [Panel("", ways, labels=WAYS[::-1], height=84)]
    panels += [Panel("probability of a rise", likely, base=0.5, bands=bands)]
    return over_sessions(f"{symbol}: close, directions, probability of a rise", panels, hidden=["adjusted close"])


def way_of(directions: pd.DataFrame) -> "pd.Series[Any]":
    """Return which of `WAYS` each direction with an outcome was, by the index of the rows."""
    settled = directions.dropna(subset=["correct"])
    return settled["direction"] + settled["correct"].astype(bool).map({True: ", correct", False: ", wrong"})


def way_counts(directions: pd.DataFrame) -> dict[str, int]:
    """Count the directions of each of `WAYS`, one a session."""
    counts = way_of(directions.drop_duplicates("target")).value_counts()
    return {way: int(counts.get(way, 0)) for way in WAYS}


def attention_tables(conn: Connection, market: str, symbol: str) -> dict[str, Any]:
    """Return whom the stock looked at over the last nights, who looked at it, and how many nights that were."""
    kept = attention.attended(conn, market, ATTENDED)
    tables = {
        name: records(attention.mean_weights(conn, market, symbol, kept, looks=name == "looks", most=SOURCES))
        for name in ("looks", "looked")
    }
    return {"attention": tables, "nights": len(kept)}
