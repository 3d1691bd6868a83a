"""Find the public data sets, which lie in a folder beside the checkout."""

from pathlib import Path

SHARED = Path(__file__).parents[2] / "shared" / "data"
