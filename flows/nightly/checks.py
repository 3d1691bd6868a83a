"""Check the bars that a fetch brought, also against what the store knows about them."""

from datetime import date

import pandas as pd
from sqlalchemy import Connection

from db.engine import reading
from db.rows import prices
from dtml.errors import DtmlError
from dtml.prices.actions import doubtful_actions, has_actions
from dtml.prices.alignment import (
    ENOUGH,
    ENOUGH_OF_INDEX,
    RESCALED,
    index_fault,
    judged,
    over_corrected,
    redated_symbols,
    rescaled,
    shifted_stocks,
    twin_stocks,
    unadjusted_again,
)
from dtml.prices.bars import BAR_COLUMNS, HINDSIGHT, Checked, check, no_bars
from dtml.prices.sessions import (
    last_known_day,
    next_known_session,
    sessions_between,
    sessions_up_to,
)
from dtml.sources import Fetched
from flows.markets.files import CALENDARS, settings_place
from flows.nightly.context import MarketContext
from flows.settings import data_folder

REJECTED = ["symbol", "session", "reason", "value"]
# A larger share of a symbol's bars on no session means that its dates are wrong. Holidays that a
# source filled in with bars make up to .08, a wrong time zone makes .2.
OFF_CALENDAR = 0.1
# Bars of a symbol from which its dates can be called shifted. Of fewer, all that lie on no session
# may be holidays that a source filled in.
ENOUGH_TO_SHIFT = 6
# Reasons that need a bar before or after: without it, the same bad bar would now pass.
NEEDS_NEIGHBOURS = ("unexplained_return", "repeated_bar", "stale_day", *HINDSIGHT)
OTHER_UNIT = "other_unit"
# Sessions in which the newest bar of a stock is looked for, to compare it with those of the others.
RECENT = 5
# Where a fetch brings at most so many symbols, the index is judged beside the stored stocks too.
FEW_SYMBOLS = 100


def check_bars(context: MarketContext, bars: pd.DataFrame, last: date, market_size: int) -> Checked:
    """Check bars, and reject a symbol's first bar again if an earlier fetch rejected it.

    The earlier fetch compared such a bar with a neighbour (`NEEDS_NEIGHBOURS`). This fetch begins
    with it, so it would pass, and the next bar would be compared with a bad one. So it is set
    aside, and the other bars are checked again, until every symbol begins with a bar that was not
    so rejected before. The bars set aside are among those rejected, with the earlier reason.
    """
    checked = _check(context, bars, last, market_size)
    set_aside = [checked.rejected[:0]]  # an empty frame with the right columns
    rejected_before = _rejected_before(context, checked.accepted)
    while not rejected_before.empty:
        set_aside.append(rejected_before)
        known_bad = pd.MultiIndex.from_frame(pd.concat(set_aside)[["symbol", "session"]])
        bars = bars[~pd.MultiIndex.from_frame(bars[["symbol", "session"]]).isin(known_bad)]
        checked = _check(context, bars, last, market_size)
        rejected_before = _rejected_before(context, checked.accepted)
    rejected = pd.concat([checked.rejected, *set_aside], ignore_index=True)
    return Checked(checked.accepted, rejected)


def _check(context: MarketContext, bars: pd.DataFrame, last: date, market_size: int) -> Checked:
    """Check bars by the rules of the market."""
    market = context.market
    first = last if bars.empty else bars["session"].min().date()
    # The session after `last` may still be open. The check must know it, to tell a bar of it from a
    # bar on no session.
    following = next_known_session(market.calendar, last) or last
    return check(
        bars,
        sessions=sessions_between(market.calendar, first, following),
        closed_until=last,
        checks=market.checks,
        index_symbol=market.index.symbol,
        returns=market.returns,
        market_size=market_size,
    )


def _rejected_before(context: MarketContext, accepted: pd.DataFrame) -> pd.DataFrame:
    """Return the first accepted bar of each symbol where an earlier fetch rejected that bar.

    Only rejections for one of the reasons in `NEEDS_NEIGHBOURS` count: the other rules judge a bar
    by itself, and this fetch has applied them too. Columns: symbol, session, and the reason and
    value of the earlier rejection.
    """
    first_bars = accepted.loc[accepted.groupby("symbol")["session"].idxmin(), ["symbol", "session"]]
    if first_bars.empty:
        return pd.DataFrame(columns=REJECTED)
    first = first_bars["session"].min().date()
    last = first_bars["session"].max().date()
    with reading(context.engine) as conn:
        rejected = prices.rejected_bars(conn, context.name, first, last)
    rejected = rejected[rejected["reason"].isin(NEEDS_NEIGHBOURS)]
    # A bar that several fetches rejected may have several reasons.
    rejected = rejected.drop_duplicates(["symbol", "session"])
    return first_bars.merge(rejected[REJECTED], on=["symbol", "session"])


def bars_shown_bad(bars: pd.DataFrame, rejected: pd.DataFrame) -> pd.DataFrame:
    """Return the rejected bars that only a later bar showed to be bad, with all their columns.

    An earlier fetch may have accepted and stored them. The column `reason` says what is wrong.
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


def stored_beside(context: MarketContext, bars: pd.DataFrame, last: date) -> pd.DataFrame:
    """Return the stored bars of the symbols of `bars`, from the first session of any to `last`."""
    if bars.empty:
        return no_bars()
    first = bars["session"].min().date()
    symbols = bars["symbol"].unique()
    with reading(context.engine) as conn:
        return prices.prices(conn, context.name, first, last, symbols=symbols)


def without_lost_adjustments(
    context: MarketContext, stored: pd.DataFrame, brought: Fetched
) -> Fetched:
    """Leave out the symbols whose answer lacks the adjusted closes that the store has.

    If their bars were stored, the whole history of such a stock would become unadjusted, and each
    of its dividends a fall. Their outcome is `malformed`, so the next fetch asks for them again. In
    a market whose returns come from the close, nothing is left out.
    """
    symbols = []
    if context.market.returns == "adj_close":
        symbols = unadjusted_again(stored, brought.bars)
    if not symbols:
        return brought
    outcomes = brought.outcomes
    is_left_out = outcomes["symbol"].isin(symbols)
    detail = (
        "no adjusted closes came, though the store has them, so these bars were left out; if they "
        f"are right, store them with `dtml fetch {context.market.name} --again`, with --prices "
        "FILE if the prices come from files"
    )
    return Fetched(
        bars=brought.bars[~brought.bars["symbol"].isin(symbols)].reset_index(drop=True),
        outcomes=outcomes.assign(
            status=outcomes["status"].mask(is_left_out, "malformed"),
            rows=outcomes["rows"].mask(is_left_out, 0),
            detail=outcomes["detail"].mask(is_left_out, outcomes["symbol"] + ": " + detail),
        ),
    )


def bars_of_other_unit(stored: pd.DataFrame, fresh: pd.DataFrame) -> pd.DataFrame:
    """Return as rejected the fresh bars of each symbol whose prices came in another unit.

    Pence that are called pounds are such a unit: without a split, all closes are a power of ten of
    the stored ones, which would all be replaced. Both arguments are bars frames.
    """
    found = rescaled(stored, fresh)
    bars = fresh.merge(found[found["is_unit"]], on="symbol")
    values = [
        f"close={row.close:.7g}; the closes of {row.symbol} are {row.factor:.4g} times the stored "
        "ones, and no split explains that"
        for row in bars.itertuples()
    ]
    return bars[["symbol", "session"]].assign(
        reason=OTHER_UNIT, value=pd.Series(values, index=bars.index, dtype=str)
    )


def same_bars(conn: Connection, context: MarketContext, last: date) -> pd.DataFrame:
    """Return `symbol, reason, value` of the stored stocks that have the bars of another one.

    Only those that share their newest bar up to `last` are compared further.
    """
    calendar = context.market.calendar
    recent = sessions_up_to(calendar, last, RECENT)[0].date()
    newest = prices.prices(conn, context.name, recent, last).groupby("symbol").tail(1)
    shared = newest.loc[newest.duplicated(["session", "close", "volume"], keep=False), "symbol"]
    first = sessions_up_to(calendar, last, ENOUGH + RECENT)[0].date()
    bars = prices.prices(conn, context.name, first, last, symbols=shared)
    return twin_stocks(bars, context.market.index.symbol)


def doubtful_stocks(
    context: MarketContext,
    stored: pd.DataFrame,
    accepted: pd.DataFrame,
    with_index: pd.DataFrame,
    begin: date,
) -> pd.DataFrame:
    """Return `symbol, reason, value` of stocks with doubtful dates, closes or actions.

    `stored` has the stored bars of the sessions fetched. `with_index` has the accepted bars and
    those of the index, which may have come in an earlier part. If few bars of a stock with a new
    action came, its stored ones from `begin` on are added. Adjusted closes are judged only where
    the market's returns come from them.
    """
    market = context.market
    histories = _histories(context, stored[has_actions(stored)], accepted, begin)
    scaled = rescaled(stored, accepted)
    values = [
        f"its closes are {factor:.4g} times those that were stored for the same sessions, and no "
        "split explains that"
        for factor in scaled["factor"]
    ]
    faults = [
        scaled[["symbol"]].assign(reason=RESCALED, value=pd.Series(values, dtype=str)),
        shifted_stocks(with_index, market.index.symbol, market.returns),
        doubtful_actions(histories, market.index.symbol, market.returns),
    ]
    if market.returns == "adj_close":
        faults.append(over_corrected(with_index))
    return pd.concat(faults, ignore_index=True)


def _histories(
    context: MarketContext, known_actions: pd.DataFrame, accepted: pd.DataFrame, begin: date
) -> pd.DataFrame:
    """Return the bars of stocks that come with a history, or with a new split or dividend.

    Of a stock with a new split or dividend, a night fetches only a few bars, too few to tell what
    an ordinary day of the stock looks like. So its earlier bars are added from the store. An action
    is new if the store does not have it; its bar may have been stored without it.
    """
    has_history = accepted["symbol"].isin(judged(accepted))
    key = ["symbol", "session"]
    known_days = pd.MultiIndex.from_frame(known_actions[key])
    is_new = ~pd.MultiIndex.from_frame(accepted[key]).isin(known_days)
    with_new_action = accepted.loc[~has_history & is_new & has_actions(accepted), "symbol"].unique()
    if not len(with_new_action):
        return accepted[has_history]
    new_bars = accepted[accepted["symbol"].isin(with_new_action)]
    last = new_bars["session"].max().date()
    with reading(context.engine) as conn:
        earlier = prices.prices(conn, context.name, begin, last, symbols=with_new_action)
    known = pd.concat([new_bars, earlier[list(BAR_COLUMNS)]])
    known = known.drop_duplicates(key)  # of two, the new one stays
    return pd.concat([accepted[has_history], known], ignore_index=True)


def require_sessions(context: MarketContext, bars: pd.DataFrame) -> None:
    """Raise DtmlError where `fault_of_dates` finds a fault, with what to do."""
    fault = fault_of_dates(context, bars)
    if fault is None:
        return
    market = context.market
    remedy = f"add the sessions that the calendar lacks to {data_folder() / CALENDARS}"
    if market.file is not None:
        remedy = (
            f"correct `calendar` in {settings_place(market)}, or add the sessions that the "
            "calendar lacks there, under [sessions]"
        )
    raise DtmlError(
        f"{fault}; nothing was stored: use the exchange's own dates or, if these dates are right, "
        f"{remedy}; a date with a time of day and a time zone is converted to the date in "
        f"{market.timezone}, unless every time of its column is midnight"
    )


def fault_of_dates(context: MarketContext, bars: pd.DataFrame) -> str | None:
    """Return in words that more than `OFF_CALENDAR` of a symbol's bars lie on no session.

    None if no symbol's do. Dates on no session are shifted, or those of another exchange. For a
    symbol with at least `ENOUGH` bars, the share alone proves it. For one with fewer bars, but at
    least `ENOUGH_TO_SHIFT`, the bars must also fit the sessions better if all are dated a day later
    or earlier. If no symbol is wrong by these rules, all bars are judged together
    (`_shifted_together`).
    """
    if bars.empty:
        return None
    counts = _counts_off_calendar(context, bars)
    is_many = counts["off"] > OFF_CALENDAR * counts["bars"]
    fits_better = counts[["a_day_on", "a_day_back"]].min(axis=1) < counts["off"]
    is_shifted = fits_better & (counts["bars"] >= ENOUGH_TO_SHIFT)
    wrong = counts[is_many & (is_shifted | (counts["bars"] >= ENOUGH))]
    if wrong.empty:
        wrong = _shifted_together(counts)
    if wrong.empty:
        return None
    symbol = str(wrong.index[0])
    counts_of_symbol = wrong.iloc[0]
    return (
        f"{counts_of_symbol['off']:,.0f} of {counts_of_symbol['bars']:,.0f} bars of {symbol} are "
        f"on no session of {context.market.calendar}, the first on "
        f"{counts_of_symbol['first_off']:%A %Y-%m-%d} "
        f"(symbols affected: {len(wrong)}){_better_day_in_words(counts_of_symbol)}"
    )


def _counts_off_calendar(context: MarketContext, bars: pd.DataFrame) -> pd.DataFrame:
    """Count the bars of each symbol that are dated on no session.

    A row a symbol. Columns: `bars`, all of them; `off`, those dated on no session; `a_day_on` and
    `a_day_back`, those that would be on none if every bar were dated a day later, or earlier;
    `first_off`, the first date on no session, missing if there is none.
    """
    calendar = context.market.calendar
    day = pd.Timedelta(days=1)
    known_to = pd.Timestamp(last_known_day(calendar))
    first = bars["session"].min()
    last = min(bars["session"].max() + day, known_to)
    sessions = sessions_between(calendar, first.date(), last.date())
    is_off = {}
    for name, moved in (("off", day * 0), ("a_day_on", day), ("a_day_back", -day)):
        days = bars["session"] + moved
        # Days before all bars or after the calendar's end cannot be judged: they count as sessions.
        is_off[name] = ~days.isin(sessions) & days.between(first, known_to)
    flags = pd.DataFrame(is_off).assign(bars=True)
    counts = flags.groupby(bars["symbol"]).sum()
    dates_off = bars["session"].where(is_off["off"])
    return counts.assign(first_off=dates_off.groupby(bars["symbol"]).min())


def _shifted_together(counts: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `counts` with bars on no session, if the dates of all bars are shifted.

    `counts` are those of `_counts_off_calendar`. The dates are shifted if more than `OFF_CALENDAR`
    of all bars are on no session, and none would be if all were dated a day later, or a day
    earlier. Otherwise no row is returned. This judges symbols together of which each may have too
    few bars to be judged alone.
    """
    total = counts[["bars", "off", "a_day_on", "a_day_back"]].sum()
    fits_when_moved = total[["a_day_on", "a_day_back"]].min() == 0
    is_many = total["off"] > OFF_CALENDAR * total["bars"]
    if fits_when_moved and is_many:
        return counts[counts["off"] > 0]
    return counts[:0]


def _better_day_in_words(counts: pd.Series) -> str:
    """Return in words how many bars would lie on no session if dated a day later or earlier.

    `counts` is a row of `_counts_off_calendar`. The text is empty if that would not be fewer than
    now.
    """
    fewest = min(counts["a_day_on"], counts["a_day_back"])
    if fewest >= counts["off"]:
        return ""
    is_later = counts["a_day_on"] <= counts["a_day_back"]
    side = "later" if is_later else "earlier"
    return f"; dated a day {side}, only {fewest:,.0f} would be"


def require_dates_as_stored(
    context: MarketContext, stored: pd.DataFrame, fresh: pd.DataFrame
) -> None:
    """Raise DtmlError for fresh bars whose closes are stored for the session before or after."""
    redated = redated_symbols(stored, fresh)
    if not redated:
        return
    symbol, shift = next(iter(redated.items()))  # -1: dated a session early, 1: late
    name = f"the index {symbol}" if symbol == context.market.index.symbol else symbol
    side = "early" if shift < 0 else "late"
    neighbour = "next" if shift < 0 else "previous"
    raise DtmlError(
        f"{name} is dated 1 session {side}: its closes are those stored for the {neighbour} "
        f"session (symbols affected: {len(redated)}); nothing was stored: correct the dates or, if "
        f"the stored ones are wrong, replace them with `dtml fetch {context.market.name} --again`, "
        "with --prices FILE if the prices come from files"
    )


def require_index_in_step(context: MarketContext, accepted: pd.DataFrame) -> None:
    """Raise DtmlError where the index is dated early or late, or has the closes of a stock.

    Its dates are compared with those of its stocks (`index_fault`), if more than `ENOUGH_OF_INDEX`
    of its bars were accepted. If at most `FEW_SYMBOLS` symbols came, the stored bars of all symbols
    are compared with it too.
    """
    index = context.market.index.symbol
    sessions = accepted.loc[accepted["symbol"] == index, "session"]
    if len(sessions) <= ENOUGH_OF_INDEX:
        return
    known = accepted
    if accepted["symbol"].nunique() <= FEW_SYMBOLS:
        with reading(context.engine) as conn:
            stored = prices.prices(conn, context.name, sessions.min().date(), sessions.max().date())
        known = pd.concat([accepted, stored[list(BAR_COLUMNS)]])
        known = known.drop_duplicates(["symbol", "session"])  # of two, the accepted one stays
    fault = index_fault(known, index, context.market.returns)
    if fault is not None:
        raise DtmlError(
            f"{fault}; nothing was stored: correct the bars of {index}, or name another index in "
            f"{settings_place(context.market)}; if the prices are files, --index takes a file of "
            "the index alone"
        )
