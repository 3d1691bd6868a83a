"""What is not trusted may be wrong, but it runs nothing: checkpoints, files of prices, markets."""

import json
import os
import pickle
import struct

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import save

from dtml.checkpoints import Ensemble, load_ensemble, save_ensemble
from dtml.errors import DtmlError, UsageError
from dtml.markets import is_symbol, load_market_file
from dtml.model import ModelConfig
from dtml.sources.files import FileSource
from dtml.windows import WindowConfig
from tests.support.price_files import FIRST, LAST, MARKET
from translation import artifacts
from translation.atomic_files import sha256

CARD = {
    "format": 1,
    "market": "made",
    "symbols": ["A"],
    "seeds": [0],
    "network": "ModelConfig",
    "model": {},
    "windows": {},
}
HEADER = b"date,symbol,open,high,low,close,volume\n"
MARKET_FILE = (
    'title = "{title}"\ncalendar = "XNYS"\ntimezone = "{zone}"\ncurrency = '
    '"USD"\n[index]\n{index}\n{more}'
)
INDEX = 'symbol = "I"\nname = "An index"'


class Evil:
    """Unpickled, it makes a file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def checkpoint(**card):
    return save({"w": torch.ones(2, 3)}, metadata={"card": json.dumps(CARD | card)})


def raw(header, length=None):
    """A safetensors file with any header, which may claim another length."""
    written = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(written) if length is None else length) + written + bytes(8)


CHECKPOINTS = {
    "empty": b"",
    "a header of 9 EB": raw(b"{}", 2**63),
    "a header longer than the file": raw(b"{}", 90_000_000),
    "a header that is no JSON": raw(b"{'w': 1}"),
    "a tensor of 2^80 numbers": raw(
        {"w": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}}
    ),
    "a tensor beyond the end": raw(
        {"w": {"dtype": "F32", "shape": [2**20], "data_offsets": [0, 2**22]}}
    ),
    "truncated": checkpoint()[:-3],
    "no card": save({"w": torch.ones(2)}),
    "a card that is a list": save({"w": torch.ones(2)}, metadata={"card": "[1]"}),
    "a card without end": save({"w": torch.ones(2)}, metadata={"card": "[" * 99_999}),
    "an empty card": save({"w": torch.ones(2)}, metadata={"card": "{}"}),
    "a network of another name": checkpoint(network="os.system"),
    "a setting of no model": checkpoint(model={"touch": "/tmp"}),
    "settings that are no table": checkpoint(windows=[1]),
    "a setting of another type": checkpoint(model={"hidden": "eight"}),
    "an impossible setting": checkpoint(model={"heads": 0}),
    "stocks that are no list": checkpoint(symbols=5),
    "another format": checkpoint(format=2),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_that_is_wrong_is_one_line_even_with_its_own_hash(name, tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(CHECKPOINTS[name])
    with pytest.raises(DtmlError) as caught:
        load_ensemble(file, market="made", sha=sha256(file))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_named_before_saving_and_on_loading(wrong, tmp_path):
    file, weights = (
        tmp_path / "model.safetensors",
        {"w": torch.ones(1, 6), "predict.bias": torch.ones(1, 3)},
    )
    ensemble = Ensemble("made", ("A",), (0,), ModelConfig(), WindowConfig(), weights)
    save_ensemble(ensemble, file)
    weights["predict.bias"][0, 1] = wrong
    said = r"1 of 3 weights .*predict\.bias .*NaN .*:.*learning_rate"
    with pytest.raises(DtmlError, match=rf"model of made .*not saved: {said}"):
        save_ensemble(ensemble, tmp_path / "new.safetensors")
    assert not (tmp_path / "new.safetensors").exists()
    artifacts.write(file, weights, artifacts.read(file)[1])
    with pytest.raises(DtmlError, match=rf"model\.safetensors cannot .*: {said}") as caught:
        load_ensemble(file, market="made", sha=sha256(file))
    assert "\n" not in str(caught.value)


def test_a_pickle_that_is_called_a_checkpoint_is_not_run(tmp_path):
    file, mark = tmp_path / "model.safetensors", tmp_path / "ran"
    file.write_bytes(pickle.dumps(Evil(mark)))
    with pytest.raises(DtmlError, match="cannot be used: damaged"):
        load_ensemble(file, market="made", sha=sha256(file))
    assert not mark.exists()


@pytest.mark.parametrize("weights", [{"w": torch.ones(1, 2, 3)}, {"w": torch.ones(0)}, {}])
def test_weights_of_other_shapes_are_one_line(weights):
    ensemble = Ensemble("made", ("A",), (0,), ModelConfig(), WindowConfig(), weights)
    with pytest.raises(DtmlError, match=r"weights of made .*not fit") as caught:
        ensemble.network(0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (b"2024-03-04,AAA,=1+1,2,1,2,3\n", "row 1: open '=1+1' "),
        (b"2024-03-04,AAA,1\0,2,1,2,3\n", r"row 1: open '1\x00' "),
        (b"2024-03-04,AAA,0x10,2,1,2,3\n", "row 1: open '0x10' "),
        (b'2024-03-04,"AAA,1,2,1,2,3\n', "cannot be read: "),
        (b"2024-03-04," + b"A" * 10_000_000 + b",1,2,1,2,3\n", "cannot be read: "),
        (b"2024-03-04,AAA," + b"x" * 900_000 + b",2,1,2,3\n", "row 1: open 'xxxx"),
        (b"x" * 900_000 + b",AAA,1,2,1,2,3\n", "row 1: 'xxxx"),
    ],
    ids=[
        "a formula",
        "a NUL byte",
        "hexadecimal",
        "an open quote",
        "a line of 10 MB",
        "a long word",
        "a long date",
    ],
)
def test_a_csv_that_is_wrong_is_a_short_line(rows, said, tmp_path):
    (tmp_path / "p.csv").write_bytes(HEADER + rows)
    with pytest.raises(UsageError) as caught:
        FileSource(MARKET, tmp_path / "p.csv").fetch({"AAA": FIRST}, LAST)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def parquet(file, **columns):
    pa.parquet.write_table(
        pa.table({"date": ["2024-03-04"], "symbol": ["AAA"], "close": [1.0]} | columns), file
    )
    return FileSource(MARKET, file)


@pytest.mark.parametrize("column", ["date", "symbol", "close"])
def test_a_parquet_that_holds_pickles_is_a_mistake_and_runs_none(column, tmp_path):
    mark = tmp_path / "ran"
    source = parquet(tmp_path / "p.parquet", **{column: [pickle.dumps(Evil(mark))]})
    with pytest.raises(UsageError):
        source.fetch({"AAA": FIRST}, LAST)
    assert not mark.exists()


def test_a_type_that_names_python_in_a_parquet_runs_nothing(tmp_path):
    mark = tmp_path / "ran"
    hidden = {b"ARROW:extension:name": b"arrow.py_extension_type"}
    hidden |= {b"ARROW:extension:metadata": pickle.dumps(Evil(mark))}
    close = pa.field("close", pa.float64(), metadata=hidden)
    schema = pa.schema(
        [("date", pa.string()), ("symbol", pa.string()), close], metadata={b"pandas": b"{not json"}
    )
    rows = [pa.array(["2024-03-04"]), pa.array(["AAA"]), pa.array([1.0])]
    pa.parquet.write_table(pa.table(rows, schema=schema), tmp_path / "p.parquet")
    found = FileSource(MARKET, tmp_path / "p.parquet").fetch({"AAA": FIRST}, LAST)
    assert found.bars["close"].tolist() == [1.0]
    assert not mark.exists()


SYMBOLS = [
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    "A//B",
    "A/../B",
    "A/",
    "A  B",
    " A",
    "A\\B",
    "C:A",
    "-rf",
    "--as-of",
    "A\0B",
    "A\nB",
    "A\u202eB",
    "AAA'; drop table price; --",
    'A"B',
    "A`B",
    "A$(id)",
    "A;B",
    "A|B",
    "=cmd|' /C calc'!A0",
    "{{7*7}}",
    "<b>",
    "%s",
    "!!python/object",
    "A" * 25,
    "",
    "Ä",
    "\uff21",
]


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_what_could_be_a_path_an_option_or_sql_is_no_symbol(symbol, tmp_path):
    assert not is_symbol(symbol)
    written = json.dumps(symbol, ensure_ascii=True)
    (tmp_path / "mine.toml").write_text(
        MARKET_FILE.format(
            title="T",
            zone="UTC",
            index=INDEX,
            more=f"[constituents]\nas_of = 2024-01-02\nsymbols = [{written}]",
        )
    )
    with pytest.raises(UsageError):
        load_market_file(tmp_path / "mine.toml")
    with pytest.raises(UsageError):
        MARKET.with_symbols([symbol])


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"title": "!!python/object/apply:os.system ['id']"}, None),
        ({"title": "{{ config }} <script>"}, None),
        ({"zone": "../../../etc/passwd"}, "timezone"),
        ({"zone": "/etc/localtime"}, "timezone"),
        ({"index": 'symbol = "../x"\nname = "n"'}, "index.symbol"),
        ({"index": 'symbol = "I"\nsource_symbol = "/v8/../x"\nname = "n"'}, "index.source_symbol"),
        ({"more": '[model]\n"__class__" = 1'}, "model.__class__"),
        ({"more": "[checks]\nmax_return = nan"}, "checks.max_return"),
    ],
)
def test_a_market_file_is_words_and_no_way_out_of_its_folder(parts, said, tmp_path):
    whole = {"title": "T", "zone": "UTC", "index": INDEX, "more": ""} | parts
    (tmp_path / "mine.toml").write_text(MARKET_FILE.format(**whole))
    if said is None:
        assert load_market_file(tmp_path / "mine.toml").title == parts["title"]
        return
    with pytest.raises(UsageError, match=said):
        load_market_file(tmp_path / "mine.toml")
