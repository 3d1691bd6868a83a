"""What comes in at every door may be anything: it is read, or refused in one
line, and leaves nothing half done.
"""

import gzip
from functools import cache

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from db.errors import StoreError
from dtml.errors import DtmlError
from dtml.markets import load_market_file
from dtml.prices.bars import BAR_COLUMNS
from dtml.sources.files import FileSource
from tests.support.price_files import FIRST, LAST, MARKET, long
from translation.artifacts import ArtifactError
from translation.errors import TranslationError

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


@st.composite
def changes(draw):
    """A few places of a file, and other bytes for them."""
    told = st.one_of(
        st.binary(max_size=6), st.sampled_from([each.encode(errors="replace") for each in WORDS])
    )
    return draw(st.lists(st.tuples(st.floats(0, 1), told), min_size=1, max_size=4))


def changed(content, by):
    for share, new in by:
        place = int(share * len(content))
        content = content[:place] + new + content[place + len(new) :]
    return content


def read_or_refused(read):
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
def csv():
    return bytes(long().to_csv(index=False), "utf-8")


@cache
def parquet():
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.Table.from_pandas(long()), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("content", "name"), [(csv, "p.csv"), (parquet, "p.parquet"), (csv, "p.csv.gz")]
)
@fuzzed
@given(by=changes())
@example(by=[(0.0, b'"'), (0.5, b'"')])  # half the file is the name of a column
def test_prices(content, name, by, tmp_path):
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
def test_market_files(by, tmp_path):
    (tmp_path / "mine.toml").write_bytes(changed(MARKET_FILE, by))
    market = read_or_refused(lambda: load_market_file(tmp_path / "mine.toml"))
    assert market is None or market.name == "mine"
