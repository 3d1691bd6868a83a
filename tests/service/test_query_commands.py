"""What is asked on the command line: answers kept as files, histories of
stocks, and the twenty questions.
"""

import io
import json
import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner

from db.engine import transaction
from db.errors import StoreUsageError
from db.questions import questions as all_questions
from db.read import read
from db.rows import predictions, prices
from db.save import save
from dtml.errors import UsageError
from dtml.prices.bars import BAR_COLUMNS
from flows.commands.history import history, list_runs
from flows.commands.query import query
from flows.commands.questions import commands, show_questions
from tests.support.prediction_rows import run, save_stocks
from tests.support.stores import GAP, MOMENT, fill
from translation.errors import TranslationError

NIGHTS = 50
DAYS = pd.bdate_range("2024-01-02", periods=NIGHTS + 1)
ASKED = {"as_json": False, "as_csv": False}


@pytest.fixture
def store(engine: Engine) -> Engine:
    """The store that a command finds, with rows in every table."""
    fill(engine)
    return engine


@pytest.fixture
def nights(engine: Engine) -> Engine:
    """Fifty nights of Z, which rises every third day and is predicted to rise
    every second; the last is open.
    """
    with transaction(engine) as conn:
        for market in ("toy", "other"):
            save_stocks(conn, ["Z"], market)
        save(conn, "run", run())
        made = pd.DataFrame(
            {"symbol": "Z", "run_id": "first", "as_of": DAYS[:-1], "target": DAYS[1:]}
        )
        made["probability"] = [0.75 if night % 2 else 0.25 for night in range(NIGHTS)]
        made = made.assign(probability_std=0.0, calibrated=0.5 + (made["probability"] - 0.5) / 2)
        save(conn, "prediction", made, market="toy", known_at=MOMENT, made_at=MOMENT)
        returns = [0.02 if night % 3 == 0 else -0.01 for night in range(NIGHTS - 1)]
        happened = pd.DataFrame({"symbol": "Z", "session": DAYS[1:-1], "realised_return": returns})
        happened = happened.assign(rise=happened["realised_return"] > 0, label=1)
        save(conn, "outcome", happened, market="toy", known_at=MOMENT, recorded_at=MOMENT)
        directions = made[["target", "as_of"]].assign(
            always_up=True, index_reversal=False, index_below_mean20=None
        )
        save(conn, "rule_direction", directions, market="toy")
    return engine


@pytest.mark.slow
def test_a_parquet_file_has_days_moments_and_numbers_on_either_engine(
    store: Engine, tmp_path: Path
) -> None:
    asked = """
        select h.symbol, h.target, h.made_at, h.probability, h.probability_std, h.correct, n.gaps
        from prediction_history h
        join night_log n on n.target = h.target
        order by h.symbol
    """
    file = tmp_path / "new folder" / "directions.parquet"
    query(asked, **ASKED, parquet=file)
    kept = pq.read_table(file)
    assert {
        field.name: str(field.type) for field in kept.schema if field.name not in ("symbol", "gaps")
    } == {
        "target": "date32[day]",
        "made_at": "timestamp[us, tz=UTC]",
        "probability": "double",
        "probability_std": "double",
        "correct": "int64",
    }
    rows = kept.to_pylist()
    assert [row["symbol"] for row in rows] == ["A", "B", "C"]
    assert [row["probability"] for row in rows] == [0.25, 0.5, 0.75]
    assert [row["probability_std"] for row in rows] == [0.125, None, 0.0]
    assert {(row["target"], row["made_at"]) for row in rows} == {(date(2024, 1, 5), MOMENT)}
    assert json.loads(rows[0]["gaps"]) == [GAP]


@pytest.mark.slow
def test_an_answer_without_rows_is_a_file_with_its_columns(store: Engine, tmp_path: Path) -> None:
    query(
        "select symbol, target from prediction_history where 1 = 0",
        **ASKED,
        parquet=tmp_path / "none.parquet",
    )
    kept = pq.read_table(tmp_path / "none.parquet")
    assert (kept.num_rows, kept.column_names) == (0, ["symbol", "target"])


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_parquet_file_is_there_whole_or_as_it_was(
    store: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kept.parquet"
    query("select 1 as x", **ASKED, parquet=file)
    before = file.read_bytes()

    def fill_the_disk(*_: object, **_options: object) -> None:
        raise OSError(28, "No space left on device", str(file))

    monkeypatch.setattr(pq.ParquetWriter, "write_table", fill_the_disk)
    with pytest.raises(OSError, match="No space left"):
        query("select 2 as x", **ASKED, parquet=file)
    assert file.read_bytes() == before
    assert list(tmp_path.glob("*.partial")) + list(tmp_path.glob(".*")) == []


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_column_of_several_kinds_is_refused_by_name(store: Engine, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Parquet .*'x'.*: cast"):
        query("select 1 as x union all select 'a'", **ASKED, parquet=tmp_path / "mixed.parquet")
    assert list(tmp_path.glob("*.parquet")) == []


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_column_has_the_type_that_all_of_its_rows_have(
    store: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        ("null", "1", "'2024-01-05'", "'2024-01-05 02:30:00.000007'", "null"),
        ("null", "2", "'2024-01-06'", "'2024-01-05 02:30:00.000008'", "null"),
        ("0.5", "9007199254740992", "'2024-01-07'", "'2024-01-05 02:30:00.000000'", "null"),
        ("null", "2.5", "'2024-02-30'", "'never'", "null"),
        ("7", "3", "null", "'2024-01-05'", "null"),
    ]
    asked = " union all ".join(f"select {', '.join(row)}" for row in rows)
    asked = f"with r(a, b, c, d, e) as ({asked}) select * from r"
    kept = []
    for size in (1, 2, 5):
        monkeypatch.setattr("flows.answer_files.CONVERTED", size)
        query(asked, **ASKED, parquet=tmp_path / "rows.parquet")
        table = pq.read_table(tmp_path / "rows.parquet")
        kept.append((table.schema.types[:2], table.to_pylist()))
        assert [str(each).removeprefix("large_") for each in table.schema.types[2:]] == [
            "string",
            "string",
            "null",
        ]
    assert kept[0] == kept[1] == kept[2]
    assert [row["c"] for row in kept[0][1]] == [
        "2024-01-05",
        "2024-01-06",
        "2024-01-07",
        "2024-02-30",
        None,
    ]
    assert [row["d"] for row in kept[0][1]][:2] == [
        "2024-01-05 02:30:00.000007",
        "2024-01-05 02:30:00.000008",
    ]
    assert [row["b"] for row in kept[0][1]] == [1.0, 2.0, 9007199254740992.0, 2.5, 3.0]


@pytest.mark.slow
def test_two_columns_of_one_name_never_become_one(
    store: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "select 1 as n, 2 as x, 3 as x"
    for form in (
        {"as_json": True, "as_csv": False},
        ASKED,
        ASKED | {"parquet": tmp_path / "x.parquet"},
    ):
        with pytest.raises(UsageError, match=r"2 columns .*'x':.*`as`"):
            query(asked, **form)
    query(asked, as_json=False, as_csv=True)
    assert capsys.readouterr().out == "n,x,x\n1,2,3\n"
    assert list(tmp_path.glob("*.parquet")) == []


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_sql_comes_from_standard_input_for_a_dash(
    store: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = b"select symbol\nfrom latest_prediction\norder by symbol\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(sql)))
    query("-", as_json=True, as_csv=False)
    assert json.loads(capsys.readouterr().out) == [
        {"symbol": "A"},
        {"symbol": "B"},
        {"symbol": "C"},
    ]
    with pytest.raises(StoreUsageError):  # all of it was read
        query("-", **ASKED)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    with pytest.raises(TranslationError, match="input is not UTF-8"):
        query("-", **ASKED)


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_one_answer_has_one_form(store: Engine, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose one"):
        query("select 1 as x", as_json=True, as_csv=False, parquet=tmp_path / "x.parquet")
    with pytest.raises(UsageError, match="choose one"):
        show_questions(1, "toy", as_json=True, as_markdown=True)


def test_a_history_shows_directions_beside_the_rules_and_fits_a_terminal(
    nights: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    history("Z", None, 5, as_json=False)
    said = capsys.readouterr().out.splitlines()
    assert max(map(len, said[:7])) <= 100
    assert said[0].strip() == "Z, toy"
    rows = [line.split() for line in said[2:7]]
    assert [row[1] for row in rows] == [f"{day:%Y-%m-%d}" for day in DAYS[-5:]]
    first, last = (" ".join(row[2:]) for row in (rows[0], rows[-1]))
    assert first == "75.0 % 62.5 % rise +2.00 % 1 rise fall -"
    assert last == "75.0 % 62.5 % rise - - rise fall -"
    assert re.match("naive rules: up:.*; reversal: ", said[7])
    assert said[8] == "predictions: 5 by first"
    assert re.match(
        r'in all 49 outcomes \(.*: ACC 49\.0 %, MCC -\.028; ".*": ACC 34\.7 %, MCC \.000$', said[9]
    )
    assert len(said) == 10


def test_a_history_reads_no_row_that_it_does_not_show(
    nights: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = []
    ask = predictions.prediction_history
    monkeypatch.setattr(
        predictions, "prediction_history", lambda *a, **k: read.append(ask(*a, **k)) or read[-1]
    )
    for limit, count in ((1, 1), (7, 7), (NIGHTS, NIGHTS), (10 * NIGHTS, NIGHTS)):
        history("Z", "toy", limit, as_json=True)
        shown = json.loads(capsys.readouterr().out)
        assert len(read.pop()) == len(shown) == count
        assert [row["target"] for row in shown] == [f"{day:%Y-%m-%d}" for day in DAYS[-count:]]


def test_a_history_that_is_empty_says_so_and_an_unknown_stock_is_an_error(
    nights: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    history("Z", "other", 5, as_json=False)
    assert re.fullmatch("No night .*Z .*\n", capsys.readouterr().out)
    for symbol in ("ZZ", "Z' or '1' = '1", "100 %s"):
        with pytest.raises(StoreUsageError, match="no symbol"):
            history(symbol, None, 5, as_json=False)
    with pytest.raises(StoreUsageError, match=r"no symbol 'z'.*mean Z\? "):
        history("z", "toy", 5, as_json=False)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(
    ("sql", "meant"),
    [
        ("select symbl from latest_prediction", "did you mean symbol"),
        ("select 1 as one from latest_predictions", "did you mean latest_prediction"),
        ("select p.probabilty from prediction_history p", "did you mean probability"),
        ("select qqqqqq from latest_prediction", ""),
    ],
)
def test_a_misspelt_name_in_sql_is_answered_with_the_nearest_ones(
    store: Engine, sql: str, meant: str
) -> None:
    with pytest.raises(StoreUsageError, match=meant) as caught:
        query(sql, **ASKED)
    assert ("did you mean" in str(caught.value)) == (meant != "")


def test_stocks_of_one_name_have_a_table_for_each_market(
    nights: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    later = MOMENT + timedelta(days=1)
    with transaction(nights) as conn:
        save(conn, "run", run("second", market="other"))
        made = pd.DataFrame(
            {"symbol": ["Z"], "run_id": "second", "as_of": DAYS[-2], "target": DAYS[-1]}
        )
        made = made.assign(probability=0.5, probability_std=0.0)
        save(conn, "prediction", made, market="other", known_at=MOMENT, made_at=later)
    history("Z", None, 4, as_json=False)
    said = capsys.readouterr().out
    assert (
        said.index("Z, other")
        < said.index("1 by second")
        < said.index("Z, toy")
        < said.index("3 by first")
    )


def test_the_questions_are_listed_with_their_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    show_questions(None, "toy", as_json=False, as_markdown=False)
    said = capsys.readouterr().out
    assert all(
        f"{number}  {each.title}" in said for number, each in enumerate(all_questions(), start=1)
    )
    show_questions(None, "toy", as_json=True, as_markdown=False)
    told = json.loads(capsys.readouterr().out)
    assert [each["number"] for each in told] == list(range(1, 21))
    assert [each["sql"] for each in told] == [each.sql for each in all_questions()]


@pytest.mark.slow
@pytest.mark.parametrize("named", [["--market", "toy"], []])
def test_a_question_is_asked_of_the_market_that_is_named_or_of_the_only_one(
    store: Engine, capsys: pytest.CaptureFixture[str], named: list[str]
) -> None:
    asked = CliRunner().invoke(commands, ["19", *named, "--json"])
    assert asked.exit_code == 0, asked.exception
    told = json.loads(asked.stdout)
    assert (told["number"], told["market"], told["title"]) == (19, "toy", all_questions()[18].title)
    assert "'toy'" in told["sql"]
    assert {row["what"] for row in told["answer"]} == {
        "bar rejected",
        "not made before its day",  # at half past two of that day, UTC
        "stocks left out",
        "sources differ",
    }
    show_questions(19, "toy", as_json=False, as_markdown=False)
    said = capsys.readouterr().out
    assert told["sql"] in said
    assert "stocks left out" in said
    show_questions(6, "toy", as_json=False, as_markdown=True)
    assert capsys.readouterr().out.startswith(f"## 6. {all_questions()[5].title}\n")
    show_questions(12, "toy", as_json=False, as_markdown=False)
    assert re.search("no row for toy .*\n$", capsys.readouterr().out)


@pytest.mark.slow
def test_a_market_that_is_not_there_is_named_with_those_that_are(
    store: Engine, engine: Engine
) -> None:
    for market in ("simulated", "it's"):
        with pytest.raises(UsageError, match=rf"no market .{market}.:.*toy"):
            show_questions(2, market, as_json=False, as_markdown=False)
        with pytest.raises(UsageError, match=rf"no market .{market}.:.*toy"):
            list_runs(market, as_json=False)
    with transaction(engine) as conn:
        save(conn, "run", run("second", market="far"))
    with pytest.raises(UsageError, match="far, toy with --market"):
        show_questions(2, None, as_json=False, as_markdown=False)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_an_empty_store_says_what_to_do_first() -> None:
    with pytest.raises(UsageError, match="first night"):
        show_questions(2, "simulated", as_json=False, as_markdown=False)


@pytest.mark.parametrize("number", ["0", "21", "two"])
def test_a_question_that_is_none_of_the_twenty_is_a_mistake(number: str) -> None:
    assert CliRunner().invoke(commands, [number]).exit_code == 2


@pytest.mark.slow
def test_moments_are_shown_alike_by_either_engine(
    store: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = datetime(2024, 1, 4, 22, 15, tzinfo=UTC)
    bar = {"symbol": "B", "session": pd.Timestamp("2024-01-04"), "close": 10.0}
    with transaction(store) as conn:
        for close, known_at in ((10.0, earlier), (11.0, earlier + timedelta(days=3))):
            row = pd.DataFrame([bar | {"close": close}]).reindex(columns=list(BAR_COLUMNS))
            prices.append_prices(
                conn, "toy", row.astype({"open": float}), source="files", known_at=known_at
            )
    show_questions(18, "toy", as_json=True, as_markdown=False)
    (told,) = json.loads(capsys.readouterr().out)["answer"]
    assert told["restated_at"] == "2024-01-07 22:15 UTC"
    assert (told["first"], told["predictions_before"], told["percent"]) == ("2024-01-04", 1, 10)


@pytest.mark.slow
def test_the_models_of_a_store_are_listed_with_what_they_were_trained_on(
    store: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    with store.connect() as conn:
        kept = read(conn, "run", order="created_at, id")
    list_runs(None, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in found] == list(kept["id"])
    assert [row["train_last"] for row in found] == [str(day.date()) for day in kept["train_last"]]
    list_runs("toy", as_json=False)
    printed = capsys.readouterr().out
    assert all(each[:12] in printed for each in kept["checkpoint_hash"].dropna())
