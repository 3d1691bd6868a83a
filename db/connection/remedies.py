"""What a database's failure means and what its user can do about it: by the engine's own codes, else by its words."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

URL_VARIABLE: Final = "DTML_DATABASE_URL"

RESTORE: Final = "`dtml db check` says more; move the store away and bring a backup back with `dtml db restore`"
UNRELEASED: Final = (
    "it was made before 0.1.0: start a new store (move this one away or name another); prices can be fetched again"
)
BUSY: Final = "another program held it for {wait_s} s; let it end and try again"
SLOW: Final = "a read may take {limit_s} s; ask for less"
FULL: Final = "free some space and try again; nothing was half-written"
NO_STORE: Final = (
    f"it is another kind of file, then set {URL_VARIABLE} to the store; or its beginning is damaged: {RESTORE}"
)
CONNECTIONS: Final = "let other connections end and try again, or have its administrator allow more"

# https://www.sqlite.org/rescode.html: the primary code, which is the last byte of the one that the driver gives.
SQLITE: Mapping[int, str] = {
    3: "check the rights of the file and of its folder",
    5: BUSY,
    6: BUSY,
    7: "there was not enough memory: ask for less, or end other programs",
    8: f"check that the file and its folder may be written to; if they may, it was moved, or is damaged: {RESTORE}",
    9: SLOW,
    10: f"the disk failed, or is full: the system's log says which. {RESTORE}",
    11: f"the file is damaged. {RESTORE}",
    13: FULL,
    14: "check that its folder exists and may be written to",
    15: BUSY,
    26: NO_STORE,
}

# https://www.postgresql.org/docs/current/errcodes-appendix.html: a whole code, or what all of a class begin with.
POSTGRESQL: Mapping[str, str] = {
    "08": "the connection was lost: look at the server and try again",
    "25006": "the server, or this role of it, takes no writes: name the server that others follow, or another role",
    "40": "two programs met: try again",
    "42501": "the role lacks a right: the store's owner can grant it, a superuser by `dtml db grant-reader` again",
    "53100": FULL,
    "53200": "the server was out of memory: ask for less, or have its administrator give it more",
    "53300": CONNECTIONS,
    "53400": "a limit of the role or of the server was reached: ask for less",
    "55P03": BUSY,
    "57014": SLOW,
    "57P": "the server ended the connection: look at it and try again",
    "58": f"a file of the server, or its disk, failed: its log says more. {RESTORE}",
    "XX": f"files of the server are damaged: its log says more. {RESTORE}",
}

# A server that lets nobody in gives no code, and neither does SQLite for what a damaged header says of its own format.
WORDS: Mapping[str, str] = {
    "unsupported file format": NO_STORE,
    "too many connections": CONNECTIONS,
    "too many clients": CONNECTIONS,
    "connection slots": CONNECTIONS,
    "one database alone": "a reader opens the database alone in which it was granted",
    "cannot allocate memory": "ask for less, or end other programs",  # of the driver, on this side
    "out of memory": "ask for less, or end other programs",
    "password": f"correct the password in {URL_VARIABLE}",
    "does not exist": f"make it on the server or correct {URL_VARIABLE}",
    "database system is": "the server starts or ends: try again when it is up",
    "connection failed": f"start the server or correct {URL_VARIABLE}",
}


def remedy_of(error: BaseException, said: str, file: Path | None, *, wait_s: float, limit_s: float) -> str | None:
    """Return what to do about a driver's error, which said that; None where its own words must do.

    `file` is SQLite's store, `wait_s` how long a writer waits for another, `limit_s` how long a read may take.
    """
    code, state = getattr(error, "sqlite_errorcode", None), getattr(error, "sqlstate", None)
    if code is not None and code & 0xFF in SQLITE:
        found: str | None = SQLITE[code & 0xFF]
    elif state is not None:
        found = next((POSTGRESQL[key] for key in (state, state[:3], state[:2]) if key in POSTGRESQL), None)
    else:
        found = next((what for sign, what in WORDS.items() if sign in said), None)
    if found is FULL and file is not None:
        found += _free_space(file)
    return None if found is None else found.format(wait_s=wait_s, limit_s=limit_s)


def _free_space(file: Path) -> str:
    """Tell a full disk from a file's limit and from damage that used up a table's numbers: SQLite does not."""
    try:
        free = shutil.disk_usage(file.parent).free / 1e9
    except OSError:
        return ""
    return (
        f". {free:.1f} GB are free there: where that is enough, a limit was reached, or the file is damaged: {RESTORE}"
    )
