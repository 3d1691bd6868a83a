"""A market large enough to tell an audit of a part from one of the whole: 60 stocks, four years."""

from datetime import date

from dtml.lookahead.pipeline import History
from dtml.markets import load_market
from dtml.own.admission import admit, past_of
from dtml.own.code import OwnCode, OwnCodeError
from dtml.own.process import IsolatedCode
from dtml.sources.simulated import SimulatedMarket, SimulatedSource

LAST = date(2023, 12, 29)
LARGE = SimulatedMarket(leaders=20, followers=2, start=date(2020, 1, 2))


def large_market() -> History:
    """The market's whole past, 1,006 sessions."""
    source = SimulatedSource(market=LARGE)
    market = load_market("simulated").with_symbols(LARGE.symbols)
    return past_of(market, source.bars(LAST))


def refusal(text: str, past: History) -> str:
    """Why the audit refuses a file; nothing where it admits it."""
    try:
        found = admit(IsolatedCode(OwnCode("mine.py", text)), past, "next_close")
    except OwnCodeError as error:
        return str(error)
    return "; ".join(each["detail"] for each in found if not each["passed"])
