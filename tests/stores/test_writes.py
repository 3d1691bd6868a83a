"""Writes touch the rows that they name and no others, keep every value, and say
in whole words what they refuse.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from db import tables
from db.connection.bulk import insert_frame, insert_missing, records, upsert
from db.connection.differences import is_changed, is_stored, stored_counterparts
from db.engine import reading, transaction
from db.errors import StoreError, StoreUsageError
from db.read import read, read_row
from db.rows import markets, nights, prices, runs
from db.save import save
from dtml.markets import load_market, market_names
from tests.support.prediction_rows import AS_OF, NEXT, STOCKS, TARGET, predictions, run, scores

NOW = datetime(2024, 1, 5, 2, 30, tzinfo=UTC)
LATER = NOW + timedelta(hours=23)
DAY = timedelta(days=1)


def table(conn: Connection, of: sa.Table, *names: str) -> list[tuple[Any, ...]]:
    asked = [of.c[name] for name in names] or list(of.c)
    return [tuple(each) for each in conn.execute(sa.select(*asked).order_by(*of.primary_key))]


@pytest.fixture
def store(engine: Engine) -> Engine:
    stocks = pd.DataFrame(
        {"symbol": STOCKS, "kind": "stock", "source_symbol": STOCKS, "name": None, "sector": "Tin"}
    )
    with transaction(engine) as conn:
        for market in ("toy", "far"):
            save(conn, "instrument", stocks, market=market)
        save(conn, "run", run())
    return engine


def refused(store: Engine, words: str, write: Any, *given: Any, **named: Any) -> None:
    with pytest.raises(StoreError, match=f"^{words}$"), transaction(store) as conn:
        write(conn, *given, **named)


def test_every_column_of_an_instrument_is_kept(store: Engine) -> None:
    with reading(store) as conn:
        kept = table(conn, tables.instrument)
    assert kept[:3] == [
        (n, "toy", s, "stock", s, None, "Tin", None) for n, s in enumerate(STOCKS, start=1)
    ]
    assert [(each[1], each[2]) for each in kept[3:]] == [("far", s) for s in STOCKS]


def test_the_earliest_session_ever_asked_of_a_symbol_is_kept_market_by_market(
    store: Engine,
) -> None:
    first = {"A": date(2024, 1, 3), "B": date(2024, 1, 2)}
    with transaction(store) as conn:
        markets.note_asked(conn, "toy", first)
        markets.note_asked(conn, "toy", {"A": date(2024, 1, 2), "B": date(2024, 1, 3)})
        asked = table(conn, tables.instrument, "market", "symbol", "asked_from")
    assert asked[:3] == [
        ("toy", s, d) for s, d in zip(STOCKS, [date(2024, 1, 2)] * 2 + [None], strict=True)
    ]
    assert [each[2] for each in asked[3:]] == [None] * 3


def test_stays_are_numbered_by_their_beginning_and_those_of_other_markets_stay(
    store: Engine,
) -> None:
    days = [pd.Timestamp("2023-05-01"), pd.Timestamp("2021-05-01"), pd.NaT]
    listed = pd.DataFrame(
        {"symbol": ["A", "A", "A"], "valid_from": days, "valid_to": pd.NaT, "source": list("xyz")}
    )
    with transaction(store) as conn:
        assert markets.save_constituents(conn, "far", listed) == 3
        assert markets.save_constituents(conn, "toy", listed) == 3
        assert markets.save_constituents(conn, "toy", listed.iloc[1:].assign(source="w")) == 0
        rows = table(conn, tables.constituent)
    assert rows == [
        (1, 1, None, None, "w"),
        (1, 2, date(2021, 5, 1), None, "w"),
        (4, 1, None, None, "z"),
        (4, 2, date(2021, 5, 1), None, "y"),
        (4, 3, date(2023, 5, 1), None, "x"),
    ]


def bars(**changed: Any) -> pd.DataFrame:
    values = dict.fromkeys(("open", "high", "low", "close", "adj_close", "volume"), 2.0)
    frame = pd.DataFrame({"symbol": ["B", "A"], "session": [TARGET, AS_OF]} | values)
    return frame.assign(**({"dividend": np.nan, "split": np.nan} | changed))


def test_a_version_of_a_bar_keeps_who_said_it_and_when_and_a_refusal_names_the_first(
    store: Engine,
) -> None:
    with transaction(store) as conn:
        save = prices.append_prices
        assert save(conn, "toy", bars(), source="files", known_at=NOW) == 2
        assert save(conn, "toy", bars(close=[2.0, 3.0]), source="yahoo", known_at=LATER) == 1
        pennies = bars(**dict.fromkeys(("open", "high", "low", "close", "adj_close"), 0.0001))
        assert save(conn, "far", pennies, source="files", known_at=LATER) == 2
        kept = table(conn, tables.price, "instrument_id", "session", "known_at", "close", "source")
    a, b = AS_OF.date(), TARGET.date()
    assert kept == [
        (1, a, NOW, 2.0, "files"),
        (1, a, LATER, 3.0, "yahoo"),
        (2, b, NOW, 2.0, "files"),
        (4, a, LATER, 0.0001, "files"),
        (5, b, LATER, 0.0001, "files"),
    ]
    twice = r".*(unique|UNIQUE).*"
    refused(
        store, twice, prices.append_prices, "toy", bars(close=4.0), source="files", known_at=LATER
    )
    for column in ("open", "high", "low", "close", "adj_close"):
        named = {"source": "files", "known_at": LATER + DAY}
        refused(
            store,
            r".*(check|CHECK).*",
            prices.append_prices,
            "toy",
            bars(**{column: [0.0, 2.0]}),
            **named,
        )


def test_the_first_finding_of_a_rejected_bar_stands_with_all_its_columns(store: Engine) -> None:
    found = pd.DataFrame(
        {"symbol": ["A"], "session": TARGET, "reason": "stale", "value": "volume=0.0"}
    )
    with transaction(store) as conn:

        def kept(rows: pd.DataFrame, source: str, known_at: datetime) -> int:
            return save(
                conn, "rejected_bar", rows, market="toy", source=source, first_known_at=known_at
            )

        assert kept(found, "files", NOW) == 1
        assert kept(found.assign(value="other"), "files", LATER) == 0
        assert kept(found, "yahoo", LATER) == 1
        rows = table(conn, tables.rejected_bar)
    assert rows == [
        (1, TARGET.date(), "files", "stale", "volume=0.0", NOW),
        (1, TARGET.date(), "yahoo", "stale", "volume=0.0", LATER),
    ]


def test_what_is_known_of_a_call_beyond_its_probability_is_kept_where_it_is_given(
    store: Engine,
) -> None:
    more = {"calibrated": [0.3, 0.5, 0.6], "lowest": [0.1, 0.5, 0.7], "highest": [0.4, 0.5, 0.8]}
    given = predictions().assign(**more, rising_share=[0.0, np.nan, 1.0])
    with transaction(store) as conn:
        stamps = {"known_at": NOW, "made_at": LATER}
        assert save(conn, "prediction", given, market="toy", **stamps) == 3
        assert save(conn, "prediction", predictions(target=NEXT), market="far", **stamps) == 3
        rows = table(conn, tables.prediction)
    told = (AS_OF.date(), 0.25, 0.125, NOW, LATER, 0.3, 0.1, 0.4, 0.0)
    assert rows[0] == ("first", TARGET.date(), 1, *told)
    assert rows[1][-1] is None
    assert [each[2] for each in rows] == [1, 2, 3, 4, 5, 6]
    assert {each[-4:] for each in rows[3:]} == {(None,) * 4}
    words = (
        r"prediction: first 2024-01-05 A .*already.* probability 0\.25.*never rewritten; "
        ".*`dtml db restore`"
    )
    again = {"market": "toy", "known_at": NOW, "made_at": NOW}
    close = given.assign(probability=given["probability"] * (1 + 9e-7))
    with transaction(store) as conn:
        assert save(conn, "prediction", close, **again) == 0
    off = given.assign(probability=given["probability"] * (1 + 1.2e-6))
    refused(store, words, save, "prediction", off, **again)
    twice = pd.concat([given, given.head(1)])
    refused(
        store,
        "first 2024-01-05 A .*duplicated:.*one row .*run_id, target, symbol",
        save,
        "prediction",
        twice,
        **again,
    )
    other = "run: first .*already.*checkpoint_hash .* in place of x:.*backup.*"
    refused(store, other, save, "run", run(checkpoint_hash="x"))


def test_outcomes_and_scores_of_another_market_are_other_rows(store: Engine) -> None:
    happened = pd.DataFrame(
        {
            "symbol": STOCKS,
            "session": TARGET,
            "realised_return": [-0.01, 0.0, 0.02],
            "rise": [0, 0, 1],
        }
    )
    happened = happened.assign(rise=happened["rise"] > 0, label=[-1, 0, 1])
    with transaction(store) as conn:
        for market, at in (("toy", NOW), ("far", LATER)):
            assert (
                save(conn, "outcome", happened[::-1], market=market, known_at=NOW, recorded_at=at)
                == 3
            )
            assert save(conn, "score", scores(), market=market, scored_at=at) == 2
        rows = table(conn, tables.outcome)
        assert [each[0] for each in table(conn, tables.score)] == ["far"] * 2 + ["toy"] * 2
        assert read(conn, "score", market="far")["scored_at"].tolist() == [pd.Timestamp(LATER)] * 2
    assert rows[0] == (1, TARGET.date(), -0.01, False, -1, NOW, NOW)
    assert rows[5] == (6, TARGET.date(), 0.02, True, 1, NOW, LATER)


def start(conn: Connection, market: str, as_of: date, **changed: Any) -> int:
    told = {"target": as_of + DAY, "source": "files", "started_at": NOW} | changed
    return nights.start_night(conn, market, as_of, **told)


def end(
    conn: Connection, market: str, as_of: date, status: str = "complete", **changed: Any
) -> None:
    counts = {"fetched": 7, "stored": 5, "rejected": 2, "predictions": 3}
    told: dict[str, Any] = {
        "status": status,
        "finished_at": LATER,
        "counts": counts,
        "gaps": [],
    } | changed
    nights.finish_night(conn, market, as_of, **told)


NIGHTS: Sequence[tuple[str, date]] = (
    ("far", TARGET.date()),
    ("toy", AS_OF.date()),
    ("toy", TARGET.date()),
)


def test_a_night_that_begins_or_ends_changes_no_other_and_keeps_all_that_is_told(
    store: Engine,
) -> None:
    told = {
        "known_at": NOW,
        "inputs_hash": "hash",
        "run_id": "first",
        "gaps": [{"symbol": "B", "reason": "none"}],
    }
    names = ("market", "as_of", "target", "source", "status", "started_at", "finished_at")
    with transaction(store) as conn:
        assert [start(conn, *each) for each in NIGHTS] == [1, 1, 1]
        end(conn, "toy", TARGET.date(), "complete_with_gaps", **told)
        assert start(conn, "toy", TARGET.date(), started_at=LATER) == 0
        assert (
            start(conn, "toy", AS_OF.date(), started_at=LATER, source="yahoo", target=NEXT.date())
            == 0
        )
        rows = table(conn, tables.night, *names)
        ended = read_row(conn, "night_log", market="toy", as_of=TARGET.date())
    assert rows == [
        ("far", TARGET.date(), TARGET.date() + DAY, "files", "running", NOW, None),
        ("toy", AS_OF.date(), NEXT.date(), "yahoo", "running", LATER, None),
        ("toy", TARGET.date(), TARGET.date() + DAY, "files", "complete_with_gaps", NOW, LATER),
    ]
    counted = {"fetched": 7, "stored": 5, "rejected": 2, "predictions": 3, "reason": None}
    nobody = {"computed_by": None}
    assert ended == dict(zip(names, rows[2], strict=True)) | told | counted | nobody


def test_an_unknown_night_cannot_end_and_the_reason_of_a_refusal_is_kept(store: Engine) -> None:
    with transaction(store) as conn:
        start(conn, "toy", AS_OF.date())
        end(conn, "toy", AS_OF.date(), "refused", reason="no bar")
        start(conn, "toy", NEXT.date())
        assert (read_row(conn, "night_log", market="toy", as_of=AS_OF.date()) or {})[
            "reason"
        ] == "no bar"
    far = "the store .*no night .*far .*2024-01-04 .*:.*again"
    toy = "the store .*no night .*toy .*2024-01-05 .*:.*again"
    refused(store, far, end, "far", AS_OF.date())
    refused(store, toy, end, "toy", TARGET.date())


def test_json_keeps_days_and_moments_as_iso_text_and_refuses_what_is_no_json(store: Engine) -> None:
    trading = {name: asdict(load_market(name).trading) for name in market_names()}
    settings = {"trading": trading, "at": NOW}
    with transaction(store) as conn:
        save(conn, "run", run("dated", config=settings))
    with reading(store) as conn:
        kept = runs.run(conn, "dated")["config"]
    assert kept == {
        "trading": json.loads(json.dumps(trading, default=date.isoformat)),
        "at": NOW.isoformat(),
    }
    with pytest.raises(StoreError, match="set"), transaction(store) as conn:
        save(conn, "run", run("odd", config={"stocks": {"A"}}))


def test_of_many_unknown_symbols_five_are_named(store: Engine) -> None:
    frame = pd.DataFrame(
        {"symbol": list("ZYXWVUZ"), "session": TARGET, "reason": "r", "value": "v"}
    )
    with pytest.raises(
        StoreUsageError,
        match=r"not stored .*toy: U, V, W, X, Y and 1 more; ",
    ):
        save_refused(store, frame)


def save_refused(store: Engine, frame: pd.DataFrame) -> None:
    with transaction(store) as conn:
        save(conn, "rejected_bar", frame, market="toy", source="files", first_known_at=NOW)


def test_rows_stand_beside_the_stored_ones_in_order_and_differ_beyond_the_tolerance_alone() -> None:
    near = [1.0, 1.0, np.nan, np.nan, 0.0, 0.0, 3.0]
    rows = pd.DataFrame({"k": [*"gfedcba"], "day": TARGET, "x": near}, index=range(9, 16))
    kept = [1 + 9e-7, 1 + 1.2e-6, np.nan, 2.0, 9e-13, 2e-12]
    stored = pd.DataFrame({"k": [*"gfedcb"], "day": TARGET, "x": kept})[::-1]
    before = stored_counterparts(rows, stored, ["k", "day"])
    assert before["k"].tolist() == rows["k"].tolist()
    assert is_stored(before).tolist() == [True] * 6 + [False]
    assert is_changed(rows, before, ["x"], 1e-6, absolute_tolerance=1e-12).tolist() == [
        False,
        True,
        False,
        True,
        False,
        True,
        False,
    ]
    assert is_changed(rows, before, ["x"], 1e-6).tolist() == [
        False,
        True,
        False,
        True,
        True,
        True,
        False,
    ]
    others = stored_counterparts(rows, stored.assign(k="z"), ["k", "day"])
    pd.testing.assert_frame_equal(
        stored_counterparts(rows, stored.head(0), ["k", "day"]), others.astype({"_merge": "str"})
    )


def test_rows_become_plain_values_of_their_column_types() -> None:
    frame = pd.DataFrame(
        {
            "as_of": [TARGET, pd.NaT],
            "fetched": [3.0, np.nan],
            "started_at": [pd.Timestamp(NOW), pd.NaT],
        }
    )
    found = records(tables.night, frame.assign(market=["toy", None], gaps=[[1], None]))
    assert found == [
        {"as_of": TARGET.date(), "fetched": 3, "started_at": NOW, "market": "toy", "gaps": [1]},
        dict.fromkeys(("as_of", "fetched", "started_at", "market", "gaps")),
    ]
    assert [type(found[0][name]) for name in ("as_of", "fetched", "started_at")] == [
        date,
        int,
        datetime,
    ]
    assert records(tables.night, frame.head(0)) == []
    for wrong in (2.5, np.inf):
        with pytest.raises(StoreError, match=r"^night\.fetched .*whole numbers .*64 bits, "):
            records(tables.night, frame.assign(fetched=wrong))
    for moment in (pd.Timestamp("2024-01-04 16:00"), pd.Timestamp("2024-01-04", tz="UTC")):
        with pytest.raises(StoreError, match=r"^night\.as_of .*dates,.*times .*2024-01-04 "):
            records(tables.night, frame.assign(as_of=moment))


def test_upserts_count_what_is_new_and_a_stamp_alone_changes_nothing(store: Engine) -> None:
    symbols = [
        {"market": "toy", "symbol": s, "kind": "stock", "source_symbol": s} for s in ("A", "Z")
    ]
    with transaction(store) as conn:
        assert insert_missing(conn, tables.instrument, [], key=("market", "symbol")) == 0
        assert insert_missing(conn, tables.instrument, symbols, key=("market", "symbol")) == 1
        renamed = [each | {"source_symbol": "new", "kind": "index"} for each in symbols]
        assert (
            upsert(
                conn,
                tables.instrument,
                renamed,
                key=("market", "symbol"),
                stamps=("source_symbol",),
            )
            == 0
        )
        same = [each | {"source_symbol": "newer"} for each in renamed]
        assert (
            upsert(
                conn, tables.instrument, same, key=("market", "symbol"), stamps=("source_symbol",)
            )
            == 0
        )
        kept = table(conn, tables.instrument, "market", "symbol", "source_symbol", "kind")
    assert [each for each in kept if each[1] in "AZ"] == [
        ("toy", "A", "new", "index"),
        ("far", "A", "A", "stock"),
        ("toy", "Z", "new", "index"),
    ]


@pytest.mark.soak
@pytest.mark.slow
def test_many_rows_are_stored_in_one_transaction_as_often_as_one_likes(store: Engine) -> None:
    sessions = pd.date_range("1960-01-01", periods=20_011)
    keys = pd.MultiIndex.from_product(
        [[1, 2, 3], sessions], names=["instrument_id", "session"]
    ).to_frame(index=False)
    frame = keys.assign(realised_return=0.5, rise=True, label=1, known_at=NOW, recorded_at=NOW)
    with transaction(store) as conn:
        few = records(tables.outcome, frame.head(7))
        later = records(tables.outcome, frame.head(7).assign(known_at=LATER))
        others = frame.head(9).assign(realised_return=0.25, known_at=LATER)
        stamps = ("known_at", "recorded_at")
        assert upsert(conn, tables.outcome, few, stamps=stamps) == 7
        assert upsert(conn, tables.outcome, later, stamps=stamps) == 0
        assert upsert(conn, tables.outcome, records(tables.outcome, others), stamps=stamps) == 2
        assert insert_frame(conn, tables.outcome, frame.iloc[9:]) == 60_024
        counted = conn.execute(
            sa.select(sa.func.count(), sa.func.sum(tables.outcome.c.realised_return))
        ).one()
        assert tuple(counted) == (60_033, 0.25 * 9 + 0.5 * 60_024)
        first = table(conn, tables.outcome)[:10]
    assert {each[5] for each in first[:9]} == {LATER}
    assert first[9] == (1, date(1960, 1, 10), 0.5, True, 1, NOW, NOW)
