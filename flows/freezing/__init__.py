"""Freeze what nights predict: a chain of SHA-256 over nights, its file, and its check."""
