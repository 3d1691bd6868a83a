"""What holds for the rows of every table: kept whole, once, and as their policy says."""

from datetime import date, timedelta
from typing import Any

import pandas as pd
import pytest
import sqlalchemy as sa

from db import tables
from db.connection import bulk
from db.engine import open_engine, reading, transaction, upgrade
from db.errors import StoreError, StoreUsageError
from db.read import STOCKS
from db.rows import runs
from db.save import save
from tests.support.kinds import sqlite_alone
from tests.support.stores import MOMENT, fill

Rows = list[dict[str, Any]]

ORDERED = tables.metadata.sorted_tables  # what a table refers to comes before it
WRITTEN = [table for table in ORDERED if "written" in table.info]
EARLY, LATE = date(1990, 1, 1), date(2090, 1, 1)


def with_policy(policy):
    return [table for table in WRITTEN if table.info["written"].policy == policy]


def stored(conn, table):
    rows = conn.execute(sa.select(table).order_by(*table.primary_key)).mappings()
    return [dict(row) for row in rows]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """Rows of every table, by its name."""
    engine = open_engine(f"sqlite:///{tmp_path_factory.mktemp('filled')}/store.sqlite")
    upgrade(engine)
    fill(engine)
    with reading(engine) as conn:
        rows = {table.name: stored(conn, table) for table in ORDERED}
    engine.dispose()
    return rows


@pytest.fixture
def store(engine, filled):
    """A store with those rows, none of them put there by `save`."""
    with transaction(engine) as conn:
        for table in ORDERED:
            conn.execute(sa.insert(table), filled[table.name])
    return engine


def frame(filled, table, rows):
    """The rows as `save` takes them, in another order."""
    symbols = {row["id"]: row["symbol"] for row in filled["instrument"]}
    made = pd.DataFrame(rows)
    for column in STOCKS.keys() & set(made):
        made[STOCKS[column]] = made.pop(column).map(symbols)
    return made.iloc[::-1]


def market_of(table):
    return {"market": "toy"} if "instrument_id" in table.c else {}


VALUES = {
    sa.Boolean: True,
    sa.Date: EARLY,
    sa.Float: 0.1 + 0.2,
    sa.Integer: 7,
    sa.JSON: {"a": [1, None]},
    sa.String: "text",
    tables.UtcTimestamp: MOMENT,
}


def with_values(table, rows):
    """The rows, with a value in every column, but for those that refer to another table."""
    values = {
        column.name: next(value for kind, value in VALUES.items() if isinstance(column.type, kind))
        for column in table.c
        if not column.foreign_keys
    }
    return [row | {name: values.get(name) for name in row if row[name] is None} for row in rows]


def without_values(table, rows):
    """The rows, with nothing in the columns that may lack a value."""
    missing = {column.name: None for column in table.c if column.nullable}
    return [row | missing for row in rows]


@pytest.mark.parametrize("made", [with_values, without_values])
def test_every_value_is_kept_and_a_rerun_adds_no_row(engine, filled, made, monkeypatch):
    """Rows come as mappings and, as those with symbols always do, as frames."""
    monkeypatch.setattr(bulk, "CHUNK", 2)
    with transaction(engine) as conn:
        for table in ORDERED:
            rows = filled[table.name]
            if table not in WRITTEN:
                conn.execute(sa.insert(table), rows)
                continue
            rows = made(table, rows)
            # On PostgreSQL a row that is tried again uses up a number.
            is_numbered = table.autoincrement_column is not None
            parts = [rows] if is_numbered else [rows[:1], rows]
            saved = []
            for given in (*parts, rows):
                has_symbols = "instrument_id" in table.c or table.name == "instrument"
                as_frame = has_symbols or len(saved) % 2 == 0
                each = frame(filled, table, given) if as_frame else given
                saved.append(save(conn, table.name, each, **market_of(table)))
            assert (table.name, sum(saved), saved[-1]) == (table.name, len(rows), 0)
            assert stored(conn, table) == rows


# Other values, where another row is not had by leaving values out.
OTHERS = {
    "alert": {"message": "another"},
    "abstention_count": {"n": 4, "covered": 3},
    "calibration_bin": {"n": 4},
    "market_file": {"text": "another"},
    "night_drift": {"drifted": True},
    "outcome": {"realised_return": 0.5},
    "paper_position": {"weight": 0.25},
    "paper_return": {"gross": 0.5},
    "ranker": {"chosen": "blend"},
    "ranking": {"stocks": 37},
    "price_fetch": {"asked": 3},
    "rejected_bar": {"value": "another"},
    "target_position": {"weight": 0.25},
}


@pytest.mark.parametrize("policy", ["stays", "newest"])
def test_another_value_of_a_stored_key_stays_out_or_takes_its_place(store, filled, policy):
    with transaction(store) as conn:
        for table in with_policy(policy):
            before = filled[table.name]
            others = [row | OTHERS.get(table.name, {}) for row in without_values(table, before)]
            assert others != before, table.name
            assert save(conn, table.name, frame(filled, table, others), **market_of(table)) == 0
            assert stored(conn, table) == (before if policy == "stays" else others)


def another(value):
    """A value that is further away than any tolerance."""
    match value:
        case None:
            return 0.5
        case str():
            return f"{value}, another"
        case date():  # and a moment
            return value + timedelta(days=1)
        case _:
            return value * 1.01 + 1


def test_a_row_with_another_stamp_alone_is_no_other_row(store, filled):
    with transaction(store) as conn:
        for table in with_policy("newest"):
            before = filled[table.name]
            stamps = table.info["written"].stamps
            stamped = [row | {name: another(row[name]) for name in stamps} for row in before]
            save(conn, table.name, frame(filled, table, stamped), **market_of(table))
            if stamps:
                assert stored(conn, table) == before


@sqlite_alone
def test_a_row_that_differs_beyond_the_tolerance_is_refused_by_key_and_column(store, filled):
    with transaction(store) as conn:
        for table in with_policy("same"):
            before = filled[table.name]
            written = table.info["written"]
            numbers = [
                column.name
                for column in table.c
                if isinstance(column.type, sa.Float | sa.Integer)
                and not (column.primary_key or column.foreign_keys)
            ]
            for name in written.compared or (numbers[0], numbers[-1]):
                others = [row | {name: shifted(row[name], written, 1.2)} for row in before]
                words = rf"^{table.name}: .* already stored with {name} .*: {written.refusal}; "
                with pytest.raises(StoreError, match=words):
                    save(conn, table.name, frame(filled, table, others), **market_of(table))
            near = [
                row | {name: shifted(row[name], written, 0.9) for name in numbers if row[name]}
                for row in before
            ]
            assert save(conn, table.name, frame(filled, table, near), **market_of(table)) == 0
            assert stored(conn, table) == before


def shifted(value, written, tolerances):
    """A number that is so many tolerances smaller; of what has none, another value."""
    if isinstance(value, float):
        return value - tolerances * (written.relative * abs(value) + written.absolute)
    return another(value) if tolerances > 1 else value


NEVER_REPLACED = {
    "abstention_band",
    "attention_weight",
    "backtest_fold",
    "backtest_portfolio",
    "backtest_return",
    "backtest_score",
    "benchmark_score",
    "benchmark_seed",
    "prediction",
    "ranking_difference",
    "ranking_portfolio",
    "ranking_score",
    "run",
    "stock_rank",
}


def test_what_was_predicted_and_found_is_never_replaced():
    assert {table.name for table in with_policy("same")} == NEVER_REPLACED


@pytest.mark.parametrize("policy", ["newest", "same"])
def test_two_rows_of_one_key_are_refused(store, filled, policy):
    with reading(store) as conn:
        for table in with_policy(policy):
            once = frame(filled, table, filled[table.name])
            twice = pd.concat([once, once.head(1)])
            with pytest.raises(StoreError, match="is duplicated: give only one row for each"):
                save(conn, table.name, twice, **market_of(table))


def test_a_stock_that_is_not_stored_is_refused_by_name(store, filled):
    with reading(store) as conn:
        for table in WRITTEN:
            for symbol in [STOCKS[column] for column in STOCKS if column in table.c]:
                rows = frame(filled, table, filled[table.name]).assign(**{symbol: "Zinc"})
                with pytest.raises(StoreUsageError, match=r"not stored for market toy: Zinc;"):
                    save(conn, table.name, rows, market="toy")


REFUSED = [
    ("run", "kind", {"kind": "guess"}),
    ("run", "span", {"train_last": EARLY}),
    ("prediction", "probability", {"probability": -0.01}),
    ("prediction", "probability", {"probability": 1.01}),
    ("prediction", "dates", {"as_of": LATE}),
    ("price", "prices", {"close": 0.0}),
    ("price", "prices", {"open": 0.0}),
    ("price", "prices", {"adj_close": -1.0}),
    ("price", "amounts", {"volume": -1.0}),
    ("night", "status", {"status": "perhaps"}),
    ("night_stage", "status", {"status": "perhaps"}),
    ("night_stage", "seconds", {"seconds": -1.0}),
    ("backtest", "span", {"last": EARLY}),
    ("backtest", "counts", {"retrain_every": 0}),
    ("backtest", "counts", {"constituent_days": 1, "without_price": 2}),
    ("backtest_fold", "span", {"as_of": LATE}),
    ("backtest_score", "slice", {"slice": "week"}),
    ("backtest_score", "slice", {"slice": "all", "value": "x"}),
    ("backtest_score", "ranges", {"acc": 1.01}),
    ("backtest_score", "ranges", {"mcc": -1.01}),
    ("backtest_score", "counts", {"rises": 7}),
    ("benchmark", "spans", {"train_last": date(2015, 8, 3)}),
    ("benchmark", "spans", {"validation_last": date(2015, 10, 1)}),
    ("benchmark", "spans", {"test_last": date(2015, 9, 30)}),
    ("benchmark", "counts", {"stocks": 0}),
    ("benchmark_score", "ranges", {"auc": -0.01}),
    ("benchmark_score", "counts", {"rises": 3721}),
    ("benchmark_score", "protocol", {"protocol": "x"}),
    ("attention_weight", "weight", {"weight": 1.5}),
    ("translation_text", "status", {"status": "lost"}),
    ("translation_text", "lease", {"status": "taken", "taken_until": None}),
    ("translation_text", "end", {"status": "done", "translation": None}),
    ("translation_text", "end", {"status": "failed", "reason": None}),
    ("translation_text", "attempts", {"attempts": -1}),
]


def test_a_row_that_makes_no_sense_is_refused_by_the_store_itself(store):
    for name, check, values in REFUSED:
        wrong = sa.update(tables.metadata.tables[name]).values(values)
        with pytest.raises(StoreError, match=f"ck_{name}_{check}"), transaction(store) as conn:
            conn.execute(wrong)


def test_a_row_needs_what_it_refers_to(store, filled):
    unknown = [row | {"run_id": "nothing"} for row in filled["prediction"]]
    with pytest.raises(StoreError, match=r"(?i)foreign key"), transaction(store) as conn:
        save(conn, "prediction", frame(filled, tables.prediction, unknown), market="toy")


UNFIT = [
    ("calibration_bin", "n", 2.5, "whole numbers .*: 2.5"),
    ("calibration_bin", "n", float("inf"), "whole numbers .*: inf"),
    ("outcome", "session", pd.Timestamp("2024-01-04 16:00"), "dates, got times .* 16:00"),
    ("outcome", "session", pd.Timestamp("2024-01-04", tz="UTC"), "dates, got times .*2024-01-04"),
]


def test_a_value_that_does_not_fit_its_column_is_refused(store, filled):
    with reading(store) as conn:
        for name, column, value, words in UNFIT:
            table = tables.metadata.tables[name]
            rows = frame(filled, table, filled[name]).assign(**{column: value})
            with pytest.raises(StoreError, match=rf"^{name}\.{column} must hold {words}"):
                save(conn, name, rows, **market_of(table))


def test_json_keeps_days_and_moments_as_iso_text_and_refuses_what_is_no_json(store, filled):
    first = filled["run"][0]
    with transaction(store) as conn:
        save(conn, "run", first | {"id": "dated", "config": {"day": EARLY, "at": MOMENT}})
        kept = runs.run(conn, "dated")["config"]
    assert kept == {"day": EARLY.isoformat(), "at": MOMENT.isoformat()}
    for config, words in (({"stocks": {"A"}}, "set"), ({"loss": float("nan")}, "(?i)nan")):
        with pytest.raises(StoreError, match=words), transaction(store) as conn:
            save(conn, "run", first | {"id": "odd", "config": config})
