"""The page of one stock: its predictions over a span of sessions, and their outcomes."""

from datetime import date
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db import where
from db.connection.frames import sql_text
from db.errors import did_you_mean
from db.read import read, read_rows, selection
from db.rows import attention, markets
from dtml.baselines.naive_rules import MODEL, NAIVE_RULES
from dtml.errors import UsageError
from dtml.evaluation.metrics import accuracy, confusion, mcc
from dtml.pages.charts import Chart, Panel, over_sessions
from dtml.pages.figures import Page, Row, records
from flows.dashboard.markets import STOCKS, NotThereError, require_market
from flows.morning import caveats, contradicts, orders_of_night
from flows.night_facts import night_facts

SHOWN = 250  # rows of a stock's table, and sessions of its charts without a span, at most
LONGEST = 3000  # sessions of the charts of a span, at most
ATTENDED = 5  # nights whose attention is averaged
SOURCES = 10  # stocks in a table of attention, at most
KINDS = ("nightly", "backtest", "benchmark")
WAYS = ("rise, correct", "rise, wrong", "fall, correct", "fall, wrong")
COLUMNS = (
    "target, symbol, place, decision, calibrated, probability, realised_return, decision_correct, "
    "as_of, run_id"
)


def stock_page(
    conn: Connection, market: str, symbol: str, kind: str, first: date | None, last: date | None
) -> Page:
    """Return the page of a stock: its predictions by models of a kind, and their outcomes.

    The newest of the sessions `first` to `last`, at most LONGEST (SHOWN without either, and in the
    table), at their model's default level; `spans` and `whole` score the raw probability. Raises
    UsageError for an unknown kind or wrong span, NotThereError for an unknown market or stock.
    """
    if kind not in KINDS:
        raise UsageError(f"kind {kind!r} is not one of {', '.join(KINDS)}: choose one of these")
    if first is not None and last is not None and first > last:
        raise UsageError(
            f"the span from {first} to {last} ends before it begins: swap the two days"
        )
    require_market(conn, market)
    if not markets.is_known(conn, market, symbol):
        meant = did_you_mean(symbol, _predicted_symbols(conn, market)) or "check its spelling"
        raise NotThereError(
            f"no prediction and no price of {symbol!r} in market {market}: {meant.strip()}"
        )
    most = SHOWN if first is None and last is None else LONGEST
    of_stock: dict[str, Any] = {"market": market, "symbol": symbol}
    of_kind = {**of_stock, "kind": kind}
    in_span = where.between(first, last)
    predictions = read(
        conn,
        "prediction_history",
        target=in_span,
        order="-target, -made_at",
        limit=most,
        **of_kind,
    )
    # Several models may have predicted a session: the newest prediction comes first, and is kept.
    newest_of_target = predictions.drop_duplicates("target")
    # Without a `first`, the chart begins where the predictions do.
    begins = predictions["as_of"].min().date() if first is None and len(predictions) else first
    bars = read(
        conn,
        "price_latest",
        session=where.between(begins, last),
        order="-session",
        limit=most,
        **of_stock,
    )
    targets = read(
        conn, "prediction_history", columns="target", order="-target", limit=SHOWN, **of_kind
    )
    newest = read(conn, "latest_prediction", market=market, order="symbol", limit=STOCKS)
    stock = next(iter(records(newest[newest["symbol"] == symbol])), None)
    ranked = int(newest["place"].notna().sum())
    place_before = None
    orders = {}
    if stock:
        earlier = predictions[predictions["target"] < stock["target"]]
        places = earlier["place"].dropna()
        place_before = None if last or places.empty else float(places.iloc[0])
        night = night_facts(conn, market, target=stock["target"].date())
        of_night = orders_of_night(night, night.ranking) if night else pd.DataFrame()
        orders = {order["symbol"]: order for order in records(of_night)}
    sessions = pd.concat([predictions["target"], bars["session"]])
    ways = _ways(newest_of_target)
    nights = attention.attended(conn, market, ATTENDED)
    weights = partial(attention.mean_weights, conn, market, symbol, nights, row_limit=SOURCES)
    directions_sql = selection(
        "prediction_history", columns=COLUMNS, order="-target", target=in_span, **of_kind
    )
    return {
        **of_kind,
        "stock": stock,
        "ranked": ranked,
        "before": place_before,
        "disagrees": stock and contradicts(stock["place"], ranked, stock["direction"]),
        "stocks": newest["symbol"].tolist(),
        "caveats": caveats(conn, market),
        "orders": orders,
        "kinds": KINDS,
        "first": first,
        "last": last,
        "shown": (sessions.min(), sessions.max()),
        "directions": records(predictions.head(SHOWN)),
        "held": len(predictions),
        "directions_sql": sql_text(conn, directions_sql),
        "spans": span_scores(newest_of_target),
        "whole": read_rows(conn, "symbol_score", order="kind", **of_stock),
        "chart": stock_chart(symbol, newest_of_target, bars),
        "months": list(targets["target"].dt.to_period("M").unique()),
        "marks": {way: int((ways == way).sum()) for way in WAYS},
        "looks": records(weights(looks_at_others=True)),
        "looked": records(weights(looks_at_others=False)),
        "nights": len(nights),
    }


def meant_symbol(conn: Connection, market: str, text: str) -> str:
    """Return the stock that a text means, in any case if only one does; else the text."""
    if markets.is_known(conn, market, text):
        return text
    symbols = _predicted_symbols(conn, market)
    alike = [symbol for symbol in symbols if symbol.casefold() == text.casefold()]
    return alike[0] if len(alike) == 1 else text


def _predicted_symbols(conn: Connection, market: str) -> list[str]:
    """Return the stocks of the newest night, by the views that a role that only reads may read."""
    return read(conn, "latest_prediction", columns="symbol", market=market)["symbol"].tolist()


def span_scores(predictions: pd.DataFrame) -> list[Row]:
    """Score a stock's directions beside those of the naive rules, on the same sessions.

    These have an outcome and a direction of every rule; without any, the model alone is scored, on
    all sessions with an outcome. MCC is 0 when a class is never predicted.
    """
    scored = predictions.dropna(subset=["realised_return"])
    columns = {MODEL: "direction"}
    with_rules = scored.dropna(subset=list(NAIVE_RULES))
    if len(with_rules):
        scored = with_rules
        columns |= {rule: rule for rule in NAIVE_RULES}
    rose = (scored["realised_return"] > 0).to_numpy()
    rows = []
    for predictor, column in columns.items() if len(scored) else ():
        said = (scored[column] == "rise").to_numpy()
        counts = confusion(said, rose, np.ones_like(rose)).sum(axis=0)
        rows.append(
            {
                "predictor": predictor,
                "n": len(rose),
                "rises": int(rose.sum()),
                "acc": float(accuracy(counts)),
                "mcc": float(mcc(counts)),
            }
        )
    return rows


def stock_chart(symbol: str, predictions: pd.DataFrame, bars: pd.DataFrame) -> Chart | None:
    """Return a chart of a stock's prices, directions and probabilities over the same sessions.

    Decisions are marked by correctness; the close as traded and, if different, adjusted; one
    standard deviation over the seeds on each side. None below two days.
    """
    by_session = bars.set_index("session")
    by_target = predictions.set_index("target")
    closes = {"close": by_session["close"]}
    if (by_session["adj_close"] - by_session["close"]).abs().max() > 0:
        closes["adjusted close"] = by_session["adj_close"]
    ways = _ways(by_target)
    # Heights and labels are counted from the bottom, so the first of WAYS gets the last place.
    marks = {
        way: pd.Series(float(len(WAYS) - number), ways.index[ways == way])
        for number, way in enumerate(WAYS)
    }
    lines = by_target[["probability", "calibrated"]].astype(float)
    std = by_target["probability_std"].astype(float)
    ends = {"low": lines["probability"] - std, "high": lines["probability"] + std}
    panels = [
        Panel(title="close, as traded", lines=closes, form="price"),
        Panel(title="", lines=marks, labels=WAYS[::-1], height=84),
        Panel(
            title="probability of a rise",
            lines={str(name): line for name, line in lines.items()},
            form="percent",
            base=0.5,
            bands={"probability": pd.DataFrame(ends).clip(0, 1)} if std.notna().any() else {},
        ),
    ]
    title = f"{symbol}: close, directions, probability of a rise"
    return over_sessions(title, panels, hidden=["adjusted close"])


def _ways(predictions: pd.DataFrame) -> "pd.Series[str]":
    """Return which of WAYS each decision with an outcome is, by the index of the rows."""
    settled = predictions.dropna(subset="decision_correct")
    endings = settled["decision_correct"].astype(int).map({1: ", correct", 0: ", wrong"})
    return settled["decision"].astype(str) + endings.astype(str)
