"""Bars from files: parquet, CSV or a workbook, packed or not; one table, or a folder of tables.

A file can be wrong but it cannot run code: parquet and CSV hold values only, and a symbol is looked
up among the files of a folder, never used as a path. Reading is strict: a failure is a UsageError
that names the file and, for a value, its row (the first row below the header is row 1).
"""

from dtml.sources.files.source import FileSource

__all__ = ["FileSource"]
