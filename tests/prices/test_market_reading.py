"""A market file of the user's own: a mistake in it is one line that names the file and the key."""

import re
from datetime import date

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


def _read(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return load_market_file(path)


def _complaint(tmp_path, text):
    with pytest.raises(UsageError) as caught:
        _read(tmp_path, text)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{tmp_path / 'mine.toml'}: ")
    return message.removeprefix(f"{tmp_path / 'mine.toml'}: ")


def test_six_keys_and_an_index_make_a_market_over_whatever_the_prices_hold(tmp_path):
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


def test_a_file_gives_sessions_that_its_calendar_lacks(tmp_path):
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


def test_every_key_a_file_gives_is_taken(tmp_path):
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


@pytest.mark.parametrize("key", ["title", "calendar", "timezone", "currency", "index"])
def test_what_is_missing_is_named(tmp_path, key):
    text = LEAST.partition("[index]")[0] if key == "index" else re.sub(f"{key} =.*", "", LEAST)
    assert _complaint(tmp_path, text).startswith(f"{key}: missing")


@pytest.mark.parametrize(
    ("top", "complaint"),
    [
        ("titel = 1", "titel: unknown key, perhaps title;.*calendar"),
        ('"a\\nb" = 1', r"'a\\nb': unknown key"),
        ('retrain = "nightly"', "retrain: expected 'never' or 'missing'.*number.*'nightly'"),
        ("retrain = 0", "retrain: expected .*1 or more, got 0"),
        ("retrain = true", "retrain: expected"),
        ('source = "bloomberg"', "source: unknown 'bloomberg';.*files, simulated,.*yahoo"),
        ('returns = "adj"', "returns: expected 'adj_close'.*'adj'"),
        ("level = 0.81", "level: .*0.8, 0.85.*0.81"),
        ('facts = "one"', "facts: expected a list"),
        ("name = 'x'", "name: unknown key"),
        ("checks = 3", "checks: expected a table, got 3"),
    ],
)
def test_a_wrong_key_or_value_at_the_top_is_named(tmp_path, top, complaint):
    assert re.match(complaint, _complaint(tmp_path, f"{top}\n{LEAST}"))


@pytest.mark.parametrize(
    ("key", "wrong", "complaint"),
    [
        ("title", "1", "title: expected text.* 1$"),
        ("title", '" "', "title: expected printable text"),
        ("title", '"a\\nb"', "title: expected printable text"),
        ("calendar", '"KRX"', "calendar: unknown 'KRX', perhaps XKRX;.*24/5, 24/7"),
        ("timezone", '"Asia/Soul"', "timezone: expected .*'Asia/Soul'"),
        ("timezone", '"/etc/passwd"', "timezone: expected .*'/etc/passwd'"),
        ("timezone", '"../passwd"', r"timezone: expected .*'\.\./passwd'"),
        ("timezone", '"Asia"', "timezone: expected .*'Asia'"),
        ("currency", '"won"', "currency:.*ISO 4217.* USD,.*'won'"),
        ("symbol", '"../KS11"', r"index\.symbol: expected a symbol.*'\.\./KS11'"),
        ("name", '"KOSPI"\nnmae = 1', r"index\.nmae: unknown.*perhaps name"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(tmp_path, key, wrong, complaint):
    text = "\n".join(
        f"{key} = {wrong}" if line.startswith(f"{key} =") else line for line in LEAST.splitlines()
    )
    assert re.match(complaint, _complaint(tmp_path, text))


@pytest.mark.parametrize(
    ("tail", "complaint"),
    [
        ("[checks]\nmax_return = 0", r"checks\.max_return:.*above 0, got 0$"),
        ("[checks]\nmax_return = inf", r"checks\.max_return:.*finite"),
        ('[checks]\nmax_return = "0.3"', r"checks\.max_return:.*number,.*'0\.3'"),
        ("[checks]\nmax_missing = 1", r"checks\.max_missing:.*below 1"),
        ("[checks]\nstale = 1", r"checks\.stale: unknown.*perhaps stale_share"),
        ("[sessions]\nknown_to = 2027-12-31", r"sessions\.source: missing"),
        ('[sessions]\nsource = "x"\nextra = [2026-01-20, 5]', r"sessions\.extra\[2\]:.*date.* 5$"),
        (
            '[sessions]\nsource = "x"\nextra = [2027-02-01, 2027-01-31]',
            r"sessions\.extra: 2027-01-31 .*after 2027-02-01",
        ),
        ("[trading]\nsale_tax = -1", r"trading\.sale_tax: expected 0 or more, got -1"),
        ("[trading]\nsale_tax = []", r"trading\.sale_tax: expected 1 item or more, got"),
        ("[trading]\nsale_tax = 'x'", r"trading\.sale_tax: expected a number or a list, got"),
        ("[trading]\nsale_tax = [1]", r"trading\.sale_tax\[1\]: expected a table, got 1"),
        (
            "[trading]\nsale_tax = [[2026-01-01, 1]]",
            r"trading\.sale_tax\[1\]: expected a table, got \[2026-01-01, 1\]",
        ),
        (
            "[trading]\nsale_tax = [{since = 2026-01-20, rate = -1}]",
            r"trading\.sale_tax\[1\]\.rate: expected 0 or more, got -1",
        ),
        (
            "[trading]\nsale_tax = [{since = 2026-01-20, rates = 1}]",
            r"trading\.sale_tax\[1\]\.rates: unknown key, perhaps rate; use one of since, rate",
        ),
        (
            "[trading]\nsale_tax = [{since = 2026-01-20}]",
            r"trading\.sale_tax\[1\]\.rate: missing",
        ),
        (
            "[trading]\nsale_tax = [{since = 2026-01-20, rate = 'x'}]",
            r"trading\.sale_tax\[1\]\.rate: expected a number, got 'x'",
        ),
        ("[trading]\nborrow = nan", r"trading\.borrow: expected a finite number, got nan"),
        ("[trading]\nband = 0.5", r"trading\.band: expected 1 or more"),
        ("[trading]\nprice_limit = 0", r"trading\.price_limit: expected 0\.01 or more"),
        (
            "[trading]\nprice_limit = [{since = 2026-01-20, rate = 0}]",
            r"trading\.price_limit\[1\]\.rate: expected 0\.01 or more",
        ),
        ("[trading.sources]\nlott = 'x'", r"trading\.sources\.lott: .*perhaps lot,"),
        ("[model]\nwindows = 5", r"model\.windows: unknown.*perhaps window"),
        ("[model]\nwindow = 5.0", r"model\.window:.*whole number,.* 5\.0$"),
        ("[model]\nwindow = true", r"model\.window:.*whole number,.* True$"),
        ('[model]\nnormalisation = "batch"', r"model\.normalisation:.*'per_stock'.*'batch'"),
    ],
)
def test_a_wrong_bound_or_override_is_named(tmp_path, tail, complaint):
    assert re.match(complaint, _complaint(tmp_path, f"{LEAST}\n{tail}\n"))


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ('symbols = ["A"]', "constituents.as_of: missing"),
        ('as_of = "2020-01-02"', r"constituents\.as_of:.*date without quotes.*'2020-01-02'"),
        ("as_of = 2020-01-02T00:00:00", "constituents.as_of: expected a date"),
        ("complete = true", r"constituents\.complete:.*no constituent"),
        ("complete = 1", r"constituents\.complete:.*true or false,.* 1$"),
        ('as_of = 2020-01-02\ncount = 3\nsymbols = ["A", "B"]', r"constituents\.count:.*3,.* 2 "),
        (
            'as_of = 2020-01-02\nsymbols = ["A"]\nuntil = "included"',
            r"constituents\.until:.*members",
        ),
        ('symbols = "A"', r"constituents\.symbols:.*list"),
        ("symbols = [5930]", r"constituents\.symbols\[1\]: .* 5930$"),
        ('symbols = ["A", "a//b"]', r"constituents\.symbols\[2\]: .*symbol.*'a//b'"),
        (
            'suffix = "/../x"\nsymbols = ["A"]',
            r"constituents\.symbols\[1\]: with suffix, 'A/\.\./x' is not a valid symbol",
        ),
        ("symbols = [{name = 'A'}]", r"constituents\.symbols\[1\]\.symbol: missing"),
        (
            "symbols = [{symbol = 'A', form = 'B'}]",
            r"constituents\.symbols\[1\]\.form: unknown key",
        ),
        (
            "symbols = [{symbol = 'A', since = 2020-01-02, until = 2020-01-02}]",
            r"constituents\.symbols\[1\]\.until: 2020-01-02 .*not after since, 2020-01-02",
        ),
        ('as_of = 2020-01-02\nsymbols = ["A", "A"]', r"constituents\.symbols:.*'A'.*listed twice"),
        (
            "as_of = 2020-01-02\nsymbols = [{symbol = 'A', until = 2010-01-04}, {symbol = 'A', "
            "since = 2009-05-05}]",
            r"constituents\.symbols:.*'A'.*listed twice;.*each membership",
        ),
        (
            "as_of = 2020-01-02\nsymbols = ['A', {symbol = 'B', source_symbol = 'A'}]",
            r"constituents\.symbols: A and B .*source_symbol 'A'",
        ),
        ('as_of = 2020-01-02\nsymbols = ["^KS11"]', r"index\.symbol: '\^KS11'.*constituent"),
    ],
)
def test_a_wrong_list_of_members_is_named(tmp_path, lines, complaint):
    assert re.match(complaint, _complaint(tmp_path, f"{LEAST}\n[constituents]\n{lines}\n"))


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
def test_what_is_not_toml_is_called_so(tmp_path, text):
    assert "not TOML: " in _complaint(tmp_path, text)


def test_a_file_that_cannot_be_read_is_the_users_mistake(tmp_path):
    with pytest.raises(UsageError, match=r"none\.toml:.*No such file"):
        load_market_file(tmp_path / "none.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UsageError, match="Is a directory"):
        load_market_file(tmp_path / "folder.toml")
    (tmp_path / "latin.toml").write_bytes(b'title = "\xe9"')
    with pytest.raises(UsageError, match=r"not UTF-8.*byte 9"):
        load_market_file(tmp_path / "latin.toml")


@pytest.mark.parametrize("name", ["My Market.toml", "-x.toml", "é.toml", f"{'a' * 41}.toml"])
def test_a_file_whose_name_cannot_name_a_market_is_refused(tmp_path, name):
    (tmp_path / name).write_text(LEAST, encoding="utf-8")
    with pytest.raises(UsageError, match="name of a market"):
        load_market_file(tmp_path / name)
