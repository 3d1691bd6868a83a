"""The first page, of every market, the page of one, and of one stock: a night's directions, and
what came of them.

Each page of the dashboard is a mapping that the template of its name prints, missing values (NaN,
None) as "-".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db.connection.frames import head
from db.rows import (
    attention,
    backtests,
    benchmarks,
    calibration,
    markets,
    nights,
    predictions,
    prices,
    rankings,
    runs,
)
from db.rows import scores as stored_scores
from dtml.attention.weights import words as explanation_words
from dtml.baselines.naive_rules import MODEL, NAIVE_RULES, beside_rules, best_at
from dtml.errors import DtmlError, UsageError
from dtml.evaluation.metrics import MINIMUM_DAYS, accuracy, confusion, mcc, told_apart
from dtml.evaluation.ranking import mean_of_days
from dtml.markets.definition import LEVELS, YEAR
from dtml.pages.backtest import backtest_page, predictor_charts
from dtml.pages.benchmark import benchmark_page
from dtml.pages.charts import Chart, Panel, over_sessions, probability_axis
from dtml.pages.figures import interval, percent, records, signed_percent
from dtml.pages.order import order_part
from dtml.pages.ranking import Ranking, ranking_page

TRADABLE = ", next open"  # what the name of a portfolio ends with that can be followed
STOCKS = 2000  # of a market, on one page
NIGHTS = 30  # in the table of a market
SCORED = 250  # nights of a chart of running scores
SHOWN = 250  # rows of a stock's table, and sessions of its charts unless a span is asked for
LONGEST = 3000  # sessions of its charts
ATTENDED = 5  # nights whose attention is averaged
SOURCES = 10  # stocks of a table of attention
KINDS = ("nightly", "backtest", "benchmark")
WAYS = ("rise, correct", "rise, wrong", "fall, correct", "fall, wrong")
SORTS = (
    "symbol",
    "name",
    "sector",
    "probability",
    "calibrated",
    "probability_std",
    "rising_share",
    "direction",
    "realised_return",
    "correct",
)
FIGURES = ("acc", "mcc")
ENDS = ("", "_low", "_high")
LEFT = ("left", "left_beside", "left_figures", "left_from", "left_link")
SKILL = ("", "_low", "_high", "_rule", "_rule_low", "_rule_high", "_rule_name")  # of each figure

Row = Mapping[str, Any]


class NotThereError(DtmlError):
    """Say that what a page was asked about is not in the store."""


@dataclass(frozen=True)
class Sort:
    """Name the column that a table is sorted by, as in an address;
    `-probability_std` has the largest first.
    """

    column: str
    is_descending: bool

    @classmethod
    def read(cls, text: str) -> "Sort":
        """Read it from an address; raise UsageError, which lists the columns, for another one."""
        if text.removeprefix("-") not in SORTS:
            raise UsageError(
                f"sort={text!r} is none of {', '.join(SORTS)}, or one of them after a minus"
            )
        return cls(text.removeprefix("-"), text.startswith("-"))

    def after(self, column: str) -> str:
        """Return the order that a column's head leads to: reversed for the
        current one, else large first.
        """
        if column == self.column:
            return column if self.is_descending else f"-{column}"
        return column if column in ("symbol", "name", "sector", "direction") else f"-{column}"

    def said(self, column: str) -> str:
        """Return how a column is sorted, in the terms of aria-sort; nothing for the others."""
        return "" if column != self.column else "descending" if self.is_descending else "ascending"

    def rows(self, directions: pd.DataFrame) -> pd.DataFrame:
        """Return the directions in that order, those without a value last, equals by symbol."""
        by_name = directions.sort_values("symbol", kind="stable")
        return by_name.sort_values(
            self.column, ascending=not self.is_descending, kind="stable", na_position="last"
        )


def skill_of(scores: pd.DataFrame) -> dict[str, Any]:
    """Return the model's running figures, each beside the naive rule that is best at it over as
    many nights.

    Keys for acc and mcc: the figure, _low, _high, the rule's as _rule, ..., and its _rule_name.
    `mcc_verdict` says how the model compares to the rule by their paired difference; None without
    an interval.
    """
    names = (f"{figure}{part}" for figure in FIGURES for part in SKILL)
    found: dict[str, Any] = dict.fromkeys(("scored_until", "nights", "n", *names, "mcc_verdict"))
    pair = beside_rules(scores, "running_nights")
    if pair is None:
        return found
    row, others = pair
    found |= {
        "scored_until": row["target"].date(),
        "nights": row["running_nights"],
        "n": row["running_n"],
    }
    for figure in FIGURES:
        best = best_at(others, f"running_{figure}")
        found |= {f"{figure}{end}": row[f"running_{figure}{end}"] for end in ENDS}
        if best is not None:
            found |= {f"{figure}_rule{end}": best[f"running_{figure}{end}"] for end in ENDS}
            found |= {f"{figure}_rule_name": best["predictor"]}
            if figure == "mcc":
                found |= {
                    "mcc_verdict": told_apart(best["model_gain_low"], best["model_gain_high"])
                }
    return found


def market_page(
    conn: Connection, market: str, as_of: date | None, level: float | None, sort: str
) -> dict[str, Any]:
    """Return one night of a market: its directions at a level, what was left
    out, and the scores up to it.
    """
    order = Sort.read(sort)
    require_level(level)
    require_market(conn, market)
    night = night_of(conn, market, as_of)
    level = level_of(conn, night, level)
    common = {"market": market, "night": night, "level": level, "levels": LEVELS, "sort": order}
    if night is None:
        return common | {"models": records(head(conn, runs.models(market), NIGHTS))}
    before, after = nights.neighbours(conn, market, night["as_of"])
    directions = night_directions(conn, night, level)
    scored = head(
        conn,
        stored_scores.daily_scores(market, night["target"]),
        SCORED * 2 * (1 + len(NAIVE_RULES)),
    )
    every = scored[scored["protocol"] == "all"]
    ranks = rankings.last_rank_scores(conn, market, night["target"])
    champion = rankings.champion(conn, market, night["target"])
    ordered = order_part(rankings.night_order(conn, market, night["target"]), ranks, champion)
    found = {
        "rank_scores": records(ranks.sort_values(["is_rule", "rank_ic"], ascending=[True, False])),
        "before": before,
        "after": after,
        "run": None if night["run_id"] is None else runs.model(conn, night["run_id"]),
        "directions": records(order.rows(directions)),
        "counts": {
            each: int((directions["direction"] == each).sum()) for each in ("rise", "fall", "none")
        },
        "rule_directions": {}
        if directions.empty
        else {rule: directions[rule].iloc[0] for rule in NAIVE_RULES},
        "axis": probability_axis(
            directions[["probability", "lowest", "highest"]].to_numpy().ravel()
        ),
        "coverage": None
        if level is None
        else calibration.coverage(conn, market, level, night["target"]),
        "scores": records(_at_last(scored)),
        "skill": skill_of(_at_last(every)),
        "chart": predictor_charts(
            every.rename(columns={"target": "session"}), *(f"running_{name}" for name in FIGURES)
        ),
        "account": account_chart(conn, market, night["as_of"]),
        "gaps": night["gaps"] or [],
        "rejected": records(
            head(conn, prices.rejected(market, night["as_of"], night["as_of"]), STOCKS)
        ),
        "nights": night_rows(conn, market, night["as_of"], every),
        "stocks": [row["symbol"] for row in records(directions)],
    }
    return common | ordered | found


def account_chart(conn: Connection, market: str, last: date) -> Chart | None:
    """Return the equity of the paper account beside the same without costs,
    equal parts and the index; maybe None.
    """
    paper = rankings.paper_returns(conn, market, last)
    lines = {
        str(name): own.set_index("session")["equity"] for name, own in paper.groupby("portfolio")
    }
    return over_sessions(
        "Paper account", [Panel("value of 1", lines, base=1.0)], dashed=["account, no costs"]
    )


def require_market(conn: Connection, market: str) -> None:
    """Raise NotThereError, which says which there are, for a market without a
    night, a fetch or a model.
    """
    stored = markets.all_markets(conn)
    if market not in stored:
        held = f"it has {', '.join(stored[:12])}" if stored else "it has none yet"
        raise NotThereError(f"no market {market!r} in the store: {held}")


def require_level(level: float | None) -> None:
    """Raise UsageError, which lists them, for a level that no band has; None
    asks for the market's, 0 for one half.
    """
    if level not in (None, 0, *LEVELS):
        raise UsageError(f"level {level} is none of {', '.join(map(str, LEVELS))}")


def level_of(conn: Connection, night: Row | None, level: float | None) -> float | None:
    """Return the level at which a night's directions are shown, by default the
    market's; None for one half.
    """
    if level is None and night is not None and night["run_id"] is not None:
        return calibration.default_level(conn, night["run_id"])
    return level or None


def night_of(conn: Connection, market: str, as_of: date | None) -> dict[str, Any] | None:
    """Return the night that saw this session last, by default the newest; None for a market without
    nights.

    Raises NotThereError, which names the nights around it, for a day that none saw last.
    """
    night = nights.night(conn, market, as_of)
    if night is None and as_of is not None:
        around = [str(day) for day in nights.neighbours(conn, market, as_of) if day is not None]
        near = f": the nearest are of {' and '.join(around)}" if around else ": it has none"
        raise NotThereError(f"no night of {market} saw {as_of} last{near}")
    return night


def night_directions(conn: Connection, night: Row, level: float | None) -> pd.DataFrame:
    """Return the directions of a night, at a level if one is given: a row a stock, none for a night
    without a model.

    Columns: those of the view prediction_history, name and sector (of stocks in the newest night),
    lowest, highest and rising_share of the seeds, and `low` and `high`, the ends of the abstention
    band. In the band `direction` is 'none'; it is missing where the model has no band. `correct`
    says whether the direction was that of the return.
    """
    market, run_id, target = night["market"], night["run_id"], night["target"]
    if run_id is None:
        return head(conn, predictions.session_directions(market, "", target), 0).reindex(
            columns=[*_DIRECTION_COLUMNS]
        )
    directions = head(conn, predictions.session_directions(market, run_id, target), STOCKS)
    named = head(conn, predictions.newest_directions(market), STOCKS)[["symbol", "name", "sector"]]
    agreed = head(conn, predictions.disagreement(market, run_id, target), STOCKS)
    directions = directions.merge(named, on="symbol", how="left")
    directions = directions.merge(
        agreed[["symbol", "lowest", "highest", "rising_share"]], on="symbol", how="left"
    )
    directions = directions.assign(low=np.nan, high=np.nan)
    if level is None:
        return directions.reindex(columns=[*_DIRECTION_COLUMNS])
    own = ["low", "high", "direction"]
    banded = head(conn, predictions.band_directions(market, run_id, target, level), STOCKS)
    directions = directions.drop(columns=own).merge(
        banded[["symbol", *own]], on="symbol", how="left"
    )
    correct = (directions["direction"] == "rise") == (directions["realised_return"] > 0)
    is_decided = (
        directions["direction"].isin(["rise", "fall"]) & directions["realised_return"].notna()
    )
    return directions.assign(correct=correct.astype("Int64").where(is_decided)).reindex(
        columns=[*_DIRECTION_COLUMNS]
    )


_DIRECTION_COLUMNS = (
    *(
        "symbol",
        "name",
        "sector",
        "probability",
        "lowest",
        "highest",
        "rising_share",
        "calibrated",
        "low",
        "high",
    ),
    *(
        "probability_std",
        "direction",
        "realised_return",
        "correct",
        *NAIVE_RULES,
        "run_id",
        "made_at",
        "receipt",
    ),
)


def night_rows(
    conn: Connection, market: str, last: date, scores: pd.DataFrame
) -> list[dict[str, Any]]:
    """Return the newest nights up to one, the newest first, with the ACC of their own
    directions.
    """
    shown = head(conn, nights.night_log(market, last), NIGHTS)
    own = scores.loc[scores["predictor"] == MODEL, ["target", "acc", "mcc"]]
    return records(shown.merge(own, on="target", how="left"))


def _at_last(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the last scored session, the model before the rules."""
    last: pd.DataFrame = scores[scores["target"] == scores["target"].max()]
    return last.assign(rule=last["predictor"] != MODEL).sort_values(
        ["protocol", "rule", "predictor"]
    )


def study_page(conn: Connection, kind: str, name: str) -> str:
    """Return the page of a study of a kind; raise NotThereError for one that is not stored or not
    finished.

    What is computed from its predictions and not stored, rolling scores and calibration, is on the
    report alone.
    """
    read = {
        "backtest": backtests.backtest,
        "benchmark": benchmarks.benchmark,
        "ranking": rankings.ranking,
    }
    row = read[kind](conn, name)
    if row is None or (kind == "backtest" and row["finished_at"] is None):
        raise NotThereError(f"no finished {kind} {name!r} in the store")
    if kind == "benchmark":
        scores, seeds = (
            benchmarks.benchmark_scores(conn, name),
            benchmarks.benchmark_seeds(conn, name),
        )
        return benchmark_page(benchmark=row, scores=scores, seed_scores=seeds, served=True)
    if kind == "ranking":
        tables = (
            rankings.ranking_scores,
            rankings.ranking_differences,
            rankings.ranking_portfolios,
        )
        return ranking_page(Ranking(row, *(each(conn, name) for each in tables)), served=True)
    return backtest_page(
        backtest=row,
        folds=backtests.backtest_folds(conn, name),
        scores=backtests.backtest_scores(conn, name),
        tracks=backtests.backtest_returns(conn, name),
        performances=backtests.backtest_portfolios(conn, name),
        rolling=pd.DataFrame(),
        curve=pd.DataFrame(),
        coverage=pd.DataFrame(),
        served=True,
    )


def markets_page(conn: Connection, today: date) -> dict[str, Any]:
    """Return every market of the store: how its last night went, its skill so
    far, and what is left after costs.
    """
    return {"rows": records(market_rows(conn, today))}


def market_rows(conn: Connection, today: date) -> pd.DataFrame:
    """Return a row a market: last night, newest directions, model, running
    scores, order, and what costs leave.
    """
    counted = predictions.newest_direction_counts(conn)
    rows = []
    for market in markets.all_markets(conn):
        night = nights.night(conn, market)
        run = runs.latest_model(conn, market)
        said = {
            name: None if night is None else night[name] for name in ("as_of", "target", "status")
        }
        said["days_since"] = None if night is None else (today - night["as_of"]).days
        said |= {
            direction: counted.get((market, direction), 0) for direction in ("rise", "fall", "none")
        }
        said |= {"run_id": None if run is None else run["run_id"]}
        found = (
            said
            | skill_of(stored_scores.last_running_scores(conn, market))
            | order_of(conn, market, night)
        )
        rows.append({"market": market} | found | after_costs(conn, market))
    return pd.DataFrame(rows)


def order_of(conn: Connection, market: str, night: Row | None) -> dict[str, Any]:
    """Return who orders the stocks, the rank IC so far, since when it is above 0, and the best
    one-line rule's.

    None for what there is not. `skill` says whether the interval of the rank IC lies above 0; None
    without an interval.
    """
    keys = ("rank_days", *(f"rank_ic{end}" for end in ENDS))
    found: dict[str, Any] = dict.fromkeys(
        (*keys, "orders", "skill", "since", "lasts", "rank_rule", "rank_ic_rule")
    )
    orders = None if night is None else rankings.chosen_predictor(conn, market, night["target"])
    if night is None or orders is None:
        return found
    ranks = rankings.last_rank_scores(conn, market, night["target"]).rename(
        columns={"days": "rank_days"}
    )
    mine, rules = (
        ranks[ranks["predictor"] == orders],
        ranks[ranks["is_rule"] == 1].sort_values("rank_ic"),
    )
    if len(mine):
        found |= mine.iloc[0][[*keys]]
        since, lasts = rankings.lasting_skill(
            conn, market, mine.iloc[0]["leg"], orders, night["target"]
        )
        found |= {
            "skill": told_apart(found["rank_ic_low"], found["rank_ic_high"]),
            "since": since,
            "lasts": lasts,
        }
    if len(rules):
        found |= {
            "rank_rule": rules.iloc[-1]["predictor"],
            "rank_ic_rule": rules.iloc[-1]["rank_ic"],
        }
    return found | {"orders": orders}


def after_costs(conn: Connection, market: str) -> dict[str, Any]:
    """Return what is left after costs beside its yardstick, in words, with the interval and where
    it is from.

    From the last year of the paper account, else the newest walk of rankings, else the newest
    backtest.
    """
    paper = rankings.paper_returns(conn, market)
    net = paper.pivot(index="session", columns="portfolio", values="net").astype(float).tail(YEAR)
    if len(net) >= MINIMUM_DAYS:
        gain = mean_of_days((net["account"] - net["equal parts"]).to_numpy())
        value, low, high = (YEAR * each for each in (gain.value, gain.low, gain.high))
        figures = f"{signed_percent(value)} a year [{percent(low)}, {percent(high)}]"
        source = f"paper account, {len(net)} sessions"
        return dict(
            zip(LEFT, (told_apart(low, high), "equal parts", figures, source, None), strict=True)
        )
    if (row := rankings.newest_ranking(conn, market)) is not None:
        beside, source, link = (
            "equal parts",
            f"walk to {row['last']}",
            f"/ranking/{row['ranking_id']}",
        )
    else:
        made = backtests.newest_summary(conn, market)
        traded = (
            made[made["portfolio"].str.endswith(TRADABLE)]
            .dropna(subset="sharpe")
            .sort_values("sharpe")
        )
        if traded.empty:
            return dict.fromkeys(LEFT)
        row = records(traded)[-1]
        source = f"backtest to {row['last']:%Y-%m-%d}, its best portfolio in hindsight"
        beside, link = "the index", f"/backtest/{row['backtest_id']}"
    compared = told_apart(row["index_gain_low"], row["index_gain_high"])
    figures = f"Sharpe ratio {row['index_gain']:+.2f} {interval(row, 'index_gain', 2, signed=True)}"
    return dict(zip(LEFT, (compared, beside, figures, source, link), strict=True))


def stock_page(
    conn: Connection, market: str, symbol: str, kind: str, first: date | None, last: date | None
) -> dict[str, Any]:
    """Return a stock over a span of sessions, by default the newest: what was
    said and what happened.
    """
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
        "market": market,
        "symbol": symbol,
        "stock": None if own.empty else records(own)[0],
        "stocks": listed["symbol"].tolist(),
        "kind": kind,
        "kinds": KINDS,
        "first": first,
        "last": last,
        "shown": (min(days), max(days)) if days else None,
        "directions": records(directions.head(SHOWN)),
        "held": len(directions),
        "spans": records(span_scores(directions)),
        "whole": records(head(conn, stored_scores.symbol_scores(market, symbol), len(KINDS))),
        "chart": stock_chart(symbol, directions, bars),
        "marks": way_counts(directions),
        **attention_tables(conn, market, symbol),
        "explained": explanation_words(
            None if run is None else attention.explanation_log(conn, run["run_id"])
        ),
    }


def require_stock(conn: Connection, market: str, symbol: str) -> None:
    """Raise NotThereError for a market that is not stored, and for a symbol
    without a prediction or a price.
    """
    require_market(conn, market)
    if not markets.is_known(conn, market, symbol):
        raise NotThereError(
            f"no prediction and no price of {symbol!r} in market {market}: check its spelling"
        )


def require_span(kind: str, first: date | None, last: date | None) -> None:
    """Raise UsageError for a purpose that no model has, and for a span that
    ends before it begins.
    """
    if kind not in KINDS:
        raise UsageError(f"kind {kind!r} is none of {', '.join(KINDS)}")
    if first is not None and last is not None and first > last:
        raise UsageError(f"the span ends before it begins: from {first} to {last}")


def span_scores(directions: pd.DataFrame) -> pd.DataFrame:
    """Score a stock's directions that have an outcome beside the naive rules, on sessions that all
    of them predict.

    Columns: predictor, n, rises, acc, mcc (0 when one class is never predicted); no row without an
    outcome.
    """
    settled = directions.dropna(subset=["realised_return"]).drop_duplicates("target")
    with_rules = settled.dropna(subset=list(NAIVE_RULES))
    used = with_rules if len(with_rules) else settled
    said = {MODEL: used["direction"]} | (
        {rule: used[rule] for rule in NAIVE_RULES} if len(with_rules) else {}
    )
    rose = (used["realised_return"] > 0).to_numpy()
    rows = []
    for predictor, predicted in said.items() if len(used) else ():
        counts = confusion((predicted == "rise").to_numpy(), rose, np.ones_like(rose)).sum(axis=0)
        figures = {"acc": float(accuracy(counts)), "mcc": float(mcc(counts))}
        rows.append({"predictor": predictor, "n": len(used), "rises": int(rose.sum())} | figures)
    return pd.DataFrame(rows, columns=["predictor", "n", "rises", "acc", "mcc"])


def stock_chart(symbol: str, directions: pd.DataFrame, bars: pd.DataFrame) -> Chart | None:
    """Return a stock's prices, its directions by how they came out, and its probabilities, on one
    axis of time.

    The close is as it was traded and, where it is known, as adjusted for splits and dividends; the
    band is a standard deviation over the seeds around the probability of a rise.
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
    return over_sessions(
        f"{symbol}: close, directions, probability of a rise", panels, hidden=["adjusted close"]
    )


def way_of(directions: pd.DataFrame) -> "pd.Series[Any]":
    """Return which of `WAYS` each direction with an outcome was, by the index of the rows."""
    settled = directions.dropna(subset=["correct"])
    return settled["direction"] + settled["correct"].astype(bool).map(
        {True: ", correct", False: ", wrong"}
    )


def way_counts(directions: pd.DataFrame) -> dict[str, int]:
    """Count the directions of each of `WAYS`, one a session."""
    counts = way_of(directions.drop_duplicates("target")).value_counts()
    return {way: int(counts.get(way, 0)) for way in WAYS}


def attention_tables(conn: Connection, market: str, symbol: str) -> dict[str, Any]:
    """Return whom the stock looked at over the last nights, who looked at it,
    and how many nights that were.
    """
    kept = attention.attended(conn, market, ATTENDED)
    tables = {
        name: records(
            attention.mean_weights(conn, market, symbol, kept, looks=name == "looks", most=SOURCES)
        )
        for name in ("looks", "looked")
    }
    return {"attention": tables, "nights": len(kept)}
