"""Files as programs, archives and systems leave them: known by their content,
and one bad file of a folder is one stock's failure.
"""

import bz2
import gzip
import io
import lzma
import sys
import zipfile
from urllib.parse import quote

import pandas as pd
import pyarrow as pa
import pytest

from dtml.errors import UsageError
from dtml.sources.files import FileSource, containers
from tests.support.price_files import FIRST, LAST, MARKET, long, read


def ours(folder, symbols=("AAA", "BBB")):
    long(symbols).to_csv(folder / "ours.csv", index=False)
    return read(FileSource(MARKET, folder / "ours.csv"))


def text(separator=",", decimal=".", end="\n"):
    table = long(("AAA", "BBB"))
    return table.to_csv(index=False, sep=separator, decimal=decimal, lineterminator=end)


def zstandard(content):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as packed:
        packed.write(content)
    return sink.getvalue().to_pybytes()


TEXTS = {
    "semicolons": text(";").encode(),
    "semicolons and decimal commas": text(";", ",").encode(),
    "tabs": text("\t").encode(),
    "bars": text("|").encode(),
    "sep=,": f"sep=,\n{text()}".encode(),
    "sep=;": f"sep=;\n{text(';')}".encode(),
    "UTF-8 with a mark": text().encode("utf-8-sig"),
    "UTF-16": text().encode("utf-16"),
    "UTF-16, big end first": b"\xfe\xff" + text().encode("utf-16-be"),
    "CRLF": text(end="\r\n").encode(),
    "a blank first line": f"\n{text()}".encode(),
    "a comment first": f"# prices of a vendor\n{text()}".encode(),
    "comments": f"# prices\n# of a vendor\n{text()}# the end\n".encode(),
    "gzip": gzip.compress(text().encode()),
    "bzip2": bz2.compress(text().encode()),
    "zstandard": zstandard(text().encode()),
    "xz": lzma.compress(text().encode()),
}


@pytest.mark.slow
@pytest.mark.parametrize("content", TEXTS.values(), ids=TEXTS)
def test_a_text_is_read_by_its_content_whatever_its_name(content, tmp_path):
    expected = ours(tmp_path)
    for name in ("p.csv", "p.csv.gz", "p.txt.zst"):
        (tmp_path / name).write_bytes(content)
        found = read(FileSource(MARKET, tmp_path / name))
        pd.testing.assert_frame_equal(found, expected, check_exact=True)


@pytest.mark.slow
@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, zstandard, bytes])
@pytest.mark.parametrize("name", ["p.parquet", "p.csv", "p.parquet.gz"])
def test_a_parquet_file_is_one_whatever_its_name_and_packing(pack, name, tmp_path):
    long(("AAA", "BBB")).to_parquet(tmp_path / "plain")
    (tmp_path / name).write_bytes(pack((tmp_path / "plain").read_bytes()))
    found = read(FileSource(MARKET, tmp_path / name))
    pd.testing.assert_frame_equal(found, ours(tmp_path), check_exact=True)


# archives and workbooks


def test_an_archive_of_one_table_is_that_table_and_of_several_a_folder(tmp_path):
    with zipfile.ZipFile(tmp_path / "p.csv.zip", "w") as archive:
        archive.writestr("inner.csv", text())
        archive.writestr("__MACOSX/._inner.csv", "no table")
    found = read(FileSource(MARKET, tmp_path / "p.csv.zip"))
    pd.testing.assert_frame_equal(found, ours(tmp_path), check_exact=True)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for symbol, rows in long(("AAA", "BBB")).groupby("symbol"):
            archive.writestr(f"2024/{symbol}.csv", rows.drop(columns="symbol").to_csv(index=False))
    found = read(FileSource(MARKET, tmp_path / "all.zip"))
    pd.testing.assert_frame_equal(found, ours(tmp_path), check_exact=True)


def test_an_archive_without_a_table_or_with_a_password_is_one_line(tmp_path):
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        archive.writestr("photo.jpg", "no table")
    with pytest.raises(UsageError, match=r"p\.zip:.*holds no table"):
        FileSource(MARKET, tmp_path / "p.zip").symbols()
    content = bytearray(in_archive(text().encode(), ("p.csv",)))
    content[6] |= 1  # encrypted, says the member
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "p.zip").write_bytes(content)
    with pytest.raises(UsageError, match=r"p\.zip: .*password"):
        read(FileSource(MARKET, tmp_path / "p.zip"))


@pytest.mark.parametrize("name", ["p.xlsx", "p.csv"])
def test_a_workbook_is_read_by_its_content(name, tmp_path):
    with pd.ExcelWriter(tmp_path / "made.xlsx") as workbook:
        long(("AAA", "NA", "TRUE")).to_excel(workbook, index=False)
    (tmp_path / "made.xlsx").rename(tmp_path / name)
    found = read(FileSource(MARKET, tmp_path / name))
    expected = ours(tmp_path, ("AAA", "NA", "TRUE"))
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


def test_a_workbook_with_two_filled_sheets_is_refused(tmp_path):
    with pd.ExcelWriter(tmp_path / "p.xlsx") as workbook:
        for sheet in ("first", "second"):
            long(("AAA",)).to_excel(workbook, sheet_name=sheet, index=False)
    with pytest.raises(UsageError, match=r"2 filled sheets.*first, second"):
        read(FileSource(MARKET, tmp_path / "p.xlsx"))


def test_without_openpyxl_a_workbook_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    (tmp_path / "p.xlsx").write_bytes(in_archive(b"<workbook/>", ("xl/workbook.xml",)))
    with pytest.raises(UsageError, match=r"install 'dtml-nightshift\[excel\]'"):
        read(FileSource(MARKET, tmp_path / "p.xlsx"))


# folders


def folder_of(tmp_path, symbols=("AAA", "BBB")):
    folder = tmp_path / "prices"
    for symbol, rows in long(symbols).groupby("symbol"):
        inner = folder / str(symbol)[0]
        inner.mkdir(parents=True, exist_ok=True)
        rows.drop(columns="symbol").to_csv(inner / f"{symbol}.csv", index=False)
    return folder


def test_a_folder_of_folders_is_read_without_what_systems_leave_in_it(tmp_path):
    folder = folder_of(tmp_path)
    (folder / "A" / "._AAA.csv").write_bytes(b"\x00\x05\x16\x07 Mac OS X")
    (folder / ".DS_Store").write_bytes(b"\x00\x00\x00\x01Bud1")
    (folder / ".git").mkdir()
    (folder / ".git" / "CCC.csv").write_text("no prices")
    (folder / "__MACOSX").mkdir()
    (folder / "__MACOSX" / "AAA.csv").write_text("no prices")
    source = FileSource(MARKET, folder)
    pd.testing.assert_frame_equal(read(source), ours(tmp_path), check_exact=True)
    assert source.remark() is None


BAD_FILES = {
    "empty": (b"", "the file is empty"),
    "a header alone": (b"date,open,high,low,close\n", "no rows"),
    "a web page": (b"<!DOCTYPE html><html>404</html>", "web page or XML"),
    "JSON": (b'{"error": "rate limit"}', "is JSON"),
    "half a gzip": (gzip.compress(text().encode())[:50], "end-of-stream"),
}


@pytest.mark.parametrize(("content", "why"), BAD_FILES.values(), ids=BAD_FILES)
def test_one_bad_file_of_a_folder_is_named_and_counts_as_that_stocks_failure(
    content, why, tmp_path
):
    folder = folder_of(tmp_path)
    (folder / "DDD.csv").write_bytes(content)
    source = FileSource(MARKET, folder)
    assert source.symbols() == ["AAA", "BBB", "DDD"]
    assert source.last_session() == LAST
    fetched = source.fetch(dict.fromkeys(source.symbols(), FIRST), LAST)
    assert fetched.outcomes["status"].tolist() == ["ok", "ok", "malformed"]
    detail = fetched.outcomes["detail"].iloc[2]
    assert detail.startswith(f"{folder / 'DDD.csv'}: ")
    assert why in detail
    assert f"left out: {folder / 'DDD.csv'} (" in (source.remark() or "")


def test_a_list_of_names_and_a_note_in_a_folder_count_as_no_stock(tmp_path):
    folder = folder_of(tmp_path)
    (folder / "symbols.csv").write_text("symbol,name\nAAA,The A company\n")
    (folder / "README.txt").write_text("Prices of a vendor.\n\nDo not pass on.\n")
    (folder / "LICENSE.txt").write_text("")
    source = FileSource(MARKET, folder)
    assert source.symbols() == ["AAA", "BBB"]
    assert f"{folder / 'symbols.csv'} (missing column" in (source.remark() or "")


def test_a_folder_of_days_has_the_symbols_of_its_columns(tmp_path):
    for day, rows in long(("AAA", "BBB")).groupby("date"):
        rows.to_csv(tmp_path / f"{day:%Y-%m-%d}.csv", index=False)
    days = FileSource(MARKET, tmp_path)
    assert days.symbols() == ["AAA", "BBB"]
    assert len(read(days)) == 26


# what grows


def in_archive(content, names=("AAA.csv", "BBB.csv")):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in names:
            packed.writestr(name, content)
    return archive.getvalue()


def in_workbook(content):
    workbook = io.BytesIO()
    cells = [line.split(",") for line in content.decode().splitlines()]
    pd.DataFrame(cells).to_excel(workbook, index=False, header=False)
    return workbook.getvalue()


def in_parquet(content):
    return pd.read_csv(io.BytesIO(content)).to_parquet(compression="zstd")


BOMB = b"symbol,date,close\n" + b"AAA,2024-03-04,1\n" * 12_500  # 212 kB


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("p.csv.gz", gzip.compress),
        ("p.csv.bz2", bz2.compress),
        ("p.csv.zst", zstandard),
        ("p.csv.xz", lzma.compress),
        ("p.zip", lambda content: in_archive(content, ("p.csv",))),
        ("p.zip", in_archive),
        pytest.param("p.xlsx", in_workbook, marks=pytest.mark.soak),
        ("p.parquet", in_parquet),
    ],
)
def test_a_small_file_that_grows_beyond_the_bound_is_refused(name, pack, tmp_path, monkeypatch):
    packed = pack(BOMB)
    (tmp_path / name).write_bytes(packed)
    monkeypatch.setattr(containers, "BOUND", 200_000)
    with pytest.raises(UsageError, match=rf"{name}.*0\.0002 GB"):
        read(FileSource(MARKET, tmp_path / name))
    monkeypatch.setattr(containers, "BOUND", 20_000_000)
    assert FileSource(MARKET, tmp_path / name).symbols()


def test_a_workbook_with_a_few_cells_far_apart_is_refused_before_it_fills_the_memory(
    tmp_path, monkeypatch
):
    rows = pd.DataFrame([1] * 30)
    rows.to_excel(tmp_path / "p.xlsx", index=False, header=False, startcol=16_383)
    monkeypatch.setattr(containers, "BOUND", 20_000_000)
    with pytest.raises(UsageError, match=r"p\.xlsx.*0\.02 GB"):
        FileSource(MARKET, tmp_path / "p.xlsx").symbols()


@pytest.mark.parametrize("pack", [gzip.compress, in_archive])
def test_what_is_packed_within_a_packed_file_is_refused(pack, tmp_path):
    (tmp_path / "p.zip").write_bytes(pack(gzip.compress(text().encode())))
    with pytest.raises(UsageError, match="unpack it once"):
        read(FileSource(MARKET, tmp_path / "p.zip"))


def test_an_archive_of_too_many_tables_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(containers, "MOST_TABLES", 2)
    (tmp_path / "p.zip").write_bytes(in_archive(BOMB))
    assert len(FileSource(MARKET, tmp_path / "p.zip").symbols()) == 1
    (tmp_path / "p.zip").write_bytes(in_archive(BOMB, ("AAA.csv", "BBB.csv", "CCC.csv")))
    with pytest.raises(UsageError, match=r"p\.zip.* 3 tables"):
        FileSource(MARKET, tmp_path / "p.zip")


# folders named key=value


@pytest.mark.parametrize("key", ["symbol", "Ticker"])
def test_a_folder_gives_its_files_the_symbol_that_it_names(key, tmp_path):
    table = long(("BRK/B", "AAA"))
    for symbol, bars in table.groupby("symbol"):
        folder = tmp_path / "p" / f"{key}={quote(str(symbol), safe='')}" / "year=2024"
        folder.mkdir(parents=True)
        bars.drop(columns="symbol").to_parquet(folder / "part.0.parquet", index=False)
    (tmp_path / "p" / "symbol=CCC").mkdir()
    (tmp_path / "p" / "symbol=CCC" / "part.1.parquet").write_bytes(b"PAR1 cut off")
    source = FileSource(MARKET, tmp_path / "p")
    assert source.symbols() == ["AAA", "BRK/B", "CCC"]
    pd.testing.assert_frame_equal(read(source), ours(tmp_path, ("BRK/B", "AAA")), check_exact=True)
