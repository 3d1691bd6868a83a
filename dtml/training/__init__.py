"""Fit networks: one member, many stacked, from epoch to epoch."""
