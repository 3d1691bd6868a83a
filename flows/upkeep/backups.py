"""Back up a whole store with its checkpoints into a folder, check it, and restore it."""

import errno
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from sqlalchemy import Engine

from db.admin.copying import (
    Progress,
    copy_store,
    require_empty,
    snapshot,
    table_counts,
    write_snapshot,
)
from db.engine import open_engine, prepare, reading, upgrade
from db.migrations import REVISION
from db.rows import rankings
from db.rows import runs as stored_runs
from dtml.errors import DtmlError, UsageError
from flows.settings import MODELS, WEIGHTS, data_folder
from translation.atomic_files import write_folder_whole, write_whole

STORE, MANIFEST = "dtml.sqlite", "manifest.json"
FORMAT = 1
NOT_A_MODEL = f"it lies outside of the folder {MODELS} of the data folder"
MOST_NAMED = 5  # files that a message names


@dataclass(frozen=True)
class Manifest:
    """List what a backup holds: rows of each table, SHA-256 of each file, and
    runs whose weights could not be kept.
    """

    made_at: str
    program: str
    schema: str
    rows: dict[str, int]
    files: dict[str, str]
    absent: list[dict[str, str]]


def checkpoints(engine: Engine) -> Iterator[tuple[str, str, str, str | None]]:
    """Yield each training with weights: its name, the checkpoint's path below
    the data folder, SHA-256, any fault.
    """
    with reading(engine) as conn:
        runs = stored_runs.runs(conn).dropna(subset="checkpoint_path")
        rankers = rankings.rankers(conn)
    for run in (*runs.itertuples(), *rankers.itertuples()):
        path, sha = str(run.checkpoint_path), str(run.checkpoint_hash)
        yield str(run.id), path, sha, _what_is_wrong(data_folder() / path, sha)


def back_up(engine: Engine, folder: Path, progress: Progress) -> Manifest:
    """Write the store as it is at one moment, and its checkpoints, into a new folder; others may
    write meanwhile.

    The folder appears whole or not at all. Raises UsageError for a folder that is not empty.
    """
    folder = folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} already exists and is not an empty folder: name a new one")
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
    """Read a backup's manifest and check every file; raise UsageError for no
    known backup, DtmlError for damage.
    """
    manifest = _read_manifest(folder)
    _require_nothing_else(folder, manifest)
    for name, sha in manifest.files.items():
        if wrong := _what_is_wrong(folder / name, sha):
            raise DtmlError(
                f"the backup {folder} is damaged: {name}: {wrong}; nothing was restored"
            )
    return manifest


def restore(folder: Path, manifest: Manifest, target: Engine, progress: Progress) -> None:
    """Fill an empty store and the data folder from what `read_backup` read, comparing every row.

    Raises UsageError for a store that has rows, for weights of no model in the backup, and where
    files with other weights are in the way.
    """
    prepare(target)
    with reading(target) as conn:
        require_empty(conn)
    with _of_this_schema(folder / STORE, manifest.schema) as source, snapshot(source) as conn:
        counts = table_counts(conn)
        if differing := [
            name for name, count in manifest.rows.items() if counts.get(name) != count
        ]:
            raise DtmlError(
                f"the backup {folder} is damaged: the row counts of {', '.join(differing)} differ "
                f"from its {MANIFEST}; no row was restored"
            )
        for name, sha in _weights_of_models(
            folder, manifest, source
        ):  # first: no row may lack its weights
            _put_back(folder / name, data_folder() / name, sha)
        copy_store(conn, target, progress)


def _weights_of_models(folder: Path, manifest: Manifest, source: Engine) -> list[tuple[str, str]]:
    """Return path and SHA-256 of the weights that a backup's store names;
    UsageError for any it does not.
    """
    named = {(path, sha) for _, path, sha, _ in checkpoints(source)}
    kept = [(name, sha) for name, sha in manifest.files.items() if name != STORE]
    if others := [name for name, sha in kept if (name, sha) not in named]:
        raise UsageError(
            f"{folder} holds weights of no model in its store: {_some(others)}; nothing was "
            "restored"
        )
    return kept


def _require_nothing_else(folder: Path, manifest: Manifest) -> None:
    """Raise UsageError for a backup with a file that its manifest does not
    name, or with a link in place of one.
    """
    expected = {MANIFEST, MODELS, *manifest.files}
    lying = (*folder.iterdir(), *(folder / MODELS).glob("*"))
    names = {file.relative_to(folder).as_posix(): file for file in lying}
    if others := [
        name for name, file in names.items() if name not in expected or file.is_symlink()
    ]:
        raise UsageError(
            f"{folder} holds what no backup of dtml does: {_some(others)}; nothing was restored. "
            "Remove it, and trust such a backup no further than the person who made it"
        )


def _some(names: Sequence[str]) -> str:
    """Return a few of the names, quoted, and how many more there are."""
    named = ", ".join(ascii(name) for name in sorted(names)[:MOST_NAMED])
    return named if len(names) <= MOST_NAMED else f"{named} and {len(names) - MOST_NAMED} more"


def _read_manifest(folder: Path) -> Manifest:
    try:
        said = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if said.pop("format") != FORMAT:
            raise UsageError(f"{folder} was made by a newer dtml: update this one")
        manifest = Manifest(**said)
        others = [name for name in manifest.files if name != STORE and not WEIGHTS.fullmatch(name)]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"{folder} is not a backup of dtml: its {MANIFEST} cannot be read ({error})"
        ) from error
    if others or STORE not in manifest.files:
        named = _some(others) if others else "no store"
        raise UsageError(
            f"{folder} is not a backup of dtml: its {MANIFEST} names {named}; nothing was restored"
        )
    return manifest


def _keep_checkpoints(
    folder: Path, progress: Progress
) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Copy the checkpoints of a snapshot's runs; return SHA-256 by path, and
    the runs whose weights are lost.
    """
    files, absent = {}, []
    snapped = open_engine(f"sqlite:///{folder / STORE}", read_only=True)
    for run_id, path, sha, wrong in checkpoints(snapped):
        if wrong is None and WEIGHTS.fullmatch(path):
            progress("copying", path, 0)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(data_folder() / path, folder / path)
            files[path] = sha
        else:
            absent.append({"run_id": run_id, "path": path, "why": wrong or NOT_A_MODEL})
    snapped.dispose()
    for path, sha in files.items():
        if _sha256(folder / path) != sha:
            raise DtmlError(f"{path} changed while it was copied: try again")
    return files, absent


def _what_is_wrong(file: Path, sha: str) -> str | None:
    if not file.is_file():
        return "it does not exist"
    return None if _sha256(file) == sha else "it was changed or damaged"


def _put_back(kept: Path, file: Path, sha: str) -> None:
    if not file.exists():
        write_whole(file, lambda partial: shutil.copyfile(kept, partial))
    if wrong := _what_is_wrong(file, sha):
        raise UsageError(
            f"{file} is not the one of the backup ({wrong}): set DTML_DATA to an empty folder"
        )


@contextmanager
def _of_this_schema(file: Path, revision: str) -> Iterator[Engine]:
    """Open the store of a backup read only; upgrade one of an older schema in a copy."""
    # The copy has a fixed name below the data folder, so that the next restore removes what a
    # killed one left.
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
