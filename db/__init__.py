"""Rows: tables, engine, every write, every read, the SQL views."""


def __getattr__(
    name: str,
) -> object:  # what a notebook asks for, imported then: `import db` waits for nothing
    if name == "Store":
        from db import store

        return getattr(store, name)
    raise AttributeError(f"module 'db' has no attribute {name!r}")
