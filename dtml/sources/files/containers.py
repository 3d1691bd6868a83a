"""What holds a table of prices: a file, packed or not, or a member of a zip archive.

Its beginning says what it is, not its name.
"""

import bz2
import csv
import gzip
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pandas as pd
import pyarrow as pa

from dtml.errors import UsageError, one_line

ENDINGS = ".parquet, .csv, .tsv, .txt, .xlsx, plain or packed (.gz, .bz2, .zst, .xz, .zip), or .zip"
ENDING = re.compile(
    r"(\.(parquet|csv|tsv|txt|xlsx)(\.(gz|bz2|zst|xz|zip))?|\.zip)$", flags=re.IGNORECASE
)
OPENERS: dict[bytes, Callable[[BytesIO], Any]] = {  # by the first bytes of what is packed
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\x28\xb5\x2f\xfd": partial(pa.CompressedInputStream, compression="zstd"),
    b"\xfd7zXZ\x00": lzma.open,
}
ZIP = b"PK\x03\x04"
WORKBOOK = "xl/workbook.xml"  # the member that makes a zip archive an .xlsx
BOUND = 2_000_000_000  # bytes to which a file may unpack, all its tables together
MOST_TABLES = 15_000  # of an archive
CHUNK = 1 << 24  # bytes
CELL = 100  # bytes, about what one of a workbook takes in memory


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
    """One table as it is stored: a file, or a member of an archive, which stays open for all of
    them.

    `place` is the path that errors name.
    """

    place: Path
    archive: ZipFile | None = field(default=None, compare=False, repr=False)
    member: str = ""

    @property
    def stem(self) -> str:
        """Return the name without its endings, other dots kept: `BT-A.L` for BT-A.L.csv.gz."""
        return ENDING.sub("", self.place.name)

    def content(self) -> bytes:
        """Return the bytes of the table, unpacked once; those of a workbook are a zip archive."""
        if self.archive is not None:
            return self.archive.read(self.member)
        content = self.place.read_bytes()
        for mark, opener in OPENERS.items():
            if content.startswith(mark):
                unpacked = BytesIO()
                with opener(BytesIO(content)) as stream:
                    while chunk := stream.read(CHUNK):
                        unpacked.write(chunk)
                        require_room(unpacked.tell())
                return unpacked.getvalue()
        return content

    @contextmanager
    def readable(self) -> Iterator[None]:
        """Turn any error of reading the table into a UsageError of one line."""
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
            message = one_line(error) or type(error).__name__
            # A zip archive with a password is a RuntimeError. Its reason needs no advice.
            if not isinstance(error, AdvisedError | PermissionError | RuntimeError):
                message += "; check that the file is complete and is what its name says"
            raise UsageError(f"{self.place}: cannot be read: {message}") from error


def containers_of(file: Path) -> list[Container]:
    """Return the tables that a file holds: the members of a zip archive, or itself, as a workbook.

    Raises UsageError for an archive of too many.
    """
    with Container(file).readable():
        if not zipfile.is_zipfile(file):
            return [Container(file)]
        archive = ZipFile(file)
        names = [name for name in sorted(archive.namelist()) if is_table(Path(name))]
        if not names or WORKBOOK in archive.namelist():
            return [Container(file)]
        if len(names) > MOST_TABLES:
            raise AdvisedError(
                f"it holds {len(names):,} tables, and of an archive at most {MOST_TABLES:,} are "
                "read: unpack it into a folder, and give the folder"
            )
        require_room(sum(archive.getinfo(name).file_size for name in names))
    if len(names) == 1:  # it is read as a packed file, and errors name it alone
        return [Container(file, archive, names[0])]
    return [Container(file / name, archive, name) for name in names]


def is_table(path: Path) -> bool:
    """Say whether a name may hold prices: not hidden, nor macOS's (`._AAA.csv`, `__MACOSX`)."""
    is_hidden = any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
    return not is_hidden and ENDING.search(path.name) is not None


def csv_of_workbook(content: bytes) -> bytes:
    """Return the one sheet of a workbook that holds something, as CSV in UTF-8.

    Raises ValueError where openpyxl cannot, for another number of sheets, and for over `BOUND`
    bytes.
    """
    with ZipFile(BytesIO(content)) as archive:
        if WORKBOOK not in archive.namelist():
            raise AdvisedError(
                f"the archive holds no table: put a file in it that ends in one of {ENDINGS}, or, "
                "if it lies in a folder of prices, take it out of there"
            )
        require_room(sum(member.file_size for member in archive.infolist()))
    try:
        import openpyxl

        book = openpyxl.load_workbook(BytesIO(content), read_only=True, data_only=True)
        sheets = {sheet.title: _filled_rows(sheet) for sheet in book.worksheets}
    except AdvisedError:
        raise
    except ImportError as error:
        raise AdvisedError(
            "the package openpyxl, which reads workbooks, is not installed: "
            "pip install 'dtml-nightshift[excel]', or save the sheet as CSV"
        ) from error
    except Exception as error:
        raise ValueError(f"it is not a readable workbook: {error}") from error
    filled = {title: rows for title, rows in sheets.items() if len(rows)}
    if len(filled) != 1:
        names = ", ".join(filled) or "none"
        advice = "keep one" if filled else "write the prices into one"
        raise AdvisedError(f"the workbook has {len(filled)} filled sheets ({names}): {advice}")
    (rows,) = filled.values()
    return rows.to_csv(index=False, header=False).encode()


def _filled_rows(sheet: Any) -> pd.DataFrame:
    """Return the cells of a sheet up to its last row that holds something."""
    sheet.reset_dimensions()  # what the file says of them may be wrong
    rows = []
    cells = 0
    for row in sheet.iter_rows(values_only=True):
        cells += len(row) + 1
        require_room(cells * CELL)
        # A symbol such as TRUE is a truth value in a sheet.
        rows.append([str(cell).upper() if isinstance(cell, bool) else cell for cell in row])
    frame = pd.DataFrame(rows, dtype=object)
    return frame.loc[: frame.last_valid_index()] if frame.notna().any(axis=None) else frame[:0]


def tables_of(place: Path) -> list[Container]:
    """Return the tables of a file, an archive or a folder, sorted by their paths.

    Raises UsageError for a missing path, another ending than a table's, and a folder without one.
    """
    if not place.is_dir():
        if not place.is_file():
            raise UsageError(f"{place}: there is no such file or folder; check the path")
        # Hidden files of a folder are left out, but one that is named itself is read.
        if not is_table(Path(place.name.removeprefix("."))):
            raise UsageError(f"{place}: unsupported file type; use one of {ENDINGS}")
        return containers_of(place)
    tables: list[Container] = []
    # Links to folders are not followed.
    for path in sorted(place.rglob("*")):
        if is_table(path.relative_to(place)) and path.is_file():
            tables += containers_of(path)
    if not tables:
        raise UsageError(
            f"{place}: the folder holds no file that ends in one of {ENDINGS}; give a folder that "
            "does"
        )
    return tables
