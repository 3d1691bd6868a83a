"""The page of one stock: its predictions over a span of sessions, and their outcomes."""

from collections.abc import Mapping
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db import where
from db.errors import did_you_mean
from db.read import read
from db.rows import attention, markets
from dtml.baselines.naive_rules import MODEL, NAIVE_RULES
from dtml.errors import UsageError
from dtml.evaluation.metrics import accuracy, confusion, mcc
from dtml.pages.charts import Chart, Panel, over_sessions
from dtml.pages.figures import percent, records
from flows.dashboard.briefing import caveats
from flows.dashboard.markets import STOCKS, NotThereError, require_market

SHOWN = 250  # rows of a stock's table, and sessions of its charts without a span, at most
LONGEST = 3000  # sessions of the charts of a span, at most
ATTENDED = 5  # nights whose attention is averaged
SOURCES = 10  # stocks in a table of attention, at most
KINDS = ("nightly", "backtest", "benchmark")
WAYS = ("rise, correct", "rise, wrong", "fall, correct", "fall, wrong")
# The predictions of the page, each at the default level of its model, as the table shows them. Both
# views are restricted to the stock: joined whole, SQLite would read every prediction of the store.
DIRECTIONS_SQL = """\
with band as (
    select run_id, target, direction from band_direction where is_default = 1 and {conditions}
)
select
    h.target, h.symbol, h.place, coalesce(b.direction, h.direction) as direction,
    h.calibrated, h.probability, h.realised_return,
    case
        when coalesce(b.direction, h.direction) not in ('rise', 'fall') then null
        when h.realised_return is null then null
        when (coalesce(b.direction, h.direction) = 'rise') = (h.realised_return > 0) then 1
        else 0
    end as correct,
    h.as_of, h.run_id
from prediction_history h
left join band b on b.run_id = h.run_id and b.target = h.target
where {conditions_of_history}
order by h.target desc"""
SCORE_COLUMNS = ["predictor", "n", "rises", "acc", "mcc"]


def stock_page(
    conn: Connection, market: str, symbol: str, kind: str, first: date | None, last: date | None
) -> dict[str, Any]:
    """Return the page of a stock: its predictions by models of a kind, and their outcomes.

    The predictions are the newest ones of the sessions `first` to `last`, at most LONGEST, or SHOWN
    where neither is given; `held` is their number. `directions` has the newest SHOWN of them,
    `directions_sql` the SQL of all.

    `chart` draws the newest of each session with the prices, None below two days; `marks` counts
    these by direction and outcome (`way_counts`); `record`, None without an outcome, has how many
    are `decided` and `correct`: all at the default level of their model. `shown` is the first and
    the last session with a prediction or a price, None without any.

    `spans` has the scores over the same predictions, `whole` the scores over all predictions of the
    stock by kind of model. Scores go by the raw probability, without a band. `months` are those of
    the newest SHOWN predictions, the newest first.

    Of the market's newest night, `stock` is the row of the stock, None without one, `stocks` has
    all symbols, and `ranked` is how many have a place. `moved` is the number of places gained since
    the stock's ranking before, None where it is not known and with a `last`. `_disagrees`,
    `_in_account` and `attention_tables` describe the other keys. Raises UsageError
    for an unknown kind or a wrong span, NotThereError for an unknown market or stock.
    """
    require_span(kind, first, last)
    require_stock(conn, market, symbol)
    most_sessions = SHOWN if first is None and last is None else LONGEST
    of_stock: dict[str, Any] = {"market": market, "symbol": symbol, "kind": kind}
    directions = read(
        conn,
        "prediction_history",
        target=where.between(first, last),
        order="-target, -made_at",
        limit=most_sessions,
        **of_stock,
    )
    decided = at_default_level(
        directions,
        read(
            conn,
            "band_direction",
            columns="run_id, target, direction",
            is_default=1,
            **of_stock,
        ),
    )
    # Without a `first`, the chart begins where the predictions do.
    begins = first
    if first is None and len(directions):
        begins = directions["as_of"].min().date()
    bars = read(
        conn,
        "price_latest",
        market=market,
        symbol=symbol,
        session=where.between(begins, last),
        order="-session",
        limit=most_sessions,
    )
    marks = way_counts(decided)
    sessions = [*directions["target"], *bars["session"]]
    newest = read(conn, "latest_prediction", market=market, order="symbol", limit=STOCKS)
    whole = read(conn, "symbol_score", market=market, symbol=symbol, order="kind")
    newest_of_kind = read(
        conn, "prediction_history", columns="target", order="-target", limit=SHOWN, **of_stock
    )
    targets = pd.DatetimeIndex(newest_of_kind["target"])
    newest_of_stock = records(newest[newest["symbol"] == symbol])
    ranked = int(newest["place"].notna().sum())
    return {
        "market": market,
        "symbol": symbol,
        "stock": newest_of_stock[0] if newest_of_stock else None,
        "ranked": ranked,
        "moved": _places_gained(newest_of_stock, directions) if last is None else None,
        "disagrees": _disagrees(newest_of_stock, ranked),
        "stocks": newest["symbol"].tolist(),
        "caveats": caveats(conn, market),
        "account": _in_account(conn, market, symbol, newest),
        "kind": kind,
        "kinds": KINDS,
        "first": first,
        "last": last,
        "shown": (min(sessions), max(sessions)) if sessions else None,
        "directions": records(decided.head(SHOWN)),
        "held": len(directions),
        "directions_sql": directions_sql(market, symbol, kind, first, last),
        "spans": records(span_scores(directions)),
        "whole": records(whole),
        "chart": stock_chart(symbol, decided, bars),
        "months": [
            {
                "name": str(month),
                "first": month.start_time.date(),
                "last": month.end_time.date(),
            }
            for month in targets.to_period("M").unique()
        ],
        "marks": marks,
        "record": _counts_of_outcomes(marks),
        **attention_tables(conn, market, symbol),
    }


def _in_account(conn: Connection, market: str, symbol: str, newest: pd.DataFrame) -> str:
    """Say how much of a stock the paper account is to hold in the session that `newest` predicts.

    Empty where nothing was decided for that session.
    """
    if newest.empty:
        return ""
    orders = read(conn, "paper_order", market=market, target=newest["target"].iloc[0].date())
    if orders.empty:
        return ""
    weight = float(orders.loc[orders["symbol"] == symbol, "weight"].sum())
    if weight > 0:
        return f"The paper account will hold {percent(weight)} of its equity in it."
    return "The paper account will not hold it."


def directions_sql(
    market: str, symbol: str, kind: str, first: date | None, last: date | None
) -> str:
    """Return the SQL of a stock's directions of the sessions first..last, the newest first."""
    values = {"market": market, "symbol": symbol, "kind": kind}
    conditions = [f"{column} = {_literal(value)}" for column, value in values.items()]
    if first is not None:
        conditions.append(f"target >= '{first}'")
    if last is not None:
        conditions.append(f"target <= '{last}'")
    return DIRECTIONS_SQL.format(
        conditions=" and ".join(conditions),
        conditions_of_history=" and ".join(f"h.{condition}" for condition in conditions),
    )


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def at_default_level(directions: pd.DataFrame, banded: pd.DataFrame) -> pd.DataFrame:
    """Return a stock's directions, each at the default level of its model.

    `banded` are rows of the view band_direction at the default level. A direction of a model
    without a band stays as it is: a rise above one half, else a fall. `correct` is missing where
    there is no direction, and where there is no outcome.
    """
    keys = ["run_id", "target"]
    at_level = banded.rename(columns={"direction": "banded"})[[*keys, "banded"]]
    # One row of each prediction, so that the merge adds no rows.
    merged = directions.merge(at_level.drop_duplicates(keys), on=keys, how="left")
    direction = merged["direction"].where(merged["banded"].isna(), merged["banded"])
    is_settled = direction.isin(["rise", "fall"]) & merged["realised_return"].notna()
    is_correct = (direction == "rise") == (merged["realised_return"] > 0)
    correct = is_correct.astype("Int64").where(is_settled)
    return merged.drop(columns="banded").assign(direction=direction, correct=correct)


def _places_gained(newest_of_stock: list[dict[str, Any]], directions: pd.DataFrame) -> float | None:
    """Return the places that a stock has gained since its ranking before; None where not known.

    `newest_of_stock` has its row of the newest night, if any; `directions` are the newest first.
    """
    if not newest_of_stock or pd.isna(newest_of_stock[0]["place"]):
        return None
    target = pd.Timestamp(newest_of_stock[0]["target"])
    earlier = directions[(directions["target"] < target) & directions["place"].notna()]
    if earlier.empty:
        return None
    return float(earlier["place"].iloc[0] - newest_of_stock[0]["place"])


def _disagrees(newest_of_stock: list[dict[str, Any]], ranked: int) -> bool:
    """Return whether a stock of the better half is predicted to fall, or of the worse to rise.

    `ranked` is the number of stocks in the ranking; the middle one of an odd number is of the
    better half.
    """
    if not newest_of_stock or pd.isna(newest_of_stock[0]["place"]):
        return False
    is_better_half = newest_of_stock[0]["place"] <= (ranked + 1) / 2
    opposite = "fall" if is_better_half else "rise"
    return bool(newest_of_stock[0]["direction"] == opposite)


def require_stock(conn: Connection, market: str, symbol: str) -> None:
    """Raise NotThereError for a market that is not stored, and for an unknown symbol.

    A known symbol has a prediction or a price.
    """
    require_market(conn, market)
    if not markets.is_known(conn, market, symbol):
        meant = did_you_mean(symbol, _predicted_symbols(conn, market)) or "check its spelling"
        raise NotThereError(
            f"no prediction and no price of {symbol!r} in market {market}: {meant.strip()}"
        )


def meant_symbol(conn: Connection, market: str, text: str) -> str:
    """Return the stock that a user's text means; the text itself where that is not clear.

    Where no stock has exactly this symbol, it is the only one of the newest night that has it in
    other letters, small or capital.
    """
    if markets.is_known(conn, market, text):
        return text
    alike = [
        symbol
        for symbol in _predicted_symbols(conn, market)
        if symbol.casefold() == text.casefold()
    ]
    return alike[0] if len(alike) == 1 else text


def _predicted_symbols(conn: Connection, market: str) -> list[str]:
    """Return the stocks of the newest night, by the views that a role that only reads may read."""
    return read(conn, "latest_prediction", columns="symbol", market=market)["symbol"].tolist()


def require_span(kind: str, first: date | None, last: date | None) -> None:
    """Raise UsageError for a kind that no model has, or a span that ends before it begins."""
    if kind not in KINDS:
        raise UsageError(f"kind {kind!r} is not one of {', '.join(KINDS)}: choose one of these")
    if first is not None and last is not None and first > last:
        raise UsageError(
            f"the span from {first} to {last} ends before it begins: swap the two days"
        )


def span_scores(directions: pd.DataFrame) -> pd.DataFrame:
    """Score a stock's directions beside those of the naive rules, on the same sessions.

    These are the sessions with an outcome and a direction of every rule. If there are none, the
    model alone is scored, on all sessions with an outcome. The columns are predictor, n (the number
    of sessions), rises (in how many of them the stock rose), acc, and mcc (0 when one class is
    never predicted). There is no row without an outcome.
    """
    with_outcome = directions.dropna(subset=["realised_return"])
    # Several models may have predicted a session. The newest prediction comes first, and is kept.
    settled = with_outcome.drop_duplicates("target", keep="first")
    if settled.empty:
        return pd.DataFrame([], columns=SCORE_COLUMNS)

    with_rules = settled.dropna(subset=list(NAIVE_RULES))
    if with_rules.empty:
        scored = settled
        columns = {MODEL: "direction"}
    else:
        scored = with_rules
        # The direction of a rule is in the column of its name.
        columns = {MODEL: "direction", **{rule: rule for rule in NAIVE_RULES}}

    rose = (scored["realised_return"] > 0).to_numpy()
    is_counted = np.ones(len(scored), dtype=bool)  # every session counts
    rows: list[dict[str, Any]] = []
    for predictor, column in columns.items():
        predicted_rise = (scored[column] == "rise").to_numpy()
        kinds = confusion(predicted_rise, rose, is_counted)  # [sessions 4], a single 1 in each row
        counts = kinds.sum(axis=0)
        rows.append(
            {
                "predictor": predictor,
                "n": len(scored),
                "rises": int(rose.sum()),
                "acc": float(accuracy(counts)),
                "mcc": float(mcc(counts)),
            }
        )
    return pd.DataFrame(rows, columns=SCORE_COLUMNS)


def stock_chart(symbol: str, directions: pd.DataFrame, bars: pd.DataFrame) -> Chart | None:
    """Return a chart of a stock's prices, directions and probabilities over the same sessions.

    Directions are marked by whether they were correct. The close is shown as it was traded and, if
    that differs, as adjusted for splits and dividends. The band around the probability of a rise is
    one standard deviation over the seeds on each side. None where fewer than two days have a value.
    """
    by_session = bars.set_index("session").sort_index()
    # Several models may have predicted a session. The newest prediction comes first, and is kept.
    newest_of_target = directions.drop_duplicates("target", keep="first")
    by_target = newest_of_target.set_index("target").sort_index()
    closes = {"close": by_session["close"]}
    largest_adjustment = (by_session["adj_close"] - by_session["close"]).abs().max()
    if largest_adjustment > 0:
        closes["adjusted close"] = by_session["adj_close"]
    way_of_direction = way_of(by_target)
    # Heights and labels are counted from the bottom, so the first of WAYS gets the last place.
    marks: dict[str, pd.Series[Any]] = {}
    for height, way in zip((4, 3, 2, 1), WAYS, strict=True):
        targets = way_of_direction.index[way_of_direction == way]
        marks[way] = pd.Series(height, targets, dtype=float)
    probability = by_target["probability"].astype(float)
    std = by_target["probability_std"].astype(float)
    bands: dict[str, pd.DataFrame] = {}
    if std.notna().any():
        bands["probability"] = pd.DataFrame(
            {
                "low": (probability - std).clip(0, 1),
                "high": (probability + std).clip(0, 1),
            }
        )
    calibrated = by_target["calibrated"].astype(float)
    panels = [
        Panel(title="close, as traded", lines=closes, form="price"),
        Panel(title="", lines=marks, labels=WAYS[::-1], height=84),
        Panel(
            title="probability of a rise",
            lines={"probability": probability, "calibrated": calibrated},
            form="percent",
            base=0.5,
            bands=bands,
        ),
    ]
    title = f"{symbol}: close, directions, probability of a rise"
    return over_sessions(title, panels, hidden=["adjusted close"])


def way_of(directions: pd.DataFrame) -> "pd.Series[Any]":
    """Return which of `WAYS` each direction with an outcome is, by the index of the rows."""
    settled = directions.dropna(subset=["correct"])
    is_correct = settled["correct"].astype(bool)
    endings = pd.Series(
        data=np.where(is_correct, ", correct", ", wrong"),
        index=settled.index,
        dtype=str,  # also where no direction has an outcome
    )
    return settled["direction"].astype(str) + endings


def way_counts(directions: pd.DataFrame) -> dict[str, int]:
    """Count the directions of each of `WAYS`, the newest one of each session."""
    counts = way_of(directions.drop_duplicates("target", keep="first")).value_counts()
    return {way: int(counts.get(way, 0)) for way in WAYS}


def _counts_of_outcomes(marks: Mapping[str, int]) -> dict[str, int] | None:
    decided = sum(marks.values())
    if not decided:
        return None
    correct = sum(number for way, number in marks.items() if way.endswith("correct"))
    return {"decided": decided, "correct": correct}


def attention_tables(conn: Connection, market: str, symbol: str) -> dict[str, Any]:
    """Return the mean attention over the last nights, as `attention`, their number as `nights`.

    Of the last ATTENDED complete nights, these are the ones that stored attention. `attention` has
    two tables, of at most SOURCES stocks each: `looks` of the stocks that this one looked at most,
    `looked` of those that looked at it most.
    """
    nights = attention.attended(conn, market, ATTENDED)
    tables: dict[str, list[dict[str, Any]]] = {}
    for name in ("looks", "looked"):
        weights = attention.mean_weights(
            conn,
            market,
            symbol,
            nights,
            looks_at_others=(name == "looks"),
            row_limit=SOURCES,
        )
        tables[name] = records(weights)
    return {"attention": tables, "nights": len(nights)}
