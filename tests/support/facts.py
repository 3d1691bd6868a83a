"""What a message must hold, whatever its sentence is."""

import re


def in_order(*facts: str) -> str:
    """A pattern that finds facts, each as it is written, in this order, in one line."""
    return ".*".join(map(re.escape, facts))
