"""What goes wrong in words: one line that says what, where and what to do."""


class TranslationError(Exception):
    """Something stands in the way that is not the user's mistake."""

    exit_code = 1


class UsageError(TranslationError):
    """A mistake of the user: a corpus, an option or a file that cannot be used."""

    exit_code = 2
