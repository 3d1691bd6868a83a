"""What a database's failure means and what its user can do about it: by the engine's own codes, else by its words."""

import shutil
import tomllib
from pathlib import Path
from typing import Final

URL_VARIABLE: Final = "DTML_DATABASE_URL"
RESTORE: Final = "`dtml db check` says more; move the store away and bring a backup back with `dtml db restore`"
UNRELEASED: Final = (
    "it was made before 0.1.0: start a new store (move this one away or name another); prices can be fetched again"
)
REMEDIES: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
FULL: Final = REMEDIES["postgresql"]["53100"]


def remedy_of(error: BaseException, said: str, file: Path | None, *, wait_s: float, limit_s: float) -> str | None:
    """Return what to do about a driver's error, which said that; None where its own words must do.

    `file` is SQLite's store, `wait_s` how long a writer waits for another, `limit_s` how long a read may take.
    """
    code, state = getattr(error, "sqlite_errorcode", None), getattr(error, "sqlstate", None)
    if code is not None and str(code & 0xFF) in REMEDIES["sqlite"]:
        found: str | None = REMEDIES["sqlite"][str(code & 0xFF)]
    elif state is not None:
        known = REMEDIES["postgresql"]
        found = next((known[key] for key in (state, state[:3], state[:2]) if key in known), None)
    else:
        found = next((what for sign, what in REMEDIES["words"].items() if sign in said), None)
    if found is not None and found == FULL and file is not None:
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
