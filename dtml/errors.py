"""The errors of this package, divided by who can correct them."""


class DtmlError(Exception):
    """A failure of the night; the message is one line that says what, where and what to do."""

    exit_code = 1


class UsageError(DtmlError):
    """A mistake of the caller: an unknown name, a date that is no session, a wrong file."""

    exit_code = 2


def one_line(message: object) -> str:
    """Return a message on one line, whatever it is."""
    return " ".join(str(message).split())
