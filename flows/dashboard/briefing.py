"""What a market's morning begins with: its last night, its ranking, and what changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db import where
from db.read import query, read, read_row, read_value
from db.rows import nights, rankings
from dtml.errors import UsageError
from dtml.evaluation.drift import drift_words
from dtml.evaluation.metrics import MINIMUM_DAYS, told_apart
from dtml.evaluation.ranking import mean_of_days
from dtml.markets.definition import YEAR
from dtml.pages.charts import Sparkline
from dtml.pages.figures import (
    count,
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
from dtml.prices.sessions import sessions_a_year
from flows.dashboard.running import Work, running_night
from flows.markets.files import read_market
from flows.night_facts import NightFacts
from flows.service.timeliness import Timeliness

END_STOCKS = 5  # stocks at each end of a ranking, on the first page
NIGHTS = 125  # of a small chart, at most: half a year
SPAN = timedelta(days=183)  # of as many nights
MOST_NAMED = 3  # markets that are not well, in the heading of the first page
SMALLEST_TRADE = 0.00005  # of the equity: the page shows hundredths of a percent
# Kinds of alerts that are shown elsewhere: as the night's state, as a promotion, as drift.
SHOWN_ELSEWHERE = ("refused", "late", "promoted", "drifted")

ORDER_VERBS = ("buy", "sell", "keep")
TRADABLE = ", next open"  # the end of the name of a portfolio whose trades were possible

Row = Mapping[str, Any]


@dataclass(frozen=True)
class State:
    """Hold how a market's last night stands, for the macro `state`.

    `night` is None before the first night. `work` is the night as a piece of work while it runs.
    `times` are those of the market; on the page of an older night they tell nothing. `hindsight`
    says how many of the market's nights were run after the session that they predict.
    """

    night: Row | None
    work: Work | None
    times: Timeliness
    now: datetime
    hindsight: str

    @property
    def kind(self) -> str:
        """Return "none" (no night), "running", "interrupted", "refused", "late" or "complete"."""
        if self.night is None:
            return "none"
        if self.work is not None:
            return "running" if self.work.is_alive else "interrupted"
        if self.night["status"] not in nights.COMPLETE:
            return str(self.night["status"])
        return "late" if self.times.is_late else "complete"

    @property
    def is_hindsight(self) -> bool:
        """Return whether the night was run after the session that it predicts."""
        if self.night is None or self.night["status"] not in nights.COMPLETE:
            return False
        target = self.night["target"]
        return target is not None and self.night["finished_at"].date() > target

    @property
    def has_opened(self) -> bool:
        """Return whether the session predicted is known to have opened."""
        return self.times.opens_at is not None and self.times.opens_at <= self.now


def state_of_night(
    conn: Connection, market: str, night: Row | None, now: datetime, times: Timeliness | None
) -> State:
    """Return the state of a market's night; `times` are known for its last one."""
    return State(
        night=night,
        work=running_night(conn, night, now)["work"]
        if night is not None and night["status"] == "running"
        else None,
        times=times or Timeliness(market=market),
        now=now,
        hindsight=hindsight(conn, market),
    )


def summary_of_states(states: Mapping[str, State]) -> str:
    """Say in a few words whether the last nights of several markets are well.

    A night that ended after the open is named as late, and one that runs as running; one that was
    late but in time is well. Empty without two markets with a night: the page of a single one says
    it beside its name.
    """
    words = {}
    for market, state in states.items():
        if state.kind == "complete":
            is_too_late = state.times.is_late_end and state.times.is_in_time is False
            words[market] = "late" if is_too_late else ""
        elif state.kind != "none":
            words[market] = state.kind
    if len(words) < 2:
        return ""
    not_well = [f"{market} {word}" for market, word in words.items() if word]
    if not not_well:
        return "all well"
    if len(not_well) > MOST_NAMED:
        return f"{count(len(not_well))} of {count(len(words))} not well"
    others = ", the others well" if len(not_well) < len(words) else ""
    return f"{', '.join(not_well)}{others}"


def caveats(conn: Connection, market: str) -> str:
    """Say what a reader must know before any figure of a market's nights; empty where nothing.

    It is that nights were run too late to trade, and that the prices are simulated.
    """
    night = read_row(conn, "night_log", market=market, order="-as_of")
    source = None if night is None else night["source"]
    sentences = [
        hindsight(conn, market),
        of_source(source),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def hindsight(conn: Connection, market: str, last: date = date.max) -> str:
    """Say how many nights up to `last` were run too late to trade; empty where none was."""
    return hindsight_words(*query(conn, "hindsight", market=market, last=last).iloc[0])


def hindsight_words(complete: int, late: int) -> str:
    """Say that nights were run too late to trade, so that a figure of them is no live record."""
    if not late:
        return ""
    return (
        f"{count(late)} of {count(complete)} nights were run after the session that they predict: "
        "no figure of them is a live record."
    )


def briefing(night: NightFacts, last_alerts: date | None = None) -> dict[str, Any]:
    """Return a complete night's ranking, its orders, how good rankings have been, and what changed.

    `best` and `worst` have END_STOCKS stocks at most, the worst first, and no stock in both.
    `each_weight` is the share of equity of every stock to hold, None where they differ. Alerts of
    later nights, which have no ranking yet, are among the changes up to `last_alerts`.
    """
    ranking = ranking_of_night(night)
    orders = orders_of_night(night, ranking)
    weights = orders.loc[orders["weight"] > 0, "weight"].astype(float)
    are_equal = len(weights) > 0 and weights.max() - weights.min() < SMALLEST_TRADE
    skill = skill_of(night)
    number = min(END_STOCKS, len(ranking) // 2)
    return {
        "ranking": ranking,
        "best": records(ranking.head(number)),
        "worst": records(ranking.iloc[::-1].head(number)),
        "orders": records(orders),
        "order_words": order_words(orders),
        "each_weight": float(weights.mean()) if are_equal else None,
        "skill": skill,
        "skill_line": skill and skill_line(night, ranking["leg"].iloc[0], skill.ranker),
        "changes": changes(night, ranking, last_alerts),
    }


def ranking_of_night(night: NightFacts) -> pd.DataFrame:
    """Return a night's ranking, the best first, with the change of places since the one before.

    Three columns are added to `NightFacts.ranking`: `moved`, the places gained since the night
    before, and `return_before`, the stock's return in the session ranked then, both NaN for a stock
    that was not ranked then; and `bar`, the score on a scale from -1 to 1, on which 0 is the median
    of the stocks, and the stock furthest from it has 1 or -1.
    """
    ranking = night.ranking
    before = night.before.ranking if night.before else ranking.iloc[:0]
    before = before.set_index("symbol")[["place", "realised_return"]].astype(float)
    distance = ranking["score"].astype(float) - ranking["score"].median()
    furthest = distance.abs().max()  # 0 where all scores are equal
    return ranking.assign(
        moved=(ranking["symbol"].map(before["place"]) - ranking["place"]).astype(float),
        bar=distance / furthest if furthest else 0.0,
        return_before=ranking["symbol"].map(before["realised_return"]).astype(float),
    )


def contradicts(place: float, stocks: int, direction: str) -> bool:
    """Return whether a stock of the better half is to fall, or one of the worse half to rise.

    The middle one of an odd number of stocks is of the better half.
    """
    if pd.isna(place):
        return False
    return direction == ("fall" if place <= (stocks + 1) / 2 else "rise")


def orders_of_night(night: NightFacts, ranking: pd.DataFrame) -> pd.DataFrame:
    """Return what the paper account holds from the next open on, and what it trades for that.

    Columns: symbol, weight (the share of equity to hold, 0 for a sale), held (the share held after
    the last open, NaN without), and action: "sell" for a stock to hold no longer, "buy" for one
    that is not held, "keep" for one that the account keeps as it is or whose weight changes by less
    than `SMALLEST_TRADE`, and else "adjust". The orders of each action are in the order of the
    ranking.
    """
    orders = read(night.conn, "paper_order", market=night.market, target=night.target)
    wanted = orders.set_index("symbol")[["weight", "kept"]].astype(float)
    held = pd.Series(name="held", dtype=float)
    if night.before is not None and len(wanted):
        before = read(
            night.conn, "paper_order", market=night.market, target=night.before.target
        ).set_index("symbol")
        held = before["held"].dropna().astype(float)
    changed = wanted.join(held, how="outer").fillna({"weight": 0.0, "kept": 0.0})
    is_unchanged = (changed["weight"] - changed["held"]).abs() < SMALLEST_TRADE
    actions = np.select(
        [changed["weight"] == 0, changed["held"].isna(), (changed["kept"] == 1) | is_unchanged],
        ["sell", "buy", "keep"],
        default="adjust",
    )
    place = ranking.set_index("symbol")["place"]
    in_order = ["buy", "sell", "adjust", "keep"]
    return (
        changed.rename_axis("symbol")
        .reset_index()
        .assign(
            action=pd.Categorical(actions, in_order),
            place=lambda rows: rows["symbol"].map(place).astype(float),
        )
        .sort_values(["action", "place", "weight", "symbol"], ascending=[True, True, False, True])
        .astype({"action": str})
    )


def order_words(orders: pd.DataFrame) -> dict[str, list[str]]:
    """Return the stocks to buy, to sell and to keep; no key without a stock.

    An order that adjusts a holding counts as keeping it.
    """
    verbs = orders["action"].replace("adjust", "keep")
    by_verb = {verb: orders.loc[verbs == verb, "symbol"].tolist() for verb in ORDER_VERBS}
    return {verb: symbols for verb, symbols in by_verb.items() if symbols}


def changes(night: NightFacts, ranking: pd.DataFrame, last: date | None = None) -> list[str]:
    """Return in sentences what changed in a night since the one before.

    These are a promotion, new drift, alerts, a new model, and stocks that are new at the top. For a
    first night all drift is new, and only drift and alerts are told.
    """
    before, champion = night.before, night.champion
    sentences = []
    if before and champion and champion["replaced"] and champion["since"] > before.target:
        sentences.append(f"{promotion_words(champion)}.")
    if night.new_drift:
        sentences.append(drift_words(night.new_drift))
    as_of = where.between(night.as_of, last)
    alerts = read(night.conn, "alert_log", market=night.market, as_of=as_of, order="as_of, kind")
    sentences += [
        f"{alert['kind'].replace('_', ' ')}: {alert['message']}"
        for alert in records(alerts)
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


@dataclass(frozen=True)
class Skill:
    """How good the rankings of the predictor that ranks the stocks have been.

    `score` is the row of its running scores, None before its first ranking has an outcome; `rule`
    is that of the rule with the best rank IC. `since` is the session from which on the interval of
    the rank IC has been above 0.
    """

    ranker: str
    score: Row | None
    rule: Row | None
    since: date | None

    @property
    def verdict(self) -> str | None:
        """Return the words of `told_apart` about the rank IC and 0."""
        if self.score is None:
            return None
        return told_apart(self.score["rank_ic_low"], self.score["rank_ic_high"])


def skill_of(night: NightFacts) -> Skill | None:
    """Return the skill of the predictor that ranks the stocks; None without a ranking."""
    if night.ranking.empty:
        return None
    ranker = str(night.ranking["predictor"].iloc[0])
    scores = night.rank_scores.sort_values("rank_ic")
    score = next(iter(records(scores[scores["predictor"] == ranker])), None)
    rules = records(scores[(scores["is_rule"] == 1) & scores["rank_ic"].notna()])
    since = None
    if score:
        of_ranker = (night.conn, night.market, score["leg"], ranker)
        since, _ = rankings.lasting_skill(*of_ranker, night.target)
    return Skill(ranker, score, rules[-1] if rules else None, since)


@dataclass(frozen=True)
class Gain:
    """What a strategy gained after costs beside a benchmark portfolio.

    `verdict` has the words of `told_apart`, `figures` the gain with its interval; `source` names
    where it comes from, and `link` its page, if there is one.
    """

    verdict: str | None
    beside: str
    figures: str
    source: str
    link: str | None = None


def after_costs(conn: Connection, market: str, paper: pd.DataFrame) -> Gain | None:
    """Return what a strategy gained after costs; None where nothing was tried yet.

    The strategy is the last year of the paper account, if it has MINIMUM_DAYS sessions; else the
    newest walk of rankings; else the newest backtest's portfolio with the best Sharpe ratio among
    those that trade at the next open. `paper` has the rows of `paper_account.paper_returns`.
    """
    net = paper.pivot(index="session", columns="portfolio", values="net").astype(float)
    if len(net) >= MINIMUM_DAYS:
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
    portfolios = read(
        conn, "backtest_summary", backtest_id=finished, sharpe=stored, order="-sharpe, -portfolio"
    )
    tradable = portfolios[portfolios["portfolio"].str.endswith(TRADABLE)]
    for best in records(tradable.head(1)):
        source = f"backtest to {day(best['last'])}, its best portfolio in hindsight"
        return _gain_of_study(best, "the index", source, f"/backtest/{best['backtest_id']}")
    return None


def _gain_of_study(row: Row, beside: str, source: str, link: str) -> Gain:
    """Return the gain in Sharpe ratio of a stored study, its column `index_gain`."""
    verdict = told_apart(row["index_gain_low"], row["index_gain_high"])
    ends = interval(row, "index_gain")
    return Gain(verdict, beside, f"Sharpe ratio {row['index_gain']:+.2f} {ends}", source, link)


def skill_line(night: NightFacts, leg: str, predictor: str) -> Sparkline | None:
    """Return a drawing of the rank IC of a predictor, added up over the nights up to one.

    They are the last NIGHTS nights, of a time of SPAN, at most. Beside the predictor is the rule
    with the best sum. None where the predictor has a rank IC on fewer than two of these nights.
    """
    last = night.target
    rank_ics = query(
        night.conn,
        "night_rank_ics",
        market=night.market,
        leg=leg,
        predictor=predictor,
        first=last - SPAN,
        last=last,
    )
    daily = rank_ics.pivot(index="target", columns="predictor", values="rank_ic").tail(NIGHTS)
    if predictor not in daily or daily[predictor].count() < 2:
        return None
    sums = daily.cumsum()
    totals = daily.drop(columns=predictor).sum()  # of the rules
    shown = [predictor, *([str(totals.idxmax())] if len(totals) else [])]
    ends = [f"{name} {figure(float(sums[name].dropna().iloc[-1]), 2)}" for name in shown]
    words = f"rank IC added up over {counted(len(daily), 'night')}: {', '.join(ends)}"
    return Sparkline(words=words, lines={name: sums[name].to_numpy() for name in shown}, base=0.0)


def account_line(paper: pd.DataFrame) -> Sparkline | None:
    """Return a drawing of the paper account beside equal parts of all stocks, of the last sessions.

    `paper` is the result of `paper_account.paper_returns`. Both lines show the value of 1 that was
    invested at the open of the first of these sessions. None where the account has fewer than two
    sessions.
    """
    net = paper.pivot(index="session", columns="portfolio", values="net").astype(float)
    net = net.tail(NIGHTS)
    if "account" not in net or net["account"].count() < 2:
        return None
    shown = [name for name in ("account", "equal parts") if name in net]
    growth = (1 + net[shown]).cumprod()
    ends = [f"{name} {percent(float(growth[name].dropna().iloc[-1]) - 1)}" for name in shown]
    words = f"{day(net.index[0])} to {day(net.index[-1])}: {', '.join(ends)}"
    return Sparkline(words=words, lines={name: growth[name].to_numpy() for name in shown}, base=1.0)
