"""Check the bars that a fetch brought, beside what the store knows of them."""

from datetime import date

import pandas as pd

from db.engine import reading
from db.rows import prices
from dtml.errors import DtmlError
from dtml.prices.alignment import ENOUGH, index_fault
from dtml.prices.bars import BAR_COLUMNS, HINDSIGHT, Checked, check
from dtml.prices.sessions import next_known_session, sessions_between
from flows.nightly.context import MarketContext

REJECTED = ["symbol", "session", "reason", "value"]
# share of a symbol's bars on no session: filled-in holidays make up to .08, a wrong time zone .2
OFF_CALENDAR = 0.1
# Reasons that need a bar before or after: without it, the same bad bar would now pass.
NEEDS_NEIGHBOURS = ("unexplained_return", "stale_day", *HINDSIGHT)
FEW = 100  # symbols with which an index does not come to be judged


def check_bars(context: MarketContext, bars: pd.DataFrame, last: date) -> Checked:
    """Check bars, and reject the first of each symbol again that an earlier fetch rejected.

    That fetch compared it with the bar before it. Here nothing lies before it: it would pass, and
    the next bar would be compared with it.
    """
    checked = _check(context, bars, last)
    set_aside = [checked.rejected[:0]]
    rejected_before = _rejected_before(context, checked.accepted)
    while not rejected_before.empty:
        set_aside.append(rejected_before)
        known_bad = pd.MultiIndex.from_frame(pd.concat(set_aside)[["symbol", "session"]])
        bars = bars[~pd.MultiIndex.from_frame(bars[["symbol", "session"]]).isin(known_bad)]
        checked = _check(context, bars, last)
        rejected_before = _rejected_before(context, checked.accepted)
    rejected = pd.concat([checked.rejected, *set_aside], ignore_index=True)
    return Checked(checked.accepted, rejected)


def _check(context: MarketContext, bars: pd.DataFrame, last: date) -> Checked:
    """Check bars by the rules of the market."""
    market = context.market
    first = last if bars.empty else bars["session"].min().date()
    following = next_known_session(market.calendar, last) or last
    return check(
        bars,
        sessions=sessions_between(market.calendar, first, following),
        closed_until=last,
        checks=market.checks,
        index_symbol=market.index.symbol,
        returns=market.returns,
        market_size=len(market.symbols),
    )


def _rejected_before(context: MarketContext, accepted: pd.DataFrame) -> pd.DataFrame:
    """Return the first accepted bars of symbols that an earlier fetch rejected.

    Columns: symbol, session, reason, value.
    """
    opening = accepted.loc[accepted.groupby("symbol")["session"].idxmin(), ["symbol", "session"]]
    if opening.empty:
        return pd.DataFrame(columns=REJECTED)
    first = opening["session"].min().date()
    last = opening["session"].max().date()
    with reading(context.engine) as conn:
        rejected = prices.rejected_bars(conn, context.name, first, last)
    rejected = rejected[rejected["reason"].isin(NEEDS_NEIGHBOURS)]
    rejected = rejected.drop_duplicates(["symbol", "session"])
    return opening.merge(rejected[REJECTED], on=["symbol", "session"])


def bars_shown_bad(bars: pd.DataFrame, rejected: pd.DataFrame) -> pd.DataFrame:
    """Return the bars that only later ones showed to be bad, as the source has them.

    The column `reason` says why.
    """
    in_hindsight = rejected["reason"].isin(HINDSIGHT)
    reasons = rejected.loc[in_hindsight, ["symbol", "session", "reason"]]
    return bars.merge(reasons, on=["symbol", "session"])


def unadjusted_stocks(context: MarketContext, bars: pd.DataFrame) -> list[str]:
    """Return the stocks without any adjusted close, where the market's returns need one."""
    if context.market.returns == "close":
        return []
    adjusted = bars["adj_close"].notna().groupby(bars["symbol"]).any()
    return sorted(adjusted.index[~adjusted])


def require_sessions(context: MarketContext, bars: pd.DataFrame, rejected: pd.DataFrame) -> None:
    """Raise DtmlError when too many bars of a symbol lie on no session.

    Its dates are shifted, or those of another exchange.
    """
    market = context.market
    off_calendar = rejected[rejected["reason"] == "not_a_session"]
    counts = pd.DataFrame(
        {"bars": bars["symbol"].value_counts(), "off": off_calendar["symbol"].value_counts()}
    )
    wrong = counts[(counts["bars"] >= ENOUGH) & (counts["off"] > OFF_CALENDAR * counts["bars"])]
    if wrong.empty:
        return
    symbol = str(wrong.index[0])
    worst = wrong.iloc[0]
    first = off_calendar.loc[off_calendar["symbol"] == symbol, "session"].min()
    raise DtmlError(
        f"{worst['off']:,.0f} of {worst['bars']:,.0f} bars of {symbol} are on no session of "
        f"{market.calendar}, the first on {first:%A %Y-%m-%d} "
        f"({len(wrong)} symbols affected): use the exchange's own dates; a date with a time zone "
        f"is an instant and is converted to the date in {market.timezone}"
    )


def require_index_in_step(context: MarketContext, accepted: pd.DataFrame) -> None:
    """Raise DtmlError for an index of other dates than its stocks.

    It is judged when enough of its bars come. Where few stocks come with it, the others are read
    from the store.
    """
    index = context.market.index.symbol
    sessions = accepted.loc[accepted["symbol"] == index, "session"]
    if len(sessions) <= ENOUGH:
        return
    known = accepted
    if accepted["symbol"].nunique() <= FEW:
        with reading(context.engine) as conn:
            stored = prices.prices(conn, context.name, sessions.min().date(), sessions.max().date())
        known = pd.concat([accepted, stored[list(BAR_COLUMNS)]])
        known = known.drop_duplicates(["symbol", "session"])
    fault = index_fault(known, index, context.market.returns)
    if fault is not None:
        raise DtmlError(
            f"{fault}; nothing was stored: correct the index, or give its own file with --index"
        )
