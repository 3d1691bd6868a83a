"""What a market's morning begins with: tonight's state, tomorrow's ranking, and what changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db import where
from db.read import query, read, read_row
from db.rows import nights, rankings
from dtml.evaluation.drift import drift_words
from dtml.pages.charts import Sparkline
from dtml.pages.figures import (
    count,
    counted,
    day,
    figure,
    of_source,
    percent,
    records,
)
from dtml.pages.night import promotion_words
from flows.dashboard.running import Work, running_night
from flows.night_facts import NightFacts
from flows.service.timeliness import Timeliness

END_STOCKS = 5  # stocks at each end of a ranking, on the first page
NIGHTS = 125  # of a small chart, at most: half a year
SPAN = timedelta(days=183)  # of as many nights
MOST_NAMED = 3  # markets that are not well, in the heading of the first page
SMALLEST_TRADE = 0.00005  # of the equity: the page shows hundredths of a percent
# Kinds of alerts that are shown elsewhere: as the night's state, as a promotion, as drift.
SHOWN_ELSEWHERE = ("refused", "late", "promoted", "drifted")

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
        hindsight=_hindsight(*query(conn, "hindsight", market=market).iloc[0]),
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
    sentences = [_hindsight(*query(conn, "hindsight", market=market).iloc[0]), of_source(source)]
    return " ".join(sentence for sentence in sentences if sentence)


def _hindsight(complete: int, late: int) -> str:
    """Say that nights were run too late to trade, so that a figure of them is no live record."""
    if not late:
        return ""
    return (
        f"{count(late)} of {count(complete)} nights were run after the session that they predict: "
        "no figure of them is a live record."
    )


class Shown:
    """Remember which rankings are shown: a session is looked up only once for all markets."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._of_target: dict[date, dict[str, tuple[str, str]]] = {}

    def of(self, market: str, target: date) -> tuple[str, str] | None:
        """Return the ranker_id and the predictor of a market's ranking of a session, or None."""
        if target not in self._of_target:
            self._of_target[target] = rankings.shown_rankings(self._conn, target)
        return self._of_target[target].get(market)


def ranking_of_night(night: NightFacts, shown: Shown, ends: int | None = None) -> pd.DataFrame:
    """Return a night's ranking, the best first, with the change of places since the one before.

    With `ends`, the ranking has only so many stocks of each end. There are no rows where no stock
    was ranked.

    The columns are those of `rankings.night_ranking` and three more: `moved`, the places gained
    since the night before, and `return_before`, the stock's return in the session ranked then, both
    NaN for a stock that was not ranked then; and `bar`, the score on a scale from -1 to 1, on which
    0 is the median of the stocks returned, and the stock furthest from it has 1 or -1.
    """
    ranking = rankings.night_ranking(
        night.conn,
        night.market,
        night.target,
        shown=shown.of(night.market, night.target),
        ends=ends,
    )
    earlier = ranking.iloc[:0]  # no rows, with the same columns
    if night.before is not None:
        earlier = rankings.night_ranking(
            night.conn,
            night.market,
            night.before.target,
            shown=shown.of(night.market, night.before.target),
            symbols=None if ends is None else ranking["symbol"].tolist(),
        )
    earlier_place = earlier.set_index("symbol")["place"].astype(float)
    moved = ranking["symbol"].map(earlier_place) - ranking["place"]
    distance = ranking["score"].astype(float) - ranking["score"].median()
    furthest = distance.abs().max()  # 0 where all scores are equal
    return_before = ranking["symbol"].map(earlier.set_index("symbol")["realised_return"])
    return ranking.assign(
        moved=moved.astype(float),
        bar=distance / furthest if furthest else 0.0,
        return_before=return_before.astype(float),
    )


def best_and_worst(ranking: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a ranking's `best` stocks, and of its `worst`, the worst of them first.

    Each list has at most END_STOCKS rows, so a ranking that was read with only so many stocks of
    each end suffices. A ranking with fewer than twice as many stocks is divided in its middle, so
    that no stock is in both lists; the middle one of an odd number is in neither.
    """
    half = len(ranking) // 2
    number = min(END_STOCKS, half)
    return {
        "best": records(ranking.head(number)),
        "worst": records(ranking.iloc[::-1].head(number)),
    }


def with_directions(ranking: pd.DataFrame, directions: pd.DataFrame) -> pd.DataFrame:
    """Return a whole ranking with what the model of the directions says of the same stocks.

    `ranking` must have every stock that was ranked, because its length gives its halves. The
    columns `direction`, `calibrated` and `raw` (the probability before calibration) are missing for
    a stock without a prediction. `disagrees` is true where a stock of the better half (with the
    middle one of an odd number) is predicted to fall, or one of the worse half to rise.
    """
    said = directions.set_index("symbol")
    with_said = ranking.assign(
        direction=ranking["symbol"].map(said["direction"]),
        calibrated=ranking["symbol"].map(said["calibrated"]),
        raw=ranking["symbol"].map(said["probability"]),
    )
    is_better_half = ranking["place"] <= (len(ranking) + 1) / 2
    disagrees = (is_better_half & (with_said["direction"] == "fall")) | (
        ~is_better_half & (with_said["direction"] == "rise")
    )
    return with_said.assign(disagrees=disagrees)


def orders_of_night(night: NightFacts) -> pd.DataFrame:
    """Return what the paper account holds from the next open on, and what it trades for that.

    Columns: symbol, weight (the share of equity to hold, 0 for a sale), held (the share held after
    the last open, NaN without), kept (whether the holding stays as it is), action, and place (of
    the action: 0 buy, 1 sell, 2 adjust, 3 keep). The action is "sell" for a stock to hold no
    longer, "buy" for one that is not held, "keep" for one that is `kept` or whose weight changes by
    less than `SMALLEST_TRADE`, and else "adjust". The rows are sorted by place, then the largest
    weight first. There are no rows where nothing was decided.
    """
    orders = partial(read, night.conn, "paper_order", market=night.market)
    wanted = orders(target=night.target).set_index("symbol")
    if wanted.empty:
        return pd.DataFrame(columns=["symbol", "weight", "held", "kept", "action", "place"])
    held = pd.Series(dtype=float)
    if night.before is not None:
        orders_before = orders(target=night.before.target)
        held = orders_before.set_index("symbol")["held"].dropna().astype(float)
    symbols = [*wanted.index, *held.index.difference(wanted.index)]
    changed = pd.DataFrame(
        {
            "symbol": symbols,
            "weight": wanted["weight"].reindex(symbols).fillna(0.0).to_numpy(),
            "held": held.reindex(symbols).to_numpy(),
            "kept": wanted["kept"].reindex(symbols).fillna(0).to_numpy() == 1,
        }
    )
    is_unchanged = (changed["weight"] - changed["held"]).abs() < SMALLEST_TRADE
    actions = np.select(
        [changed["weight"] == 0, changed["held"].isna(), changed["kept"] | is_unchanged],
        ["sell", "buy", "keep"],
        default="adjust",
    )
    places = {"buy": 0, "sell": 1, "adjust": 2, "keep": 3}
    with_actions = changed.assign(action=actions, place=[places[action] for action in actions])
    return with_actions.sort_values(["place", "weight", "symbol"], ascending=[True, False, True])


def in_order_of(ranking: pd.DataFrame, orders: pd.DataFrame) -> pd.DataFrame:
    """Return the orders of each action in the order of the ranking; stocks without a place last."""
    if ranking.empty or orders.empty:
        return orders
    ranks = orders["symbol"].map(ranking.set_index("symbol")["place"])
    return orders.assign(rank=ranks).sort_values(["place", "rank"], kind="stable")


def order_words(orders: pd.DataFrame) -> dict[str, list[str]]:
    """Return the stocks to buy, to sell and to keep, the best ranked first; no key without a stock.

    An order that adjusts a holding counts as keeping it.
    """
    words = {}
    for verb, actions in (("buy", ["buy"]), ("sell", ["sell"]), ("keep", ["keep", "adjust"])):
        symbols = orders.loc[orders["action"].isin(actions), "symbol"].tolist()
        if symbols:
            words[verb] = symbols
    return words


def order_values(orders: pd.DataFrame) -> dict[str, Any]:
    """Return what a page shows of the orders of a night.

    `orders` has their rows, `order_words` the stocks by what is done with them, and `each_weight`
    the share of equity of every stock to hold, None where they differ.
    """
    return {
        "orders": records(orders),
        "order_words": order_words(orders),
        "each_weight": _weight_of_each(orders),
    }


def _weight_of_each(orders: pd.DataFrame) -> float | None:
    weights = orders.loc[orders["weight"] > 0, "weight"].astype(float)
    if weights.empty or weights.max() - weights.min() >= SMALLEST_TRADE:
        return None
    return float(weights.mean())


def changes(night: NightFacts, ranking: pd.DataFrame, last: date | None = None) -> list[str]:
    """Return in sentences what changed in a night since the one before.

    These are a promotion, new drift, alerts, a new model, and stocks that are new at the top. For a
    first night all drift is new, and only drift and alerts are told. Alerts of later nights, which
    have no ranking yet, are among them up to the night of `last` (None: the newest).
    """
    before = night.before
    champion = night.champion
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
    shown = [predictor]
    if len(totals):
        shown.append(str(totals.idxmax()))
    ends = [f"{name} {figure(float(sums[name].dropna().iloc[-1]), 2)}" for name in shown]
    words = f"rank IC added up over {counted(len(daily), 'night')}: {', '.join(ends)}"
    return Sparkline(words=words, lines=_values(sums, shown), base=0.0)


def account_line(paper: pd.DataFrame) -> Sparkline | None:
    """Return a drawing of the paper account beside equal parts of all stocks, of the last sessions.

    `paper` is the result of `paper_account.paper_returns`. Both lines show the value of 1 that was
    invested at the open of the first of these sessions. None where the account has fewer than two
    sessions.
    """
    if paper.empty:
        return None
    net = paper.pivot(index="session", columns="portfolio", values="net").astype(float)
    net = net.tail(NIGHTS)
    if "account" not in net or net["account"].count() < 2:
        return None
    shown = [name for name in ("account", "equal parts") if name in net]
    growth = (1 + net[shown]).cumprod()
    ends = [f"{name} {percent(float(growth[name].dropna().iloc[-1]) - 1)}" for name in shown]
    words = f"{day(net.index[0])} to {day(net.index[-1])}: {', '.join(ends)}"
    return Sparkline(words=words, lines=_values(growth, shown), base=1.0)


def _values(frame: pd.DataFrame, names: Sequence[str]) -> dict[str, "np.ndarray[Any, Any]"]:
    return {name: frame[name].to_numpy(dtype=float) for name in names}
