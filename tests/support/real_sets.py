"""The real sets of prices beside the repository, each judged by the bounds of its exchange."""

from dataclasses import dataclass
from functools import cache

import pandas as pd
import pytest

from dtml.markets import Checks
from dtml.prices.bars import Checked, Returns, bars_frame, check
from dtml.prices.sessions import sessions_between
from tests.support.places import SHARED

needs_real_sets = pytest.mark.skipif(
    not (SHARED / "prices").is_dir(), reason="shared data is not beside this clone"
)


@dataclass(frozen=True)
class RealSet:
    calendar: str
    index: str
    returns: Returns
    max_return: float


SETS = {
    "kdd17": RealSet("XNYS", "GSPC", "adj_close", 0.35),
    "acl18": RealSet("XNYS", "GSPC", "adj_close", 0.35),
    "ndx100": RealSet("XNYS", "NDX", "adj_close", 0.35),
    "sp500": RealSet("XNYS", "GSPC", "adj_close", 0.35),
    "ftse30": RealSet("XLON", "FTSE", "adj_close", 0.35),
    "kospi200_2015": RealSet(
        "XKRX", "KS11", "close", 0.301
    ),  # Seoul's daily limit is 30 %, rounded to the tick
    "kospi200_2020": RealSet("XKRX", "KS11", "close", 0.301),
}
REJECTED = {  # how many bars of each set are rejected, by reason, its index included
    "kdd17": {"unexplained_return": 1},
    "acl18": {"null_price": 3, "unexplained_return": 1},
    "ndx100": {
        "outside_range": 13,
        "unexplained_return": 7,
        "non_positive_price": 1,
        "high_below_low": 1,
    },
    "sp500": {"unexplained_return": 36},
    "ftse30": {"unexplained_return": 2, "outside_range": 1},
    "kospi200_2015": {"stale_day": 633, "brief_jump": 3, "unexplained_return": 13},
    "kospi200_2020": {"non_positive_price": 495, "unexplained_return": 1},
}


def read(folder: str, name: str) -> pd.DataFrame:
    return bars_frame(
        pd.read_parquet(SHARED / folder / f"{name}.parquet").rename(columns={"date": "session"})
    )


@cache
def bars_of(name: str) -> pd.DataFrame:
    return pd.concat([read("prices", name), read("index", SETS[name].index)], ignore_index=True)


def judge(
    bars: pd.DataFrame, calendar: str, returns: Returns, max_return: float, index_symbol: str
) -> Checked:
    first, last = bars["session"].min().date(), bars["session"].max().date()
    return check(
        bars,
        sessions=sessions_between(calendar, first, last),
        closed_until=last,
        checks=Checks(max_return=max_return, max_missing=0.2, stale_share=0.3),
        index_symbol=index_symbol,
        returns=returns,
    )


@cache
def checked(name: str) -> Checked:
    real = SETS[name]
    return judge(
        bars_of(name), real.calendar, real.returns, real.max_return, index_symbol=f"^{real.index}"
    )


def rejected(name: str, reason: str) -> set[tuple[str, str]]:
    """Symbol and date of every bar of a set that was rejected for a reason."""
    rows = checked(name).rejected
    rows = rows[rows["reason"] == reason]
    return set(zip(rows["symbol"], rows["session"].dt.strftime("%Y-%m-%d"), strict=True))
