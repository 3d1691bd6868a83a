"""What stands between a statement and a row: bulk writes, frames, locks, limits on typed SQL."""
