"""Back up a whole store with its checkpoints into a folder, check it, and restore it."""

import errno
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path, PurePosixPath

from sqlalchemy import Engine

from db.admin.copying import Progress, copy_store, require_empty, snapshot, table_counts, write_snapshot
from db.engine import open_engine, prepare, reading, upgrade
from db.migrations import REVISION
from db.rows import rankings
from db.rows import runs as stored_runs
from dtml.errors import DtmlError, UsageError
from flows.settings import data_folder
from translation.atomic_files import write_folder_whole, write_whole

STORE, MANIFEST = "dtml.sqlite", "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """List what a backup holds: rows of each table, SHA-256 of each file, and runs whose weights could not be kept."""

    made_at: str
    program: str
    schema: str
    rows: dict[str, int]
    files: dict[str, str]
    absent: list[dict[str, str]]


def checkpoints(engine: Engine) -> Iterator[tuple[str, str, str, str | None]]:
    """Yield each training with weights: its name, the checkpoint's path below the data folder, SHA-256, any fault."""
    with reading(engine) as conn:
        runs = stored_runs.runs(conn).dropna(subset="checkpoint_path")
        rankers = rankings.rankers(conn)
    for run in (*runs.itertuples(), *rankers.itertuples()):
        path, sha = str(run.checkpoint_path), str(run.checkpoint_hash)
        yield str(run.id), path, sha, _what_is_wrong(data_folder() / path, sha)


def back_up(engine: Engine, folder: Path, progress: Progress) -> Manifest:
    """Write the store as it is at one moment, and its checkpoints, into a new folder; others may write meanwhile.

    The folder appears whole or not at all. Raises UsageError for a folder that is not empty.
    """
    folder = folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there and not empty: name a new folder")
    try:
        write_folder_whole(folder, lambda partial: _fill(engine, partial, progress))
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise UsageError(f"{folder} was filled by another meanwhile: name a new folder") from error
    return _read_manifest(folder)


def _fill(engine: Engine, folder: Path, progress: Progress) -> None:
    rows = write_snapshot(engine, folder / STORE, progress)
    files, absent = _keep_checkpoints(folder, progress)
    files[STORE] = _sha256(folder / STORE)
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = Manifest(made_at, version("dtml-nightshift"), REVISION, rows, files, absent)
    text = json.dumps({"format": FORMAT} | asdict(manifest), indent=2)
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def read_backup(folder: Path) -> Manifest:
    """Read a backup's manifest and check every file; raise UsageError for no known backup, DtmlError for damage."""
    manifest = _read_manifest(folder)
    for name, sha in manifest.files.items():
        if wrong := _what_is_wrong(folder / name, sha):
            raise DtmlError(f"the backup {folder} is damaged: {name}: {wrong}; nothing was restored")
    return manifest


def restore(folder: Path, manifest: Manifest, target: Engine, progress: Progress) -> None:
    """Fill an empty store and the data folder from what `read_backup` read, comparing every row.

    Raises UsageError for a store that has rows, and where files with other weights are in the way.
    """
    prepare(target)
    with reading(target) as conn:
        require_empty(conn)
    for name, sha in manifest.files.items():  # first, because a run's row must never lack its weights
        if name != STORE:
            _put_back(folder / name, data_folder() / name, sha)
    with _of_this_schema(folder / STORE, manifest.schema) as source, snapshot(source) as conn:
        counts = table_counts(conn)
        if differing := [name for name, count in manifest.rows.items() if counts.get(name) != count]:
            raise DtmlError(f"the backup {folder} has not the rows of its {MANIFEST}: {differing}; no row was restored")
        copy_store(conn, target, progress)


def _read_manifest(folder: Path) -> Manifest:
    try:
        said = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if said.pop("format") != FORMAT:
            raise UsageError(f"{folder} was made by a newer dtml: update this one")
        manifest = Manifest(**said)
        outside = [name for name in manifest.files if not _is_below(name)]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{folder} is no backup of dtml: its {MANIFEST} cannot be read ({error})") from error
    if outside or STORE not in manifest.files:
        raise UsageError(f"{folder} is no backup of dtml: its {MANIFEST} names {outside or 'no store'}")
    return manifest


def _keep_checkpoints(folder: Path, progress: Progress) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Copy the checkpoints of a snapshot's runs; return SHA-256 by path, and the runs whose weights are lost."""
    files, absent = {}, []
    snapped = open_engine(f"sqlite:///{folder / STORE}", read_only=True)
    for run_id, path, sha, wrong in checkpoints(snapped):
        if wrong is None and _is_below(path):
            progress("copying", path, 0)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(data_folder() / path, folder / path)
            files[path] = sha
        else:
            absent.append({"run_id": run_id, "path": path, "why": wrong or "it lies outside of the data folder"})
    snapped.dispose()
    for path, sha in files.items():
        if _sha256(folder / path) != sha:
            raise DtmlError(f"{path} changed while it was copied: try again")
    return files, absent


def _is_below(path: str) -> bool:
    """Return whether a path stays below the folder that it is relative to."""
    return not PurePosixPath(path).is_absolute() and ".." not in PurePosixPath(path).parts


def _what_is_wrong(file: Path, sha: str) -> str | None:
    if not file.is_file():
        return "it is not there"
    return None if _sha256(file) == sha else "it was changed or damaged"


def _put_back(kept: Path, file: Path, sha: str) -> None:
    if not file.exists():
        write_whole(file, lambda partial: shutil.copyfile(kept, partial))
    if wrong := _what_is_wrong(file, sha):
        raise UsageError(f"{file} is not the one of the backup ({wrong}): set DTML_DATA to an empty folder")


@contextmanager
def _of_this_schema(file: Path, revision: str) -> Iterator[Engine]:
    """Open the store of a backup read only; upgrade one of an older schema in a copy."""
    # The copy has a fixed name below the data folder, so that the next restore removes what a killed one left.
    with ExitStack() as undone:
        if is_older := revision != REVISION:
            folder = data_folder() / "restored.partial"
            shutil.rmtree(folder, ignore_errors=True)
            undone.callback(shutil.rmtree, folder, ignore_errors=True)
            folder.mkdir(parents=True)
            file = Path(shutil.copy(file, folder))
        engine = open_engine(f"sqlite:///{file.absolute()}", read_only=not is_older)
        undone.callback(engine.dispose)
        if is_older:
            upgrade(engine)
        yield engine


def _sha256(file: Path) -> str:
    """Return the SHA-256 in hexadecimal; that of dtml.checkpoints would import torch."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
