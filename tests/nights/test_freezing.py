"""What a frozen night predicted cannot change unnoticed: each bit of it is found and named."""

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from db.engine import reading, transaction
from db.rows import nights
from dtml.errors import UsageError
from dtml.experiments import vary
from dtml.prices.sessions import next_session
from flows.freezing import (
    LINK,
    PARTS,
    WEIGHT,
    ChainFileError,
    Checked,
    add_lines,
    begin,
    chain_file,
    check_chain,
    check_file,
    extend,
)
from flows.nightly.context import MarketContext
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import run_night
from flows.settings import data_folder, reports_folder
from tests.support.commands import Command
from tests.support.nights import AS_OF, BARS, FrameSource, after_nights
from tests.support.places import ROOT

FOLLOWING = next_session("XNYS", AS_OF)
LAST = next_session("XNYS", FOLLOWING)


def change(engine: Engine, sql: str, **values: object) -> None:
    with transaction(engine) as conn:
        assert conn.execute(text(sql), values).rowcount > 0


def value(engine: Engine, sql: str) -> object:
    with reading(engine) as conn:
        return conn.execute(text(sql)).scalar_one()


def frozen(context: MarketContext) -> Checked:
    """Two frozen nights, of which the second extended the chain by itself."""
    after_nights(context, AS_OF)
    begin(context.engine, context.name, None)
    run_night(context, FOLLOWING)
    return check_chain(context.engine, context.name)


def found(context: MarketContext) -> set[tuple[int, str]]:
    """The links that have changed, and what of each."""
    checked = check_chain(context.engine, context.name)
    return {(each.number, each.what) for each in checked.changes}


def test_a_night_freezes_itself_only_after_the_first_was_frozen(context: MarketContext) -> None:
    after_nights(context, AS_OF)
    assert extend(context.engine, context.name) == []
    with pytest.raises(UsageError, match="simulated is not frozen"):
        check_chain(context.engine, context.name)
    (first,) = begin(context.engine, context.name, None)
    run_night(context, FOLLOWING)
    checked = check_chain(context.engine, context.name)
    assert checked.changes == []
    assert [link["as_of"] for link in checked.links] == [AS_OF, FOLLOWING]
    assert checked.links[0]["digest"] == first["digest"] == checked.head["previous"]
    page = (reports_folder() / "simulated" / f"{FOLLOWING}.html").read_text(encoding="utf-8")
    assert checked.head["digest"] in page
    lines = chain_file(context.name).read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[-1])["digest"] == checked.head["digest"]


def test_a_night_that_was_frozen_is_not_frozen_twice(context: MarketContext) -> None:
    frozen(context)
    run_night(context, FOLLOWING)
    assert begin(context.engine, context.name, None) == []
    assert len(check_chain(context.engine, context.name).links) == 2


@pytest.mark.soak
def test_a_freeze_begins_at_any_complete_night_and_stays_there(context: MarketContext) -> None:
    after_nights(context, AS_OF, FOLLOWING)
    wanted = f"no night of simulated.* {LAST} .*--since "
    with pytest.raises(UsageError, match=wanted):
        begin(context.engine, context.name, LAST)
    assert len(begin(context.engine, context.name, AS_OF)) == 2
    with pytest.raises(UsageError, match=f"begins .*night of {AS_OF}"):
        begin(context.engine, context.name, FOLLOWING)


def next_float(engine: Engine, table: str, column: str, where: str) -> None:
    """Change the last bit of one number of a table."""
    (number,) = [value(engine, f"select {column} from {table} where {where}")]
    assert isinstance(number, float)
    change(
        engine,
        f"update {table} set {column} = :number where {where}",
        number=math.nextafter(number, 0.5),
    )


def a_prediction(engine: Engine) -> None:
    stock = "select id from instrument where symbol = 'L01' and market = 'simulated'"
    next_float(
        engine, "prediction", "probability", f"as_of = '{AS_OF}' and instrument_id = ({stock})"
    )


def a_place(engine: Engine) -> None:
    change(
        engine,
        "update stock_rank set place = place + 1 where as_of = :day and predictor = 'ridge' and "
        "place = 2",
        day=AS_OF.isoformat() if engine.dialect.name == "sqlite" else AS_OF,
    )


def a_price(engine: Engine) -> None:
    stock = "select id from instrument where symbol = 'F01A' and market = 'simulated'"
    next_float(engine, "price", "close", f"session = '{AS_OF}' and instrument_id = ({stock})")


def a_price_withdrawn(engine: Engine) -> None:
    change(
        engine,
        "update price set withdrawn = 'high_below_low' where session = '2023-05-02' and "
        "instrument_id = (select min(instrument_id) from price)",
    )


def a_gap(engine: Engine) -> None:
    gaps = '[{"symbol": "L01", "reason": "it fell"}]'
    change(engine, f"update night set gaps = '{gaps}' where as_of = '{AS_OF}'")


def a_stay(engine: Engine) -> None:
    change(
        engine,
        "update constituent set valid_from = '2020-01-02' where instrument_id = (select min("
        "instrument_id) from constituent)",
    )


def a_bit_of_the_file_of_weights(_: Engine) -> None:
    (file,) = (data_folder() / "models").glob(f"simulated-{AS_OF}*[0-9a-f].safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def a_setting(engine: Engine) -> None:
    config = str(value(engine, "select cast(config as text) from ranker"))
    change(
        engine,
        "update ranker set config = :config",
        config=config.replace('"max_return": 0.', '"max_return": 1.'),
    )


def the_hash_of_rankers(engine: Engine) -> None:
    change(engine, "update ranker set checkpoint_hash = '0123456789abcdef'")


def a_text_of_a_link(engine: Engine) -> None:
    change(engine, "update frozen_night set link = replace(link, '2024', '2025') where number = 1")


def a_column_of_a_link(engine: Engine) -> None:
    change(engine, "update frozen_night set target = '2024-07-04' where number = 1")


CHANGES: list[tuple[Callable[[Engine], None], set[tuple[int, str]]]] = [
    (a_prediction, {(1, "a prediction")}),
    (a_place, {(1, "a ranking")}),
    (a_price, {(1, "a price")}),
    (a_price_withdrawn, {(1, "a price")}),
    (a_gap, {(1, "the list of stocks")}),
    (a_stay, {(2, "the list of stocks")}),
    (a_bit_of_the_file_of_weights, {(1, WEIGHT), (2, WEIGHT)}),
    (a_setting, {(1, WEIGHT), (2, WEIGHT)}),
    (the_hash_of_rankers, {(1, WEIGHT), (2, WEIGHT)}),
    (a_text_of_a_link, {(1, LINK)}),
    (a_column_of_a_link, {(1, LINK)}),
]


@contextmanager
def undone(engine: Engine, copies: Path) -> Iterator[None]:
    """Put the files of a SQLite store, its models and its pages back as they are now."""
    store = Path(str(engine.url.database))
    engine.dispose()  # the last connection moves the write-ahead log into the store
    shutil.copy(store, copies / "store.sqlite")
    shutil.copytree(data_folder(), copies / "data")
    yield
    engine.dispose()
    shutil.copy(copies / "store.sqlite", store)
    shutil.rmtree(data_folder())
    shutil.move(copies / "data", data_folder())


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_one_changed_bit_is_found_and_named(context: MarketContext, tmp_path: Path) -> None:
    ranking = replace(context, experiment=vary(context.experiment, {"train_sessions": 400}))
    assert frozen(ranking).changes == []
    copies = tmp_path / "copies"
    copies.mkdir()
    for changed, expected in CHANGES:
        with undone(context.engine, copies):
            changed(context.engine)
            assert found(context) == expected, changed.__name__
        assert found(context) == set()


def test_changes_are_found_on_each_engine(context: MarketContext) -> None:
    frozen(context)
    expected: set[tuple[int, str]] = set()
    for changed, of_change in CHANGES:
        if changed in (a_prediction, a_price, a_gap, a_column_of_a_link):
            changed(context.engine)
            expected |= of_change
            assert found(context) == expected


@pytest.mark.soak
def test_a_link_that_is_left_out_is_found(context: MarketContext) -> None:
    frozen(context)
    change(context.engine, "delete from frozen_night where number = 1")
    assert (2, LINK) in found(context)


@pytest.mark.soak
def test_what_comes_after_a_frozen_night_changes_no_link(context: MarketContext) -> None:
    frozen(context)
    restated = BARS.copy()
    restated.loc[restated["session"] < "2024-06-20", "adj_close"] *= 0.98
    fetch_bars(replace(context, source=FrameSource(restated)), LAST)
    assert found(context) == set()
    run_night(replace(context, source=FrameSource(restated)), LAST)
    assert found(context) == set()
    with reading(context.engine) as conn:
        head = nights.head_of_chain(conn, context.name)
    assert head is not None
    assert (head["number"], head["as_of"]) == (3, LAST)


@pytest.mark.soak
def test_a_night_that_is_run_again_is_a_new_link_that_says_so(context: MarketContext) -> None:
    frozen(context)
    kept = chain_file(context.name).read_bytes()
    change(context.engine, f"update night set status = 'running' where as_of = '{FOLLOWING}'")
    run_night(context, FOLLOWING)
    checked = check_chain(context.engine, context.name)
    assert checked.changes == []
    assert [link["replaces"] for link in checked.links] == [None, None, 2]
    assert checked.replaced == {2: 3}
    assert chain_file(context.name).read_bytes().startswith(kept)


def test_the_file_holds_what_was_predicted_and_a_changed_line_is_named(
    context: MarketContext, tmp_path: Path
) -> None:
    checked = frozen(context)
    file = chain_file(context.name)
    assert check_file(file, checked.links) == []
    line = json.loads(file.read_text(encoding="utf-8").splitlines()[0])
    stored = value(
        context.engine,
        f"select probability from prediction_history where symbol = 'L01' and as_of = '{AS_OF}'",
    )
    symbols = [row[:2] for row in line["predictions"]["rows"]]
    assert ["L01", stored] in symbols
    forged = tmp_path / "forged.jsonl"
    forged.write_text(file.read_text(encoding="utf-8").replace(repr(stored), "0.9"))
    assert {(each.number, each.what) for each in check_file(forged, checked.links)} == {
        (1, PARTS["predictions"])
    }
    assert check_file(write(tmp_path, file.read_text().splitlines()[:1]), checked.links) == []
    turned = check_file(write(tmp_path, file.read_text().splitlines()[::-1]), checked.links)
    assert {each.what for each in turned} == {LINK}


def write(folder: Path, lines: list[str]) -> Path:
    file = folder / "kept.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_file_that_was_cut_off_is_completed_and_one_that_was_changed_is_left(
    context: MarketContext,
) -> None:
    frozen(context)
    file = chain_file(context.name)
    whole = file.read_bytes()
    for kept in (len(whole) - 9, whole.index(b"\n") + 1, 7, 0):
        file.write_bytes(whole[:kept])
        add_lines(context.engine, context.name)
        assert file.read_bytes() == whole
    for damaged in (b'{"link": 1}\n', whole.replace(b'"digest":"', b'"digest":"0')):
        file.write_bytes(damaged)
        with pytest.raises(ChainFileError, match="continue the store's chain"):
            add_lines(context.engine, context.name)
        assert file.read_bytes() == damaged
    run_night(context, LAST)
    assert file.read_bytes() == damaged
    assert len(check_chain(context.engine, context.name).links) == 3


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_the_command_freezes_checks_and_replays(
    context: MarketContext, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = context.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("DTML_DATABASE_URL", url)
    after_nights(context, AS_OF)
    code, said, _ = command("freeze", "simulated")
    assert code == 0
    assert re.search(f"frozen from .*{AS_OF} .*1 link, 1 .*new", said)
    code, said, _ = command("freeze", "simulated", "--check")
    assert (code, "1 link checked" in said, "nothing has changed" in said) == (0, True, True)
    assert " link 1, the same" in command("replay", "simulated")[1]
    assert "1 of 1 frozen" in command("replay", "simulated", "--all")[1]
    empty = write(tmp_path, [])
    code, said, mistake = command("freeze", "simulated", "--check", str(empty))
    assert (code, "1 link checked" in said, "1 change, " in said) == (1, True, True)
    for words in (said, mistake):
        assert f"link 1, night {AS_OF}: the link itself" in words
        assert f"{empty} has no link" in words
    a_price(context.engine)
    code, said, mistake = command("freeze", "simulated", "--check")
    assert code == 1
    assert re.search(f"link 1, night {AS_OF}: a price ", said)
    assert "1 change since" in mistake
    (line,) = re.findall("^frozen .*", command("replay", "simulated")[1], flags=re.MULTILINE)
    assert re.fullmatch(f"frozen +link 1, night {AS_OF}: a price [^;]*", line)
    code, _, mistake = command("replay", "simulated", "--all")
    assert code == 1
    assert "were not reproduced" in mistake


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_the_script_of_the_page_checks_the_file_without_the_store(
    context: MarketContext,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checked = frozen(context)
    page = (ROOT / "flows" / "README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(import hashlib\n.*?)```", page, flags=re.DOTALL)
    program = compile(script, "verify.py", "exec")
    file = chain_file(context.name)
    monkeypatch.setattr("sys.argv", ["verify.py", str(file)])
    exec(program, {})
    assert capsys.readouterr().out == f"2 links, head {checked.head['digest']}\n"
    whole = file.read_text(encoding="utf-8")
    file.write_text("", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"^no link$"):
        exec(program, {})
    for old, new in (
        ('"number":2', '"number":3'),
        ('"L02"', '"L20"'),
        (checked.links[0]["digest"], "0" * 64),
        ('["L01",0.', '["L01",0.0'),
    ):
        assert old in whole
        file.write_text(whole.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(AssertionError, match=r"^link [12]: "):
            exec(program, {})
