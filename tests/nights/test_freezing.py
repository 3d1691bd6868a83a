"""What a frozen night predicted cannot change unnoticed: each bit of it is found and named."""

import json
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from db.engine import reading, transaction
from db.read import read_value
from dtml.errors import UsageError
from dtml.prices.sessions import next_session
from flows.freezing import (
    LINK,
    LIST,
    WEIGHT,
    ChainFileError,
    begin,
    check,
    extend,
    read_chain,
)
from flows.nightly.night import run_night
from flows.settings import chain_file, data_folder, reports_folder
from tests.support.nights import AS_OF, after_nights
from tests.support.places import ROOT

FOLLOWING = next_session("XNYS", AS_OF)
LAST = next_session("XNYS", FOLLOWING)


def change(engine, sql):
    with transaction(engine) as conn:
        assert conn.exec_driver_sql(sql).rowcount > 0


def freeze_two(context):
    """Two frozen nights, of which the second extended the chain by itself; the chain's file."""
    after_nights(context, AS_OF)
    begin(context.engine, context.name, None)
    run_night(context, FOLLOWING)
    return chain_file(context.name)


def found(context, file=None):
    """The links that have changed, and what of each."""
    return named(check(context.engine, context.name, file)[1])


def named(changes):
    return {(each.link.number, each.what) for each in changes}


def test_a_night_freezes_itself_only_after_the_first_was_frozen(context):
    after_nights(context, AS_OF)
    with pytest.raises(UsageError, match="simulated is not frozen"):
        check(context.engine, context.name)
    (first,) = begin(context.engine, context.name, None)
    run_night(context, FOLLOWING)
    links, changes = check(context.engine, context.name)
    assert changes == []
    assert [link.as_of for link in links] == [AS_OF, FOLLOWING]
    assert links[0].digest == first.digest == links[1].previous
    page = (reports_folder() / "simulated" / f"{FOLLOWING}.html").read_text(encoding="utf-8")
    assert links[1].digest in page


NEXT_FLOAT = "* 1.0000000000000003"  # of one bit


def stock(symbol):
    return f"(select id from instrument where symbol = '{symbol}' and market = 'simulated')"


def change_a_bit_of_the_weights():
    (file,) = (data_folder() / "models").glob(f"simulated-{AS_OF}*[0-9a-f].safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


A_PRICE = (
    f"update price set close = close {NEXT_FLOAT} "
    f"where session = '{AS_OF}' and instrument_id = {stock('F01A')}"
)
OF_BOTH = {(1, WEIGHT), (2, WEIGHT)}
CHANGES = {
    f"update prediction set probability = probability {NEXT_FLOAT} "
    f"where as_of = '{AS_OF}' and instrument_id = {stock('L01')}": {(1, "a prediction")},
    "update stock_rank set place = place + 1 "
    f"where as_of = '{AS_OF}' and predictor = 'ridge' and place = 2": {(1, "a ranking")},
    A_PRICE: {(1, "a price")},
    "update price set withdrawn = 'high_below_low' where session = '2023-05-02' and "
    "instrument_id = (select min(instrument_id) from price)": {(1, "a price")},
    """update night set gaps = '[{"symbol": "L01", "reason": "it fell"}]' """
    f"where as_of = '{AS_OF}'": {(1, LIST)},
    "update constituent set valid_from = '2020-01-02' "
    "where instrument_id = (select min(instrument_id) from constituent)": {(2, LIST)},
    f"update night set inputs_hash = '0123' where as_of = '{AS_OF}'": {(1, LINK)},
    f"update night set status = 'refused' where as_of = '{AS_OF}'": {(1, LINK)},
    """update ranker set config = replace(config, '"max_return": 0.', '"max_return": 1.')""": (
        OF_BOTH
    ),
    "update ranker set checkpoint_hash = '0123456789abcdef'": OF_BOTH,
}


@contextmanager
def undone(engine, copies):
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
def test_one_changed_bit_is_found_and_named(ranking_context, tmp_path):
    freeze_two(ranking_context)
    assert found(ranking_context) == set()
    copies = tmp_path / "copies"
    copies.mkdir()
    for sql, expected in CHANGES.items():
        with undone(ranking_context.engine, copies):
            change(ranking_context.engine, sql)
            assert found(ranking_context) == expected, sql
    with undone(ranking_context.engine, copies):
        change_a_bit_of_the_weights()
        assert found(ranking_context) == OF_BOTH
        since = check(ranking_context.engine, ranking_context.name, first=FOLLOWING)[1]
        assert named(since) == {each for each in OF_BOTH if each[0] == 2}
    assert found(ranking_context) == set()


def test_a_night_that_is_run_again_is_a_new_link_that_says_so(context):
    file = freeze_two(context)
    kept = file.read_bytes()
    change(context.engine, f"update night set status = 'running' where as_of = '{FOLLOWING}'")
    assert found(context) == {(2, LINK)}
    with pytest.raises(ChainFileError, match=f"the night of its last line, {FOLLOWING}"):
        begin(context.engine, context.name, None)
    run_night(context, FOLLOWING)
    links, changes = check(context.engine, context.name)
    assert changes == []
    assert [link.replaces for link in links] == [None, None, 2]
    assert file.read_bytes().startswith(kept)


def test_the_file_holds_what_was_predicted_and_a_changed_line_is_named(context, tmp_path):
    file = freeze_two(context)
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    with reading(context.engine) as conn:
        stored = read_value(conn, "prediction_history", "probability", symbol="L01", as_of=AS_OF)
    assert ["L01", stored] in [row[:2] for row in json.loads(lines[0])["predictions"]["rows"]]
    copy = tmp_path / "kept.jsonl"
    copy.write_text(lines[0])
    assert found(context, copy) == set()
    copy.write_text("".join(lines).replace(repr(stored), "0.9"))
    assert found(context, copy) == {(1, LINK), (1, "a prediction"), (2, LINK)}
    copy.write_text("".join(lines[::-1]))
    assert found(context, copy) > {(1, LINK), (2, LINK)}
    for damaged in ("", "{}\n", '{"night":{}}\n', "\xff\n"):
        copy.write_text(damaged, encoding="latin-1")
        with pytest.raises(ChainFileError, match=re.escape(str(copy))):
            check(context.engine, context.name, copy)


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_file_that_was_cut_off_is_completed_and_one_that_was_changed_is_left(context, caplog):
    file = freeze_two(context)
    whole = file.read_bytes()
    for kept in (len(whole) - 9, whole.index(b"\n") + 1, 7, 0):
        file.write_bytes(whole[:kept])
        extend(context.engine, context.name, AS_OF)
        assert file.read_bytes() == whole
    for damaged in (b'{"link": 1}\n', whole.replace(b'"number":2', b'"number":3')):
        file.write_bytes(damaged)
        with pytest.raises(ChainFileError, match="kept copy"):
            extend(context.engine, context.name)
        assert file.read_bytes() == damaged
    run_night(context, LAST)
    assert file.read_bytes() == damaged
    assert re.search(f"simulated: .*complete, but not frozen: .*{file}", caplog.text)
    file.write_bytes(whole)
    assert [link.as_of for link in extend(context.engine, context.name)] == [LAST]


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_the_command_names_what_has_changed_and_ends_with_1(context, command, tmp_path):
    after_nights(context, AS_OF)
    assert command("freeze", "simulated")[0] == 0
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    code, said, mistake = command("freeze", "simulated", "--check", str(empty))
    assert (code, said, f"{empty} has no link" in mistake) == (1, "", True)
    change(context.engine, A_PRICE)
    code, said, mistake = command("freeze", "simulated", "--check")
    assert code == 1
    assert re.search(f"link 1, night {AS_OF}: a price ", said)
    assert "1 change since" in mistake
    assert command("replay", "simulated", "--all")[0] == 1


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_the_script_of_the_page_checks_the_file_without_the_store(context, monkeypatch, capsys):
    file = freeze_two(context)
    head = read_chain(file)[-1].digest
    page = (ROOT / "flows" / "README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(import hashlib\n.*?)```", page, flags=re.DOTALL)
    program = compile(script, "verify.py", "exec")
    monkeypatch.setattr("sys.argv", ["verify.py", str(file)])
    exec(program, {})
    assert capsys.readouterr().out == f"2 links, head {head}\n"
    whole = file.read_text(encoding="utf-8")
    for old, new in (('"number":2', '"number":3'), ('"L02"', '"L20"'), ('["L01",0.', '["L01",0.0')):
        assert old in whole
        file.write_text(whole.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(AssertionError, match=r"^link 2$"):
            exec(program, {})
