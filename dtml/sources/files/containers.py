"""What holds a table: a file, plain or packed, or a member of a zip archive.

The beginning of a file says what it is, not its name: people rename files, and programs pack them.
"""

import bz2
import csv
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path, PurePosixPath

import pyarrow as pa

from dtml.errors import UsageError

TABLES = (".parquet", ".csv", ".tsv", ".txt", ".xlsx")
PACKINGS = (".gz", ".bz2", ".zst", ".xz", ".zip")
ENDINGS = f"{', '.join(TABLES)}, plain or packed ({', '.join(PACKINGS)})"
GZIP = b"\x1f\x8b"
BZIP2 = b"BZh"
ZSTANDARD = b"\x28\xb5\x2f\xfd"
XZ = b"\xfd7zXZ\x00"
ZIP = b"PK\x03\x04"
PARQUET = b"PAR1"
WORKBOOK = "xl/workbook.xml"  # the member that makes a zip archive an .xlsx
DEEPEST = 3  # packings in one another; what is packed deeper is not unpacked


class AdvisedError(ValueError):
    """A fault of a table whose message says what the user can do."""


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
                return _unpacked(self.archive.read(self.member))
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
    names = [name for name in sorted(archive.namelist()) if is_table(PurePosixPath(name))]
    tables = [Container(file, name, archive) for name in names]
    if WORKBOOK in archive.namelist():
        return [whole]
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
    """Return the content without its packings, of which up to `DEEPEST` may be in one another."""
    for _ in range(DEEPEST):
        if content.startswith(GZIP):
            content = gzip.decompress(content)
        elif content.startswith(BZIP2):
            content = bz2.decompress(content)
        elif content.startswith(ZSTANDARD):
            with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
                content = stream.read()
        elif content.startswith(XZ):
            content = lzma.decompress(content)
        elif content.startswith(ZIP):
            only_member = _only_member(content)
            if only_member is None:  # a workbook stays packed
                return content
            content = only_member
        else:
            return content
    return content


def _only_member(content: bytes) -> bytes | None:
    """Return the one table of a zip archive; None for a workbook.

    Raises AdvisedError for an archive of no table or of several.
    """
    with zipfile.ZipFile(BytesIO(content)) as archive:
        names = archive.namelist()
        if WORKBOOK in names:
            return None
        tables = [name for name in names if is_table(PurePosixPath(name))]
        if not tables:
            raise AdvisedError(
                f"it is a zip archive that holds no file ending in {', '.join(TABLES)}: put a "
                "table in its place, or leave it out"
            )
        if len(tables) > 1:
            raise AdvisedError(
                f"it is a zip archive of {len(tables)} tables, where one is expected: put its "
                "tables in its place"
            )
        return archive.read(tables[0])
