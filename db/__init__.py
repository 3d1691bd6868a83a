"""Rows: tables, engine, every write, every read, the SQL views."""


def __getattr__(name: str) -> object:
    # A notebook asks for `db.Store`. It is imported only then, so that `import db` is fast.
    if name == "Store":
        from db import store

        return getattr(store, name)
    raise AttributeError(f"module 'db' has no attribute {name!r}")
