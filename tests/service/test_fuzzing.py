"""What comes in at every door may be anything: it is read, or refused in one
line, and leaves nothing half done.
"""

import gzip
import json
import os
import sys
import tomllib
from collections.abc import Callable
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from sqlalchemy import Engine, text

from db.connection.user_sql import guarded
from db.engine import open_engine, reading
from db.errors import StoreError
from dtml.checkpoints import load_ensemble
from dtml.errors import DtmlError
from dtml.markets import load_market_file
from dtml.prices.bars import BAR_COLUMNS
from dtml.sources.files import FileSource
from flows.cli import app
from flows.failures import run_command
from tests.support.price_files import FIRST, LAST, MARKET, long
from translation import artifacts
from translation.artifacts import ArtifactError
from translation.atomic_files import sha256
from translation.data.corpus import Corpus
from translation.errors import TranslationError
from translation.models import load_model
from translation.recipes import read_recipe

pytestmark = pytest.mark.soak

# A file is written again for each example, and machines that test are slow and busy: no example has
# a deadline.
fuzzed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
REFUSALS = (DtmlError, StoreError, TranslationError, ArtifactError)
WORDS = [
    "",
    "0",
    "-1",
    "nan",
    "1e309",
    "[]",
    "{}",
    '"',
    "'",
    "\0",
    "\n",
    "\t",
    ",",
    "=",
    "..",
    "/etc",
    "é",
    "\ud800",
    "%s",
]
Change = tuple[float, bytes]  # where in a file, as a share of it, and what is put there


@st.composite
def changes(draw: st.DrawFn) -> list[Change]:
    """A few places of a file, and other bytes for them."""
    told = st.one_of(
        st.binary(max_size=6), st.sampled_from([each.encode(errors="replace") for each in WORDS])
    )
    return draw(st.lists(st.tuples(st.floats(0, 1), told), min_size=1, max_size=4))


def changed(content: bytes, by: list[Change]) -> bytes:
    for share, new in by:
        place = int(share * len(content))
        content = content[:place] + new + content[place + len(new) :]
    return content


def read_or_refused(read: Callable[[], Any]) -> Any:
    """What was read; None where it was refused, as it is then in one short line."""
    try:
        return read()
    except REFUSALS as error:
        said = str(error)
        assert said
        assert len(said) < 1000
        assert len(said.splitlines()) == 1
        return None


@cache
def csv() -> bytes:
    return bytes(long().to_csv(index=False), "utf-8")


@cache
def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.Table.from_pandas(long()), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("content", "name"), [(csv, "p.csv"), (parquet, "p.parquet"), (csv, "p.csv.gz")]
)
@fuzzed
@given(by=changes())
@example(by=[(0.0, b'"'), (0.5, b'"')])  # half the file is the name of a column
def test_prices(content: Callable[[], bytes], name: str, by: list[Change], tmp_path: Path) -> None:
    whole = gzip.compress(content(), mtime=0) if name.endswith(".gz") else content()
    (tmp_path / name).write_bytes(changed(whole, by))
    fetched = read_or_refused(
        lambda: FileSource(MARKET, tmp_path / name).fetch(
            dict.fromkeys(MARKET.symbols, FIRST), LAST
        )
    )
    if fetched is not None:
        assert list(fetched.bars.columns) == list(BAR_COLUMNS)
        assert set(fetched.outcomes["symbol"]) == set(MARKET.symbols)


MARKET_FILE = b"""title = "T"
calendar = "XNYS"
timezone = "America/New_York"
currency = "USD"
retrain = 63
facts = ["one"]
[index]
symbol = "I"
name = "An index"
[checks]
max_return = 0.3
[model]
window = 5
[constituents]
as_of = 2024-01-02
symbols = ["AAA", {symbol = "BBB", name = "B", since = 2012-03-26}]
"""


@fuzzed
@given(by=changes())
def test_market_files(by: list[Change], tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(changed(MARKET_FILE, by))
    market = read_or_refused(lambda: load_market_file(tmp_path / "mine.toml"))
    assert market is None or market.name == "mine"


RECIPE = b"""name = "m"
source_language = "xa"
target_language = "xb"
[train]
source = "train.tsv"
[validation]
source = "validation.tsv"
columns = [0, 1]
[tokens]
vocabulary = 400
[network]
size = "tiny"
d_model = 32
dropout = 0.1
[training]
updates = 100
peak = 0.01
[rules]
longest = 20
"""


@fuzzed
@given(by=changes())
def test_recipes(by: list[Change], tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_bytes(changed(RECIPE, by))
    recipe = read_or_refused(lambda: read_recipe(tmp_path / "m.toml"))
    if recipe is not None:  # a change may make a path of several folders of the name
        written = tomllib.loads((tmp_path / "m.toml").read_text(encoding="utf-8"))["train"][
            "source"
        ]
        assert recipe.train.source == tmp_path.resolve() / written


@pytest.mark.parametrize("packed", [False, True])
@fuzzed
@given(by=changes())
def test_corpora(packed: bool, by: list[Change], tmp_path: Path) -> None:
    lines = b"".join(b"A dog runs, number %d.\n" % number for number in range(30))
    written = changed(gzip.compress(lines, mtime=0) if packed else lines, by)
    (tmp_path / "a.en").write_bytes(written)
    (tmp_path / "a.de").write_bytes(lines)
    pairs = read_or_refused(
        lambda: list(Corpus(tmp_path / "a.en", tmp_path / "a.de", name="a").pairs())
    )
    assert pairs is None or len(pairs) == 30


CARD = {
    "format": 1,
    "market": "made",
    "symbols": ["A"],
    "seeds": [0],
    "network": "ModelConfig",
    "model": {},
    "windows": {},
}


@fuzzed
@given(by=changes())
def test_checkpoints(by: list[Change], tmp_path: Path) -> None:
    written = save(
        {"w": torch.arange(6.0).reshape(2, 3)},
        metadata={"card": json.dumps(CARD | {"model": {}, "windows": {}})},
    )
    file = tmp_path / "model.safetensors"
    file.write_bytes(changed(written, by))
    read_or_refused(lambda: load_ensemble(file, market="made", sha=sha256(file)))
    read_or_refused(lambda: artifacts.read(file))


@fuzzed
@given(
    document=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["name", "kind", "network", "made", "x"]), inner)
        ),
        max_leaves=8,
    )
)
def test_model_folders(document: object, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(json.dumps(document))
    assert read_or_refused(lambda: load_model(tmp_path, torch.device("cpu"))) is None


SQL = [
    "select",
    "from",
    "price",
    "where",
    "1",
    "=",
    "(",
    ")",
    ";",
    "--",
    "/*",
    "'",
    '"',
    "union",
    "with",
    "explain",
    "$$",
    "limit",
    ":x",
    "%",
    "é",
    "commit",
    "attach",
    "pragma",
    "drop",
    "table",
    "insert",
    "into",
    "delete",
    "update",
    "run",
    "set",
    "copy",
    "\0",
]


@fuzzed
@given(words=st.lists(st.sampled_from(SQL) | st.text(max_size=4), max_size=8))
def test_sql(words: list[str], engine: Engine) -> None:
    reader = open_engine(engine.url.render_as_string(hide_password=False), read_only=True)
    asked = " ".join(words)

    def ask() -> Any:
        with reading(reader) as conn, guarded(conn, asked):
            result = conn.execute(text(asked.replace(":", "\\:")))
            return result.fetchmany(5) if result.returns_rows else []

    read_or_refused(ask)
    reader.dispose()
    with reading(engine) as conn:  # it is as it was
        assert conn.execute(text("select count(*) from run")).scalar_one() == 0
        assert conn.execute(text("select count(*) from price")).scalar_one() == 0


@fuzzed
@given(told=st.sampled_from(WORDS[:-1]) | st.text(max_size=12) | st.dates(date(1, 1, 1)).map(str))
def test_dates(told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    argv = [
        "dtml",
        "fetch",
        "simulated",
        "--as-of",
        told,
        "--market-file",
        str(tmp_path / "none.toml"),
    ]
    assert refused_in_a_line(argv, {}, capfd)


@fuzzed
@given(
    told=st.sampled_from(
        ["sqlite:///", "postgresql://", "mysql://a:s3cret@h/d", "sqlite://", "://", "x"]
    ),
    more=st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12),
)
def test_environment_variables(
    told: str, more: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    environment = {"DTML_DATABASE_URL": told + more, "DTML_DATA": str(tmp_path)}
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        assert refused_in_a_line(["dtml", "runs"], environment, capfd)
    finally:
        os.chdir(before)


def refused_in_a_line(
    argv: list[str], environment: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> bool:
    with patch.object(sys, "argv", argv), patch.dict(os.environ, environment):
        code = run_command(app)
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert "s3cret" not in said
    return code in {1, 2} and said != ""
