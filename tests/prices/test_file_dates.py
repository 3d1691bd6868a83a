"""The dates in files are sessions, however they are written; what may be two
dates is refused.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dtml.errors import UsageError
from dtml.markets.definition import Columns
from dtml.sources.files import FileSource
from tests.support.price_files import FIRST, LAST, MARKET, long, read

DAYS = list(pd.bdate_range(FIRST, periods=5))
DAY_0_OF_EXCEL = pd.Timestamp("1899-12-30")
DAYS_OF_EXCEL = [(day - DAY_0_OF_EXCEL).days for day in DAYS]
SECONDS = [int(day.timestamp()) for day in DAYS]


# dates that are midnights


@pytest.mark.slow
@pytest.mark.parametrize("sessions", [1, 5, 17])
@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_a_column_of_midnights_holds_dates_whatever_its_zone_and_length(
    tmp_path, sessions, ending, zone
):
    table = long(("AAA",), sessions=sessions)
    shown = table["date"].dt.tz_localize(zone)
    if ending == ".csv":
        table.assign(date=shown.map(pd.Timestamp.isoformat)).to_csv(tmp_path / "p.csv", index=False)
    else:
        table.assign(date=shown).to_parquet(tmp_path / "p.parquet")
    found = read(FileSource(MARKET, tmp_path / f"p{ending}"))
    assert found["session"].tolist() == table["date"].tolist()


def test_a_column_with_any_other_time_of_day_holds_instants(tmp_path):
    closes = pd.bdate_range(FIRST, periods=7, tz="America/New_York") + pd.Timedelta(hours=20)
    in_utc = closes.tz_convert("UTC")  # midnight in summer alone
    assert len(np.unique(in_utc.hour)) == 2
    long(("AAA",), sessions=7).assign(date=in_utc).to_parquet(tmp_path / "p.parquet")
    found = read(FileSource(MARKET, tmp_path / "p.parquet"))
    assert found["session"].tolist() == pd.bdate_range(FIRST, periods=7).tolist()


# dates that are numbers


def dated(values, folder, ending=".csv"):
    table = long(("AAA",), sessions=len(values)).assign(date=values)
    if ending == ".csv":
        table.to_csv(folder / "p.csv", index=False)
    else:
        table.to_parquet(folder / "p.parquet")
    return folder / f"p{ending}"


NUMBERS = {
    "floats": ([float(day.strftime("%Y%m%d")) for day in DAYS], None),
    "Excel's days": ([*DAYS_OF_EXCEL], None),
    "Excel's days as floats": ([float(day) for day in DAYS_OF_EXCEL], None),
    "Excel's times": ([day + 0.6875 for day in DAYS_OF_EXCEL], "excel"),
    "seconds": ([*SECONDS], "seconds"),
    "milliseconds": ([second * 1000 for second in SECONDS], "milliseconds"),
    "seconds of the closes": ([second + 75_600 for second in SECONDS], "seconds"),
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize(("values", "date_format"), NUMBERS.values(), ids=NUMBERS)
def test_dates_that_are_numbers_are_read_where_they_can_be_nothing_else_or_as_stated(
    values, date_format, ending, tmp_path
):
    file = dated(values, tmp_path, ending)
    stated = replace(MARKET, columns=Columns(date_format=date_format))
    assert read(FileSource(stated, file))["session"].tolist() == DAYS
    if date_format is not None:
        with pytest.raises(UsageError, match=r"row 1:.*not a date"):
            FileSource(MARKET, file).last_session()


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        ([19_786, 19_787], "excel"),  # days since 1970, or Excel's of 1954
        ([24_064, 24_065], "excel"),  # the 64th day of 2024, or Excel's of 1965
        ([26_328, 26_329], "excel"),  # the 328th day of 2026, or Excel's of 1972
        (["45355", "2024-03-05"], "excel"),
        ([1_709_510_400, 1_709_596_800], "seconds"),
        ([1_709_510_400_000.0, 1_709_596_800_000.0], "milliseconds"),
        ([170_951_040_000, 170_959_680_000], "%d.%m.%Y"),
    ],
)
def test_numbers_that_may_be_other_dates_are_refused_with_what_mends_them(values, advice, tmp_path):
    with pytest.raises(UsageError, match=rf'row 1:.*not a date.*date_format = "{advice}"'):
        FileSource(MARKET, dated(values, tmp_path)).last_session()


def test_a_date_that_is_not_in_the_stated_format_is_refused_with_that_format(tmp_path):
    stated = replace(MARKET, columns=Columns(date_format="%d.%m.%Y"))
    file = dated(["04.03.2024", "2024-03-05"], tmp_path)
    with pytest.raises(UsageError, match=r"row 2: '2024-03-05'.*format '%d"):
        FileSource(stated, file).last_session()


@pytest.mark.parametrize("day", ["2024-03-04", "20240304", "20240304.0", "2024-03-04 00:00:00"])
def test_dates_that_were_written_anew_are_read_in_a_layout_with_others(day, tmp_path):
    header = "ts_code,trade_date,open,high,low,close,vol"
    (tmp_path / "p.csv").write_text(f"{header}\n000001.SZ,{day},1,1,1,1,1\n")
    assert FileSource(MARKET, tmp_path / "p.csv").last_session() == FIRST


def test_an_index_in_our_own_layout_needs_nothing_that_the_markets_file_states(tmp_path):
    stated = Columns(date_format="excel", decimal=",", separator=";", skip_rows=1)
    table = long(("AAA",), sessions=5)
    written = table.assign(date=DAYS_OF_EXCEL).to_csv(index=False, sep=";", decimal=",")
    (tmp_path / "p.csv").write_text(f"prices\n{written}")
    index = long(("INDEX",), sessions=5)
    index.to_csv(tmp_path / "index.csv", index=False)
    market = replace(MARKET, columns=stated)
    source = FileSource(market, tmp_path / "p.csv", tmp_path / "index.csv")
    found = source.fetch({"AAA": FIRST, "INDEX": FIRST}, LAST).bars
    for symbol, expected in (("AAA", table), ("INDEX", index)):
        of_symbol = found[found["symbol"] == symbol]
        assert of_symbol["session"].tolist() == DAYS
        assert of_symbol["close"].tolist() == expected["close"].tolist()
