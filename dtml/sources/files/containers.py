"""What holds a table: a file, plain or packed, or a member of a zip archive.

The beginning of a file says what it is, not its name: people rename files, and programs pack them.
"""

import bz2
import csv
import gzip
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, time
from functools import partial
from io import BytesIO, StringIO
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote
from zipfile import ZipFile

import pyarrow as pa

from dtml.errors import UsageError

TABLES = (".parquet", ".csv", ".tsv", ".txt", ".xlsx")
PACKINGS = (".gz", ".bz2", ".zst", ".xz", ".zip")
ENDINGS = f"{', '.join(TABLES)}, plain or packed ({', '.join(PACKINGS)})"
OPENERS: dict[bytes, Callable[[BytesIO], Any]] = {  # by the first bytes of what is packed
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\x28\xb5\x2f\xfd": partial(pa.CompressedInputStream, compression="zstd"),
    b"\xfd7zXZ\x00": lzma.open,
}
ZIP = b"PK\x03\x04"
PARQUET = b"PAR1"
WORKBOOK = "xl/workbook.xml"  # the member that makes a zip archive an .xlsx
BOUND = 2_000_000_000  # bytes to which a file may unpack, all its tables together
MOST_TABLES = 15_000  # of an archive
CHUNK = 1 << 24  # bytes
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


class AdvisedError(ValueError):
    """A fault of a table whose message says what the user can do."""


def require_room(size: int) -> None:
    """Raise AdvisedError for a table of more bytes than a file may unpack to."""
    if size > BOUND:
        raise AdvisedError(
            f"it unpacks to more than {BOUND / 1e9:.3g} GB, the most for a file: give its prices "
            "as plain CSV, in several files of a folder"
        )


@dataclass(frozen=True)
class Container:
    """One table as it is stored: a file, or a member of a zip archive.

    The archive stays open, as one of thousands of members takes long to open; its members share it.
    """

    file: Path
    member: str | None = None
    archive: zipfile.ZipFile | None = field(default=None, compare=False, repr=False)

    @property
    def place(self) -> Path:
        """Return the path that errors name."""
        return self.file if self.member is None else self.file / self.member

    @property
    def stem(self) -> str:
        """Return the name without its endings, other dots kept: `BT-A.L` for BT-A.L.csv.gz."""
        return stem_of(self.place.name)

    @property
    def partitions(self) -> dict[str, str | None]:
        """Return the values that folders named key=value, as of Hive, give to all rows."""
        pairs = (part.partition("=") for part in self.place.parts[:-1])
        return {
            key: None if value == HIVE_NULL else unquote(value)
            for key, is_pair, value in pairs
            if is_pair
        }

    @property
    def is_note(self) -> bool:
        """Say whether the name is that of a text which may hold no table."""
        return ".txt" in self.place.name.lower()

    def is_plain_parquet(self) -> bool:
        """Say whether the table is a parquet file that can be read a column at a time."""
        if self.member is not None:
            return False
        with self.readable(), self.file.open("rb") as file:
            return file.read(len(PARQUET)) == PARQUET

    def content(self) -> bytes:
        """Return the bytes of the table, unpacked; those of a workbook are a zip archive."""
        with self.readable():
            if self.archive is not None and self.member is not None:
                return self.archive.read(self.member)
            return _unpacked(self.file.read_bytes())

    @contextmanager
    def readable(self) -> Iterator[None]:
        """Turn any error of reading the table into a UsageError of one line.

        The content may be anything, whatever the file's name says.
        """
        try:
            yield
        except (
            pa.ArrowException,
            OSError,
            EOFError,
            RuntimeError,  # such as a zip archive with a password
            zlib.error,
            lzma.LZMAError,
            zipfile.BadZipFile,
            ValueError,
            OverflowError,
            csv.Error,
        ) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            message = f"{self.place}: cannot be read as {_endings(self.place.name)}: {reason}"
            # A zip archive with a password is a RuntimeError. Its reason needs no advice.
            if not isinstance(error, AdvisedError | PermissionError | RuntimeError):
                message += "; check that the file is complete and is what its name says"
            raise UsageError(message) from error


def containers_of(file: Path) -> list[Container]:
    """Return the tables that a file holds: the members of a zip archive of several, or itself.

    A workbook is itself one table, although it is a zip archive. Raises UsageError for an archive
    without a table, and for a file that cannot be read.
    """
    whole = Container(file)
    with whole.readable():
        with file.open("rb") as opened:
            is_archive = opened.read(len(ZIP)) == ZIP
        if not is_archive:
            return [whole]
        archive = zipfile.ZipFile(file)
        if WORKBOOK in archive.namelist():
            return [whole]
        names = [name for name in sorted(archive.namelist()) if is_table(PurePosixPath(name))]
        if len(names) > MOST_TABLES:
            raise AdvisedError(
                f"it holds {len(names):,} tables, and of an archive at most {MOST_TABLES:,} are "
                "read: unpack it into a folder, and give the folder"
            )
        require_room(sum(archive.getinfo(name).file_size for name in names))
    tables = [Container(file, name, archive) for name in names]
    if not tables:
        raise UsageError(
            f"{file}: the archive holds no table: put a file in it that ends in one of {ENDINGS}, "
            "or, if it lies in a folder of prices, take it out of there"
        )
    # An archive of one table is read as a packed file, and errors name it alone.
    return [whole] if len(tables) == 1 else tables


def is_table(path: PurePosixPath | Path) -> bool:
    """Say whether a file of this name may hold prices.

    Hidden files do not, nor what macOS puts beside each file (`._AAA.csv`, `__MACOSX`).
    """
    if any(part.startswith(".") or part == "__MACOSX" for part in path.parts):
        return False
    return _endings(path.name) != ""


def is_archive(path: Path) -> bool:
    """Say whether a file is named as an archive of tables, as `prices.zip` is."""
    return path.name.lower().endswith(".zip")


def stem_of(name: str) -> str:
    """Return a file's name without its endings."""
    return name.removesuffix(_endings(name))


def _endings(name: str) -> str:
    """Return the endings of a table's name as they are written, empty where there are none.

    An archive needs no ending of a table: `prices.zip` has `.zip`, `prices.csv.gz` has `.csv.gz`.
    """
    lower = name.lower()
    packing = next((ending for ending in PACKINGS if lower.endswith(ending)), "")
    inner = lower.removesuffix(packing)
    table = next((ending for ending in TABLES if inner.endswith(ending)), "")
    if not table:
        return name[len(inner) :] if packing == ".zip" else ""
    return name[len(inner) - len(table) :]


def _unpacked(content: bytes) -> bytes:
    """Return the content of a packed file; a workbook stays packed."""
    if content.startswith(ZIP):
        return _only_member(content)
    opener = next((opener for begin, opener in OPENERS.items() if content.startswith(begin)), None)
    if opener is None:
        return content
    unpacked = BytesIO()
    with opener(BytesIO(content)) as stream:
        while chunk := stream.read(CHUNK):
            unpacked.write(chunk)
            require_room(unpacked.tell())
    return unpacked.getvalue()


def _only_member(content: bytes) -> bytes:
    """Return the one table of a zip archive, or a workbook as it is.

    Raises AdvisedError for an archive of no table or of several.
    """
    with zipfile.ZipFile(BytesIO(content)) as archive:
        names = archive.namelist()
        if WORKBOOK in names:
            return content
        tables = [name for name in names if is_table(PurePosixPath(name))]
        if len(tables) != 1:
            raise AdvisedError(
                f"it is a zip archive that holds {len(tables)} files ending in "
                f"{', '.join(TABLES)}, where one is expected: put a table in its place"
            )
        require_room(archive.getinfo(tables[0]).file_size)
        return archive.read(tables[0])


CELL = 100  # bytes, about what one takes in memory


def csv_of_workbook(content: bytes) -> bytes:
    """Return the one sheet of a workbook that holds something, as CSV in UTF-8.

    A number that a spreadsheet shows as a whole one is written as such, and a date as in ISO 8601.
    Raises ValueError where openpyxl is missing or cannot read the workbook, unless exactly one
    sheet holds something, and once it has more bytes than `BOUND`, unpacked or as cells.
    """
    with ZipFile(BytesIO(content)) as archive:
        require_room(sum(member.file_size for member in archive.infolist()))
    try:
        import openpyxl

        book = openpyxl.load_workbook(BytesIO(content), read_only=True, data_only=True)
        filled = {}
        for sheet in book.worksheets:
            text = _csv_of_sheet(sheet)
            if text.strip("\n,"):
                filled[sheet.title] = text
    except AdvisedError:
        raise
    except ImportError as error:
        raise AdvisedError(
            "the package openpyxl, which reads workbooks, is not installed: "
            "pip install 'dtml-nightshift[excel]', or save the sheet as CSV"
        ) from error
    except Exception as error:
        raise ValueError(f"it is not a readable workbook: {error}") from error
    if len(filled) != 1:
        names = ", ".join(str(name) for name in filled) or "none"
        advice = "keep one" if filled else "write the prices into one"
        raise AdvisedError(f"the workbook has {len(filled)} filled sheets ({names}): {advice}")
    (text,) = filled.values()
    return text.encode()


def _csv_of_sheet(sheet: Any) -> str:
    """Return the rows of a sheet as CSV, all as long as the longest; empty ones at its end go."""
    sheet.reset_dimensions()  # what the file says of them may be wrong
    rows: list[list[str]] = []
    cells = 0
    for row in sheet.iter_rows(values_only=True):
        cells += len(row) + 1
        require_room(cells * CELL)
        rows.append([_written(value) for value in row])
    while rows and not any(rows[-1]):
        rows.pop()
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    width = max((len(row) for row in rows), default=0)
    writer.writerows(row + [""] * (width - len(row)) for row in rows)
    return text.getvalue()


def _written(value: Any) -> str:
    """Return the value of a cell as a CSV of the sheet would have it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime):
        has_time = value.time() != time()
        return value.isoformat(sep=" ") if has_time else value.date().isoformat()
    if isinstance(value, date):
        return value.isoformat()
    return str(value)


def tables_of(place: Path) -> list[Container]:
    """Return the tables of a file, an archive or a folder, sorted by their paths.

    Raises UsageError for a path that does not exist, for an ending that is none of a table, for a
    folder without a table, and for two files of one name in a folder.
    """
    if place.is_dir():
        tables: list[Container] = []
        for path in sorted(_files(place)):
            tables.extend(containers_of(path) if is_archive(path) else [Container(path)])
        if not tables:
            raise UsageError(
                f"{place}: the folder holds no file that ends in {ENDINGS} or .zip; give a folder "
                "that does"
            )
        seen: dict[Path, str] = {}
        for table in tables:
            key = table.place.with_name(table.stem)
            if key in seen:
                raise UsageError(
                    f"{table.place.parent}: {seen[key]} and {table.place.name} differ only in "
                    "their endings; keep one of them"
                )
            seen[key] = table.place.name
        return tables
    if not place.is_file():
        raise UsageError(f"{place}: there is no such file or folder; check the path")
    # Hidden files of a folder are left out, but one that is named itself is read.
    if not is_table(Path(place.name.removeprefix("."))):
        raise UsageError(
            f"{place}: unsupported file type; use one of {ENDINGS}, or an archive (.zip) of such "
            "files"
        )
    return containers_of(place)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the tables of a folder and of its folders; links to folders are not followed."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__MACOSX"))]
        for name in names:
            if is_table(Path(name)):
                yield Path(parent) / name
