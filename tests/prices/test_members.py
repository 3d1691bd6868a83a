"""A table of members that a market's file names: who was a constituent on which day."""

import re
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dtml.errors import UsageError
from dtml.evaluation.survivorship import date_of, survivorship_of
from dtml.lookahead.audit import EarlierList, audit_list
from dtml.markets import Market, load_market_file
from dtml.markets.definition import Universe
from dtml.pages.survivorship import survivorship_words
from dtml.prices.returns import index_of_constituents
from dtml.prices.sessions import sessions_between
from flows.markets.opened import RunRequest
from flows.nightly.context import open_context, open_stored_context
from flows.nightly.fetch import fetch_bars
from tests.support.nights import BARS, small_market

LISTED = 7  # constituents of the made list, on each session
FIRST, LAST = date(2022, 1, 3), date(2023, 12, 29)
AT = pd.Timestamp(LAST)


def market_of(
    folder: Path,
    rows: str,
    *,
    until: str = "included",
    more: str = "",
    columns: str = "symbol,since,until",
    as_of: date = LAST,
) -> Market:
    """Read a market whose table of members has these rows."""
    (folder / "members.csv").write_text(f"{columns}\n{rows}", encoding="utf-8")
    constituents = (
        f'[constituents]\nas_of = {as_of}\nmembers = "members.csv"\nuntil = "{until}"\n{more}'
    )
    file = folder / "listed.toml"
    file.write_text(small_market(more=constituents), encoding="utf-8")
    return load_market_file(file)


def made_list(seed: int = 11) -> list[tuple[str, date, date | None]]:
    """Draw a list in which a stock replaces another on some days; `until` is the last day."""
    random = np.random.default_rng(seed)
    since = {f"S{number}": FIRST for number in range(LISTED)}
    spells: list[tuple[str, date, date | None]] = []
    changes = sessions_between("XNYS", FIRST, LAST)[20:-20:37]
    for number, change in enumerate(changes):
        day = change.date()
        leaver = str(random.choice(sorted(since)))
        spells.append((leaver, since.pop(leaver), day - timedelta(days=1)))
        outside = [f"S{other}" for other in range(LISTED + 3) if f"S{other}" not in since]
        since[str(random.choice(outside)) if number % 2 else f"N{number}"] = day
    return spells + [(symbol, day, None) for symbol, day in since.items()]


def as_rows(spells: list[tuple[str, date, date | None]], days: int = 0) -> str:
    """Write spells, their ends moved by some days."""
    lines = [
        f"{symbol},{since},{'' if until is None else until + timedelta(days=days)}"
        for symbol, since, until in spells
    ]
    return "\n".join(lines)


def test_each_session_has_exactly_the_members_that_the_list_was_made_of(tmp_path: Path) -> None:
    spells = made_list()
    market = market_of(tmp_path, as_rows(spells), more=f"count = {LISTED}")
    sessions = sessions_between("XNYS", FIRST, LAST)
    assert set(market.is_constituent(sessions).sum(axis=1)) == {LISTED}
    assert len(market.symbols) > LISTED
    for day in (FIRST, sessions[41].date(), LAST):
        expected = {
            symbol
            for symbol, since, until in spells
            if since <= day and (until is None or day <= until)
        }
        assert {stay.symbol for stay in market.constituents_on(day)} == expected


def test_the_day_until_is_a_members_last_or_the_first_after_it_as_the_file_says(
    tmp_path: Path,
) -> None:
    spells = made_list()
    included = market_of(tmp_path, as_rows(spells))
    excluded = market_of(tmp_path, as_rows(spells, days=1), until="excluded")
    assert included.constituents == excluded.constituents
    silent = small_market(more=f'[constituents]\nas_of = {LAST}\nmembers = "members.csv"')
    (tmp_path / "listed.toml").write_text(silent, encoding="utf-8")
    with pytest.raises(UsageError, match=r"constituents\.until: missing.*included"):
        load_market_file(tmp_path / "listed.toml")


def test_a_stock_that_leaves_comes_back_and_is_renamed_is_one_stock(tmp_path: Path) -> None:
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
        ("B,2022-01-03,\nA,,2022-02-01", "line 3: A: since is ''"),
        ("A,2022-01-03,2022-01-02", "line 2: A .*no day.*2022-01-03.*2022-01-02"),
        ("A,03/01/2022,", "line 2: A: since .*'03/01/2022';.*2020-06-15"),
        ("A,2022-02-30,", "line 2: A: since .*'2022-02-30';"),
        ("A,2022-01-03,9999-12-31", "2020-06-15, or .*empty"),
        ("A,2022-01-03", "line 2: .*3 columns"),
        ("A;B,2022-01-03,", "line 2: 'A;B'.*symbol"),
        ('A,"2022-01-03,', "line 2 .*CSV: unexpected end"),
        ("", "no member is listed"),
    ],
)
def test_a_spell_that_is_incomplete_impossible_or_ambiguous_is_refused_by_line_and_name(
    tmp_path: Path, rows: str, complaint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        market_of(tmp_path, rows)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'members.csv'}: ")
    assert re.search(complaint, message)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ("symbol,since", "line 1:.* until"),
        ("symbol,since,until,weight", "line 1:.*weight"),
        ("symbol,since,until,until", "line 1:.*repeated.*until"),
    ],
)
def test_a_table_with_other_columns_is_refused(
    tmp_path: Path, columns: str, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        market_of(tmp_path, "A,2022-01-03,", columns=columns)


def test_a_list_whose_spells_end_early_has_too_few_members_on_the_session_that_is_named(
    tmp_path: Path,
) -> None:
    spells = made_list()
    symbol, since, until = spells[0]
    assert until is not None
    early = [(symbol, since, until - timedelta(days=8)), *spells[1:]]
    first_short = sessions_between("XNYS", until - timedelta(days=7), until)[0].date()
    with pytest.raises(UsageError, match=rf" 7,.*members.* 6 .*{first_short}"):
        market_of(tmp_path, as_rows(early), more="count = 7")


def test_the_text_that_a_store_keeps_makes_the_same_market_without_any_file(
    tmp_path: Path,
) -> None:
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
    ],
)
def test_an_entry_beside_a_table_only_describes_a_stock_of_it(
    tmp_path: Path, entry: str, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        market_of(tmp_path, "A,2022-01-03,", more=f"symbols = [{entry}]\n")


def test_a_suffix_that_makes_no_symbol_is_refused_but_of_a_stock_that_does_not_have_it(
    tmp_path: Path,
) -> None:
    suffix = 'suffix = "/../x"\n'
    with pytest.raises(UsageError, match=r"constituents\.suffix: 'A/\.\./x' is not a valid symbol"):
        market_of(tmp_path, "A,2022-01-03,", more=suffix)
    own = f'{suffix}symbols = [{{ symbol = "A", source_symbol = "A.L" }}]\n'
    (stay,) = market_of(tmp_path, "A,2022-01-03,", more=own).constituents
    assert stay.source_symbol == "A.L"


def test_an_entry_under_a_symbol_that_a_table_renames_is_refused_with_the_new_one(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match=r"members renames 'OLD'.*'NEW'"):
        market_of(
            tmp_path,
            "OLD,2022-01-03,,NEW",
            columns="symbol,since,until,renamed_to",
            more='symbols = ["OLD"]\n',
        )


def test_a_stock_of_the_prices_without_a_spell_is_a_constituent_on_no_day(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_index_of_constituents_is_the_mean_of_the_members_of_each_day(tmp_path: Path) -> None:
    market = market_of(tmp_path, "F01A,2022-01-03,2022-06-30\nL01,2022-07-01,")
    stocks = BARS[BARS["symbol"].isin(["F01A", "L01"])]
    index = index_of_constituents(market, stocks).set_index("session")["close"].pct_change()
    prices = stocks.pivot(index="session", columns="symbol", values="adj_close")
    # Where a bar is missing, the index has no stock to follow, and does not change.
    prices = prices.pct_change(fill_method=None).fillna(0)
    early = slice("2022-01-05", "2022-06-30")
    late = slice("2022-07-01", "2022-12-30")
    assert index[early].to_numpy() == pytest.approx(prices["F01A"][early].to_numpy())
    assert index[late].to_numpy() == pytest.approx(prices["L01"][late].to_numpy())


def test_survivors_and_days_without_a_price_are_counted_and_named(tmp_path: Path) -> None:
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


def test_stocks_of_the_prices_are_no_snapshot_of_the_list_and_survive_by_their_prices(
    tmp_path: Path,
) -> None:
    days = sessions_between("XNYS", date(2022, 3, 1), date(2023, 6, 30))
    listed = market_of(tmp_path, "L03,2022-01-03,")
    market = replace(listed.with_symbols(["F01A", "F01B", "L01"]), of_prices=True)
    assert "of_prices" not in market.settings
    alive = survivorship_of(market, days, BARS)
    assert (alive.list_date, alive.last_priced) == (None, 3)
    words = survivorship_words(alive)
    assert "snapshot" not in words
    assert "those of the prices" in words
    assert "all still trade on the last: this is a list of survivors" in words
    ended = BARS[(BARS["symbol"] != "F01A") | (BARS["session"] < "2023-05-01")]
    words = survivorship_words(survivorship_of(market, days, ended))
    assert "1 had ended by the last" in words
    assert "survivors" not in words
    few = survivorship_words(survivorship_of(market, days[:100], BARS))
    assert "Whether stocks that left before are missing is not known" in few


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("universe", ["source", "list"])
def test_stocks_taken_from_the_prices_are_known_as_such_now_and_later(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch, universe: Universe
) -> None:
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


def test_a_list_that_stocks_leave_and_whose_stocks_all_trade_to_the_end_is_one_of_survivors(
    tmp_path: Path,
) -> None:
    days = sessions_between("XNYS", date(2022, 3, 1), date(2023, 6, 30))
    left = "F01A,2022-01-03,2022-06-30\nL01,2022-01-03,"
    found = survivorship_of(market_of(tmp_path, left), days, BARS)
    assert (found.names, found.last_names, found.last_priced) == (2, 1, 2)
    assert "list of survivors" in survivorship_words(found)
    ended = BARS[(BARS["symbol"] != "F01A") | (BARS["session"] < "2023-05-01")]
    assert "survivors" not in survivorship_words(
        survivorship_of(market_of(tmp_path, left), days, ended)
    )
    # In a few months hardly any stock ends.
    assert survivorship_of(market_of(tmp_path, left), days[:100], BARS).last_priced is None


def test_a_spell_that_a_later_list_ends_before_its_removal_was_announced_is_found(
    tmp_path: Path,
) -> None:
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


def test_a_list_that_is_known_for_the_first_time_says_that_it_cannot_be_checked(
    tmp_path: Path,
) -> None:
    market = market_of(tmp_path, "A,2022-01-03,")
    finding = audit_list(market, [EarlierList(market, day=LAST)], AT)
    assert finding.passed is None
    assert "cannot be checked yet" in finding.detail
