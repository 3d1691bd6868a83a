"""Open a market: its file, its source, the store, and the nights stored there."""
