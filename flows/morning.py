"""What a market's morning begins with: its ranking, its orders, its skill, and what changed."""

from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from itertools import islice
from operator import itemgetter

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db import where
from db.read import query, read_row, read_rows, read_value
from db.rows import paper_account, rankings
from dtml.errors import UsageError
from dtml.evaluation.drift import drift_words
from dtml.evaluation.metrics import MINIMUM_DAYS, told_apart
from dtml.evaluation.ranking import mean_of_days
from dtml.markets.definition import YEAR
from dtml.pages.charts import Chart, sparkline
from dtml.pages.figures import (
    Row,
    counted,
    day,
    figure,
    interval,
    of_source,
    percent,
    records,
    signed_percent,
)
from dtml.pages.night import promotion_words
from dtml.pages.rendering import apart, said
from dtml.prices.sessions import sessions_a_year
from flows.markets.files import read_market
from flows.night_facts import NightFacts

END_STOCKS = 5  # stocks at each end of a ranking
NIGHTS = 125  # of a small chart, at most: half a year
SPAN = timedelta(days=183)  # of as many nights
SMALLEST_TRADE = 0.00005  # of the equity: the page shows hundredths of a percent
ACTIONS = ("buy", "sell", "adjust", "keep")  # in the order in which orders are shown
# Kinds of alerts that are shown elsewhere: as the night's state, as a promotion, as drift.
SHOWN_ELSEWHERE = ("refused", "late", "promoted", "drifted")
TRADABLE = ", next open"  # the end of the name of a portfolio whose trades were possible


@dataclass(frozen=True)
class Skill:
    """How good the rankings of the predictor that ranks the stocks have been.

    `score` is its running scores, or None; `rule` those of the rule with the best rank IC; `since`
    the session since which the rank IC's interval is above 0.
    """

    ranker: str
    score: Row | None
    rule: Row | None
    since: date | None


@dataclass(frozen=True)
class Gain:
    """What a strategy gained after costs beside a benchmark portfolio.

    `verdict`: the words of `told_apart`; `figures`: the gain with its interval; `source` and its
    page.
    """

    verdict: str | None
    beside: str
    figures: str
    source: str
    link: str | None = None


@dataclass(frozen=True)
class Morning:
    """A night's ranking, its orders, how good rankings have been, and what changed.

    `ranking_of_night`, `orders_of_night`, both empty without a complete night, and
    `paper_account.paper_returns`. Of the complete `nights`, `late` ones were too late to trade.
    """

    ranking: pd.DataFrame
    orders: list[Row]
    skill: Skill | None
    skill_line: Chart | None
    changes: list[str]
    paper: pd.DataFrame
    costs: Gain | None
    nights: int
    late: int

    @cached_property
    def best(self) -> list[Row]:
        """Return the best END_STOCKS stocks, or the better half of fewer, the best first."""
        return records(self.ranking.head(min(END_STOCKS, len(self.ranking) // 2)))

    @cached_property
    def worst(self) -> list[Row]:
        """Return as many of the worst stocks, the worst first."""
        return records(self.ranking.tail(len(self.best))[::-1])

    @property
    def order_words(self) -> dict[str, list[str]]:
        """Return the stocks to buy, to sell and to keep, adjusted or not; no key without one."""
        words: dict[str, list[str]] = {}
        for order in self.orders:
            words.setdefault(order["action"].replace("adjust", "keep"), []).append(order["symbol"])
        return words

    @property
    def each_weight(self) -> float | None:
        """Return the share of equity of every stock to hold; None where they differ."""
        weights = [order["weight"] for order in self.orders if order["weight"]]
        are_equal = weights and max(weights) - min(weights) < SMALLEST_TRADE
        return float(np.mean(weights)) if are_equal else None

    @property
    def account_line(self) -> Chart | None:
        """Draw what 1 invested NIGHTS sessions ago became in the paper account and in equal parts.

        None where the account has fewer than two sessions.
        """
        if self.paper["session"].nunique() < 2:
            return None
        net = self.paper.pivot(index="session", columns="portfolio", values="net").astype(float)
        growth = (1 + net[["account", "equal parts"]].tail(NIGHTS)).cumprod()
        ends = [f"{name} {percent(line.dropna().iloc[-1] - 1)}" for name, line in growth.items()]
        words = f"{day(growth.index[0])} to {day(growth.index[-1])}: {', '.join(ends)}"
        return sparkline(words, growth, base=1.0)


def morning(
    conn: Connection, market: str, night: NightFacts | None, last_alerts: date | None = None
) -> Morning:
    """Return what a complete night says, and alerts of later nights up to `last_alerts`."""
    last = night.as_of if night else date.max
    paper = paper_account.paper_returns(conn, market, last)
    costs = after_costs(conn, market, paper)
    nights, late = hindsight(conn, market, last)
    if night is None:
        return Morning(pd.DataFrame(), [], None, None, [], paper, costs, nights, late)
    ranking = ranking_of_night(night)
    skill = skill_of(night)
    return Morning(
        ranking=ranking,
        orders=records(orders_of_night(night, ranking)),
        skill=skill,
        skill_line=skill_line(night, ranking["leg"].iloc[0], skill.ranker) if skill else None,
        changes=changes(night, ranking, last_alerts),
        paper=paper,
        costs=costs,
        nights=nights,
        late=late,
    )


def ranking_of_night(night: NightFacts) -> pd.DataFrame:
    """Return a night's ranking, the best first, with three more columns.

    `moved`: places gained since the night before; `return_before`: the return in the session ranked
    then; both NaN if not ranked then. `bar`: the score on a scale on which 0 is the median, and the
    furthest stock 1 or -1.
    """
    ranking = night.ranking
    columns = "symbol, place, realised_return"
    last = night.before.target if night.before else date.min
    before = rankings.night_ranking(night.conn, night.market, last, columns).set_index("symbol")
    before = before.reindex(ranking["symbol"]).set_index(ranking.index)
    distance = ranking["score"] - ranking["score"].median()
    furthest = distance.abs().max()  # 0 where all scores are equal
    return ranking.assign(
        moved=(before["place"] - ranking["place"]).astype(float),
        bar=distance / furthest if furthest else 0.0,
        return_before=before["realised_return"],
    )


def contradicts(place: float, stocks: int, direction: str) -> bool:
    """Return whether a better (or the middle) stock is to fall, or a worse one to rise."""
    if pd.isna(place):
        return False
    return direction == ("fall" if place <= (stocks + 1) / 2 else "rise")


def orders_of_night(night: NightFacts, ranking: pd.DataFrame) -> pd.DataFrame:
    """Return the query `night_orders` by ACTIONS, those of each in the order of the ranking."""
    orders = query(
        night.conn,
        "night_orders",
        market=night.market,
        target=night.target,
        before=night.before.target if night.before else None,
        smallest=SMALLEST_TRADE,
    )
    return orders.assign(
        step=orders["action"].map(ACTIONS.index),
        place=orders["symbol"].map(ranking.set_index("symbol")["place"]),
    ).sort_values(["step", "place", "weight", "symbol"], ascending=[True, True, False, True])


def changes(night: NightFacts, ranking: pd.DataFrame, last: date | None = None) -> list[str]:
    """Return in sentences what changed since the night before.

    A promotion, new drift, alerts, a new model, stocks new at the top; of a first night, drift and
    alerts.
    """
    before, champion = night.before, night.champion
    sentences = []
    if before and champion and champion["replaced"] and champion["since"] > before.target:
        sentences.append(f"{promotion_words(champion)}.")
    if night.new_drift:
        sentences.append(drift_words(night.new_drift))
    as_of = where.between(night.as_of, last)
    alerts = read_rows(
        night.conn, "alert_log", market=night.market, as_of=as_of, order="as_of, kind"
    )
    sentences += [
        f"{alert['kind'].replace('_', ' ')}: {alert['message']}"
        for alert in alerts
        if alert["kind"] not in SHOWN_ELSEWHERE
    ]
    run_id = night.row["run_id"]
    if run_id and before and before.row["run_id"] not in (None, run_id):
        sentences.append(f"New model: {run_id}.")
    top = ranking.head(END_STOCKS)
    place_before = top["place"] + top["moved"]  # NaN if it was not ranked the night before
    new_at_top: list[str] = top.loc[place_before > END_STOCKS, "symbol"].tolist()
    if len(new_at_top) == END_STOCKS:
        sentences.append(
            f"The best {END_STOCKS} were all outside the best {END_STOCKS} the night before."
        )
    elif new_at_top:
        sentences.append(f"New among the best {END_STOCKS}: {', '.join(new_at_top)}.")
    return sentences


def skill_of(night: NightFacts) -> Skill | None:
    """Return the skill of the predictor that ranks the stocks; None without a ranking."""
    if night.ranking.empty:
        return None
    ranker, leg = night.ranking[["predictor", "leg"]].iloc[0]
    scores = [row for row in night.rank_scores if row["leg"] == leg]
    rules = [row for row in scores if row["is_rule"] and row["rank_ic"] is not None]
    score = next((row for row in scores if row["predictor"] == ranker), None)
    return Skill(
        ranker=ranker,
        score=score,
        rule=max(rules, key=itemgetter("rank_ic"), default=None),
        since=rankings.lasting_skill(night.conn, night.market, leg, ranker, night.target),
    )


def after_costs(conn: Connection, market: str, paper: pd.DataFrame) -> Gain | None:
    """Return what a strategy gained after costs; None where nothing was tried yet.

    The last year of the paper account, from MINIMUM_DAYS sessions on; else the newest walk of
    rankings; else the newest backtest's best Sharpe ratio traded at the next open.
    """
    if paper["session"].nunique() >= MINIMUM_DAYS:
        net = paper.pivot(index="session", columns="portfolio", values="net").astype(float)
        try:
            year = sessions_a_year(read_market(market).calendar)
        except UsageError:  # no file defines the market any more
            year = YEAR
        net = net.tail(year)
        gain = mean_of_days((net["account"] - net["equal parts"]).to_numpy())
        low, high = year * gain.low, year * gain.high
        return Gain(
            verdict=told_apart(low, high),
            beside="equal parts",
            figures=f"{signed_percent(year * gain.value)} a year [{percent(low)}, {percent(high)}]",
            source=f"paper account, {counted(len(net), 'session')}",
        )
    stored = where.stored
    walk = read_row(conn, "ranking_summary", market=market, index_gain=stored, order="-read_at")
    if walk is not None:  # in spite of its name, the gain of a walk is over equal parts
        link = f"/ranking/{walk['ranking_id']}"
        return _gain_of_study(walk, "equal parts", f"walk to {walk['last']}", link)
    finished = read_value(
        conn, "backtest", "id", market=market, finished_at=stored, order="-finished_at"
    )
    portfolios = read_rows(
        conn, "backtest_summary", backtest_id=finished, sharpe=stored, order="-sharpe, -portfolio"
    )
    traded = (row for row in portfolios if row["portfolio"].endswith(TRADABLE))
    for best in islice(traded, 1):
        source = f"backtest to {day(best['last'])}, its best portfolio in hindsight"
        return _gain_of_study(best, "the index", source, f"/backtest/{best['backtest_id']}")
    return None


def _gain_of_study(row: Row, beside: str, source: str, link: str) -> Gain:
    """Return the gain in Sharpe ratio of a stored study, its column `index_gain`."""
    figures = f"Sharpe ratio {row['index_gain']:+.2f} {interval(row, 'index_gain')}"
    return Gain(apart(row, "index_gain"), beside, figures, source, link)


def skill_line(night: NightFacts, leg: str, predictor: str) -> Chart | None:
    """Draw the running sum of a predictor's rank IC over NIGHTS nights, and of the best rule's.

    The nights lie within SPAN. None where the predictor has fewer than two rank ICs in them.
    """
    rank_ics = query(
        night.conn,
        "night_rank_ics",
        market=night.market,
        leg=leg,
        predictor=predictor,
        first=night.target - SPAN,
        last=night.target,
    )
    daily = rank_ics.pivot(index="target", columns="predictor", values="rank_ic").tail(NIGHTS)
    if predictor not in daily or daily[predictor].count() < 2:
        return None
    best_rule = daily.drop(columns=predictor).sum().nlargest(1).index
    sums = daily.cumsum()[[predictor, *best_rule]]
    ends = [f"{name} {figure(line.dropna().iloc[-1], 2)}" for name, line in sums.items()]
    words = f"rank IC added up over {counted(len(daily), 'night')}: {', '.join(ends)}"
    return sparkline(words, sums, base=0.0)


def caveats(conn: Connection, market: str) -> str:
    """Say that nights were too late to trade, and that prices are simulated, if so."""
    source = read_value(conn, "night_log", "source", market=market, order="-as_of")
    return f"{said('hindsight', *hindsight(conn, market))} {of_source(source)}".strip()


def hindsight(conn: Connection, market: str, last: date = date.max) -> tuple[int, int]:
    """Return the number of complete nights up to `last`, and of those run too late to trade."""
    complete, late = query(conn, "hindsight", market=market, last=last).iloc[0]
    return int(complete), int(late)
