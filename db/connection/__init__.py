"""Between statements and rows: bulk writes, frames, locks, and the limits on a user's SQL."""
