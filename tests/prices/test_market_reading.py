"""A market file of the user's own: a mistake in it is one line that names the file and the key."""

from datetime import date
from pathlib import Path

import pandas as pd
import pytest

from dtml.errors import UsageError
from dtml.markets import Checks, Constituent, load_market_file
from dtml.markets.definition import Calendar

LEAST = """
title = "My market"
calendar = "XKRX"
timezone = "Asia/Seoul"
currency = "KRW"
[index]
symbol = "^KS11"
name = "KOSPI"
"""


def _read(tmp_path: Path, text: str):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return load_market_file(path)


def _complaint(tmp_path: Path, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        _read(tmp_path, text)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{tmp_path / 'mine.toml'}: ")
    return message.removeprefix(f"{tmp_path / 'mine.toml'}: ")


def test_six_keys_and_an_index_make_a_market_over_whatever_the_prices_hold(tmp_path: Path) -> None:
    market = _read(tmp_path, LEAST)
    assert (market.name, market.title, market.index.source_symbol) == ("mine", "My market", "^KS11")
    assert (market.constituents, market.constituents_complete) == ((), False)
    assert (market.source, market.returns, market.z_close, market.retrain) == (
        "yahoo",
        "adj_close",
        "adjusted",
        63,
    )
    assert market.checks == Checks(max_return=0.35, max_missing=0.2, stale_share=0.3)
    assert market.model == {}


def test_a_file_gives_sessions_that_its_calendar_lacks(tmp_path: Path) -> None:
    sessions = """
[sessions]
known_to = 2027-12-31
holidays = [2027-01-01, 2027-02-08]
extra = [2027-02-14]
source = "An announcement."
"""
    market = _read(tmp_path, f"{LEAST}{sessions}")
    assert market.calendar == Calendar(
        code="XKRX",
        known_to=date(2027, 12, 31),
        holidays=(date(2027, 1, 1), date(2027, 2, 8)),
        extra=(date(2027, 2, 14),),
    )
    assert market.settings != _read(tmp_path, LEAST).settings


def test_every_key_a_file_gives_is_taken(tmp_path: Path) -> None:
    top = 'source = "files"\nreturns = "close"\nz_close = "raw"\nretrain = 5\nfacts = ["A fact."]\n'
    rest = """
source_symbol = "^KOSPI"
[checks]
max_return = 1
max_missing = 0
stale_share = 1.0
[model]
window = 7
beta = 1
normalisation = "per_stock"
[constituents]
as_of = 2020-01-02
complete = true
count = 3
suffix = ".KS"
symbols = [
  "005930",
  {symbol = "000660", name = "하이닉스", sector = "chips", since = 2012-03-26, until = 2020-01-03},
  {symbol = "X", source_symbol = "Y.KQ"},
]
"""
    market = _read(tmp_path, top + LEAST + rest)
    assert (market.source, market.returns, market.z_close, market.retrain) == (
        "files",
        "close",
        "raw",
        5,
    )
    assert market.facts == ("A fact.",)
    assert market.index.source_symbol == "^KOSPI"
    assert market.checks == Checks(max_return=1.0, max_missing=0.0, stale_share=1.0)
    assert market.model == {"window": 7, "beta": 1.0, "normalisation": "per_stock"}
    assert isinstance(market.model["beta"], float)
    assert (market.constituents_as_of, market.constituents_complete) == (date(2020, 1, 2), True)
    assert market.constituents == (
        Constituent("005930", "005930.KS"),
        Constituent(
            "000660", "000660.KS", "하이닉스", "chips", date(2012, 3, 26), date(2020, 1, 3)
        ),
        Constituent("X", "Y.KQ"),
    )


@pytest.mark.parametrize("retrain", ['"never"', '"missing"', "1"])
def test_a_market_trains_never_when_missing_or_every_so_many_sessions(
    tmp_path: Path, retrain: str
) -> None:
    assert str(_read(tmp_path, f"retrain = {retrain}\n{LEAST}").retrain) == retrain.strip('"')


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("title", "give text"),
        ("calendar", "use one of 24/5, 24/7, AIXK"),
        ("timezone", 'give a time zone such as "Asia/Seoul"'),
        ("currency", 'give an ISO 4217 code such as "USD"'),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, key: str, advice: str) -> None:
    text = "\n".join(line for line in LEAST.splitlines() if not line.startswith(key))
    assert _complaint(tmp_path, text).startswith(f"{key}: missing; {advice}")


def test_an_index_is_missed(tmp_path: Path) -> None:
    without_index = LEAST.partition("[index]")[0]
    assert _complaint(tmp_path, without_index) == "index.symbol: missing; give a symbol"


@pytest.mark.parametrize(
    ("top", "complaint"),
    [
        ("titel = 1", "titel: unknown key, perhaps title; use one of title, calendar"),
        ('"a\\nb" = 1', r"'a\nb': unknown key"),
        (
            'retrain = "nightly"',
            'retrain: expected "never", "missing" or a whole number of sessions above 0, got '
            "'nightly'",
        ),
        ("retrain = 0", "retrain: expected"),
        ("retrain = true", "retrain: expected"),
        ('source = "bloomberg"', "source: unknown 'bloomberg'; use one of files, simulated, yahoo"),
        ('returns = "adj"', "returns: unknown 'adj'"),
        ("z_close = 1", "z_close: expected text, got 1"),
        ('facts = "one"', "facts: expected a list of strings"),
        ("checks = 3", "checks: expected a table [checks], got 3"),
        ("trading.sources = 3", "trading.sources: expected a table [trading.sources], got 3"),
    ],
)
def test_a_wrong_key_or_value_at_the_top_is_named(tmp_path: Path, top: str, complaint: str) -> None:
    assert _complaint(tmp_path, f"{top}\n{LEAST}").startswith(complaint)


@pytest.mark.parametrize(
    ("line", "wrong", "complaint"),
    [
        ('title = "My market"', "title = 1", "title: expected text, got 1"),
        ('title = "My market"', 'title = " "', "title: expected printable text"),
        ('title = "My market"', 'title = "a\\nb"', "title: expected printable text"),
        (
            'calendar = "XKRX"',
            'calendar = "KRX"',
            "calendar: unknown 'KRX', perhaps XKRX; use one of 24/5, 24/7",
        ),
        (
            'timezone = "Asia/Seoul"',
            'timezone = "Asia/Soul"',
            "timezone: unknown time zone 'Asia/Soul'",
        ),
        (
            'timezone = "Asia/Seoul"',
            'timezone = "/etc/passwd"',
            "timezone: unknown time zone '/etc/passwd'",
        ),
        (
            'timezone = "Asia/Seoul"',
            'timezone = "../passwd"',
            "timezone: unknown time zone '../passwd'",
        ),
        ('timezone = "Asia/Seoul"', 'timezone = "Asia"', "timezone: unknown time zone 'Asia'"),
        (
            'currency = "KRW"',
            'currency = "won"',
            "currency: expected an ISO 4217 code such as USD, got 'won'",
        ),
        ('symbol = "^KS11"', 'symbol = "../KS11"', "index.symbol: '../KS11' is not a valid symbol"),
        ('name = "KOSPI"', 'nmae = "KOSPI"', "index.nmae: unknown key, perhaps name"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(
    tmp_path: Path, line: str, wrong: str, complaint: str
) -> None:
    assert line in LEAST
    assert _complaint(tmp_path, LEAST.replace(line, wrong)).startswith(complaint)


@pytest.mark.parametrize(
    ("tail", "complaint"),
    [
        ("[checks]\nmax_return = 0", "checks.max_return: expected a finite ratio above 0, got 0.0"),
        ("[checks]\nmax_return = inf", "checks.max_return: expected a finite ratio above 0"),
        ("[checks]\nmax_return = nan", "checks.max_return: expected a finite ratio above 0"),
        ('[checks]\nmax_return = "0.3"', "checks.max_return: expected a number, got '0.3'"),
        ("[checks]\nmax_missing = 1", "checks.max_missing: expected a share of 0 or more and"),
        ("[checks]\nstale_share = 0", "checks.stale_share: expected a share above 0"),
        ("[checks]\nmax_rank_ic = 1.5", "checks.max_rank_ic: expected a rank IC above 0"),
        ("[checks]\nstale = 1", "checks.stale: unknown key, perhaps stale_share"),
        ("[sessions]\nknown_to = 2027-12-31", "sessions.source: missing; give the source"),
        (
            '[sessions]\nsource = "x"\nholiday = []',
            "sessions.holiday: unknown key, perhaps holidays",
        ),
        (
            '[sessions]\nsource = "x"\nextra = [2026-01-20, 5]',
            "sessions.extra: expected a list of dates without quotes such as [2026-01-20], "
            "but item 2 is 5",
        ),
        ('[trading]\nband = "x"', "trading.band: expected a number"),
        (
            '[sessions]\nsource = "x"\nextra = [2027-02-01, 2027-01-31]',
            "sessions.extra: 2027-01-31 is listed after 2027-02-01; list each date once",
        ),
        ("[model]\nwindows = 5", "model.windows: unknown key, perhaps window"),
        ("[model]\nwindow = 5.0", "model.window: expected a whole number, got 5.0"),
        ("[model]\nwindow = true", "model.window: expected a whole number, got True"),
        (
            '[model]\nnormalisation = "batch"',
            "model.normalisation: unknown 'batch'; use one of per_stock, shared",
        ),
    ],
)
def test_a_wrong_bound_or_override_is_named(tmp_path: Path, tail: str, complaint: str) -> None:
    assert _complaint(tmp_path, f"{LEAST}\n{tail}\n").startswith(complaint)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ('symbols = ["A"]', "constituents.as_of: missing"),
        (
            'as_of = "2020-01-02"',
            "constituents.as_of: expected a date without quotes such as 2026-01-20, got "
            "'2020-01-02'",
        ),
        ("as_of = 2020-01-02T00:00:00", "constituents.as_of: expected a date"),
        (
            "complete = true",
            "constituents.complete: is true, but no constituent is listed",
        ),
        ("complete = 1", "constituents.complete: expected true or false, got 1"),
        (
            'as_of = 2020-01-02\ncount = 3\nsymbols = ["A", "B"]',
            "constituents.count: says 3, but symbols has 2 entries",
        ),
        ('symbols = "A"', "constituents.symbols: expected a list of symbols"),
        ("symbols = [5930]", "constituents.symbols[1].symbol: expected text, got 5930"),
        ('symbols = ["A", "a//b"]', "constituents.symbols[2].symbol: 'a//b' is not a valid symbol"),
        ('symbols = ["A", ".."]', "constituents.symbols[2].symbol: '..' is not a valid symbol"),
        (
            'suffix = "/../x"\nsymbols = ["A"]',
            "constituents.suffix: 'A/../x' is not a valid symbol",
        ),
        ("symbols = [{name = 'A'}]", "constituents.symbols[1].symbol: missing"),
        ("symbols = [{symbol = 'A', form = 'B'}]", "constituents.symbols[1].form: unknown key"),
        (
            "symbols = [{symbol = 'A', since = 2020-01-02, until = 2020-01-02}]",
            "constituents.symbols[1].until: 2020-01-02 is not after since, 2020-01-02",
        ),
        (
            'as_of = 2020-01-02\nsymbols = ["A", "A"]',
            "constituents.symbols: symbol 'A' is listed twice",
        ),
        (
            "as_of = 2020-01-02\nsymbols = [{symbol = 'A', until = 2010-01-04}, {symbol = 'A', "
            "since = 2009-05-05}]",
            "constituents.symbols: symbol 'A' is listed twice; list it once or, if it left and "
            "came back, once for each membership",
        ),
        (
            "as_of = 2020-01-02\nsymbols = ['A', {symbol = 'B', source_symbol = 'A'}]",
            "constituents.symbols: A and B both have the source_symbol 'A'",
        ),
        ('as_of = 2020-01-02\nsymbols = ["^KS11"]', "index.symbol: '^KS11' is also a constituent"),
    ],
)
def test_a_wrong_list_of_members_is_named(tmp_path: Path, lines: str, complaint: str) -> None:
    assert _complaint(tmp_path, f"{LEAST}\n[constituents]\n{lines}\n").startswith(complaint)


@pytest.mark.parametrize(
    "text",
    [
        "title = ",
        "as_of = 2020-02-30",
        "a = " + "[" * 9999,
        f"a = {'9' * 5000}",
        "title = 'x'\ntitle = 'y'",
    ],
    ids=["no value", "no such day", "too deep", "too long a number", "a key twice"],
)
def test_what_is_not_toml_is_called_so(tmp_path: Path, text: str) -> None:
    assert _complaint(tmp_path, text).startswith("the file is not TOML: ")


def test_a_file_that_cannot_be_read_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml: cannot read the file: No such file"):
        load_market_file(tmp_path / "none.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UsageError, match="Is a directory"):
        load_market_file(tmp_path / "folder.toml")
    (tmp_path / "latin.toml").write_bytes(b'title = "\xe9"')
    with pytest.raises(UsageError, match="is not UTF-8 text: byte 9"):
        load_market_file(tmp_path / "latin.toml")


@pytest.mark.parametrize("name", ["My Market.toml", "-x.toml", "é.toml", f"{'a' * 41}.toml"])
def test_a_file_whose_name_cannot_name_a_market_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(LEAST, encoding="utf-8")
    with pytest.raises(UsageError, match="cannot be the name of a market"):
        load_market_file(tmp_path / name)


def test_a_stock_that_came_back_is_a_member_in_each_of_its_stays(tmp_path: Path) -> None:
    stays = "{symbol = 'A', until = 2010-01-04}, 'B', {symbol = 'A', since = 2012-05-07}"
    file = tmp_path / "my.toml"
    file.write_text(f"{LEAST}\n[constituents]\nas_of = 2020-01-02\nsymbols = [{stays}]\n")
    market = load_market_file(file)
    assert market.symbols == ("A", "B")
    for known in (market, market.with_symbols(["A", "B"])):
        members = [
            {each.symbol for each in known.constituents_on(date(year, 1, 3))}
            for year in (2010, 2011, 2013)
        ]
        assert members == [{"A", "B"}, {"B"}, {"A", "B"}]
        days = pd.DatetimeIndex(["2010-01-03", "2011-01-03", "2013-01-03"])
        assert known.is_constituent(days).tolist() == [[True, True], [False, True], [True, True]]
