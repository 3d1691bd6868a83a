"""Errors whose message is one line: what is wrong, where, and what to do."""

from pathlib import Path


class TranslationError(Exception):
    """Raised when the work cannot go on and the user made no mistake."""

    exit_code = 1


class UsageError(TranslationError):
    """Raised for a mistake of the user: a corpus, an option or a file that cannot be used."""

    exit_code = 2


def unreadable(file: Path, error: OSError, restore: str) -> TranslationError:
    """Return the error for an unreadable file; `restore` says how, unless permissions are wrong."""
    way_out = restore
    if isinstance(error, PermissionError):
        way_out = "correct the permissions of the file and of its folder"
    return TranslationError(f"cannot read {file}: {error.strerror or error}; {way_out}")
