"""The `dtml` command, its Prefect flows, and what they share."""


def __getattr__(name: str) -> object:
    """Return `flows.Night`, imported at its first use, so that `import flows` itself is fast."""
    if name == "Night":
        from flows import notebook

        return getattr(notebook, name)
    raise AttributeError(f"module 'flows' has no attribute {name!r}")
