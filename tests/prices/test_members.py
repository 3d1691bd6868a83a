"""A table of members that a market's file names: who was a constituent on which day."""

import re
from dataclasses import replace
from datetime import date

import pandas as pd
import pytest

from dtml.errors import UsageError
from dtml.evaluation.survivorship import date_of, survivorship_of
from dtml.lookahead.audit import EarlierList, audit_list
from dtml.markets import load_market_file
from dtml.pages.survivorship import survivorship_words
from dtml.prices.sessions import sessions_between
from flows.markets.opened import RunRequest
from flows.nightly.context import open_context, open_stored_context
from flows.nightly.fetch import fetch_bars
from tests.support.kinds import sqlite_alone
from tests.support.nights import BARS, small_market

LAST = date(2023, 12, 29)
AT = pd.Timestamp(LAST)


def market_of(folder, rows, *, until="included", more="", columns="symbol,since,until", as_of=LAST):
    """Read a market whose table of members has these rows."""
    (folder / "members.csv").write_text(f"{columns}\n{rows}", encoding="utf-8")
    constituents = (
        f'[constituents]\nas_of = {as_of}\nmembers = "members.csv"\nuntil = "{until}"\n{more}'
    )
    file = folder / "listed.toml"
    file.write_text(small_market(more=constituents), encoding="utf-8")
    return load_market_file(file)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ("symbol,since", "line 1:.* until"),
        ("symbol,since,until,until", "line 1:.*once"),
        ("symbol,since,until,weight", "line 1: the columns are .*weight"),
        ("symbol,since,until,", "line 1: the columns are "),
    ],
)
def test_a_table_with_other_columns_is_refused(tmp_path, columns, complaint):
    with pytest.raises(UsageError, match=complaint):
        market_of(tmp_path, "A,2022-01-03,2022-02-01,7", columns=columns)


ROWS = "A,2022-01-03,{end}\nB,2022-01-03,\nC,2022-07-01,"


def test_the_day_until_is_a_members_last_or_the_first_after_it_as_the_file_says(tmp_path):
    included = market_of(tmp_path, ROWS.format(end="2022-06-30"), more="count = 2")
    excluded = market_of(tmp_path, ROWS.format(end="2022-07-01"), until="excluded")
    assert included.constituents == excluded.constituents
    for day, members in ((date(2022, 6, 30), "AB"), (date(2022, 7, 1), "BC"), (LAST, "BC")):
        assert [stay.symbol for stay in included.constituents_on(day)] == list(members)
    with pytest.raises(UsageError, match=r" 2,.*members.* 1 .*2022-06-21"):
        market_of(tmp_path, ROWS.format(end="2022-06-20"), more="count = 2")
    silent = small_market(more=f'[constituents]\nas_of = {LAST}\nmembers = "members.csv"')
    (tmp_path / "listed.toml").write_text(silent, encoding="utf-8")
    with pytest.raises(UsageError, match=r"constituents\.until: missing.*included"):
        load_market_file(tmp_path / "listed.toml")


def test_a_stock_that_leaves_comes_back_and_is_renamed_is_one_stock(tmp_path):
    market = market_of(
        tmp_path,
        "OLD,2022-01-03,2022-06-30,NEW\n"
        "OLD,2022-09-01,2023-02-28,NEW\n"
        "NEW,2023-03-01,,\n"
        "B,2022-01-03,,",
        columns="symbol,since,until,renamed_to",
    )
    assert market.symbols == ("B", "NEW")
    stays = [stay for stay in market.constituents if stay.symbol == "NEW"]
    assert [(stay.since, stay.until) for stay in stays] == [
        (date(2022, 1, 3), date(2022, 7, 1)),
        (date(2022, 9, 1), None),  # the new name is no break
    ]
    days = pd.DatetimeIndex(
        ["2022-06-30", "2022-07-01", "2022-08-31", "2022-09-01", "2023-02-28", "2023-03-01"]
    )
    assert market.is_constituent(days, ["NEW"])[:, 0].tolist() == [
        True,
        False,
        False,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (
            "A,2022-01-03,2022-02-01\nA,2022-02-01,",
            "line 2 and line 3.* A overlap",
        ),
        (
            "A,2022-01-03,\nA,2022-05-02,",
            "line 2 and line 3.* A overlap.*until",
        ),
        ("B,2022-01-03,\nA,,2022-02-01", "line 3: since: missing"),
        ("A,2022-01-03,2022-01-02", "line 2: A .*no day.*2022-01-03.*2022-01-02"),
        ("A,03/01/2022,", "line 2: since: .*2020-06-15, got '03/01/2022'"),
        ("A,2022-02-30,", "line 2: since: .*'2022-02-30'"),
        ("A,2022-01-03,9999-12-31", "line 2: until: .*'9999-12-31'"),
        ("A,2022-01-03", "line 2: .*3 columns"),
        ("A;B,2022-01-03,", "line 2: symbol: .*'A;B'"),
        ('A,"2022-01-03,', "line 2 .*CSV: unexpected end"),
        ("", "no member is listed"),
    ],
)
def test_a_spell_that_is_incomplete_impossible_or_ambiguous_is_refused_by_line_and_name(
    tmp_path, rows, complaint
):
    with pytest.raises(UsageError) as caught:
        market_of(tmp_path, rows)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'members.csv'}: ")
    assert re.search(complaint, message)
    assert "\n" not in message


def test_the_text_that_a_store_keeps_makes_the_same_market_without_any_file(tmp_path):
    rows = "A,2022-01-03,2022-06-30\r\nB,2022-01-03,"
    details = 'symbols = [{ symbol = "B", name = "B plc", sector = "Mines" }]\n'
    market = market_of(tmp_path, rows, more=details)
    assert market.file is not None
    path, text = market.file
    path.unlink()
    (tmp_path / "members.csv").unlink()
    again = load_market_file(path, text)
    assert again == market
    assert again.file == market.file
    (stay,) = market.constituents_on(LAST)
    assert (stay.name, stay.sector) == ("B plc", "Mines")


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ('{ symbol = "A", since = 2022-01-03 }', "'A' has dates.*members"),
        ('"C"', "'C'.*not in members"),
        ('"OLD"', "members renames 'OLD'.*'A'"),
    ],
)
def test_an_entry_beside_a_table_only_describes_a_stock_of_it(tmp_path, entry, complaint):
    with pytest.raises(UsageError, match=complaint):
        market_of(
            tmp_path,
            "OLD,2022-01-03,2022-02-01,A\nA,2022-02-02,,",
            columns="symbol,since,until,renamed_to",
            more=f"symbols = [{entry}]\n",
        )


def test_a_suffix_that_makes_no_symbol_is_refused_but_of_a_stock_that_does_not_have_it(tmp_path):
    suffix = 'suffix = "/../x"\n'
    with pytest.raises(UsageError, match=r"constituents\.suffix: 'A/\.\./x' is not a valid symbol"):
        market_of(tmp_path, "A,2022-01-03,", more=suffix)
    own = f'{suffix}symbols = [{{ symbol = "A", source_symbol = "A.L" }}]\n'
    (stay,) = market_of(tmp_path, "A,2022-01-03,", more=own).constituents
    assert stay.source_symbol == "A.L"


def test_a_stock_of_the_prices_without_a_spell_is_a_constituent_on_no_day(
    tmp_path, store_url, monkeypatch
):
    monkeypatch.setenv("DTML_DATABASE_URL", store_url)
    market_of(tmp_path, "F01A,2022-01-03,\nL01,2022-01-03,2022-12-30\nDEAD,2022-01-03,2022-03-01")
    prices = tmp_path / "prices.csv"
    BARS[BARS["session"] < "2022-03-01"].rename(columns={"session": "date"}).to_csv(
        prices, index=False
    )
    request = RunRequest(
        "listed",
        market_file=tmp_path / "listed.toml",
        source="files",
        prices=prices,
        universe="source",
        device="cpu",
    )
    context = open_context(request)
    assert context.market.symbols == ("DEAD", "F01A", "L01")
    assert context.constituents(date(2022, 2, 1)) == ("DEAD", "F01A", "L01")
    assert context.constituents(date(2023, 2, 1)) == ("F01A",)
    assert re.search("1 of.* 3 stocks.*no prices", str(context.notice))


def test_survivors_and_days_without_a_price_are_counted_and_named(tmp_path):
    days = sessions_between("XNYS", date(2022, 3, 1), date(2022, 12, 30))
    rows = "F01A,2022-01-03,2022-06-30\nL01,2022-07-01,\nL02,2022-01-03,\nDEAD,2022-01-03,"
    dated = survivorship_of(market_of(tmp_path, rows), days, BARS)
    assert (dated.names, dated.first_names, dated.last_names) == (4, 3, 3)
    assert dated.constituent_days == 3 * len(days)
    assert dated.without_price == len(days)
    assert not dated.has_only_survivors
    words = survivorship_words(dated)
    assert re.search(r"3 \(75\.0 %\).* 4 names", words)
    assert "33.3 % of" in words

    alive = survivorship_of(market_of(tmp_path, rows.partition("\n")[2]), days, BARS)
    assert alive.has_only_survivors
    assert "list of survivors" in survivorship_words(alive)
    assert re.search(r"2 \(66\.7 %\).* 3 names", survivorship_words(alive))

    undated = market_of(tmp_path, rows).with_symbols(["L03", "DEAD2"])
    snapshot = survivorship_of(undated, days, BARS)
    assert re.search("snapshot of 2023-12-29,.*list of survivors", survivorship_words(snapshot))
    assert re.search(r"1 \(50\.0 %\) had.* price", survivorship_words(snapshot))


@sqlite_alone
@pytest.mark.parametrize("universe", ["source", "list"])
def test_stocks_taken_from_the_prices_are_known_as_such_now_and_later(
    tmp_path, store_url, monkeypatch, universe
):
    monkeypatch.setenv("DTML_DATABASE_URL", store_url)
    listed = '[constituents]\nas_of = 2023-12-29\nsymbols = ["L01", "L02"]'
    file = tmp_path / "listed.toml"
    file.write_text(small_market(more=listed), encoding="utf-8")
    prices = tmp_path / "prices.csv"
    few = BARS[BARS["session"] < "2022-02-01"].rename(columns={"session": "date"})
    few.to_csv(prices, index=False)
    request = RunRequest(
        "listed", market_file=file, source="files", prices=prices, universe=universe, device="cpu"
    )
    context = open_context(request)
    fetch_bars(context, date(2022, 1, 31))
    later = open_stored_context(replace(request, source=None, prices=None, universe=None))
    dates = {"source": None, "list": "2023-12-29"}
    for market in (context.market, later.market):
        assert market.of_prices == (universe == "source")
        assert date_of(market) == dates[universe]


def test_a_spell_that_a_later_list_ends_before_its_removal_was_announced_is_found(tmp_path):
    then = date(2022, 6, 30)
    known = market_of(tmp_path, "A,2022-01-03,\nB,2022-01-03,", as_of=then)
    earlier = [EarlierList(known, day=then)]
    honest = market_of(tmp_path, "A,2022-01-03,2022-12-30\nB,2022-01-03,")
    assert audit_list(honest, earlier, AT).passed
    assert re.search("2022-06-30 no earlier list", audit_list(honest, earlier, AT).detail)

    planted = market_of(tmp_path, "A,2022-01-03,2022-06-15\nB,2022-01-03,\nC,2022-06-01,")
    finding = audit_list(planted, earlier, AT)
    assert finding.passed is False
    assert re.search("A was a constituent.*2022-06-30 .*but not in", finding.detail)
    assert re.search("C was no constituent.*2022-06-30 .*but is in", finding.detail)


def test_a_list_that_is_known_for_the_first_time_says_that_it_cannot_be_checked(tmp_path):
    market = market_of(tmp_path, "A,2022-01-03,")
    finding = audit_list(market, [EarlierList(market, day=LAST)], AT)
    assert finding.passed is None
    assert "cannot be checked yet" in finding.detail
