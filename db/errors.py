"""What can go wrong with the store, split by who can mend it."""


class StoreError(Exception):
    """The store failed; the message is one line that says what, where and what to do."""

    exit_code = 1


class StoreUsageError(StoreError):
    """A mistake of the caller: a bad database URL, a schema that needs an
    upgrade, SQL that does not run.
    """

    exit_code = 2


class StoreBusyError(StoreError):
    """Another process holds what was asked for; nothing was done, and later it can be."""
