"""Bars from files: parquet, CSV or a workbook, packed or not; one table, or a folder of tables.

A file cannot run code, and a symbol is never a path. A failure is a UsageError that names the file
and, for a value, its row (the first below the header is row 1).
"""

from dtml.sources.files.source import FileSource

__all__ = ["FileSource"]
