"""A market: its exchange, its index, its constituents with their dates, and how it is traded.

Its bounds for good bars are part of it. Trading covers costs, which trades are refused, and how the
nights follow a ranking of the stocks.
"""

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, date, datetime
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from dtml.errors import UsageError
from dtml.markets.table import Table

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import numpy as np
    import numpy.typing as npt
    import pandas as pd

COLUMN_NAMES = (
    "date",
    "symbol",
    "open",
    "high",
    "low",
    "close",
    "adj_close",
    "volume",
    "dividend",
    "split",
)
LAYOUT_KEYS = (
    "date_format",
    "volume_unit",
    "separator",
    "decimal",
    "thousands",
    "encoding",
    "skip_rows",
)
# Besides strptime's formats of dates: days as Excel counts them, and units of time since 1970 in
# UTC, each with its nanoseconds.
EXCEL = "excel"
UNITS = {"seconds": 1_000_000_000, "milliseconds": 1_000_000, "nanoseconds": 1}


@dataclass(frozen=True)
class Columns:
    """What a market's file says of the layout of its price files.

    What it does not say, None here, is recognised from the price files themselves.

    - headers: for those of `COLUMN_NAMES` that are given, its header in the price file;
    - date_format: such as "%d.%m.%Y", as Python's strptime reads it, `EXCEL` or one of `UNITS`;
    - volume_unit: shares in a unit of volume, above 0;
    - separator, decimal and thousands: one character each;
    - encoding: the name of a codec, such as cp949;
    - skip_rows: lines above the header, 0 or more.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    date_format: str | None = None
    volume_unit: float | None = None
    separator: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    encoding: str | None = None
    skip_rows: int = 0


def read_columns(table: Table) -> Columns:
    """Read the table [columns] of a market's file; a mistake raises UsageError with its key."""
    table.allow(*COLUMN_NAMES, *LAYOUT_KEYS)
    volume_unit = table.optional("volume_unit", float, None)
    if volume_unit is not None and not 0 < volume_unit < float("inf"):
        raise table.error("volume_unit", f"expected a finite number above 0, got {volume_unit}")
    skip_rows = table.optional("skip_rows", int, 0)
    if skip_rows < 0:
        raise table.error("skip_rows", f"expected 0 lines or more, got {skip_rows}")
    decimal = _character(table, "decimal")
    thousands = _character(table, "thousands")
    if decimal is not None and decimal == thousands:
        raise table.error(
            "thousands", f"{thousands!r} is also the decimal mark; correct decimal or thousands"
        )
    return Columns(
        headers={name: table.typed(name, str) for name in COLUMN_NAMES if name in table.values},
        date_format=_date_format(table),
        volume_unit=volume_unit,
        separator=_character(table, "separator"),
        decimal=decimal,
        thousands=thousands,
        encoding=_encoding(table),
        skip_rows=skip_rows,
    )


def _date_format(table: Table) -> str | None:
    """Return the format of dates; UsageError for one that does not read a whole date."""
    written = table.optional("date_format", str, None)
    if written is None or written == EXCEL or written in UNITS:
        return written
    sample = datetime(2026, 11, 24, tzinfo=UTC)
    with warnings.catch_warnings():
        # From Python 3.14 on, strptime warns of a format without a year.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            read = datetime.strptime(sample.strftime(written), written)  # noqa: DTZ007 - a date
        except (ValueError, DeprecationWarning):  # also a directive that strptime does not know
            read = None
    if read is None or read.date() != sample.date():
        others = ", ".join([EXCEL, *UNITS])
        raise table.error(
            "date_format",
            'expected a format of Python\'s strptime with day, month and year such as "%d.%m.%Y", '
            f"or one of {others}, got {written!r}",
        )
    return written


def _character(table: Table, key: str) -> str | None:
    """Return a mark of one character, None where the key is missing.

    It is not read as other texts are, which must be printable: a tab or a blank is a mark.
    """
    if key not in table.values:
        return None
    value = table.values[key]
    # A line end or a quote has a meaning of its own in a CSV.
    if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in '\r\n"':
        raise table.error(
            key,
            f"expected one ASCII character such as ',' or ';', no quote and no line end, got "
            f"{value!r}",
        )
    return value


def _encoding(table: Table) -> str | None:
    name = table.optional("encoding", str, None)
    if name is None:
        return None
    try:
        "a".encode(name)  # raises for an unknown name, and for a codec that encodes no text
    except (LookupError, ValueError) as problem:
        raise table.error(
            "encoding", f"unknown encoding {name!r}; give one such as cp949"
        ) from problem
    return name


FILE_SUFFIX = ".py"
GROUP = "dtml.sources"  # of the entry points by which installed packages offer feeds
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class FeedAccess:
    """What the process of a feed is given beyond the network.

    - environment: names of environment variables, such as that of an API key.
    """

    environment: tuple[str, ...] = ()


def is_feed_file(source: str) -> bool:
    """Return whether the name of a source is the path of a Python file."""
    return source.endswith(FILE_SUFFIX)


def installed_feeds() -> dict[str, "EntryPoint"]:
    """Return the entry points of `GROUP` by name; none of them is imported."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP)}


def read_source(table: Table, built_in: Iterable[str], default: str) -> str:
    """Return the key `source`: a built-in source, an installed feed, or the path of a file.

    Whether the file exists is seen when it is opened. Raises UsageError for any other name.
    """
    known = sorted(built_in)
    name = table.optional("source", str, default)
    if name in known or is_feed_file(name):
        return name
    try:
        return table.choice("source", [*known, *installed_feeds()])
    except UsageError as problem:
        raise UsageError(f"{problem}, or a file of your own such as mine.py") from problem


def read_feed(table: Table) -> FeedAccess:
    """Read the table [feed]; a mistake raises UsageError with its key."""
    table.allow("environment")
    names = table.texts("environment")
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise table.error(
                "environment",
                f"{name!r} cannot be the name of an environment variable; give one such as "
                "VENDOR_KEY",
            )
    return FeedAccess(environment=names)


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
