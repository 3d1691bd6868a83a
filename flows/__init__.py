"""The `dtml` command, its Prefect flows, and what they share."""

from flows.working_folder import ignore_working_folder

# Here, because every process of ours imports this package before it imports Prefect.
ignore_working_folder()


def __getattr__(name: str) -> object:
    """Return `flows.Night`, imported at its first use, so that `import flows` itself is fast."""
    if name == "Night":
        from flows import notebook

        return getattr(notebook, name)
    raise AttributeError(f"module 'flows' has no attribute {name!r}")
