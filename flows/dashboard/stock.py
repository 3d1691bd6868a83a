"""The page of one stock: its predictions over a span of sessions, and their outcomes."""

from datetime import date
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db import where
from db.connection.frames import sql_text
from db.errors import did_you_mean
from db.read import read, selection
from db.rows import attention, markets
from dtml.baselines.naive_rules import MODEL, NAIVE_RULES
from dtml.errors import UsageError
from dtml.evaluation.metrics import accuracy, mcc
from dtml.pages.charts import Chart, Panel, over_sessions
from dtml.pages.figures import percent, records
from flows.dashboard.briefing import caveats, contradicts
from flows.dashboard.markets import STOCKS, NotThereError, require_market

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
) -> dict[str, Any]:
    """Return the page of a stock: its predictions by models of a kind, and their outcomes.

    The predictions are the newest ones of the sessions `first` to `last`, at most LONGEST, or SHOWN
    where neither is given; the table has the newest SHOWN of them. Decisions are those at the
    default level of their model; `spans` and `whole` score the raw probability, without a band.
    Raises UsageError for an unknown kind or a wrong span, NotThereError for an unknown market or
    stock.
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
    begins = first
    if first is None and len(predictions):
        begins = predictions["as_of"].min().date()
    bars = read(
        conn,
        "price_latest",
        session=where.between(begins, last),
        order="-session",
        limit=most,
        **of_stock,
    )
    ways = _ways(newest_of_target)
    targets = read(
        conn, "prediction_history", columns="target", order="-target", limit=SHOWN, **of_kind
    )["target"]
    newest = read(conn, "latest_prediction", market=market, order="symbol", limit=STOCKS)
    stock = next(iter(records(newest[newest["symbol"] == symbol])), None)
    ranked = int(newest["place"].notna().sum())
    sessions = [*predictions["target"], *bars["session"]]
    nights = attention.attended(conn, market, ATTENDED)
    return {
        **of_kind,
        "stock": stock,
        "ranked": ranked,
        "before": None if stock is None or last else _place_before(predictions, stock),
        "disagrees": stock is not None and contradicts(stock["place"], ranked, stock["direction"]),
        "stocks": newest["symbol"].tolist(),
        "caveats": caveats(conn, market),
        "account": "" if stock is None else _in_account(conn, stock),
        "kinds": KINDS,
        "first": first,
        "last": last,
        "shown": (min(sessions), max(sessions)) if sessions else None,
        "directions": records(predictions.head(SHOWN)),
        "held": len(predictions),
        "directions_sql": sql_text(
            conn,
            selection(
                "prediction_history", columns=COLUMNS, order="-target", target=in_span, **of_kind
            ),
        ),
        "spans": span_scores(newest_of_target),
        "whole": records(read(conn, "symbol_score", order="kind", **of_stock)),
        "chart": stock_chart(symbol, newest_of_target, bars),
        "months": [
            {
                "name": str(month),
                "first": month.start_time.date(),
                "last": month.end_time.date(),
            }
            for month in pd.DatetimeIndex(targets).to_period("M").unique()
        ],
        "marks": {way: int((ways == way).sum()) for way in WAYS},
        "decided": len(ways),
        "correct": int(ways.str.endswith(", correct").sum()),
        "attention": {
            name: records(
                attention.mean_weights(
                    conn,
                    market,
                    symbol,
                    nights,
                    looks_at_others=name == "looks",
                    row_limit=SOURCES,
                )
            )
            for name in ("looks", "looked")
        },
        "nights": len(nights),
    }


def _in_account(conn: Connection, stock: dict[str, Any]) -> str:
    """Say how much of a stock the paper account is to hold; empty where nothing was decided."""
    market = stock["market"]
    orders = read(conn, "paper_order", market=market, target=stock["target"].date())
    if orders.empty:
        return ""
    weight = float(orders.loc[orders["symbol"] == stock["symbol"], "weight"].sum())
    if weight > 0:
        return f"The paper account will hold {percent(weight)} of its equity in it."
    return "The paper account will not hold it."


def _place_before(predictions: pd.DataFrame, stock: dict[str, Any]) -> float | None:
    """Return the place in the ranking before that of the newest night; None where not known."""
    is_earlier = predictions["target"] < stock["target"]
    places = predictions.loc[is_earlier, "place"].dropna()
    return float(places.iloc[0]) if len(places) else None


def meant_symbol(conn: Connection, market: str, text: str) -> str:
    """Return the stock that a user's text means; the text itself where that is not clear.

    Where no stock has exactly this symbol, it is the only one of the newest night that has it in
    other letters, small or capital.
    """
    if markets.is_known(conn, market, text):
        return text
    symbols = _predicted_symbols(conn, market)
    alike = [symbol for symbol in symbols if symbol.casefold() == text.casefold()]
    return alike[0] if len(alike) == 1 else text


def _predicted_symbols(conn: Connection, market: str) -> list[str]:
    """Return the stocks of the newest night, by the views that a role that only reads may read."""
    return read(conn, "latest_prediction", columns="symbol", market=market)["symbol"].tolist()


def span_scores(predictions: pd.DataFrame) -> list[dict[str, Any]]:
    """Score a stock's directions beside those of the naive rules, on the same sessions.

    These are the sessions with an outcome and a direction of every rule. If there are none, the
    model alone is scored, on all sessions with an outcome. MCC is 0 when one class is never
    predicted.
    """
    scored = settled = predictions.dropna(subset=["realised_return"])
    columns = {MODEL: "direction"}
    with_rules = settled.dropna(subset=list(NAIVE_RULES))
    if len(with_rules):
        scored = with_rules
        columns |= {rule: rule for rule in NAIVE_RULES}
    if scored.empty:
        return []
    rose = scored["realised_return"] > 0
    rows = []
    for predictor, column in columns.items():
        up = scored[column] == "rise"
        cells = [up & rose, up & ~rose, ~up & rose, ~up & ~rose]
        counts = np.array([cell.sum() for cell in cells])
        figures = {"acc": float(accuracy(counts)), "mcc": float(mcc(counts))}
        rows.append({"predictor": predictor, "n": len(scored), "rises": int(rose.sum()), **figures})
    return rows


def stock_chart(symbol: str, predictions: pd.DataFrame, bars: pd.DataFrame) -> Chart | None:
    """Return a chart of a stock's prices, directions and probabilities over the same sessions.

    `predictions` has one of each session; its decisions are marked by whether they were correct.
    The close is shown as it was traded and, if that differs, as adjusted for splits and dividends.
    The band around the probability of a rise is one standard deviation over the seeds on each side.
    None where fewer than two days have a value.
    """
    by_session = bars.set_index("session").sort_index()
    by_target = predictions.set_index("target").sort_index()
    closes = {"close": by_session["close"]}
    if (by_session["adj_close"] - by_session["close"]).abs().max() > 0:
        closes["adjusted close"] = by_session["adj_close"]
    ways = _ways(by_target)
    # Heights and labels are counted from the bottom, so the first of WAYS gets the last place.
    marks = {
        way: pd.Series(height, ways.index[ways == way], dtype=float)
        for height, way in zip((4, 3, 2, 1), WAYS, strict=True)
    }
    probability = by_target["probability"].astype(float)
    std = by_target["probability_std"].astype(float)
    bands: dict[str, pd.DataFrame] = {}
    if std.notna().any():
        ends = {"low": probability - std, "high": probability + std}
        bands["probability"] = pd.DataFrame(ends).clip(0, 1)
    lines = {"probability": probability, "calibrated": by_target["calibrated"].astype(float)}
    panels = [
        Panel(title="close, as traded", lines=closes, form="price"),
        Panel(title="", lines=marks, labels=WAYS[::-1], height=84),
        Panel(
            title="probability of a rise",
            lines=lines,
            form="percent",
            base=0.5,
            bands=bands,
        ),
    ]
    title = f"{symbol}: close, directions, probability of a rise"
    return over_sessions(title, panels, hidden=["adjusted close"])


def _ways(predictions: pd.DataFrame) -> "pd.Series[str]":
    """Return which of WAYS each decision with an outcome is, by the index of the rows."""
    settled = predictions.dropna(subset="decision_correct")
    endings = settled["decision_correct"].astype(int).map({1: ", correct", 0: ", wrong"})
    return settled["decision"].astype(str) + endings.astype(str)
