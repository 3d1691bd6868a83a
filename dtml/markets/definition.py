"""A market: its exchange, its index, its constituents with their dates, and how it is traded.

A class is a table of its file, with types, ranges and defaults, from which the table of keys in
`dtml/README.md` is made.
"""

import re
import warnings
import zoneinfo
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, field, fields, replace
from datetime import UTC, date, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    Strict,
    TypeAdapter,
    ValidationInfo,
    model_validator,
)
from pydantic.dataclasses import dataclass

from dtml.errors import UsageError
from translation.definitions import (
    STRICT,
    Count,
    Day,
    Definition,
    DefinitionError,
    FilePath,
    Flag,
    Number,
    Positive,
    Text,
    Whole,
    must,
    nearest,
    one_of,
    refuse_unknown,
    shown,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import numpy as np
    import numpy.typing as npt
    import pandas as pd

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

# The levels at which every model has an abstention band: shares of outcomes that are to be covered.
LEVELS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99)
BASIS_POINT = 1e-4
YEAR = 252  # sessions, where no calendar is given; see dtml.prices.sessions.sessions_a_year
SMALLEST_LIMIT = 0.01  # of a price in a day: rounding to ticks may exceed a smaller one
LONGEST_COMPARISON = 6 * 3600  # seconds; a night must end before the next session

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


def is_symbol(text: str) -> bool:
    """Say whether a text may be a symbol, as `SYMBOL_RULE` says in words."""
    return len(text) <= _LONGEST_SYMBOL and _SYMBOL.fullmatch(text) is not None


_is_currency = re.compile("[A-Z]{3}").fullmatch


def _is_timezone(name: str) -> bool:
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _ascending(days: Sequence[date]) -> Sequence[date]:
    for before, day in pairwise(days):
        if day <= before:
            raise ValueError(
                f"{day} is listed after {before}; list each date once, the earliest first"
            )
    return days


Symbol = Annotated[str, Strict(), must(is_symbol, f"a symbol: {SYMBOL_RULE}")]
CalendarCode = Annotated[str, Strict(), one_of(CALENDARS)]
Days = Annotated[tuple[Day, ...], AfterValidator(_ascending)]

# The built-in sources; a market may also name a feed of its user's own.
SourceName = Literal["yahoo", "files", "simulated"]
Universe = Literal["list", "source"]  # whether the market or its source names the stocks
Returns = Literal["adj_close", "close"]  # the price that returns are taken from
ZClose = Literal["raw", "adjusted"]  # the close of the paper's features
# Which stock-days count: those that the paper labels, or all.
LabelProtocol = Literal["published", "all"]
NetworkName = Literal["dtml", "lstm", "alstm", "adv_alstm", "stocknet"]
RelativeName = Literal[
    "dtml_relative",
    "lstm_relative",
    "alstm_relative",
    "adv_alstm_relative",
    "stocknet_relative",
]
Candidate = Literal["ridge", "boosting", "blend", "dtml", RelativeName, "blend_relative", "own"]
RankerName = Literal[Candidate, "earned"]
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
ComparedField = Literal["open", "high", "low", "close", "adj_close", "volume", "dividend", "split"]

# When to train; a number is one of sessions.
Retrain = Literal["never", "missing"] | Count

Level = Annotated[Number, must(LEVELS.__contains__, f"one of {', '.join(map(str, LEVELS))}")]

EARNED = "earned"
COMPARED_FIELDS: tuple[ComparedField, ...] = get_args(ComparedField)
LABEL_PROTOCOLS: tuple[LabelProtocol, ...] = get_args(LabelProtocol)
LEGS: tuple[Leg, ...] = get_args(Leg)

# Besides strptime's formats of dates: days as Excel counts them, and units of time since 1970 in
# UTC, each with its nanoseconds.
EXCEL = "excel"
UNITS = {"seconds": 1_000_000_000, "milliseconds": 1_000_000, "nanoseconds": 1}
COLUMN_NAMES = ("date", "symbol", *COMPARED_FIELDS)


def _is_date_format(written: str) -> bool:
    if written == EXCEL or written in UNITS:
        return True
    sample = datetime(2026, 11, 24, tzinfo=UTC)
    with warnings.catch_warnings():
        # From Python 3.14 on, strptime warns of a format without a year.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            read = datetime.strptime(sample.strftime(written), written)  # noqa: DTZ007 - a date
        except (ValueError, DeprecationWarning):  # also a directive that strptime does not know
            return False
    return read.date() == sample.date()


def _is_encoding(name: str) -> bool:
    try:
        "a".encode(name)  # raises for an unknown name, and for a codec that encodes no text
    except (LookupError, ValueError):
        return False
    return True


DateFormat = Annotated[
    Text,
    must(
        _is_date_format,
        'a format of Python\'s strptime with day, month and year such as "%d.%m.%Y", or one of '
        f"{', '.join([EXCEL, *UNITS])}",
    ),
]
# A line end or a quote has a meaning of its own in a CSV.
Mark = Annotated[
    str,
    Strict(),
    must(
        lambda text: len(text) == 1 and text.isascii() and text not in '\r\n"',
        "one ASCII character such as ',' or ';', no quote and no line end",
    ),
]


@dataclass(frozen=True, config=STRICT)
class Columns(Definition):
    """The layout of price files. What it does not say is recognised from the files themselves."""

    date: Text | None = None
    """The header of the dates; the keys below are those of the other columns."""
    symbol: Text | None = None
    open: Text | None = None
    high: Text | None = None
    low: Text | None = None
    close: Text | None = None
    adj_close: Text | None = None
    volume: Text | None = None
    dividend: Text | None = None
    split: Text | None = None
    date_format: DateFormat | None = None
    """As Python's strptime reads it, or excel, seconds, milliseconds or nanoseconds."""
    volume_unit: Positive | None = None
    """Shares in a unit of volume."""
    separator: Mark | None = None
    """One character, as are decimal and thousands."""
    decimal: Mark | None = None
    thousands: Mark | None = None
    encoding: Annotated[Text, must(_is_encoding, "an encoding such as cp949")] | None = None
    """Such as cp949."""
    skip_rows: Annotated[Whole, Field(ge=0)] = 0
    """Lines above the header."""

    @model_validator(mode="after")
    def _has_two_marks(self) -> "Columns":
        if self.decimal is not None and self.decimal == self.thousands:
            raise DefinitionError(
                "thousands",
                f"{self.thousands!r} is also the decimal mark; correct decimal or thousands",
            )
        return self

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that are given, by the names of our own columns."""
        named = {name: getattr(self, name) for name in COLUMN_NAMES}
        return {name: header for name, header in named.items() if header is not None}

    @property
    def without_headers(self) -> "Columns":
        """Return the same layout, whose headers are to be recognised."""
        nothing: Any = dict.fromkeys(COLUMN_NAMES)
        return replace(self, **nothing)


FILE_SUFFIX = ".py"
GROUP = "dtml.sources"  # of the entry points by which installed packages offer feeds


def is_feed_file(source: str) -> bool:
    """Return whether the name of a source is the path of a Python file."""
    return source.endswith(FILE_SUFFIX)


def installed_feeds() -> dict[str, "EntryPoint"]:
    """Return the entry points of `GROUP` by name; none of them is imported."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _source(name: str) -> str:
    # Whether the file exists is seen when it is opened.
    if name in get_args(SourceName) or is_feed_file(name):
        return name
    known = [*get_args(SourceName), *installed_feeds()]
    if name not in known:
        raise ValueError(
            f"unknown {shown(name)}{nearest(name, known)}; use one of {', '.join(sorted(known))}, "
            "or a file of your own such as mine.py"
        )
    return name


Variable = Annotated[
    Text,
    must(
        re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch,
        "the name of an environment variable such as VENDOR_KEY",
    ),
]


@dataclass(frozen=True, config=STRICT)
class FeedAccess(Definition):
    """What the process of a feed is given beyond the network."""

    environment: tuple[Variable, ...] = ()
    """Environment variables that a feed of your own may read."""


def _named(value: Any, info: ValidationInfo) -> Any:
    """Return a table of a stock, which may be its symbol alone, with its symbol at the source."""
    table = {"symbol": value} if isinstance(value, str) else value
    if not isinstance(table, dict) or not isinstance(table.get("symbol"), str):
        return table
    symbol = table["symbol"]
    name = table.get("source_symbol", symbol + info.data.get("suffix", ""))
    if "source_symbol" not in table and is_symbol(symbol) and not is_symbol(name):
        raise ValueError(f"with suffix, {shown(name)} is not a valid symbol; use {SYMBOL_RULE}")
    return {**table, "source_symbol": name}


@dataclass(frozen=True, config=STRICT)
class Constituent(Definition):
    """A stay of a stock in the index; a stock that came back has an entry for each stay."""

    symbol: Symbol
    source_symbol: Symbol
    """The symbol at the source. Default: the symbol with the suffix."""
    name: Text | None = None
    sector: Text | None = None
    since: Day | None = None
    """First day as a constituent."""
    until: Day | None = None
    """First day after the membership."""


def _lasts(stay: Constituent) -> Constituent:
    if stay.since is not None and stay.until is not None and stay.until <= stay.since:
        raise DefinitionError(
            "until", f"{stay.until} is not after since, {stay.since}; give a later day"
        )
    return stay


@dataclass(frozen=True, config=STRICT)
class Listed(Definition):
    """The stocks of a market; without any, they are those of the prices."""

    as_of: Day | None = None
    """The day on which the list was true; required with a list."""
    complete: Flag = False
    """Whether the list has all constituents."""
    count: Whole | None = None
    """Number of constituents, which is then checked."""
    suffix: Annotated[str, Strict()] = ""
    """Appended to a symbol to make that of the source."""
    members: FilePath | None = None
    """A CSV table of the constituents of each day."""
    until: Literal["included", "excluded"] | None = None
    """Whether a stock is still a constituent on the day in the column until of that table."""
    symbols: tuple[
        Annotated[Constituent, BeforeValidator(_named), AfterValidator(_lasts)], ...
    ] = ()
    """Symbols, or tables with the keys below."""

    @model_validator(mode="after")
    def _fits_together(self) -> "Listed":
        has_list = bool(self.symbols) or self.members is not None
        if self.complete and not has_list:
            raise DefinitionError(
                "complete", "no constituent is listed; list them, or delete this key"
            )
        if has_list and self.as_of is None:
            raise DefinitionError("as_of", "missing; give the date on which the list was valid")
        if self.members is None and self.until is not None:
            raise DefinitionError(
                "until", "has an effect only with members; add members, or delete this key"
            )
        if self.members is not None and self.until is None:
            raise DefinitionError(
                "until",
                'missing; set it to "included" if a stock is still a member on the day in the '
                'column until, or to "excluded" if that day is the first after its membership',
            )
        if self.members is None and self.count not in (None, len(self.symbols)):
            raise DefinitionError(
                "count",
                f"says {self.count}, but symbols has {len(self.symbols)} entries; correct either, "
                "or delete count",
            )
        return self


@dataclass(frozen=True, config=STRICT)
class Index(Definition):
    """The index of a market."""

    symbol: Symbol
    """Its symbol in the prices."""
    source_symbol: Symbol
    """Its symbol at the source. Default: symbol."""
    name: Text
    of_constituents: Flag = False
    """true where no source has it: the equal-weight mean of the constituents."""


@dataclass(frozen=True, config=STRICT)
class Checks(Definition):
    """Bounds beyond which bars, or a user's own code, are doubted."""

    max_return: Positive = 0.35
    """A larger return of a session (0.35 is 35 %) without a recorded split is rejected."""
    max_missing: Annotated[Number, Field(ge=0, lt=1)] = 0.2
    """A night is refused if a larger share of the constituents lacks a good bar."""
    stale_share: Annotated[Number, Field(gt=0, le=1)] = 0.3
    """A session's bars that repeat the close at no volume are rejected from this share on."""
    max_rank_ic: Annotated[Number, Field(gt=0, le=1)] | None = None
    """A higher rank IC of own code is doubted. Default: the larger of .3 and three times the best
    rule's."""


class Since(NamedTuple):
    """A rate, from a day on: a table of the file, and a tuple afterwards, as digests have it."""

    since: Day
    rate: Number


def _table(value: Any) -> Any:
    if not isinstance(value, dict | tuple):  # a file has no tuple
        raise ValueError(f"expected a table, got {shown(value)}")
    refuse_unknown(value, Since._fields)
    return value


def _in_order(rates: tuple[Since, ...]) -> tuple[Since, ...]:
    _ascending([since for since, _ in rates])
    return rates


# One for all days, or each from its day on.
Rate = (
    Number
    | Annotated[
        tuple[Annotated[Since, BeforeValidator(_table)], ...],
        Field(min_length=1),
        AfterValidator(_in_order),
    ]
)


def _at_least(least: float) -> AfterValidator:
    def validated(rate: Rate) -> Rate:
        if isinstance(rate, float):
            if rate < least:
                raise ValueError(f"expected {least:g} or more, got {rate:g}")
            return rate
        for number, (_, value) in enumerate(rate, start=1):
            if value < least:
                raise DefinitionError(
                    f"[{number}].rate", f"expected {least:g} or more, got {value:g}"
                )
        return rate

    return AfterValidator(validated)


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


Cost = Annotated[Rate, _at_least(0)]


@dataclass(frozen=True, config=STRICT)
class Costs(Definition):
    """The costs of trading, in basis points."""

    commission: Cost = 1.0
    """Paid on the value of every purchase and of every sale."""
    half_spread: Cost = 2.0
    """Half of the quoted spread between bid and ask, paid as the commission is."""
    borrow: Cost = 50.0
    """Paid per year on the value held short."""
    purchase_tax: Cost = 0.0
    sale_tax: Cost = 0.0

    def of_trades(
        self, sessions: "pd.DatetimeIndex"
    ) -> "tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]":
        """Return the costs of a purchase and of a sale on each session, shares of the value."""
        of_any_trade = rate_on(self.commission, sessions) + rate_on(self.half_spread, sessions)
        of_purchase = of_any_trade + rate_on(self.purchase_tax, sessions)
        of_sale = of_any_trade + rate_on(self.sale_tax, sessions)
        return of_purchase * BASIS_POINT, of_sale * BASIS_POINT

    def of_shorts(self, sessions: "pd.DatetimeIndex", year: int) -> "npt.NDArray[np.float64]":
        """Return the cost of a session, one of `year`, as a share of the value held short."""
        return rate_on(self.borrow, sessions) * BASIS_POINT / year


FREE = Costs(commission=0.0, half_spread=0.0, borrow=0.0)
STANDARD = Costs()


TradingKey = Literal[
    "commission",
    "half_spread",
    "borrow",
    "purchase_tax",
    "sale_tax",
    "price_limit",
    "lot",
    "top",
    "smooth",
    "band",
]


@dataclass(frozen=True, config=STRICT)
class Trading(Costs):
    """How a market is traded: the `top` stocks in equal parts
    (`dtml.backtest.turnover.targets`).
    """

    price_limit: Annotated[Rate, _at_least(SMALLEST_LIMIT)] | None = None
    """A stock that opens this ratio above the close before cannot be bought, one below not sold."""
    lot: Count = 1
    """Orders are for multiples of so many shares."""
    top: Count = 20
    """Stocks that the nights hold."""
    smooth: Count = 1
    """Nights whose mean rank decides."""
    band: Annotated[Number, Field(ge=1)] = 1.0
    """A stock held is kept while its rank is at most so many times top."""
    sources: dict[TradingKey, Text] = field(default_factory=dict, compare=False)
    """Where each of the keys above is from, and when it was true."""

    @property
    def costs(self) -> Costs:
        """Return the costs alone."""
        return Costs(**{each.name: getattr(self, each.name) for each in fields(Costs)})

    @property
    def settings(self) -> dict[str, object]:
        """Return all settings as the store keeps them, the costs apart."""
        settings = asdict(self)
        costs = {each.name: settings.pop(each.name) for each in fields(Costs)}
        return {"costs": costs, **settings}


@dataclass(frozen=True, config=STRICT)
class Sessions(Definition):
    """What exchange_calendars lacks or does not know yet."""

    source: Text
    """Where these dates were announced."""
    known_to: Day | None = None
    """From the calendar's end to this day, usual weekdays are sessions."""
    holidays: Days = ()
    """These days are no sessions."""
    extra: Days = ()
    """These days are sessions."""


@dataclass(frozen=True)
class Calendar:
    """An exchange's calendar with the `Sessions` that a user adds."""

    code: str
    known_to: date | None = None
    holidays: tuple[date, ...] = ()
    extra: tuple[date, ...] = ()

    def __str__(self) -> str:
        return self.code


AnyCalendar = str | Calendar


def _once_in_order(listed: Sequence[ComparedField]) -> tuple[ComparedField, ...]:
    return tuple(name for name in COMPARED_FIELDS if name in listed)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SecondSource(Definition):
    """Another source of a market's bars, with which the bars that a night stores are compared."""

    source: SourceName
    prices: FilePath | None = None
    """The file or folder that "files" reads."""
    index: FilePath | None = None
    """The file of the index, if it is another one."""
    symbols: dict[str, Symbol] = field(default_factory=dict)
    """Its symbols by the market's, where they differ."""
    suffix: Text | None = None
    """Appended to the symbols of all other stocks."""
    fields: Annotated[
        tuple[ComparedField, ...], Field(min_length=1), AfterValidator(_once_in_order)
    ] = COMPARED_FIELDS
    """What is compared. Default: all."""
    price_unit: Positive = 1.0
    """The value of 1 in its prices, in the market's currency: .01 where it gives pence."""
    seconds: Annotated[Number, Field(gt=0, le=LONGEST_COMPARISON)] = 600.0
    """A comparison is given up after this time."""
    columns: Columns = field(default_factory=Columns)

    @model_validator(mode="after")
    def _fits_together(self) -> "SecondSource":
        if self.source == "files" and self.prices is None:
            raise DefinitionError("prices", "missing; give the file or folder of the second source")
        for key in ("prices", "index"):
            if self.source != "files" and getattr(self, key) is not None:
                raise DefinitionError(
                    key,
                    f'the source "{self.source}" reads no files; delete this key, or set '
                    'source = "files" and give prices',
                )
        symbol_of: dict[str, str] = {}
        for symbol, name in self.symbols.items():
            other = symbol_of.setdefault(name, symbol)
            if other != symbol:
                raise DefinitionError(
                    f"symbols.{symbol}", f"{name!r} is also given for {other}; give each its own"
                )
        return self


@dataclass(frozen=True, config=STRICT)
class ModelSettings(Definition):
    """Settings of the model and its training, whose configurations check the ranges."""

    window: Whole | None = None
    """Sessions that the model sees."""
    hidden: Whole | None = None
    heads: Whole | None = None
    beta: Number | None = None
    dropout: Number | None = None
    normalisation: Literal["per_stock", "shared"] | None = None
    identity: Number | None = None
    protocol: LabelProtocol | None = None
    penalty: Number | None = None
    learning_rate: Number | None = None
    epochs: Whole | None = None
    first_kept_epoch: Whole | None = None
    patience: Whole | None = None
    batch_days: Whole | None = None
    stocks_a_step: Whole | None = None
    """Of a market of thousands of stocks."""
    seeds: Whole | None = None
    train_sessions: Whole | None = None
    validation_sessions: Whole | None = None
    gap_sessions: Whole | None = None
    warm_start: Flag | None = None


def _model(values: dict[str, Any]) -> dict[str, Any]:
    settings = TypeAdapter(ModelSettings).validate_python(values)
    # In the order of the file: digests that stores hold are made of it.
    return {name: getattr(settings, name) for name in values}


def _has_no_repeat(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MarketKeys(Definition):
    """The keys of a market's file that its market has as they are."""

    title: Text
    """What pages call the market."""
    timezone: Annotated[Text, must(_is_timezone, "a time zone such as Asia/Seoul")]
    """Of the exchange, such as Asia/Seoul."""
    currency: Annotated[Text, must(_is_currency, "an ISO 4217 code such as USD")]
    """A code of ISO 4217, such as KRW."""
    index: Annotated[Index, BeforeValidator(_named)]
    facts: tuple[Text, ...] = ()
    """Where each number comes from."""
    source: Annotated[Text, AfterValidator(_source)] = "yahoo"
    """yahoo, files, simulated, or a feed of your own, such as "mine.py"."""
    checks: Checks = Checks()
    trading: Trading = field(default_factory=Trading)
    returns: Returns = "adj_close"
    """The price from which returns are computed."""
    z_close: ZClose = "adjusted"
    """The close of the feature z_close: adjusted for splits, or raw as in the paper."""
    leg: Leg = "next_close"
    """The holding period whose returns the ranking predicts."""
    features: FeatureSet = "usual"
    """What the rankers read."""
    ranker: RankerName = "blend"
    """The ranker whose ranking the nights show; earned is the best of the candidates."""
    candidates: Annotated[
        tuple[Candidate, ...], Field(min_length=2), must(_has_no_repeat, "each ranker once")
    ] = ("ridge", "boosting", "blend", "dtml")
    """The rankers among which earned chooses."""
    retrain: Retrain = 63
    """When to train: if there is no model (missing), or every so many sessions."""
    level: Level = 0.8
    """Of the abstention band: .5, .55, ... .95 or .99."""
    model: Annotated[dict[str, Any], AfterValidator(_model)] = field(default_factory=dict)
    columns: Columns = field(default_factory=Columns)
    feed: FeedAccess = field(default_factory=FeedAccess)
    second_source: SecondSource | None = None
    code: FilePath | None = None
    """Your own features and model, a Python file beside this one."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MarketFile(MarketKeys):
    """What a market's file says."""

    calendar: CalendarCode
    """A code of exchange_calendars."""
    sessions: Sessions | None = None
    constituents: Listed = field(default_factory=Listed)

    @model_validator(mode="after")
    def _fits_together(self) -> "MarketFile":
        if self.ranker != EARNED and self.candidates != MarketKeys.candidates:
            raise DefinitionError(
                "candidates",
                f'used only with ranker = "{EARNED}", which shows the best of these rankers: set '
                "that, or delete candidates",
            )
        if self.code is None and "own" in (self.ranker, *self.candidates):
            raise DefinitionError(
                "code", 'missing; give the path of a Python file, which the ranker "own" needs'
            )
        return self


# The fields of a market that decide figures once the prices are read, in the order of digests.
SETTINGS = (
    "name",
    "title",
    "calendar",
    "timezone",
    "currency",
    "index",
    "constituents",
    "constituents_as_of",
    "constituents_complete",
    "facts",
    "source",
    "checks",
    "trading",
    "returns",
    "z_close",
    "leg",
    "features",
    "ranker",
    "candidates",
    "retrain",
    "level",
    "model",
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Market(MarketKeys):
    """A market as its file describes it.

    - constituents, if empty, are the stocks in the prices;
    - of_prices: the constituents are all stocks in the prices, not the list's;
    - members is the text of the table that dates the constituents, or None;
    - file is the path of a user's own market, with its text.
    """

    name: str
    calendar: AnyCalendar
    constituents: tuple[Constituent, ...] = ()
    constituents_as_of: date | None = None
    constituents_complete: bool = False
    of_prices: bool = False
    members: str | None = field(default=None, compare=False)
    file: tuple[Path, str] | None = field(default=None, compare=False)

    @property
    def settings(self) -> dict[str, object]:
        """Return all that decides figures once the prices are read, by the names of the fields."""
        every = asdict(self) | {"trading": self.trading.settings}
        del every["trading"]["sources"]  # words, which decide nothing
        settings = {name: every[name] for name in SETTINGS}
        if self.features == "usual":  # as if the key did not exist: digests stay as they were
            del settings["features"]
        return settings

    @property
    def eligible_rankers(self) -> tuple[RankerName, ...]:
        """Return the rankers of which one ranks a night's stocks: the named one, or candidates."""
        if self.ranker == EARNED:
            return self.candidates
        return (self.ranker,)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Return the symbols of all constituents listed, whatever their dates, without the
        index.
        """
        return tuple(dict.fromkeys(stay.symbol for stay in self.constituents))

    def constituents_on(self, day: date) -> tuple[Constituent, ...]:
        """Return the constituents of a day, in the order of the list: `since` <= day < `until`."""
        return tuple(
            stay
            for stay in self.constituents
            if (stay.since or date.min) <= day < (stay.until or date.max)
        )

    def is_constituent(
        self, days: "pd.DatetimeIndex", stocks: Sequence[str] | None = None
    ) -> "npt.NDArray[np.bool_]":
        """Return which of `stocks`, by default `symbols`, were constituents: [days, stocks]."""
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
        """Return whether the list gives no dates: one day's constituents stand for all days."""
        return all(stay.since is None and stay.until is None for stay in self.constituents)

    def with_symbols(self, symbols: Iterable[str]) -> "Market":
        """Return the same market with these symbols alone, but the index, as constituents.

        A listed stock keeps its stays. Raises UsageError for one invalid or given twice.
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
