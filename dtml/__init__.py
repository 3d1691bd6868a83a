"""Markets and tensors: from checked bars to scored probabilities; no Prefect, no SQL."""


def __getattr__(name: str) -> object:
    """Import the names that notebooks use on demand, so that `import dtml` is fast."""
    if name in ("Study", "Walked"):
        from dtml import notebook

        return getattr(notebook, name)
    raise AttributeError(f"module 'dtml' has no attribute {name!r}")
