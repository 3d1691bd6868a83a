"""Fit networks: many members side by side, from epoch to epoch."""
