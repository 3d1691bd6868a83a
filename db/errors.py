"""Errors of the store: failures of the database or its server, and mistakes of the caller."""

import difflib
from collections.abc import Iterable


class StoreError(Exception):
    """The store failed; the message is one line that says what, where and what to do."""

    exit_code = 1


class StoreUsageError(StoreError):
    """A mistake of the caller: a bad database URL, an old schema, SQL that does not run."""

    exit_code = 2


class StoreBusyError(StoreError):
    """Another process holds a lock that is needed; nothing was done, and trying later may work."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `did you mean A or B? ` for a word that is near known names; empty where none is."""
    by_small_letters = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_small_letters, n=3)
    if not near:
        return ""
    return f"did you mean {' or '.join(by_small_letters[name] for name in near)}? "
