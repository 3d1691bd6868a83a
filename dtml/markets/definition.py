"""A market: its exchange, its index, its constituents with their dates, and how it is traded.

Its bounds for good bars are part of it. Trading covers costs, which trades are refused, and how the
nights follow a ranking of the stocks.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import date
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from dtml.errors import UsageError
from dtml.markets.columns import Columns
from dtml.markets.feed import FeedAccess

if TYPE_CHECKING:  # a market is read without waiting for pandas
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

# The built-in sources; a market may also name a feed of its user's own.
SourceName = Literal["yahoo", "files", "simulated"]
Universe = Literal["list", "source"]  # whether the market or its source names the stocks
Returns = Literal["adj_close", "close"]  # the price that returns are taken from
ZClose = Literal["raw", "adjusted"]  # the close of the paper's features
# Which stock-days count: those that the paper labels, or all.
LabelProtocol = Literal["published", "all"]
Retrain = Literal["never", "missing"] | int  # when to train; a number is one of sessions
NetworkName = Literal["dtml", "lstm", "alstm", "adv_alstm", "stocknet"]
RelativeName = Literal[
    "dtml_relative",
    "lstm_relative",
    "alstm_relative",
    "adv_alstm_relative",
    "stocknet_relative",
]
RankerName = Literal[
    "ridge",
    "boosting",
    "blend",
    "dtml",
    RelativeName,
    "blend_relative",
    "own",
    "earned",
]
# The leg of a return is the time over which it is measured; `dtml.ranking.outcomes` says from which
# price to which.
Leg = Literal[
    "next_close",
    "overnight",
    "intraday",
    "open_to_open",
    "second_close",
    "five_days",
    "ten_days",
    "twenty_days",
]
# Which features the rankers read; `dtml.ranking.features` has those of each set.
FeatureSet = Literal["usual", "long"]

EARNED = "earned"
# The columns of a bar that can be compared with those of a second source.
COMPARED_FIELDS = ("open", "high", "low", "close", "adj_close", "volume", "dividend", "split")
LABEL_PROTOCOLS: tuple[LabelProtocol, ...] = get_args(LabelProtocol)
LEGS: tuple[Leg, ...] = get_args(Leg)

# The codes of exchange_calendars 4.13; listed here because importing that library takes a second.
# Those with the Orthodox Easter (ASEX, XBEL, XBSE, XCYS) are left out: with pandas 3 it cannot
# build them.
_CODES = """
AIXK BVMF CMES IEPA XAMS XASX XBDA XBKK XBOG XBOM XBRA XBRU XBUD XBUE XCBF XCSE XDUB XDUS XEEE
XETR XEUR XFRA XHAM XHEL XHKG XICE XIDX XIST XJSE XKAR XKLS XKRX XLIM XLIS XLIT XLJU XLON XLUX
XMAD XMEX XMIL XMOS XNAS XNYS XNZE XOSL XPAR XPHS XPRA XRIS XSAU XSES XSGO XSHG XSTO XSTU XSWX
XTAE XTAI XTAL XTKS XTSE XWAR XWBO XZAG 24/5 24/7
"""
CALENDARS = frozenset(_CODES.split())

# The keys of [model], with their types; the configurations that they override check the ranges.
MODEL_KEYS: dict[str, type] = {
    "window": int,
    "hidden": int,
    "heads": int,
    "beta": float,
    "dropout": float,
    "normalisation": str,
    "identity": float,
    "protocol": str,
    "penalty": float,
    "learning_rate": float,
    "epochs": int,
    "first_kept_epoch": int,
    "patience": int,
    "batch_days": int,
    "stocks_a_step": int,
    "seeds": int,
    "train_sessions": int,
    "validation_sessions": int,
    "gap_sessions": int,
    "warm_start": bool,
}

# The levels at which every model has an abstention band: shares of outcomes that are to be covered.
LEVELS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99)

# Letters, digits and the marks that sources use (BRK-B, BT-A.L, M&M.NS, EURUSD=X, ^GSPC, BRK/B, AAA
# US Equity), one mark between two letters or digits. So a symbol can be no path out of a folder, no
# option of a command and no SQL. It is never used as a path all the same.
_SYMBOL = re.compile(r"\^?[A-Za-z0-9]+(?:[.\-&=_/ ][A-Za-z0-9]+)*", re.ASCII)
_LONGEST_SYMBOL = 24
# The same in words, for messages.
SYMBOL_RULE = (
    f"1 to {_LONGEST_SYMBOL} characters: ASCII letters and digits, with single . - & = _ / or "
    "blanks between them, and with ^ in front if you like"
)

BASIS_POINT = 1e-4
YEAR = 252  # sessions, where no calendar is given; see dtml.prices.sessions.sessions_a_year
SMALLEST_LIMIT = 0.01  # of a price in a day: rounding to ticks may exceed a smaller one

Rate = float | tuple[tuple[date, float], ...]  # one for all days, or each from its date on


def is_symbol(text: str) -> bool:
    """Say whether a text may be a symbol, as `SYMBOL_RULE` says in words."""
    return len(text) <= _LONGEST_SYMBOL and _SYMBOL.fullmatch(text) is not None


@dataclass(frozen=True)
class Constituent:
    """A stay of a stock in the index.

    `since` is its first day as a constituent, `until` the first day after the stay. A missing date
    is unknown. A stock that came back has an entry for each stay.
    """

    symbol: str
    source_symbol: str
    name: str | None = None
    sector: str | None = None
    since: date | None = None
    until: date | None = None


@dataclass(frozen=True)
class Index:
    """The index of a market.

    Its bars carry `symbol`; its source uses `source_symbol`. An index `of_constituents` needs no
    source: it is the equal-weight mean of the constituents.
    """

    symbol: str
    source_symbol: str
    name: str
    of_constituents: bool = False


@dataclass(frozen=True)
class Checks:
    """Bounds beyond which bars, or a user's own code, are rejected.

    - max_return: largest believable absolute return of one session with no split recorded, a ratio
      (0.35 is 35 %);
    - max_missing: share of the constituents, in [0, 1), that may lack a good bar before the night
      is refused;
    - stale_share: share of the stocks, in (0, 1]; where so many or more repeat their close at zero
      volume in a session, these bars are rejected;
    - max_rank_ic: rank IC, in (0, 1], above which own code is refused as too good to be true; None
      for .3 or three times that of the market's best one-line rule, whichever is more.
    """

    max_return: float = 0.35
    max_missing: float = 0.2
    stale_share: float = 0.3
    max_rank_ic: float | None = None


def _values(rate: Rate) -> list[float]:
    """Return all values that a rate has, whatever their dates."""
    if isinstance(rate, float | int):
        return [rate]
    return [value for _, value in rate]


def rate_on(rate: Rate, sessions: "pd.DatetimeIndex") -> "npt.NDArray[np.float64]":
    """Return the rate of each session; before the first date, the first rate."""
    import numpy as np

    if isinstance(rate, float | int):
        return np.full(len(sessions), float(rate))
    since = np.array([day for day, _ in rate]).astype("datetime64[D]")  # [dates], ascending
    values = np.array([value for _, value in rate])  # [dates]
    days = sessions.to_numpy().astype("datetime64[D]")
    dates_begun = since.searchsorted(days, side="right")  # dates up to each session; 0 before all
    return np.asarray(values[np.maximum(dates_begun - 1, 0)], dtype=float)


@dataclass(frozen=True)
class Costs:
    """The costs of trading, in basis points, each 0 or more.

    `commission` and `half_spread` (half of the quoted spread between bid and ask) are paid on the
    value of every purchase and of every sale, `purchase_tax` and `sale_tax` only on purchases and
    on sales; `borrow` is paid per year on the value held short.
    """

    commission: Rate = 1.0
    half_spread: Rate = 2.0
    borrow: Rate = 50.0
    purchase_tax: Rate = 0.0
    sale_tax: Rate = 0.0

    def __post_init__(self) -> None:
        for cost in fields(self):
            for value in _values(getattr(self, cost.name)):
                if not 0 <= value < inf:
                    raise UsageError(
                        f"{cost.name} must be a finite number of basis points, 0 or more, got "
                        f"{value}"
                    )

    def of_trades(
        self, sessions: "pd.DatetimeIndex"
    ) -> "tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]":
        """Return the costs of a purchase and of a sale on each session.

        Both are shares of the value traded.
        """
        of_any_trade = rate_on(self.commission, sessions) + rate_on(self.half_spread, sessions)
        of_purchase = of_any_trade + rate_on(self.purchase_tax, sessions)
        of_sale = of_any_trade + rate_on(self.sale_tax, sessions)
        return of_purchase * BASIS_POINT, of_sale * BASIS_POINT

    def of_shorts(self, sessions: "pd.DatetimeIndex", year: int) -> "npt.NDArray[np.float64]":
        """Return the cost of a session, one of `year`, as a share of the value held short."""
        return rate_on(self.borrow, sessions) * BASIS_POINT / year


FREE = Costs(commission=0.0, half_spread=0.0, borrow=0.0)
STANDARD = Costs()


@dataclass(frozen=True)
class Trading:
    """How a market is traded.

    A stock that opens `price_limit` (a ratio; 0.3 is 30 %) above the close before cannot be bought,
    one that opens as far below it cannot be sold; None where the exchange has no such limit. Orders
    are for multiples of `lot` shares. The nights hold the `top` stocks of the ranking, in equal
    parts, or fewer of a short ranking (`dtml.backtest.turnover.targets`): by the mean rank of the
    last `smooth` nights. With a `band` above 1, a stock held is kept while its place is at most
    `band` times their number. `sources` gives the source and the date of each fact.
    """

    costs: Costs = STANDARD
    price_limit: Rate | None = None
    lot: int = 1
    top: int = 20
    smooth: int = 1
    band: float = 1.0
    sources: dict[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for name in ("lot", "top", "smooth", "band"):
            value = getattr(self, name)
            if not value >= 1:  # NaN is refused too
                raise UsageError(f"{name} must be 1 or more, got {value}")
        limits = [] if self.price_limit is None else _values(self.price_limit)
        for limit in limits:
            if not SMALLEST_LIMIT <= limit < inf:
                raise UsageError(
                    f"price_limit must be a finite ratio of {SMALLEST_LIMIT} or more, got {limit}; "
                    "leave it out where the exchange has no such limit"
                )


@dataclass(frozen=True)
class Calendar:
    """An exchange's calendar, with sessions that exchange_calendars lacks or does not have yet.

    - code is one of exchange_calendars;
    - known_to is the last day described: after the last session of the library, each usual weekday
      up to it is a session;
    - holidays are no sessions and extra are sessions, whatever the library says.
    """

    code: str
    known_to: date | None = None
    holidays: tuple[date, ...] = ()
    extra: tuple[date, ...] = ()

    def __str__(self) -> str:
        return self.code


AnyCalendar = str | Calendar


@dataclass(frozen=True)
class SecondSource:
    """Another source of a market's bars, with which the bars that a night stores are compared.

    - source names it; prices and index are the paths that "files" reads;
    - symbols maps each of the market's symbols that it calls otherwise to its own; suffix is
      appended to the symbols of all others (None: it knows the market's symbols or source symbols);
    - fields are the columns of a bar that are compared;
    - price_unit is the value of 1 in its prices, in the market's currency: .01 where it gives
      pence;
    - seconds is the time after which a comparison is given up;
    - columns is what is said of the layout of its files.
    """

    source: SourceName
    prices: Path | None = None
    index: Path | None = None
    symbols: Mapping[str, str] = field(default_factory=dict)
    suffix: str | None = None
    fields: tuple[str, ...] = COMPARED_FIELDS
    price_unit: float = 1.0
    seconds: float = 600.0
    columns: Columns = field(default_factory=Columns)


@dataclass(frozen=True)
class Market:
    """A market as its file describes it.

    - calendar is a code of exchange_calendars, or one with sessions of the market's file;
    - constituents, if empty, are the stocks in the prices that the user names;
    - of_prices says that the constituents are not those of the list, but all stocks in the prices;
    - members is the text of the table that dates the constituents; None where no table does;
    - returns names the price that returns and averages are taken from;
    - z_close says how the feature of that name is computed: "raw" as in the paper, "adjusted" from
      the adjusted close where a split lies between two bars;
    - leg names the time over which the returns are measured by which the nights rank the stocks
      (`dtml.ranking.outcomes`);
    - features names the set of features that the rankers read (`dtml.ranking.features`);
    - ranker names the ranker whose ranking the nights show; "earned" is the champion, the one of
      the candidates that has shown itself the best (`dtml.evaluation.evidence`);
    - retrain says when to train: "never", when a model is "missing", or every so many sessions;
    - level is the share of outcomes, above 0 and below 1, that the night's directions are to cover
      (an abstention band);
    - model overrides settings of the model and of the training;
    - columns is what its file says of the layout of price files;
    - feed is what the process of a source of the user's own is given;
    - second_source is another source, with which each night's bars are compared;
    - code is a user's own features and model;
    - file is the path of a user's own market, with its text.
    """

    name: str
    title: str
    calendar: AnyCalendar
    timezone: str
    currency: str
    index: Index
    constituents: tuple[Constituent, ...] = ()
    constituents_as_of: date | None = None
    constituents_complete: bool = False
    of_prices: bool = False
    members: str | None = field(default=None, compare=False)
    facts: tuple[str, ...] = ()
    source: str = "yahoo"
    checks: Checks = Checks()
    trading: Trading = field(default_factory=Trading)
    returns: Returns = "adj_close"
    z_close: ZClose = "adjusted"
    leg: Leg = "next_close"
    features: FeatureSet = "usual"
    ranker: RankerName = "blend"
    candidates: tuple[RankerName, ...] = ("ridge", "boosting", "blend", "dtml")
    retrain: Retrain = 63
    level: float = 0.8
    model: Mapping[str, object] = field(default_factory=dict)
    columns: Columns = field(default_factory=Columns)
    feed: FeedAccess = field(default_factory=FeedAccess)
    second_source: SecondSource | None = None
    code: Path | None = None
    file: tuple[Path, str] | None = field(default=None, compare=False)

    @property
    def settings(self) -> dict[str, object]:
        """Return all that decides figures once the prices are read, by the names of the fields."""
        settings = asdict(self)
        del settings["columns"]  # they decide only how prices are read
        del settings["feed"]  # as above
        del settings["second_source"]  # it is compared with, and decides nothing
        del settings["code"]  # a path; the text of the file at it decides
        del settings["file"]  # its contents are the other settings
        del settings["of_prices"]  # it is only said: the constituents decide
        del settings["members"]  # the constituents are read from it
        del settings["trading"]["sources"]  # words, which decide nothing
        if self.features == "usual":  # as if the key did not exist: digests stay as they were
            del settings["features"]
        return settings

    @property
    def eligible_rankers(self) -> tuple[RankerName, ...]:
        """Return the rankers of which one ranks the stocks of a night.

        These are the one named, or all candidates.
        """
        if self.ranker == EARNED:
            return self.candidates
        return (self.ranker,)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Return the symbols of all constituents listed, whatever their dates.

        The index is not among them.
        """
        return tuple(dict.fromkeys(stay.symbol for stay in self.constituents))

    def constituents_on(self, day: date) -> tuple[Constituent, ...]:
        """Return the constituents of a day, in the order of the list: `since` <= day < `until`."""
        stays = []
        for stay in self.constituents:
            has_begun = stay.since is None or stay.since <= day
            has_ended = stay.until is not None and stay.until <= day
            if has_begun and not has_ended:
                stays.append(stay)
        return tuple(stays)

    def is_constituent(
        self, days: "pd.DatetimeIndex", stocks: Sequence[str] | None = None
    ) -> "npt.NDArray[np.bool_]":
        """Return which stocks were constituents on each day: [days, stocks].

        The stocks are in the order of `symbols`, or of `stocks`.
        """
        import numpy as np

        dates = days.to_numpy().astype("datetime64[D]")  # [days]
        symbols = self.symbols if stocks is None else stocks
        column = {symbol: position for position, symbol in enumerate(symbols)}
        is_constituent = np.zeros((len(days), len(column)), dtype=bool)
        for stay in self.constituents:
            if stay.symbol not in column:  # it is not among `stocks`
                continue
            since = np.datetime64(stay.since or date.min)
            until = np.datetime64(stay.until or date.max)
            # A stock that came back is one in any of its stays.
            is_constituent[:, column[stay.symbol]] |= (since <= dates) & (dates < until)
        return is_constituent

    @property
    def is_snapshot(self) -> bool:
        """Return whether the list gives no dates for its constituents.

        The constituents of one day then stand for all days.
        """
        return all(stay.since is None and stay.until is None for stay in self.constituents)

    def with_symbols(self, symbols: Iterable[str]) -> "Market":
        """Return the same market with these symbols alone as constituents, in the order given.

        A stock that the market lists keeps its stays and their details; any other is a constituent
        without dates. The symbol of the index is left out. Raises UsageError for a symbol that is
        invalid or given twice.
        """
        listed: dict[str, list[Constituent]] = {}
        for stay in self.constituents:
            listed.setdefault(stay.symbol, []).append(stay)
        stock_symbols = [symbol for symbol in symbols if symbol != self.index.symbol]
        for symbol, times in Counter(stock_symbols).items():
            if not is_symbol(symbol):
                raise UsageError(
                    f"market {self.name}: {symbol!r} is not a valid symbol; rename it at its "
                    f"source: use {SYMBOL_RULE}"
                )
            if times > 1:
                raise UsageError(
                    f"market {self.name}: its source lists the symbol {symbol!r} {times} times; "
                    "list it once there"
                )
        stays: list[Constituent] = []
        for symbol in stock_symbols:
            unlisted = Constituent(symbol=symbol, source_symbol=symbol)
            stays.extend(listed.get(symbol, [unlisted]))
        return replace(self, constituents=tuple(stays))
