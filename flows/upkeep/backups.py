"""Back up a whole store with its checkpoints into a folder, check it, and restore it."""

import errno
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
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
from db.engine import open_engine, prepare, reading, this_version
from db.migrations import REVISION
from db.rows import rankings
from db.rows import runs as stored_runs
from dtml.errors import DtmlError, UsageError
from flows.settings import MODELS, WEIGHTS, data_folder
from translation.atomic_files import write_folder_whole, write_whole

STORE = "dtml.sqlite"
MANIFEST = "manifest.json"
FORMAT = 1
NOT_A_MODEL = f"it is outside the folder {MODELS} of the data folder"
REMEDY = "give a folder that `dtml db backup` wrote"
MOST_NAMED = 5  # files that a message names


@dataclass(frozen=True)
class Manifest:
    """List what a backup holds.

    `rows` counts the rows of each table, `files` has the SHA-256 of each file, and `absent` the
    runs whose weights could not be copied.
    """

    made_at: str
    program: str
    schema: str
    rows: dict[str, int]
    files: dict[str, str]
    absent: list[dict[str, str]]


def checkpoints(engine: Engine) -> Iterator[tuple[str, str, str, str | None]]:
    """Yield the checkpoint of each training that has one, and what is wrong with its file.

    Each is the id of its run or rankers, its path below the data folder, its SHA-256, and the fault
    of the file; None for a file that is whole.
    """
    with reading(engine) as conn:
        runs = stored_runs.runs(conn).dropna(subset="checkpoint_path")
        rankers = rankings.rankers(conn)
    for run in (*runs.itertuples(), *rankers.itertuples()):
        path = str(run.checkpoint_path)
        sha = str(run.checkpoint_hash)
        yield str(run.id), path, sha, _fault_of(data_folder() / path, sha)


def back_up(engine: Engine, folder: Path, progress: Progress) -> Manifest:
    """Write the store as it is at one moment, and its checkpoints, into a new folder.

    Checkpoints that are lost or damaged are left out (`Manifest.absent`). Other processes may write
    to the store meanwhile. The folder appears whole or not at all. Raises UsageError for a folder
    that is not empty, and for a file; DtmlError for a checkpoint that changes meanwhile.
    """
    folder = folder.absolute()
    is_empty_folder = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not is_empty_folder:
        raise UsageError(f"{folder} already exists and is not an empty folder: choose a new one")
    try:
        write_folder_whole(folder, lambda partial: _fill(engine, partial, progress))
    except OSError as error:
        # These two come from the last step, which renames the whole backup to `folder`.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise UsageError(
            f"another process wrote to {folder} during the backup: choose a new folder"
        ) from error
    return _read_manifest(folder)


def _fill(engine: Engine, folder: Path, progress: Progress) -> None:
    rows = write_snapshot(engine, folder / STORE, progress)
    files: dict[str, str] = {}
    absent: list[dict[str, str]] = []
    snapshot_engine = open_engine(f"sqlite:///{folder / STORE}", read_only=True)
    for run_id, path, sha, fault in checkpoints(snapshot_engine):
        if fault is None and WEIGHTS.fullmatch(path):
            progress("copying", path, 0)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(data_folder() / path, folder / path)
            files[path] = sha
        else:
            absent.append({"run_id": run_id, "path": path, "why": fault or NOT_A_MODEL})
    snapshot_engine.dispose()
    for path, sha in files.items():
        if _sha256(folder / path) != sha:
            raise DtmlError(
                f"{path} changed while it was copied, so no backup was written: run the same "
                "command again"
            )
    files[STORE] = _sha256(folder / STORE)
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = Manifest(
        made_at=made_at,
        program=version("dtml-nightshift"),
        schema=REVISION,
        rows=rows,
        files=files,
        absent=absent,
    )
    text = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=2)
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def read_backup(folder: Path) -> Manifest:
    """Read a backup's manifest, and check that the folder has the files it lists, and no others.

    Raises UsageError for a folder that is no backup this version can read, or that has other files,
    and DtmlError for a file that is missing or damaged.
    """
    manifest = _read_manifest(folder)
    if manifest.schema != REVISION:
        raise UsageError(
            f"the backup {folder} has schema {manifest.schema}, which {this_version()} cannot "
            f"restore: install dtml {manifest.program}, which made it"
        )
    expected = {MANIFEST, MODELS, *manifest.files}
    others: list[str] = []
    for file in (*folder.iterdir(), *(folder / MODELS).glob("*")):
        name = file.relative_to(folder).as_posix()
        if name not in expected or file.is_symlink():
            others.append(name)
    if others:
        raise UsageError(
            f"{folder} has files or links that no backup of dtml has: {_some(others)}; nothing was "
            "restored. Remove them, or replace a link by what it points to. Trust such a backup "
            "only as far as the person who made it"
        )
    for name, sha in manifest.files.items():
        fault = _fault_of(folder / name, sha)
        if fault is not None:
            raise DtmlError(
                f"the backup {folder} is damaged ({name}: {fault}); nothing was restored: use "
                "another backup"
            )
    return manifest


def restore(folder: Path, manifest: Manifest, target: Engine, progress: Progress) -> None:
    """Fill an empty store and the data folder from a backup, comparing every row.

    `manifest` is what `read_backup` returned for the folder. Raises DtmlError for a backup whose
    store has other row counts than its manifest, StoreUsageError for a `target` that has rows, and
    UsageError for weights that belong to no model of the backup, and where the data folder has
    another file under the name of a checkpoint.
    """
    prepare(target)  # makes the tables in an empty database
    with reading(target) as conn:
        require_empty(conn)
    source = open_engine(f"sqlite:///{(folder / STORE).absolute()}", read_only=True)
    with snapshot(source) as conn:
        counts = table_counts(conn)
        differing = [name for name, count in manifest.rows.items() if counts.get(name) != count]
        if differing:
            raise DtmlError(
                f"the backup {folder} is damaged: the row counts of {', '.join(differing)} differ "
                f"from its {MANIFEST}; no row was restored: use another backup"
            )
        # A backup may come from somebody else.
        in_store = {(path, sha) for _, path, sha, _ in checkpoints(source)}
        weights = [(name, sha) for name, sha in manifest.files.items() if name != STORE]
        others = [name for name, sha in weights if (name, sha) not in in_store]
        if others:
            raise UsageError(
                f"nothing was restored, because the backup {folder} has weights that belong to no "
                f"model in its store ({_some(others)}): use another backup"
            )
        # Weights come before rows: if a restore is interrupted, no row lacks its weights.
        for name, sha in weights:
            _put_back(folder / name, data_folder() / name, sha)
        copy_store(conn, target, progress)
    source.dispose()


def _some(names: Sequence[str]) -> str:
    first_names = ", ".join(ascii(name) for name in sorted(names)[:MOST_NAMED])
    if len(names) <= MOST_NAMED:
        return first_names
    return f"{first_names} and {len(names) - MOST_NAMED} more"


def _read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a backup, and check which files it names.

    Raises UsageError for a folder without one, and for a manifest that no backup has: it may come
    from somebody else, so nothing in it is taken for granted.
    """
    try:
        values = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        made_as = values["format"]
        if isinstance(made_as, int) and made_as > FORMAT:
            raise UsageError(
                f"{folder} was made by a newer dtml: upgrade dtml, and run the same command again"
            )
        if made_as != FORMAT:
            raise UsageError(
                f"{folder} is not a backup of dtml: `format` is {made_as!r} in its {MANIFEST}, but "
                f"{FORMAT} in that of a backup; {REMEDY}"
            )
        manifest = Manifest(**{field.name: values[field.name] for field in fields(Manifest)})
        names = list(manifest.files.keys())
        others = [name for name in names if name != STORE and not WEIGHTS.fullmatch(name)]
    except KeyError as error:
        raise UsageError(
            f"{folder} is not a backup of dtml: its {MANIFEST} has no key {error}; {REMEDY}"
        ) from error
    except (TypeError, AttributeError) as error:
        raise UsageError(
            f"{folder} is not a backup of dtml: its {MANIFEST} is not of the form that `dtml db "
            f"backup` writes; {REMEDY}"
        ) from error
    except PermissionError as error:
        raise UsageError(
            f"{folder / MANIFEST} cannot be read ({error.strerror}): make the backup readable, or "
            "restore as a user who may read it"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{folder} is not a backup of dtml: its {MANIFEST} cannot be read ({error}); {REMEDY}"
        ) from error
    if others:
        raise UsageError(
            f"{folder} is not a backup of dtml: its {MANIFEST} names {_some(others)}, which no "
            f"backup has; nothing was restored; {REMEDY}"
        )
    if STORE not in manifest.files:
        raise UsageError(
            f"{folder} is not a backup of dtml: its {MANIFEST} does not name the store {STORE}; "
            f"nothing was restored; {REMEDY}"
        )
    return manifest


def _fault_of(file: Path, sha: str) -> str | None:
    """Return why a file is not the one with this SHA-256, or None if it is."""
    if not file.is_file():
        return "it does not exist"
    if _sha256(file) != sha:
        return "it was changed or damaged"
    return None


def _put_back(saved: Path, file: Path, sha: str) -> None:
    """Copy a saved file to `file`, unless that exists; raise UsageError if the two then differ."""
    if not file.exists():
        write_whole(file, lambda partial: shutil.copyfile(saved, partial))
    if _fault_of(file, sha) is not None:
        raise UsageError(
            f"{file} exists and differs from the file of the backup; no row was restored: set "
            "DTML_DATA to an empty folder, and run the same command again"
        )


def _sha256(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal.

    `dtml.checkpoints` has such a function too, but to import it would load torch.
    """
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
