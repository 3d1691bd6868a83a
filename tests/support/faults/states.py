"""What lies in a folder and in its stores, without what a clock says: two of
them can be compared.
"""

import hashlib
import json
import re
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg

MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?( UTC|\+00:00)?")
TIMES = re.compile(r'(\\?"(seconds|tokens_per_second)\\?": ?)[-+0-9.e]+')
TIMED = {"seconds", "tokens_per_second"}
ROUNDED = {
    "translation_text": {"score"}
}  # its last bits depend on the texts beside it: one that was held is alone
NUMBERS = {
    "instrument_id": "instrument",
    "source_id": "instrument",
}  # given by the store, in the order of its tries
OF_THE_TRY = {  # which ended the work; what each try of a night brought is in price_fetch
    "night": {"fetched", "stored", "rejected"},
    # a try that is killed right after it stored the predictions leaves that stage without its end
    "night_stage": {"status", "seconds"},
    "translation_text": {"attempts", "taken_by"},
}
OF_SQLITE = ("-wal", "-shm")
LOCKS = (".lock",)  # files that are locked: they stay, and say nothing


@dataclass
class State:
    """Rows of each store's tables, how often each; SHA-256 of each file."""

    rows: Counter[str] = field(default_factory=Counter)
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """What one state has not, or otherwise, of another."""

    lost: list[str]
    more: list[str]
    changed: list[str]
    left: list[str]

    @property
    def weights(self) -> list[str]:
        """The files of weights that are other ones, or not there."""
        return [name for name in self.changed if name.endswith(".safetensors")]

    def __bool__(self) -> bool:
        return bool(self.lost or self.more or self.changed or self.left)

    def __str__(self) -> str:
        said = {"lost": self.lost, "more": self.more, "other": self.changed, "left": self.left}
        return "; ".join(
            f"{len(found)} {name}: {found[0][:150]}" for name, found in said.items() if found
        )


def difference(expected: State, found: State) -> Difference:
    """What is lost, more, changed and left over."""
    changed = [name for name, digest in expected.files.items() if found.files.get(name) != digest]
    left = [name for name in found.files if name not in expected.files]
    lost, more = expected.rows - found.rows, found.rows - expected.rows
    return Difference(
        sorted(lost.elements()), sorted(more.elements()), sorted(changed), sorted(left)
    )


def state_of(home: Path, url: str | None = None) -> State:
    """The state of a folder, and of the PostgreSQL database at a URL of psycopg."""
    state = State()
    for path in sorted(home.rglob("*")):
        name = str(path.relative_to(home))
        if path.is_dir():
            if not any(path.iterdir()):
                state.files[f"{name}/"] = "an empty folder"
        elif path.suffix == ".sqlite":
            state.rows.update(_sqlite_rows(path, name))
        elif not name.endswith((*OF_SQLITE, *LOCKS)):
            state.files[name] = _digest(path)
    if url is not None:
        with psycopg.connect(url) as conn:
            sql = "select tablename from pg_tables where schemaname = 'public' order by 1"
            names = [str(name) for (name,) in conn.execute(sql)]
            state.rows.update(_rows(conn, names, "store"))
    return state


def _sqlite_rows(file: Path, name: str) -> Counter[str]:
    with closing(sqlite3.connect(file)) as conn:
        (sound,) = conn.execute("pragma integrity_check").fetchone()
        sql = (
            "select name from sqlite_master where type = 'table' and name not like 'sqlite%' "
            "order by 1"
        )
        names = [str(table) for (table,) in conn.execute(sql)]
        return _rows(conn, names, name) + Counter([f"{name} is {sound}"])


def _rows(conn: Any, tables: list[str], store: str) -> Counter[str]:
    known = {"instrument": {}}
    if "instrument" in tables:
        known["instrument"] = dict(
            conn.execute("select id, market || ' ' || symbol from instrument").fetchall()
        )
    rows: Counter[str] = Counter()
    for table in tables:
        cursor = conn.execute(f"select * from {table}")
        names = [each[0] for each in cursor.description]
        for row in cursor.fetchall():
            told = {
                name: _value(known, table, name, value)
                for name, value in zip(names, row, strict=True)
            }
            rows[f"{store} {table} {told}"] += 1
    return rows


def _value(known: dict[str, dict[int, str]], table: str, name: str, value: Any) -> object:
    if name in OF_THE_TRY.get(table, ()):
        return "of the try"
    if name in TIMED or isinstance(value, datetime):
        return None if value is None else "a moment"
    if name in ROUNDED.get(table, ()) and value is not None:
        return f"{value:.4g}"  # float32: more digits than that are not the same in another batch
    if name in NUMBERS:
        return known[NUMBERS[name]].get(value, value)
    if table in known and name == "id":
        return known[table][value]
    if isinstance(value, dict | list):
        value = json.dumps(value, sort_keys=True)
    return _timeless(value) if isinstance(value, str) else value


def _timeless(text: str) -> str:
    return TIMES.sub(r"\1a time", MOMENT.sub("a moment", text))


def _digest(file: Path) -> str:
    data = file.read_bytes()
    if file.suffix == ".safetensors" and len(data) > 8:
        # the header's length, with what follows it, of the format
        end = 8 + int.from_bytes(data[:8], "little")
        data = _timeless(data[8:end].decode(errors="replace").rstrip()).encode() + data[end:]
    elif file.suffix in (".html", ".json"):
        data = _timeless(data.decode(errors="replace")).encode()
    return hashlib.sha256(data).hexdigest()
