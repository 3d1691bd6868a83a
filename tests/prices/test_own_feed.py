"""A feed of a user's own: how a market's file names it, what it may answer, what is refused."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date

import numpy as np
import pandas as pd
import pytest

from dtml.errors import UsageError
from dtml.markets import Market, load_market, load_market_file
from dtml.markets import definition as market_feeds
from dtml.prices.sessions import sessions_between
from dtml.sources import Fetched, known_source, open_source
from dtml.sources.own_feed.admission import admit
from dtml.sources.own_feed.source import FeedCode, FeedError, require_none_after, unanswered
from dtml.sources.own_feed.work import bars_of, blotted, fetched_of, last_session_of, stocks_of
from flows.settings import keep_needed_variables
from tests.support.nights import BARS, SIMULATED, small_market

MARKET = load_market("simulated").with_symbols(SIMULATED.market.symbols)
LAST = date(2024, 7, 1)
FIRST = dict.fromkeys(("SIMX", *SIMULATED.market.symbols), date(2024, 1, 3))
Answer = Callable[[Mapping[str, date], date], pd.DataFrame]


@dataclass
class Feed:
    """A feed in this process, and what it was asked."""

    answer: Answer
    market: Market = MARKET
    name: str = "mine.py"
    asked: list[tuple[dict[str, date], date]] = field(default_factory=list)

    def fetch(self, first, last):
        self.asked.append((dict(first), last))
        fetched = fetched_of(self.answer(first, last), first, last)
        require_none_after(self.name, fetched.bars, last)
        return fetched


def simulated(_, last):
    return SIMULATED.bars(last)


def stored(_, last):
    return BARS[BARS["session"] <= pd.Timestamp(last)]


def checked(answer, last=LAST):
    return admit(Feed(answer), FIRST, last)


# The market's file


def test_a_market_names_a_feed_beside_its_file_and_what_it_may_read(tmp_path):
    file = tmp_path / "home.toml"
    file.write_text(small_market(source="mine.py", more='[feed]\nenvironment = ["VENDOR_KEY"]'))
    (tmp_path / "mine.py").write_text("def fetch(first, last): ...")
    market = load_market_file(file)
    assert (market.source, market.feed.environment) == ("mine.py", ("VENDOR_KEY",))
    assert "feed" not in market.settings
    source = open_source(market.source, market)
    assert source.name == "mine.py"
    (tmp_path / "mine.py").unlink()
    with pytest.raises(UsageError, match=r"mine\.py:.*feed cannot be read"):
        open_source(market.source, market)
    assert load_market_file(file) == market  # it is read without its feed, as by a replay


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ('[feed]\nenvironment = ["A KEY"]', r"feed.environment\[1\]: .*name.*'A KEY'"),
        ('[feed]\nenvironment = "KEY"', "feed.environment:.*list"),
        ("[feed]\nseconds = 3", "feed.seconds: unknown.* environment"),
    ],
)
def test_a_mistake_about_a_feed_is_named(tmp_path, more, complaint):
    file = tmp_path / "home.toml"
    file.write_text(small_market(more=more))
    with pytest.raises(UsageError) as error:
        load_market_file(file)
    assert re.search(complaint, str(error.value))


def test_an_unknown_source_is_told_the_installed_ones_and_of_own_files(tmp_path, monkeypatch):
    file = tmp_path / "home.toml"
    file.write_text(small_market(source="vendr"))
    monkeypatch.setattr(market_feeds, "installed_feeds", lambda: {"vendor": None})
    with pytest.raises(UsageError, match=r"perhaps vendor;.*files, simulated, vendor, yahoo"):
        load_market_file(file)
    with pytest.raises(UsageError, match=r"'vendr'.*unknown.* yahoo, files"):
        known_source("vendr")


def test_the_file_of_an_option_is_beside_the_user_and_that_of_a_market_beside_the_market(
    tmp_path, monkeypatch
):
    (tmp_path / "market").mkdir()
    file = tmp_path / "market" / "home.toml"
    file.write_text(small_market(source="mine.py"))
    (tmp_path / "market" / "mine.py").write_text("# of the market")
    (tmp_path / "mine.py").write_text("# of the user")
    monkeypatch.chdir(tmp_path)
    market = load_market_file(file)
    assert FeedCode.of("mine.py", market).text == "# of the market"
    assert FeedCode.of(known_source("mine.py"), market).text == "# of the user"
    with pytest.raises(UsageError, match=r"no file .*none\.py .*--source"):
        known_source("none.py")


def test_a_service_keeps_the_variables_that_its_markets_name_and_no_other_secret(monkeypatch):
    environ = {"VENDOR_KEY": "of the feed", "OTHER_KEY": "of another program", "PATH": "/bin"}
    with monkeypatch.context() as patch:
        patch.setattr("flows.settings.os.environ", environ)
        keep_needed_variables({"VENDOR_KEY"})
    assert environ == {"VENDOR_KEY": "of the feed", "PATH": "/bin"}


# What it answers


def table(**columns):
    given = {"symbol": ["A", "A"], "session": ["2024-06-28", "2024-07-01"], "close": [1.0, 2.0]}
    return pd.DataFrame(given | columns)


def test_a_table_of_a_feed_becomes_bars_whose_unknown_values_are_missing():
    bars = bars_of(table(volume=[5, 0], colour="red"))
    assert bars["session"].tolist() == [pd.Timestamp(2024, 6, 28), pd.Timestamp(2024, 7, 1)]
    assert bars["volume"].tolist() == [5.0, 0.0]
    assert bars[["open", "adj_close", "split"]].isna().all(axis=None)
    assert "colour" not in bars
    days = table(session=[date(2024, 6, 28), date(2024, 7, 1)])
    pd.testing.assert_frame_equal(bars_of(days), bars_of(table()))


ZONED = pd.to_datetime(["2024-06-28", "2024-07-01"]).tz_localize("UTC")
NO_BARS = {
    "nothing": (None, "returned nothing.*DataFrame"),
    "a list": ([1], "returned a list.*DataFrame"),
    "no session": (
        table().drop(columns="session"),
        "without session;.* symbol, close",
    ),
    "a number as symbol": (
        table(symbol=[5930, 5930]),
        "column symbol .*5930,.*not a string",
    ),
    "a time zone": (table(session=ZONED), "column session .*time zone, UTC"),
    "a time": (table(session=["2024-06-28 16:00", "2024-07-01 16:00"]), "is not a date"),
    "numbers": (table(session=[20240628, 20240701]), "column session holds numbers"),
    "a gap": (table(session=["2024-06-28", None]), "is not a date"),
    "words": (table(session=["Friday", "Monday"]), "session holds.* not a date"),
    "a text as price": (
        table(close=["1.0", "n/a"]),
        "column close .*n/a .* A .*2024-07-01: ",
    ),
    "infinity": (table(close=[1.0, np.inf]), "column close holds inf"),
    "a column twice": (
        pd.concat([table(), table()[["close"]]], axis=1),
        "two columns named ",
    ),
}


@pytest.mark.parametrize("name", NO_BARS)
def test_what_is_no_table_of_bars_is_refused_with_its_column_and_value(name):
    answer, words = NO_BARS[name]
    with pytest.raises(FeedError) as error:
        bars_of(answer)
    assert re.search(words, str(error.value))


def test_a_feed_answers_for_each_symbol_and_only_for_what_was_asked():
    first = {"A": date(2024, 7, 1), "B": date(2024, 7, 1)}
    fetched = fetched_of(table(), first, LAST)
    assert fetched.bars["close"].tolist() == [2.0]
    assert fetched.outcomes["status"].tolist() == ["ok", "no_data"]
    own = pd.DataFrame(
        {"symbol": ["B", "A"], "status": ["rate_limited", "ok"], "detail": ["wait\na day", None]}
    )
    given = fetched_of(Fetched(table(), own), first, LAST).outcomes
    assert given.to_dict("records") == [
        {"symbol": "A", "status": "ok", "rows": 1, "detail": ""},
        {"symbol": "B", "status": "rate_limited", "rows": 0, "detail": "wait a day"},
    ]


def test_the_stocks_and_the_last_session_of_a_feed_are_symbols_and_a_date():
    assert stocks_of(None) is None
    assert stocks_of(("A", "BRK/B")) == ["A", "BRK/B"]
    assert last_session_of(LAST) == LAST
    for wrong in ("AB", 3, [5930], ["a b\n"]):
        with pytest.raises(FeedError, match="symbols returned"):
            stocks_of(wrong)
    for moment in (pd.Timestamp(LAST), "2024-07-01"):
        with pytest.raises(FeedError, match="last_session returned a"):
            last_session_of(moment)


def test_a_secret_is_blotted_out_before_a_text_is_cut(monkeypatch):
    monkeypatch.setenv("VENDOR_KEY", "k3y/with space")
    question = {"environment": ["VENDOR_KEY"]}
    assert blotted("x" * 495 + "k3y/with space", question, 500) == "x" * 495 + "***"
    for form in ("k3y/with space", "k3y%2Fwith%20space", "k3y%2Fwith+space"):
        assert blotted(f"no {form}", question, 200) == "no ***"


# The check


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("answer", [simulated, stored])
def test_an_honest_feed_is_admitted_whatever_splits_and_dividends_come(answer):
    for session in sessions_between("XNYS", date(2024, 6, 3), date(2024, 7, 31))[::5]:
        assert checked(answer, session.date()) is None


def test_a_check_asks_for_the_index_and_three_stocks_three_times():
    feed = Feed(stored)
    assert admit(feed, FIRST, LAST) is None
    symbols = ["SIMX", "L01", "F01B", "F03B"]
    assert [sorted(first) for first, _ in feed.asked] == [sorted(symbols)] * 3
    assert [last for _, last in feed.asked] == [LAST, LAST, date(2024, 6, 14)]
    (begin,) = {day for first, _ in feed.asked for day in first.values()}
    assert len(sessions_between("XNYS", begin, LAST)) == 60


def with_column(bars, column, factor):
    return bars.assign(**{column: bars[column] * factor})


def drifting():
    asked = iter(range(99))
    return lambda first, last: with_column(stored(first, last), "close", 1 + next(asked) / 1e4)


def on_a_saturday(first, last):
    bars = stored(first, last)
    fridays = bars[bars["session"].dt.day_of_week == 4]
    saturdays = fridays["session"] + pd.Timedelta(days=1)
    return pd.concat([bars, fridays.assign(session=saturdays)])


def doubled(first, last):
    bars = stored(first, last)
    return pd.concat([bars, bars.tail(40)])


def everything(_, __):
    return BARS


def scaled_by_the_window(first, last):
    """It looks like a price, but each is a share of the newest close."""
    bars = stored(first, last)
    newest = bars.groupby("symbol")["close"].transform("last")
    return bars.assign(**{name: bars[name] / newest for name in ("open", "high", "low", "close")})


def with_a_split_that_it_hides(first, last):
    bars = stored(first, last)
    if last < date(2024, 6, 20):
        return bars
    before = np.where(bars["session"] < pd.Timestamp(2024, 6, 20), 0.5, 1.0)
    for column in ("open", "high", "low", "close", "adj_close"):
        bars = with_column(bars, column, before)
    return bars


def with_a_dividend_that_it_hides(first, last):
    bars = stored(first, last).assign(dividend=np.nan, split=np.nan)
    if last < date(2024, 6, 20):
        return bars
    before = np.where(bars["session"] < pd.Timestamp(2024, 6, 20), 0.98, 1.0)
    return with_column(bars, "adj_close", before)


def without_its_last_day(first, last):
    bars = stored(first, last)
    return bars[bars["session"] < pd.Timestamp(last)]


def of_the_day_after(first, last):
    """It fills the close of a session with the next one, where it knows it."""
    bars = stored(first, last)
    next_close = bars.groupby("symbol")["close"].shift(-1)
    return bars.assign(close=next_close.fillna(bars["close"]))


LIES = {
    "another answer": (drifting(), "asked twice,.*two answers: close "),
    "a Saturday": (on_a_saturday, "no session of XNYS"),
    "two bars": (doubled, "two bars of 2024-"),
    "the future": (everything, "asked .*up to 2024-07-01, "),
    "a window": (scaled_by_the_window, r"restates silently: \w+ of "),
    "a hidden split": (with_a_split_that_it_hides, r"restates silently: \w+ of "),
    "a hidden dividend": (with_a_dividend_that_it_hides, "restates silently: adj_close "),
    "an exclusive end": (without_its_last_day, r"restates silently: \w+ of .*missing"),
    "tomorrow's close": (of_the_day_after, "restates silently: close "),
    "nothing": (lambda *_: BARS[:0], "no bar.* SIMX, L01, F01B, F03B"),
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
def test_a_feed_that_lies_is_refused_by_name_with_what_was_found_and_what_to_do(lie):
    answer, finding = LIES[lie]
    with pytest.raises(FeedError) as error:
        checked(answer)
    message = str(error.value)
    assert message.startswith("mine.py is refused: ")
    assert re.search(finding, message)
    assert ". Nothing was stored; " in message
    assert "\n" not in message


def test_a_recorded_split_and_dividend_may_scale_the_past():
    def told(hidden, column, value):
        def answer(first, last):
            bars = hidden(first, last)
            is_day = bars["session"] == pd.Timestamp(2024, 6, 20)
            return bars.assign(**{column: bars[column].where(~is_day, value)})

        return answer

    assert checked(told(with_a_split_that_it_hides, "split", 2.0)) is None
    assert checked(told(with_a_dividend_that_it_hides, "dividend", 0.3)) is None


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_feed_that_is_out_of_reach_is_neither_admitted_nor_refused(silent):
    @dataclass
    class Limited(Feed):
        def fetch(self, first, last):
            answer = super().fetch(first, last)
            if len(self.asked) <= silent:
                return answer
            return unanswered(first, "rate_limited", "wait")

    reason = admit(Limited(stored), FIRST, LAST)
    assert reason is not None
    assert reason[0] == "rate_limited"
    assert re.search("not checked yet: wait$", reason[1])
