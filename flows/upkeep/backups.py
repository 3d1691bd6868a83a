"""Back up a whole store with its checkpoints and frozen nights into a folder, and restore it."""

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from sqlalchemy import Engine

from db.admin.copying import Progress, copy_store, require_empty, snapshot, write_snapshot
from db.engine import open_engine, prepare, reading, this_version
from db.migrations import REVISION
from db.read import read
from db.rows import markets
from dtml.errors import DtmlError, UsageError
from flows.settings import MODELS, WEIGHTS, chain_file, data_folder
from translation.atomic_files import sha256, write_folder_whole, write_whole

STORE = "dtml.sqlite"
MANIFEST = "manifest.json"
CHAIN = re.compile(r"frozen/([a-z][a-z0-9_-]*)\.jsonl")  # the frozen nights of a market
NOT_A_MODEL = f"it is outside the folder {MODELS} of the data folder"
MOST_NAMED = 5  # files that a message names


@dataclass(frozen=True)
class Manifest:
    """List what a backup holds."""

    made_at: str
    program: str
    schema: str
    rows: dict[str, int]  # how many each table has
    files: dict[str, str]  # the SHA-256 of each
    absent: list[dict[str, str]]  # the runs whose weights could not be copied

    @property
    def checkpoints(self) -> dict[str, str]:
        """Return the SHA-256 of each file of weights."""
        return {name: sha for name, sha in self.files.items() if WEIGHTS.fullmatch(name)}


def checkpoints(engine: Engine) -> Iterator[tuple[str, str, str, str | None]]:
    """Yield each training's id, path below the data folder, SHA-256 and fault, or None."""
    with reading(engine) as conn:
        runs = read(conn, "run", order="created_at, id").dropna(subset="checkpoint_path")
        rankers = read(conn, "ranker")
    for run in (*runs.itertuples(), *rankers.itertuples()):
        path = str(run.checkpoint_path)
        sha = str(run.checkpoint_hash)
        yield str(run.id), path, sha, _fault_of(data_folder() / path, sha)


def back_up(engine: Engine, folder: Path, progress: Progress) -> Manifest:
    """Write the store as it is at one moment, its checkpoints and chains, into a new folder.

    The folder appears whole or not at all. Lost or damaged checkpoints are left out
    (`Manifest.absent`). Raises UsageError for a folder that is not empty, and for a file; DtmlError
    for a checkpoint that changes meanwhile.
    """
    folder = folder.absolute()
    is_empty_folder = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not is_empty_folder:
        raise UsageError(f"{folder} already exists and is not an empty folder: choose a new one")
    write_folder_whole(folder, lambda partial: _fill(engine, partial, progress))
    return _read_manifest(folder)


def _fill(engine: Engine, folder: Path, progress: Progress) -> None:
    # Chains come before the store, so that it has every night that is frozen in them.
    with reading(engine) as conn:
        names = [f"frozen/{market}.jsonl" for market in markets.markets(conn)]
    files = {name: _copy(folder, name) for name in names if _place_of(name).is_file()}
    rows = write_snapshot(engine, folder / STORE, progress)
    absent: list[dict[str, str]] = []
    snapshot_engine = open_engine(f"sqlite:///{folder / STORE}", read_only=True)
    for run_id, path, sha, fault in checkpoints(snapshot_engine):
        if fault is not None or not WEIGHTS.fullmatch(path):
            absent.append({"run_id": run_id, "path": path, "why": fault or NOT_A_MODEL})
            continue
        progress("copying", path, 0)
        files[path] = _copy(folder, path)
        if files[path] != sha:
            raise DtmlError(
                f"{path} changed while it was copied, so no backup was written: run the same "
                "command again"
            )
    snapshot_engine.dispose()
    files[STORE] = sha256(folder / STORE)
    manifest = Manifest(
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        program=version("dtml-nightshift"),
        schema=REVISION,
        rows=rows,
        files=files,
        absent=absent,
    )
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=2), encoding="utf-8")


def _place_of(name: str) -> Path:
    chain = CHAIN.fullmatch(name)
    return data_folder() / name if chain is None else chain_file(chain[1])


def _copy(folder: Path, name: str) -> str:
    """Copy a file of the program into a backup; return the SHA-256 of the copy."""
    (folder / name).parent.mkdir(exist_ok=True)
    shutil.copyfile(_place_of(name), folder / name)
    return sha256(folder / name)


def read_backup(folder: Path) -> Manifest:
    """Read a backup's manifest, and check its files: it may come from somebody else.

    Raises UsageError for no backup of this version, or with other files, DtmlError for a missing or
    damaged file.
    """
    manifest = _read_manifest(folder)
    if manifest.schema != REVISION:
        raise UsageError(
            f"the backup {folder} has schema {manifest.schema}, which {this_version()} cannot "
            f"restore: install dtml {manifest.program}, which made it"
        )
    known = {folder / name for name in (MANIFEST, *manifest.files)}
    others = [
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*")
        if file.is_symlink() or not (file.is_dir() or file in known)
    ]
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
    """Fill an empty store, the data folder and the chains from a backup and its checked `manifest`.

    Raises StoreUsageError for a `target` with rows, UsageError for weights of no model, and where
    another file has the name of one.
    """
    prepare(target)  # makes the tables in an empty database
    with reading(target) as conn:
        require_empty(conn)
    source = open_engine(f"sqlite:///{(folder / STORE).absolute()}", read_only=True)
    in_store = {(path, sha) for _, path, sha, _ in checkpoints(source)}
    others = [name for name, sha in manifest.checkpoints.items() if (name, sha) not in in_store]
    if others:
        raise UsageError(
            f"nothing was restored, because the backup {folder} has weights that belong to no "
            f"model in its store ({_some(others)}): use another backup"
        )
    # Files come before rows: if a restore is interrupted, no row lacks its weights.
    for name, sha in manifest.files.items():
        if name != STORE:
            _put_back(folder / name, _place_of(name), sha)
    with snapshot(source) as conn:
        copy_store(conn, target, progress)
    source.dispose()


def _some(names: Sequence[str]) -> str:
    first_names = ", ".join(ascii(name) for name in sorted(names)[:MOST_NAMED])
    more = len(names) - MOST_NAMED
    return f"{first_names} and {more} more" if more > 0 else first_names


def _read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a backup; raise UsageError for one that no backup has."""
    try:
        manifest = Manifest(**json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
        others = [
            name
            for name in manifest.files.keys() - {STORE}
            if not WEIGHTS.fullmatch(name) and not CHAIN.fullmatch(name)
        ]
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"{folder} is not a backup of dtml, because its {MANIFEST} cannot be read ({error}): "
            "give a folder that `dtml db backup` wrote"
        ) from error
    if others or STORE not in manifest.files:
        raise UsageError(
            f"{folder} is not a backup of dtml, because its {MANIFEST} names "
            f"{_some(others) if others else f'no {STORE}'}; nothing was restored: give a folder "
            "that `dtml db backup` wrote"
        )
    return manifest


def _fault_of(file: Path, sha: str) -> str | None:
    """Return why a file is not the one with this SHA-256, or None if it is."""
    if not file.is_file():
        return "it does not exist"
    if sha256(file) != sha:
        return "it was changed or damaged"
    return None


def _put_back(saved: Path, file: Path, sha: str) -> None:
    """Copy a saved file to `file`, unless that exists; raise UsageError if the two then differ."""
    if not file.exists():
        write_whole(file, lambda partial: shutil.copyfile(saved, partial))
    if _fault_of(file, sha) is not None:
        raise UsageError(
            f"{file} exists and differs from the file of the backup; no row was restored: move it "
            "away, or set DTML_DATA and DTML_REPORTS to empty folders, and run the same command "
            "again"
        )
