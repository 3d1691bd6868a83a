"""The tables of a folder or an archive, in its own folders too."""

import os
from collections.abc import Iterator
from pathlib import Path

from dtml.errors import UsageError
from dtml.sources.files.containers import (
    ENDINGS,
    Container,
    containers_of,
    is_archive,
    is_table,
)


def tables_of(place: Path) -> list[Container]:
    """Return the tables of a file, an archive or a folder, sorted by their paths.

    Raises UsageError for a path that does not exist, for an ending that is none of a table, for a
    folder without a table, and for two files of one name in a folder.
    """
    if place.is_dir():
        return _tables_of_folder(place)
    if not place.is_file():
        raise UsageError(f"{place}: there is no such file or folder; check the path")
    # Hidden files of a folder are left out, but one that is named itself is read.
    if not is_table(Path(place.name.removeprefix("."))):
        raise UsageError(
            f"{place}: unsupported file type; use one of {ENDINGS}, or an archive (.zip) of such "
            "files"
        )
    return containers_of(place)


def _tables_of_folder(folder: Path) -> list[Container]:
    tables: list[Container] = []
    for path in sorted(_files(folder)):
        tables.extend(containers_of(path) if is_archive(path) else [Container(path)])
    if not tables:
        raise UsageError(
            f"{folder}: the folder holds no file that ends in {ENDINGS} or .zip; give a folder "
            "that does"
        )
    _refuse_two_of_one_name(tables)
    return tables


def _files(folder: Path) -> Iterator[Path]:
    """Yield the tables of a folder and of its folders; links to folders are not followed."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__MACOSX"))]
        for name in names:
            if is_table(Path(name)):
                yield Path(parent) / name


def _refuse_two_of_one_name(tables: list[Container]) -> None:
    seen: dict[Path, str] = {}
    for table in tables:
        key = table.place.with_name(table.stem)
        if key in seen:
            raise UsageError(
                f"{table.place.parent}: {seen[key]} and {table.place.name} differ only in their "
                "endings; keep one of them"
            )
        seen[key] = table.place.name
