"""Writes and reads of rows, one noun a file.

Writes are idempotent, run inside the caller's `transaction`, and return the number of new rows: a
rerun with the same values adds none. Frames name instruments by symbol, and timestamps are aware.
Reads return DataFrames with documented columns, dates as datetime64[ns] and timestamps aware in
UTC, sorted by what names a row. An unknown market has no rows; an unknown symbol or run is an
error. What the dashboard reads comes from the documented views alone, so that a role that sees only
them can serve it; a function that returns a statement returns one table of a page.
"""
