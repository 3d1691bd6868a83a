"""What a market's morning begins with: tonight's state, tomorrow's ranking, and what changed."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db import where
from db.read import read, read_row
from db.rows import nights, rankings
from dtml.evaluation.drift import drift_words
from dtml.pages.charts import Sparkline
from dtml.pages.figures import (
    count,
    counted,
    day,
    duration,
    figure,
    moment,
    of_source,
    percent,
    records,
)
from dtml.pages.night import promotion_words
from flows.dashboard.running import running_night
from flows.service.timeliness import TOLERANCE, Timeliness

END_STOCKS = 5  # stocks at each end of a ranking, on the first page
NIGHTS = 125  # of a small chart, at most: half a year
SPAN = timedelta(days=183)  # of as many nights
MOST_NAMED = 3  # markets that are not well, in the heading of the first page
SMALLEST_TRADE = 0.00005  # of the equity: the page shows hundredths of a percent
# Kinds of alerts that are shown elsewhere: as the night's state, as a promotion, as drift.
SHOWN_ELSEWHERE = ("refused", "late", "promoted", "drifted")

Row = Mapping[str, Any]


def state_of_night(
    conn: Connection, night: Row | None, now: datetime, times: Timeliness | None
) -> dict[str, Any]:
    """Return the state of a market's last night, for the macro `state`.

    `kind` is "none" before the first night, "running", "interrupted", "refused", "late" or
    "complete". `work` is the night as a piece of work while it runs, else None. `late` says that a
    night is late, and since when; None where none is. `ended` says how long after it was due the
    night ended, `is_late_end` whether that is late, and `next` when the next one is due. `opens_at`
    is when the session predicted opens, `is_in_time` says whether the night ended before that, and
    `has_opened` whether that has passed. What `times` does not tell, as where it is None, is None,
    False or empty. `hindsight` says how many of the market's nights were run after the session that
    they predict; empty where none was. `is_hindsight` says that this one was.
    """
    if night is None:
        return {
            "kind": "none",
            "night": None,
            "work": None,
            "late": None,
            "ended": "",
            "is_late_end": False,
            "opens_at": None,
            "is_in_time": None,
            "has_opened": False,
            "next": "",
            "hindsight": "",
            "is_hindsight": False,
        }
    late = None if times is None else times.late_message
    kind = night["status"]
    work = None
    if kind == "running":
        work = running_night(conn, night, now)["work"]
        kind = "running" if work.is_alive else "interrupted"
    elif kind in nights.COMPLETE:
        kind = "late" if late else "complete"
    hindsight = _hindsight(*nights.count_hindsight(conn, night["market"]))
    after = _after_due(night, times)
    is_in_time = _is_before_open(night, times)
    opens_at = None if times is None else times.opens_at
    return {
        "kind": kind,
        "night": night,
        "work": work,
        "late": late,
        "ended": _ended(after, is_in_time=is_in_time),
        "is_late_end": after is not None and after >= TOLERANCE,
        "opens_at": opens_at,
        "is_in_time": is_in_time,
        "has_opened": opens_at is not None and opens_at <= now,
        "next": _next(times),
        "hindsight": hindsight,
        "is_hindsight": (
            night["status"] in nights.COMPLETE
            and night["finished_at"] is not None
            and night["target"] is not None
            and night["finished_at"].date() > night["target"]
        ),
    }


def summary_of_states(states: Mapping[str, Mapping[str, Any]]) -> str:
    """Say in a few words whether the last nights of several markets are well.

    `states` are those of `state_of_night`, by market. A night that ended after the open is named
    as late, and one that runs as running; one that was late but in time is well. Empty without two
    markets with a night: the page of a single one says it beside its name.
    """
    words = {}
    for market, state in states.items():
        if state["kind"] == "complete":
            is_too_late = state["is_late_end"] and state["is_in_time"] is False
            words[market] = "late" if is_too_late else ""
        elif state["kind"] != "none":
            words[market] = state["kind"]
    if len(words) < 2:
        return ""
    not_well = [f"{market} {word}" for market, word in words.items() if word]
    if not not_well:
        return "all well"
    if len(not_well) > MOST_NAMED:
        return f"{count(len(not_well))} of {count(len(words))} not well"
    others = ", the others well" if len(not_well) < len(words) else ""
    return f"{', '.join(not_well)}{others}"


def _after_due(night: Row, times: Timeliness | None) -> timedelta | None:
    if times is None or times.scheduled_at is None or night["finished_at"] is None:
        return None
    after: timedelta = night["finished_at"] - times.scheduled_at
    return after


def _is_before_open(night: Row, times: Timeliness | None) -> bool | None:
    """Return whether a night ended before its target session opened; None if not known."""
    if times is None or times.opens_at is None or night["finished_at"] is None:
        return None
    is_before: bool = night["finished_at"] < times.opens_at
    return is_before


def _ended(after: timedelta | None, *, is_in_time: bool | None) -> str:
    """Say how long after its scheduled moment a night ended, from `_after_due`.

    Of a late one it also says whether its orders were `is_in_time` for the open; None is not known.
    """
    if after is None:
        return ""
    if after < timedelta(0):
        return "before it was due"
    if after < TOLERANCE:
        return f"on time, {duration(after.total_seconds())} after it was due"
    opened = {True: " but before the open", False: ", after the open", None: ""}[is_in_time]
    if after < timedelta(days=2):
        return f"{duration(after.total_seconds())} late{opened}"
    return f"{count(after.days)} days late{opened}"


def _next(times: Timeliness | None) -> str:
    if times is None or times.next_run is None or not times.is_nightly:
        return ""
    return f"The next night is due {moment(times.next_run)}."


def caveats(conn: Connection, market: str) -> str:
    """Say what a reader must know before any figure of a market's nights; empty where nothing.

    It is that nights were run too late to trade, and that the prices are simulated.
    """
    night = read_row(conn, "night_log", market=market, order="-as_of")
    source = None if night is None else night["source"]
    sentences = [_hindsight(*nights.count_hindsight(conn, market)), of_source(source)]
    return " ".join(sentence for sentence in sentences if sentence)


def _hindsight(complete: int, late: int) -> str:
    """Say that nights were run too late to trade, so that a figure of them is no live record."""
    if not late:
        return ""
    return (
        f"{count(late)} of {count(complete)} nights were run after the session that they predict: "
        "no figure of them is a live record."
    )


def target_of(night: Row) -> date:
    """Return the session that a night predicts, or the next day if its calendar ended before."""
    target: date | None = night["target"]
    return target or night["as_of"] + timedelta(days=1)


def night_before(conn: Connection, night: Row) -> Row | None:
    """Return the complete night before another one of its market; None for the first."""
    return read_row(
        conn,
        "night_log",
        market=night["market"],
        as_of=where.before(night["as_of"]),
        status=nights.COMPLETE,
        order="-as_of",
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


def ranking_of_night(
    conn: Connection, night: Row, before: Row | None, shown: Shown, ends: int | None = None
) -> pd.DataFrame:
    """Return the ranking of a night, the best first, with the change of places since `before`.

    `before` is the night before it, None for a first night. With `ends`, the ranking has only so
    many stocks of each end. There are no rows where no stock was ranked.

    The columns are those of `rankings.night_ranking` and three more: `moved`, the places gained
    since `before`, and `return_before`, the stock's return in the session ranked then, both NaN for
    a stock that was not ranked then; and `bar`, the score on a scale from -1 to 1, on which 0 is
    the median of the stocks returned, and the stock furthest from it has 1 or -1.
    """
    market = night["market"]
    target = target_of(night)
    ranking = rankings.night_ranking(
        conn, market, target, shown=shown.of(market, target), ends=ends
    )
    earlier = ranking.iloc[:0]  # no rows, with the same columns
    if before is not None:
        target_before = target_of(before)
        earlier = rankings.night_ranking(
            conn,
            market,
            target_before,
            shown=shown.of(market, target_before),
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


def orders_of_night(conn: Connection, night: Row, before: Row | None) -> pd.DataFrame:
    """Return what the paper account holds from the next open on, and what it trades for that.

    Columns: symbol, weight (the share of equity to hold, 0 for a sale), held (the share held after
    the last open, NaN without), kept (whether the holding stays as it is), action, and place (of
    the action: 0 buy, 1 sell, 2 adjust, 3 keep). The action is "sell" for a stock to hold no
    longer, "buy" for one that is not held, "keep" for one that is `kept` or whose weight changes by
    less than `SMALLEST_TRADE`, and else "adjust". The rows are sorted by place, then the largest
    weight first. There are no rows where nothing was decided.
    """
    market = night["market"]
    wanted = read(conn, "paper_order", market=market, target=target_of(night)).set_index("symbol")
    if wanted.empty:
        return pd.DataFrame(columns=["symbol", "weight", "held", "kept", "action", "place"])
    held = pd.Series(dtype=float)
    if before is not None:
        orders_before = read(conn, "paper_order", market=market, target=target_of(before))
        held = orders_before.set_index("symbol")["held"].dropna().astype(float)
    symbols = [*wanted.index, *held.index.difference(wanted.index)]
    orders = pd.DataFrame(
        {
            "symbol": symbols,
            "weight": wanted["weight"].reindex(symbols).fillna(0.0).to_numpy(),
            "held": held.reindex(symbols).to_numpy(),
            "kept": wanted["kept"].reindex(symbols).fillna(0).to_numpy() == 1,
        }
    )
    is_unchanged = (orders["weight"] - orders["held"]).abs() < SMALLEST_TRADE
    actions = np.select(
        [orders["weight"] == 0, orders["held"].isna(), orders["kept"] | is_unchanged],
        ["sell", "buy", "keep"],
        default="adjust",
    )
    places = {"buy": 0, "sell": 1, "adjust": 2, "keep": 3}
    with_actions = orders.assign(action=actions, place=[places[action] for action in actions])
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


def changes(
    conn: Connection,
    night: Row,
    before: Row | None,
    ranking: pd.DataFrame,
    last: date | None = None,
) -> list[str]:
    """Return in sentences what changed in a night since the one `before`.

    These are a promotion, new drift, alerts, a new model, and stocks that are new at the top. For a
    first night, whose `before` is None, all drift is new, and only drift and alerts are told.
    Alerts of later nights, which have no ranking yet, are among them up to the night of `last`
    (None: the newest).
    """
    market = night["market"]
    sentences = []
    champion = rankings.champion(conn, market, night["target"])
    if (
        before is not None
        and champion is not None
        and champion["replaced"]
        and champion["since"] > target_of(before)
    ):
        sentences.append(f"{promotion_words(champion)}.")
    drifted = records(
        nights.new_drift(conn, market, night["as_of"], None if before is None else before["as_of"])
    )
    if drifted:
        sentences.append(drift_words(drifted))
    as_of = where.between(night["as_of"], last)
    alerts = read(conn, "alert_log", market=market, as_of=as_of, order="as_of, kind")
    sentences += [
        f"{alert['kind'].replace('_', ' ')}: {alert['message']}"
        for alert in records(alerts)
        if alert["kind"] not in SHOWN_ELSEWHERE
    ]
    model_before = None if before is None else before["run_id"]
    if night["run_id"] and model_before not in (None, night["run_id"]):
        sentences.append(f"New model: {night['run_id']}.")
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


def skill_line(
    conn: Connection, market: str, leg: str, predictor: str, last: date
) -> Sparkline | None:
    """Return a drawing of the rank IC of a predictor, added up over the nights up to a session.

    They are the last NIGHTS nights, of a time of SPAN, at most. Beside the predictor is the rule
    with the best sum. None where the predictor has a rank IC on fewer than two of these nights.
    """
    rank_ics = rankings.night_rank_ics(conn, market, leg, predictor, last - SPAN, last)
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
