"""The first page: a briefing on every market, its skill so far, and its gain after costs.

A page is a mapping, from which the template of its name is rendered. Missing values (NaN, None) are
rendered as "-".
"""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, NamedTuple

import pandas as pd
from sqlalchemy import Connection

from db import where
from db.errors import did_you_mean
from db.read import read, read_row, read_value
from db.rows import markets, nights, paper_account, rankings
from db.rows import scores as stored_scores
from dtml.baselines.naive_rules import beside_rules, best_at
from dtml.errors import DtmlError, UsageError
from dtml.evaluation.family import beside_strongest_rule
from dtml.evaluation.metrics import MINIMUM_DAYS, told_apart
from dtml.evaluation.ranking import mean_of_days
from dtml.markets.definition import YEAR
from dtml.pages.figures import counted, interval, percent, records, signed_percent
from dtml.prices.sessions import sessions_a_year
from flows.dashboard.briefing import (
    END_STOCKS,
    Shown,
    account_line,
    best_and_worst,
    changes,
    in_order_of,
    order_words,
    orders_of_night,
    ranking_of_night,
    skill_line,
    state_of_night,
    summary_of_states,
)
from flows.dashboard.running import REFRESH_S, other_work, running_page
from flows.markets.files import read_market
from flows.night_facts import NightFacts, night_facts
from flows.service.timeliness import Timeliness

TRADABLE = ", next open"  # the end of the name of a portfolio whose trades were possible
STOCKS = 2000  # of a market, on one page, at most
FIGURES = ("acc", "mcc")
ENDS = ("", "_low", "_high")  # after the name of a figure: the figure, the ends of its interval
SKILL = ("", "_low", "_high", "_rule", "_rule_low", "_rule_high", "_rule_name")  # of each figure
AFTER_COSTS = ("left", "left_beside", "left_figures", "left_from", "left_link")  # see after_costs

Row = Mapping[str, Any]


class NotThereError(DtmlError):
    """Say that the object of a page is not in the store."""


def require_market(conn: Connection, market: str) -> None:
    """Raise NotThereError, which lists some of the stored ones, for a market that the store lacks.

    A stored market has a night, a fetch or a model.
    """
    stored = markets.all_markets(conn)
    if market in stored:
        return
    if not stored:
        raise NotThereError(
            f"no market {market!r} in the store, which has no market yet: run a night first, as in "
            "`dtml nightly simulated`"
        )
    more = f" and {len(stored) - 12} more, listed by /" if len(stored) > 12 else ""
    raise NotThereError(
        f"no market {market!r} in the store: {did_you_mean(market, stored)}its markets are "
        f"{', '.join(stored[:12])}{more}"
    )


def markets_page(
    conn: Connection, now: datetime, every: int, times: Mapping[str, Timeliness]
) -> dict[str, Any]:
    """Return the page of every market: the rows of `market_rows`, each with its briefing.

    `summary` says whether the last nights are well, as `summary_of_states` does. `times` has how
    late each market is. `works` is what is running beside nights. `every` is the number of seconds
    after which the page is loaded again; 0 for never.
    """
    shown = Shown(conn)
    newest = [Newest.of(conn, market) for market in markets.all_markets(conn)]
    rows = [
        {**row, **briefing(conn, of_market, now, times.get(of_market.market), shown)}
        for of_market, row in zip(
            newest, records(market_rows(conn, newest, now.date(), shown)), strict=True
        )
    ]
    return {
        "rows": rows,
        "summary": summary_of_states({row["market"]: row["state"] for row in rows}),
        "works": other_work(conn, now),
        "every": every,
        "choices": REFRESH_S,
    }


def live_page(conn: Connection, now: datetime, times: Mapping[str, Timeliness]) -> dict[str, Any]:
    """Return the state of every market's last night, and what is running beside nights."""
    states = {}
    for market in markets.all_markets(conn):
        night = read_row(conn, "night_log", market=market, order="-as_of")
        states[market] = state_of_night(conn, market, night, now, times.get(market))
    return {"states": states, "works": other_work(conn, now)}


def work_page(
    conn: Connection, now: datetime, every: int, times: Mapping[str, Timeliness]
) -> dict[str, Any]:
    """Return the page of what is running (`running_page`), with the last nights of all markets."""
    states = live_page(conn, now, times)["states"]
    return {**running_page(conn, now, every), "states": states}


class Newest(NamedTuple):
    """What several parts of a market's briefing read, read once.

    `night` is the row of its newest night, `complete` its newest complete one, both None without
    one. `paper` has the rows of `paper_account.paper_returns`.
    """

    market: str
    night: Row | None
    complete: NightFacts | None
    paper: pd.DataFrame

    @classmethod
    def of(cls, conn: Connection, market: str) -> "Newest":
        """Read it from the store."""
        return cls(
            market,
            read_row(conn, "night_log", market=market, order="-as_of"),
            night_facts(conn, market, settled=True, status=nights.COMPLETE),
            paper_account.paper_returns(conn, market),
        )


def briefing(
    conn: Connection, newest: Newest, now: datetime, times: Timeliness | None, shown: Shown
) -> dict[str, Any]:
    """Return what a market's morning begins with.

    Keys: `state` of `state_of_night`; `best` and `worst` stocks of the newest ranking, its `leader`
    (the first row) and `target_ranked` (the session ranked), both None without a ranking; `changes`
    in sentences, None without a complete night; `order_words`; `skill_line` and `account_line`,
    small drawings or None.
    """
    market = newest.market
    night = newest.complete
    found: dict[str, Any] = {
        "state": state_of_night(conn, market, newest.night, now, times),
        "best": [],
        "worst": [],
        "leader": None,
        "target_ranked": None,
        "order_words": {},
        "changes": None,
        "skill_line": None,
        "account_line": account_line(newest.paper),
    }
    if night is None:
        return found
    ranking = ranking_of_night(night, shown, END_STOCKS)
    found["changes"] = changes(night, ranking)
    orders = orders_of_night(night)
    if len(orders):
        ranked = rankings.night_ranking(
            conn,
            market,
            night.target,
            shown=shown.of(market, night.target),
            symbols=orders["symbol"].tolist(),
        )
        found["order_words"] = order_words(in_order_of(ranked, orders))
    if ranking.empty:
        return found
    leader = records(ranking.head(1))[0]
    line = skill_line(night, leader["leg"], leader["predictor"])
    leading = {"leader": leader, "target_ranked": night.target, "skill_line": line}
    return {**found, **best_and_worst(ranking), **leading}


def market_rows(
    conn: Connection, newest: Sequence[Newest], today: date, shown: Shown
) -> pd.DataFrame:
    """Return a row for each market.

    A row has the last night and the days since it, how many stocks have each of the newest
    directions, the model, running scores (`skill_of`), the ranking of the stocks
    (`ranking_of_day`), and the gain after costs (`after_costs`).
    """
    newest_directions = read(conn, "latest_prediction", columns="market, direction")
    direction_counts = newest_directions.value_counts()
    rows: list[dict[str, Any]] = []
    for market, night, complete, paper in newest:
        model = read_row(
            conn,
            "run_log",
            market=market,
            kind="nightly",
            order="-train_last, -created_at, -run_id",
        )
        rows.append(
            {
                "market": market,
                **{name: night and night[name] for name in ("as_of", "target", "status")},
                "days_since": night and (today - night["as_of"]).days,
                "rise": direction_counts.get((market, "rise"), 0),
                "fall": direction_counts.get((market, "fall"), 0),
                "none": direction_counts.get((market, "none"), 0),
                "run_id": None if model is None else model["run_id"],
                **skill_of(stored_scores.last_running_scores(conn, market)),
                **ranking_of_day(complete, shown),
                **after_costs(conn, market, paper),
            }
        )
    return pd.DataFrame(rows)


def skill_of(scores: pd.DataFrame) -> dict[str, Any]:
    """Return the model's running figures beside those of the best naive rule over as many nights.

    `scores` are those of one session: the columns of the view daily_score. The model's MCC and the
    ends of its interval are `mcc`, `mcc_low` and `mcc_high`. Those of the strongest rule by MCC are
    `mcc_rule`, `mcc_rule_low` and `mcc_rule_high`, `mcc_rule_name` is its name, and `mcc_verdict`
    the verb of `beside_strongest_rule`. The keys for ACC are the same with `acc`, of the rule with
    the best ACC. `scored_until` is the session; `nights` and `n` are the nights and stock-days that
    the figures count. What is unknown is None.
    """
    keys = ["scored_until", "nights", "n"]
    for figure in FIGURES:
        keys += [f"{figure}{part}" for part in SKILL]
    skill: dict[str, Any] = dict.fromkeys([*keys, "mcc_verdict"])
    pair = beside_rules(scores, "running_nights")
    if pair is None:
        return skill
    model, rules = pair
    strongest = beside_strongest_rule(rules, "model_gain", "predictor")
    skill["scored_until"] = model["target"].date()
    skill["nights"] = model["running_nights"]
    skill["n"] = model["running_n"]
    for figure in FIGURES:
        for end in ENDS:
            skill[f"{figure}{end}"] = model[f"running_{figure}{end}"]
        best_rule: Any = best_at(rules, f"running_{figure}")
        if figure == "mcc" and strongest is not None:
            best_rule = strongest
        if best_rule is None:
            continue
        for end in ENDS:
            skill[f"{figure}_rule{end}"] = best_rule[f"running_{figure}{end}"]
        skill[f"{figure}_rule_name"] = best_rule["predictor"]
    skill["mcc_verdict"] = None if strongest is None else strongest["verb"]
    return skill


def ranking_of_day(night: NightFacts | None, shown: Shown) -> dict[str, Any]:
    """Return the predictor that ranks the stocks (`ranker`), and its scores beside the best rule.

    `night` is the complete night whose ranking is shown, None without one. `ranker` is the
    predictor, `rank_ic` its running rank IC up to that night, with the ends of its interval, over
    `rank_days` days. `skill` has the words of `told_apart` about the rank IC and 0. `since` is the
    session from which on the interval has been above 0, `nights_since` the number of scored nights
    from then on. `rank_rule` is the rule with the best running rank IC, `rank_ic_rule` that figure.
    What is unknown is None.
    """
    ranking: dict[str, Any] = {
        "rank_days": None,
        "rank_ic": None,
        "rank_ic_low": None,
        "rank_ic_high": None,
        "ranker": None,
        "skill": None,
        "since": None,
        "nights_since": None,
        "rank_rule": None,
        "rank_ic_rule": None,
    }
    if night is None:
        return ranking
    shown_ranking = shown.of(night.market, night.target)
    if shown_ranking is None:
        return ranking
    _, predictor = shown_ranking
    ranking["ranker"] = predictor

    rank_scores = night.rank_scores
    predictor_scores = rank_scores[rank_scores["predictor"] == predictor]
    if len(predictor_scores):  # one row, none before its first ranking has an outcome
        score = predictor_scores.iloc[0]
        ranking["rank_days"] = score["days"]
        for end in ENDS:
            ranking[f"rank_ic{end}"] = score[f"rank_ic{end}"]
        ranking["skill"] = told_apart(score["rank_ic_low"], score["rank_ic_high"])
        since, nights_since = rankings.lasting_skill(
            night.conn, night.market, score["leg"], predictor, night.target
        )
        ranking["since"] = since
        ranking["nights_since"] = nights_since

    is_scored_rule = (rank_scores["is_rule"] == 1) & rank_scores["rank_ic"].notna()
    rule_scores = rank_scores[is_scored_rule].sort_values("rank_ic")
    if len(rule_scores):
        best_rule = rule_scores.iloc[-1]
        ranking["rank_rule"] = best_rule["predictor"]
        ranking["rank_ic_rule"] = best_rule["rank_ic"]
    return ranking


def after_costs(conn: Connection, market: str, paper: pd.DataFrame | None = None) -> dict[str, Any]:
    """Return what a strategy gained after costs beside a benchmark portfolio, in words.

    The strategy is the last year of the paper account, if it has MINIMUM_DAYS sessions; else the
    newest walk of rankings; else the newest backtest's portfolio with the best Sharpe ratio among
    those that trade at the next open. `left` has the words of `told_apart` about the gain,
    `left_beside` names the benchmark portfolio, `left_figures` has the gain with its interval,
    `left_from` names the source and `left_link` is its page. All are None where there is no such
    source. `paper` has the rows of `paper_account.paper_returns`, by default all of the market.
    """
    if paper is None:
        paper = paper_account.paper_returns(conn, market)
    if len(paper) >= MINIMUM_DAYS:
        try:
            year = sessions_a_year(read_market(market).calendar)
        except UsageError:  # no file defines the market any more
            year = YEAR
        # Returns after costs, [sessions portfolios], of the last year.
        net = paper.pivot(index="session", columns="portfolio", values="net")
        net = net.astype(float).tail(year)
        if len(net) >= MINIMUM_DAYS:
            differences = net["account"] - net["equal parts"]
            gain = mean_of_days(differences.to_numpy())
            value = year * gain.value
            low = year * gain.low
            high = year * gain.high
            return {
                "left": told_apart(low, high),
                "left_beside": "equal parts",
                "left_figures": f"{signed_percent(value)} a year [{percent(low)}, {percent(high)}]",
                "left_from": f"paper account, {counted(len(net), 'session')}",
                "left_link": None,
            }

    walk = read_row(
        conn, "ranking_summary", market=market, index_gain=where.stored, order="-read_at"
    )
    if walk is not None:
        return _after_costs_of_study(
            walk,
            beside="equal parts",
            source=f"walk to {walk['last']}",
            link=f"/ranking/{walk['ranking_id']}",
        )

    finished = read_value(
        conn, "backtest", "id", market=market, finished_at=where.stored, order="-finished_at"
    )
    portfolios = read(conn, "backtest_summary", backtest_id=finished, order="portfolio")
    is_tradable = portfolios["portfolio"].str.endswith(TRADABLE)
    worst_first = portfolios[is_tradable].dropna(subset="sharpe").sort_values("sharpe")
    if worst_first.empty:
        return dict.fromkeys(AFTER_COSTS)
    best_portfolio = records(worst_first)[-1]
    last = f"{best_portfolio['last']:%Y-%m-%d}"
    return _after_costs_of_study(
        best_portfolio,
        beside="the index",
        source=f"backtest to {last}, its best portfolio in hindsight",
        link=f"/backtest/{best_portfolio['backtest_id']}",
    )


def _after_costs_of_study(row: Row, *, beside: str, source: str, link: str) -> dict[str, Any]:
    """Return the gain in Sharpe ratio of a stored study over `beside`, in words.

    The gain is the column `index_gain` of both studies; that of a walk is over equal parts of all
    stocks, in spite of its name.
    """
    sharpe_gain = row["index_gain"]
    gain_interval = interval(row, "index_gain")
    return {
        "left": told_apart(row["index_gain_low"], row["index_gain_high"]),
        "left_beside": beside,
        "left_figures": f"Sharpe ratio {sharpe_gain:+.2f} {gain_interval}",
        "left_from": source,
        "left_link": link,
    }
