"""Errors of the store: failures of the database or its server, and mistakes of the caller."""


class StoreError(Exception):
    """The store failed; the message is one line that says what, where and what to do."""

    exit_code = 1


class StoreUsageError(StoreError):
    """A mistake of the caller: a bad database URL, an old schema, SQL that does not run."""

    exit_code = 2


class StoreBusyError(StoreError):
    """Another process holds a lock that is needed; nothing was done, and trying later may work."""
