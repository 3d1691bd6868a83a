"""Where the repository lies, and the real data that may lie beside it."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"  # absent in a clone: what reads it is skipped there
