"""The cells of a table as it is stored: headers and columns, before anything is known of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy import ndarray


@dataclass(frozen=True)
class Cells:
    """Hold the headers of a table and a way to read its columns.

    - header: the names of the columns as they are written;
    - rows: the number of rows below the header;
    - read: returns a column by its position, [rows]; parquet is read a column at a time;
    - separator: what separates the fields of a text; empty for parquet;
    - row_in_file: the row of the file, from 0, of each row here; None unless it was reshaped;
    - left_out: lines that are no rows, such as a footer, in words.
    """

    header: Sequence[str]
    rows: int
    read: Callable[[int], pa.ChunkedArray]
    separator: str = ""
    row_in_file: ndarray | None = field(default=None, compare=False)
    left_out: str = ""

    @classmethod
    def of_table(
        cls,
        header: Sequence[str],
        table: pa.Table,
        *,
        separator: str = "",
        row_in_file: ndarray | None = None,
        left_out: str = "",
    ) -> "Cells":
        """Return the cells of an Arrow table, whose columns get the names of `header`."""
        return cls(
            header=header,
            rows=table.num_rows,
            read=table.column,
            separator=separator,
            row_in_file=row_in_file,
            left_out=left_out,
        )

    def row_number(self, row: int) -> int:
        """Return the number by which people find a row: the first below the header is 1."""
        if self.row_in_file is None:
            return int(row) + 1
        return int(self.row_in_file[row]) + 1

    def rows_at(self, position: int, rows: ndarray) -> pa.ChunkedArray:
        """Return some rows of a column."""
        return self.read(position).take(pa.array(rows))

    def distinct(self, position: int) -> tuple[list[object], ndarray]:
        """Return the distinct values of a column, then None, and the position of each row's value.

        Arrow's missing values are at the position of None.
        """
        encoded = plain(self.read(position)).combine_chunks().dictionary_encode()
        values: list[object] = encoded.dictionary.to_pylist()
        codes: ndarray = encoded.indices.fill_null(len(values)).to_numpy()
        return [*values, None], codes


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column whose values are stored one by one."""
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def no_rows(columns: int) -> pa.Table:
    """Return a table of so many text columns without a row."""
    names = [str(position) for position in range(columns)]
    return pa.table({name: pa.array([], pa.string()) for name in names})


def all_rows(cells: Cells) -> ndarray:
    """Return the positions of all rows."""
    return np.arange(cells.rows)
