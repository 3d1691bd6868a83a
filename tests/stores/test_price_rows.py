"""Prices: stored only when they change, read as they were known, never repaired."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import combinations_with_replacement

import numpy as np
import pandas as pd
import pytest
import sqlalchemy as sa

from db.engine import reading, transaction
from db.errors import StoreError
from db.read import read
from db.rows import markets, prices
from db.save import save
from tests.support.kinds import sqlite_alone

SYMBOLS = ("A", "B", "^TOY")
SESSIONS = pd.bdate_range("2024-01-01", periods=5).as_unit("ns")
FIRST, LAST = SESSIONS[0].date(), SESSIONS[-1].date()
MONDAY, TUESDAY = datetime(2024, 1, 8, 22, tzinfo=UTC), datetime(2024, 1, 9, 22, tzinfo=UTC)
BAR = [
    "symbol",
    "session",
    "open",
    "high",
    "low",
    "close",
    "adj_close",
    "volume",
    "dividend",
    "split",
]


def bars(symbols=SYMBOLS, sessions=SESSIONS):
    """Bars in the order of a file, by session: prices of 100 and up, no open on
    the first, one split.
    """
    frame = pd.MultiIndex.from_product([sessions, symbols], names=["session", "symbol"]).to_frame(
        index=False
    )
    frame["close"] = 100 + np.arange(len(frame)) / 7
    frame["open"] = (frame["close"] - 0.5).where(frame["session"] > sessions[0])
    frame["high"], frame["low"] = frame["close"] + 1, frame["close"] - 1
    frame["adj_close"] = frame["close"] / 2
    frame["volume"] = 1000.0 * np.arange(len(frame))
    frame["dividend"] = np.nan
    frame["split"] = pd.Series(4.0, index=frame.index[:1]).reindex(frame.index)
    return frame[BAR]


@pytest.fixture
def store(engine):
    instruments = pd.DataFrame(
        {
            "symbol": SYMBOLS,
            "kind": ["stock", "stock", "index"],
            "source_symbol": [symbol + ".X" for symbol in SYMBOLS],
            "name": ["Alpha", None, "Toy index"],
            "sector": ["Energy", None, None],
        }
    )
    with transaction(engine) as conn:
        assert save(conn, "instrument", instruments, market="toy") == len(SYMBOLS)
    return engine


def append(store, frame, known_at=MONDAY):
    with transaction(store) as conn:
        return prices.append_prices(conn, "toy", frame, source="files", known_at=known_at)


def known(store, known_at=None):
    with reading(store) as conn:
        return prices.prices(conn, "toy", FIRST, LAST, known_at=known_at)


def test_rounding_noise_is_no_restatement_and_a_missing_value_equals_itself(store):
    append(store, bars())
    assert append(store, bars()) == 0
    assert append(store, bars(), TUESDAY) == 0
    noisy = bars()
    noisy["close"] *= 1 + 5e-10
    assert append(store, noisy, TUESDAY) == 0
    noisy["close"] *= 1 + 5e-9
    assert append(store, noisy, TUESDAY) == len(noisy)


def test_a_value_that_appears_or_goes_is_a_restatement(store):
    append(store, bars())
    for day, column in enumerate(BAR[2:], start=1):
        values = bars()[column].to_numpy(copy=True)
        values[7] = 99.75 if column == "close" or np.isnan(values[7]) else np.nan
        changed, at = bars().assign(**{column: values}), MONDAY + timedelta(days=2 * day)
        assert append(store, changed, at) == 1, column
        assert append(store, bars(), at + timedelta(days=1)) == 1, column


def test_a_restated_bar_is_read_as_it_was_known_then(store):
    append(store, bars())
    restated = bars()
    restated.loc[restated["symbol"] == "B", "adj_close"] /= 3
    assert append(store, restated, TUESDAY) == len(SESSIONS)
    pd.testing.assert_frame_equal(
        known(store, MONDAY)[BAR], bars().sort_values(["symbol", "session"], ignore_index=True)
    )
    pd.testing.assert_frame_equal(
        known(store)[BAR], restated.sort_values(["symbol", "session"], ignore_index=True)
    )
    assert known(store, MONDAY - timedelta(seconds=1)).empty
    assert (known(store)["known_at"].max(), known(store, MONDAY)["known_at"].max()) == (
        TUESDAY,
        MONDAY,
    )


def withdraw(store, rejected, known_at):
    with transaction(store) as conn:
        return prices.withdraw(conn, "toy", rejected.assign(reason="brief_jump"), known_at=known_at)


def test_a_bar_that_is_withdrawn_is_read_as_known_before_and_not_since(store):
    append(store, bars())
    gone = (bars()["symbol"] == "B") & (bars()["session"] == SESSIONS[2])
    assert withdraw(store, bars()[gone], TUESDAY) == 1
    expected = bars().sort_values(["symbol", "session"], ignore_index=True)
    pd.testing.assert_frame_equal(known(store, MONDAY)[BAR], expected)
    left = bars()[~gone].sort_values(["symbol", "session"], ignore_index=True)
    pd.testing.assert_frame_equal(known(store)[BAR], left)
    assert withdraw(store, bars()[gone], TUESDAY + timedelta(days=1)) == 0


def test_the_newest_moment_of_a_read_finds_the_same_bars_after_a_withdrawal(store):
    """A run keeps that moment, and a replay reads as known at it."""
    append(store, bars())
    gone = (bars()["symbol"] == "B") & (bars()["session"] == SESSIONS[2])
    withdraw(store, bars()[gone], TUESDAY)
    now = known(store)
    assert now.loc[now["known_at"] == TUESDAY, ["symbol", "session"]].to_numpy().tolist() == [
        ["B", SESSIONS[1]]
    ]
    pd.testing.assert_frame_equal(known(store, now["known_at"].max()), now)


@sqlite_alone
@pytest.mark.parametrize("known_at", [None, MONDAY])
@pytest.mark.parametrize("symbols", [None, ["B"]])
def test_a_cut_is_what_a_read_of_the_same_sessions_gives(store, symbols, known_at):
    """To the last bit, and dated alike where a bar was withdrawn at the edge of the cut."""
    append(store, bars())
    gone = (bars()["symbol"] == "B") & (bars()["session"] == SESSIONS[2])
    withdraw(store, bars()[gone], TUESDAY)
    with reading(store) as conn:
        whole = prices.known_bars(conn, "toy", FIRST, LAST, known_at=known_at)
        for span in combinations_with_replacement([day.date() for day in SESSIONS[1:4]], 2):
            alone = prices.prices(conn, "toy", *span, known_at=known_at, symbols=symbols)
            pd.testing.assert_frame_equal(whole.between(*span, symbols), alone)


def test_a_withdrawal_is_a_restatement_with_its_reason_and_the_bar_may_come_again(store):
    append(store, bars())
    gone = (bars()["symbol"] == "B") & (bars()["session"] == SESSIONS[2])
    withdraw(store, bars()[gone], TUESDAY)
    other = bars()
    other.loc[gone, "close"] += 1
    for days, again in enumerate((other, bars()), start=1):
        assert append(store, again, TUESDAY + timedelta(days=days)) == 1
    asked = (
        "select session, reason, close, close_before, source from price_restatement order by "
        "known_at"
    )
    with reading(store) as conn:
        first, second, third = conn.execute(sa.text(asked)).mappings().all()
        latest = conn.execute(sa.text("select count(*) from price_latest")).scalar_one()
    close = bars().loc[gone, "close"].item()
    assert (first["reason"], first["close"], first["source"]) == ("brief_jump", None, "checks")
    assert first["close_before"] == pytest.approx(close)
    assert (second["reason"], second["close"]) == ("reported_anew", pytest.approx(close + 1))
    assert (third["close_before"], third["close"]) == pytest.approx((close + 1, close))
    assert latest == len(bars())


def test_a_stored_bar_of_another_level_than_the_one_that_failed_stays(store):
    append(store, bars())
    failing = bars()[bars()["symbol"] == "B"]
    failing[["close", "adj_close"]] *= 100
    assert withdraw(store, failing, TUESDAY) == 0
    assert len(known(store)) == len(bars())


def test_a_fetch_that_ends_late_is_compared_with_what_was_known_when_it_began(store):
    append(store, bars(), TUESDAY)
    older = bars()
    older["close"] += 1
    assert append(store, older, MONDAY) == len(older)
    assert (
        known(store)["close"] == bars().sort_values(["symbol", "session"])["close"].to_numpy()
    ).all()
    assert append(store, older, MONDAY) == 0


def test_constituents_are_what_the_list_says_now_numbered_by_their_beginning(store):
    days = pd.to_datetime(["2023-05-01", "2021-05-01", None])
    listed = pd.DataFrame(
        {"symbol": "A", "valid_from": days, "valid_to": pd.NaT, "source": list("xyz")}
    )
    with transaction(store) as conn:
        save(conn, "instrument", read(conn, "instrument", market="toy"), market="other")
        assert markets.save_constituents(conn, "other", listed) == 3
        assert markets.save_constituents(conn, "toy", listed) == 3
        assert markets.save_constituents(conn, "toy", listed.iloc[1:].assign(source="w")) == 0
        stays = read(conn, "constituent", columns="spell, valid_from, source", market="toy")
        others = read(conn, "constituent", columns="spell, valid_from, source", market="other")
    assert stays["spell"].tolist() == [1, 2]
    assert stays["valid_from"].tolist() == [pd.NaT, days[1]]
    assert stays["source"].tolist() == ["w", "w"]
    assert others["source"].tolist() == ["z", "y", "x"]


def test_the_earliest_session_ever_asked_of_a_symbol_is_kept_market_by_market(store):
    with transaction(store) as conn:
        save(conn, "instrument", read(conn, "instrument", market="toy"), market="other")
        markets.note_asked(conn, "toy", {"A": FIRST, "B": LAST})
        markets.note_asked(conn, "toy", {"A": LAST, "B": FIRST})
        asked = read(conn, "instrument", columns="symbol, asked_from", order="market, symbol")
    assert asked["asked_from"].isna().tolist() == [True] * 3 + [False] * 2 + [True]
    assert set(asked["asked_from"].dropna()) == {SESSIONS[0]}


def test_naive_timestamps_are_refused_and_others_come_back_in_utc(store):
    with pytest.raises(StoreError, match=r"2024-01-08T22:00:00 .*no time zone"):
        append(store, bars(), datetime(2024, 1, 8, 22))  # noqa: DTZ001
    seoul = timezone(timedelta(hours=9))
    append(store, bars(), datetime(2024, 1, 9, 7, tzinfo=seoul))
    assert set(known(store)["known_at"]) == {pd.Timestamp(MONDAY)}
