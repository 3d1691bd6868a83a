"""The conductor: the `dtml` command, its Prefect flows, and what they share."""

from flows.working_folder import ignore_working_folder

# here, because every process of ours imports this before it imports Prefect
ignore_working_folder()


def __getattr__(
    name: str,
) -> object:  # what a notebook asks for, imported then: `import flows` waits for nothing
    if name == "Night":
        from flows import notebook

        return getattr(notebook, name)
    raise AttributeError(f"module 'flows' has no attribute {name!r}")
