"""Errors whose message is one line: what is wrong, where, and what to do."""


class TranslationError(Exception):
    """Raised when the work cannot go on and the user made no mistake."""

    exit_code = 1


class UsageError(TranslationError):
    """Raised for a mistake of the user: a corpus, an option or a file that cannot be used."""

    exit_code = 2
