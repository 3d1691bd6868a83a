"""Writes and reads of rows: one module for each kind of row.

Writes are idempotent, run inside the caller's `transaction`, and return the number of new rows: a
rerun with the same values adds none. Frames identify instruments by symbol, and timestamps are
aware. Reads return DataFrames with documented columns, dates as datetime64[ns] and timestamps aware
in UTC, sorted by their key. An unknown market has no rows; an unknown symbol or run is an error.
The dashboard reads only the documented views, so that a role that may read only them can serve it.
A function that returns a statement selects the rows of a table on one of its pages.
"""
