"""Suggest which known name a user may have meant: a view, a column, a symbol, a market."""

import difflib
import re
from collections.abc import Iterable

from db.views import views

# The messages of SQLite and PostgreSQL about a name, with the name of its table before a point.
_UNKNOWN = (
    re.compile(r"no such (?P<kind>table|column): (?:\w+\.)?(?P<name>\w+)"),
    re.compile(r'(?P<kind>relation|column) "?(?:\w+\.)?(?P<name>\w+)"? does not exist'),
)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `did you mean A or B? ` for a word that is near known names; empty where none is."""
    by_small_letters = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_small_letters, n=3)
    if not near:
        return ""
    return f"did you mean {' or '.join(by_small_letters[name] for name in near)}? "


def suggestion(message: str, sql: str) -> str:
    """Return `; did you mean NAME?` for a database's message about an unknown name; else nothing.

    For an unknown table that is near no view, all views are listed. Columns are looked for in the
    views that the SQL names, or in all where it names none.
    """
    for pattern in _UNKNOWN:
        match = pattern.search(message)
        if match:
            meant = did_you_mean(match["name"], _known_names(match["kind"], sql))
            if not meant and match["kind"] != "column":
                return f"; the views are {', '.join(views())}"
            return f"; {meant.strip()}" if meant else ""
    return ""


def _known_names(kind: str, sql: str) -> list[str]:
    documented = views()
    if kind != "column":
        return list(documented)
    words = set(re.findall(r"\w+", sql.lower()))
    used = [view for name, view in documented.items() if name in words]
    columns: dict[str, None] = {}
    for view in used or documented.values():
        columns.update(dict.fromkeys(column.name for column in view.columns))
    return list(columns)
