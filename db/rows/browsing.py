"""What the dashboard reads: the documented views and nothing else, so that a role that sees only them can serve it.

A function that gives a statement gives one table of a page: the page shows the head of its rows, its CSV all of them.
The others give the few rows that a page is built around. Names come in as bound values, never as text of SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db.connection.frames import frame, row
from db.rows.standing import COMPLETE
from db.views.typed_views import view

Statement = sa.Select[Any]

BATCH = 2000  # rows of a CSV in memory at once
LOOKING = 2000  # stocks that look at one another on a night, at most


def rows(conn: Connection, statement: Statement, most: int) -> pd.DataFrame:
    """The first rows of a statement, `most` at most."""
    return frame(conn, statement.limit(most))


def stream(conn: Connection, statement: Statement) -> Iterator[Sequence[Sequence[Any]]]:
    """All rows of a statement as Python values, in batches: neither a page nor this program ever holds them all."""
    yield from conn.execution_options(yield_per=BATCH).execute(statement).partitions()


def markets(conn: Connection) -> list[str]:
    """The markets with a night, a fetch or a model, sorted."""
    named = (sa.select(view(name).c.market) for name in ("night_log", "fetch_log", "model"))
    return sorted(conn.execute(sa.union(*named)).scalars())


def night(conn: Connection, market: str, as_of: date | None = None) -> dict[str, Any] | None:
    """A night of a market, by default its last; None when there is none."""
    found = view("night_log")
    statement = sa.select(found).where(found.c.market == market).order_by(found.c.as_of.desc())
    return row(conn, (statement if as_of is None else statement.where(found.c.as_of == as_of)).limit(1))


def neighbours(conn: Connection, market: str, as_of: date) -> tuple[date | None, date | None]:
    """The nights before and after a day; None where there is none."""
    seen = view("night_log").c
    mine = sa.select(seen.as_of).where(seen.market == market)
    before = mine.where(seen.as_of < as_of).order_by(seen.as_of.desc()).limit(1)
    after = mine.where(seen.as_of > as_of).order_by(seen.as_of).limit(1)
    return conn.execute(before).scalar(), conn.execute(after).scalar()


def nights(market: str, last: date | None = None) -> Statement:
    """The nights of a market up to one, the newest first."""
    found = view("night_log")
    statement = sa.select(found).where(found.c.market == market).order_by(found.c.as_of.desc())
    return statement if last is None else statement.where(found.c.as_of <= last)


def models(market: str | None = None) -> Statement:
    """Trained models, of one market or of all, the newest first."""
    found = view("model")
    statement = sa.select(found).order_by(found.c.created_at.desc(), found.c.run_id)
    return statement if market is None else statement.where(found.c.market == market)


def model(conn: Connection, run_id: str) -> dict[str, Any] | None:
    """One trained model; None when there is none of that name."""
    found = view("model")
    return row(conn, sa.select(found).where(found.c.run_id == run_id))


def latest_model(conn: Connection, market: str) -> dict[str, Any] | None:
    """The model that predicts a market's nights: the nightly one trained on the latest sessions; None without one."""
    found = view("model")
    mine = sa.select(found).where(found.c.market == market, found.c.kind == "nightly")
    newest = (found.c.train_last.desc(), found.c.created_at.desc(), found.c.run_id.desc())
    return row(conn, mine.order_by(*newest).limit(1))


def running(conn: Connection, market: str) -> pd.DataFrame:
    """Scores of every stock-day at the last session scored: the columns of daily_score, a row a predictor."""
    found = view("daily_score")
    mine = sa.select(found).where(found.c.market == market, found.c.protocol == "all")
    last = conn.execute(mine.with_only_columns(found.c.target).order_by(found.c.target.desc()).limit(1)).scalar()
    return frame(conn, mine.where(found.c.target == last).order_by(found.c.predictor))


def newest_call_counts(conn: Connection) -> dict[tuple[str, str], int]:
    """How many of each market's newest calls are rises and falls, by market and call."""
    found = view("latest_prediction").c
    statement = sa.select(found.market, found.call, sa.func.count()).group_by(found.market, found.call)
    return {(market, call): n for market, call, n in conn.execute(statement)}


def scores(market: str, last: date | None = None) -> Statement:
    """Scores of each night up to an as_of, and running ones, the newest first."""
    found = view("daily_score")
    statement = sa.select(found).where(found.c.market == market)
    if last is not None:
        statement = statement.where(found.c.target <= last)
    return statement.order_by(found.c.target.desc(), found.c.protocol, found.c.predictor)


def calls(market: str, run_id: str, target: date) -> Statement:
    """What a model said of each stock for a session, and what came of it."""
    found = view("prediction_history")
    mine = (found.c.run_id == run_id, found.c.target == target, found.c.market == market)
    return sa.select(found).where(*mine).order_by(found.c.symbol)


def band_calls(market: str, run_id: str, target: date, level: float) -> Statement:
    """The same calls where a level has to be reached; no row for a model that was not calibrated."""
    found = view("band_call")
    mine = (found.c.run_id == run_id, found.c.target == target, found.c.level == level, found.c.market == market)
    return sa.select(found).where(*mine).order_by(found.c.symbol)


def members(market: str, run_id: str, target: date) -> Statement:
    """How far the members of an ensemble agreed on each stock; no row where that was not kept."""
    found = view("disagreement")
    mine = (found.c.run_id == run_id, found.c.target == target, found.c.market == market)
    return sa.select(found).where(*mine).order_by(found.c.symbol)


def coverage(conn: Connection, market: str, level: float, last: date) -> dict[str, Any]:
    """Nightly calls at a level with an outcome up to a session: n, covered, called, right_calls; each None if none."""
    found = view("coverage")
    sums = (sa.func.sum(found.c[name]).label(name) for name in ("n", "covered", "called", "right_calls"))
    mine = (found.c.market == market, found.c.kind == "nightly", found.c.level == level, found.c.target <= last)
    counted = row(conn, sa.select(*sums).where(*mine))
    assert counted is not None
    return counted


def refused(market: str, session: date) -> Statement:
    """Bars of a session that failed a check."""
    found = view("refused")
    mine = (found.c.market == market, found.c.session == session)
    return sa.select(found).where(*mine).order_by(found.c.symbol, found.c.reason)


def newest_calls(market: str) -> Statement:
    """The calls for the next session, with what each stock is called and its sector."""
    found = view("latest_prediction")
    return sa.select(found).where(found.c.market == market).order_by(found.c.symbol)


def is_known(conn: Connection, market: str, symbol: str) -> bool:
    """Whether the store has a prediction or a bar of a symbol, a refused one too."""
    for name in ("prediction_history", "price_latest", "refused"):
        found = view(name)
        mine = sa.select(found.c.symbol).where(found.c.market == market, found.c.symbol == symbol)
        if conn.execute(mine.limit(1)).first() is not None:
            return True
    return False


def stock_calls(market: str, symbol: str, kind: str, first: date | None, last: date | None) -> Statement:
    """What models of a kind said of a stock, targets first..last, the newest first."""
    found = view("prediction_history")
    mine = [found.c.market == market, found.c.symbol == symbol, found.c.kind == kind]
    mine += [] if first is None else [found.c.target >= first]
    mine += [] if last is None else [found.c.target <= last]
    return sa.select(found).where(*mine).order_by(found.c.target.desc(), found.c.made_at.desc())


def prices(market: str, symbol: str, first: date | None, last: date | None) -> Statement:
    """The newest version of a stock's bars, sessions first..last, the newest first."""
    found = view("price_latest")
    mine = [found.c.market == market, found.c.symbol == symbol]
    mine += [] if first is None else [found.c.session >= first]
    mine += [] if last is None else [found.c.session <= last]
    return sa.select(found).where(*mine).order_by(found.c.session.desc())


def symbol_scores(market: str, symbol: str) -> Statement:
    """The scores of a stock over all its predictions, a row for each purpose of the models."""
    found = view("symbol_score")
    mine = (found.c.market == market, found.c.symbol == symbol)
    return sa.select(found).where(*mine).order_by(found.c.kind)


def attended(conn: Connection, market: str, nights: int) -> list[tuple[str, date]]:
    """The run and the session predicted of those of the last nights that kept what stocks looked at, newest first."""
    ran, found = view("night_log").c, view("attention").c
    ended = sa.select(ran.run_id, ran.target).where(ran.market == market, ran.status.in_(COMPLETE))
    last = conn.execute(ended.order_by(ran.as_of.desc()).limit(nights)).all()
    kept = (sa.select(found.run_id).where(found.run_id == run, found.target == target).limit(1) for run, target in last)
    return [(run, target) for (run, target), any_ in zip(last, kept, strict=True) if conn.execute(any_).first()]


def attention(
    conn: Connection, market: str, symbol: str, kept: Sequence[tuple[str, date]], *, looks: bool, most: int
) -> pd.DataFrame:
    """Whom a stock looked at on some nights, or who looked at it where `looks` is false: others, the heaviest first.

    Columns: symbol (the other one), weight (mean over the nights), nights (on which it was kept). A night keeps the
    heaviest sources of each stock alone: what it does not keep counts as 0.
    """
    found = view("attention").c
    mine, other = (found.symbol, found.source) if looks else (found.source, found.symbol)
    parts = [pd.DataFrame({"other": pd.Series(dtype=object), "weight": pd.Series(dtype=float)})]
    for run_id, target in kept:
        of_night = (found.run_id == run_id, found.target == target, found.market == market)
        statement = sa.select(other.label("other"), found.weight).where(*of_night, mine == symbol, other != symbol)
        parts.append(rows(conn, statement, LOOKING))
    sums = pd.concat(parts).groupby("other")["weight"].agg(["sum", "count"]).reset_index()
    means = pd.DataFrame({"symbol": sums["other"], "weight": sums["sum"] / max(len(kept), 1), "nights": sums["count"]})
    return means.sort_values(["weight", "symbol"], ascending=[False, True]).head(most).reset_index(drop=True)


def explanation(conn: Connection, run_id: str) -> dict[str, Any] | None:
    """Whether a model's attention was tested and what came of it; None when it was not."""
    found = view("explanation_log")
    return row(conn, sa.select(found).where(found.c.run_id == run_id))


def span(conn: Connection, run_id: str) -> tuple[date, date] | None:
    """The first and the last session that a model predicted; None when it predicted none."""
    made = view("prediction_history").c
    mine = sa.select(made.target).where(made.run_id == run_id)
    first = conn.execute(mine.order_by(made.target).limit(1)).scalar()
    last = conn.execute(mine.order_by(made.target.desc()).limit(1)).scalar()
    return None if first is None or last is None else (first, last)


def common_days(a: str, b: str, first: date, last: date) -> Statement:
    """Stock-days that two models both predicted, counted by session, the newest first.

    Columns: target, n, same (equal calls), scored (those with an outcome), and of each model, as in a_rises: its right
    and wrong rises and falls with an outcome (rises, false_rises, false_falls, falls).
    """
    one, two = (view("prediction_history").alias(name) for name in "ab")
    counted = [sa.func.count().label("n"), _count(one.c.call == two.c.call, "same")]
    counted.append(_count(one.c.hit.is_not(None), "scored"))
    kinds = (("rises", "rise", 1), ("false_rises", "rise", 0), ("false_falls", "fall", 0), ("falls", "fall", 1))
    for made, name in ((one, "a"), (two, "b")):
        for kind, call, hit in kinds:
            counted.append(_count(sa.and_(made.c.call == call, made.c.hit == hit), f"{name}_{kind}"))
    joined = sa.select(one.c.target, *counted).join_from(one, two, _together(one, two))
    mine = (one.c.run_id == a, two.c.run_id == b, one.c.target.between(first, last), two.c.target.between(first, last))
    return joined.where(*mine).group_by(one.c.target).order_by(one.c.target.desc())


def common_calls(a: str, b: str, target: date) -> Statement:
    """What two models said of a session: market, symbol, target, a_probability, b_probability, a_call, b_call, move."""
    one, two = (view("prediction_history").alias(name) for name in "ab")
    pairs = ((name, which, made) for name in ("probability", "call") for which, made in (("a", one), ("b", two)))
    said = [made.c[name].label(f"{which}_{name}") for name, which, made in pairs]
    columns = (one.c.market, one.c.symbol, one.c.target, *said, one.c.move)
    joined = sa.select(*columns).join_from(one, two, _together(one, two))
    mine = (one.c.run_id == a, two.c.run_id == b, one.c.target == target, two.c.target == target)
    return joined.where(*mine).order_by(one.c.symbol)


def _together(one: sa.FromClause, two: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(one.c.market == two.c.market, one.c.symbol == two.c.symbol, one.c.target == two.c.target)


def _count(condition: sa.ColumnElement[bool], name: str) -> sa.Label[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0), type_=sa.Integer()).label(name)
