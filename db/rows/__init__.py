"""Writes and reads of rows, a noun a file."""
