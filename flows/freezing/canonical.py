"""The bytes of which a frozen chain takes the SHA-256: one text for one content, everywhere."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from db.tables import BAR_VALUES

Table = dict[str, list[Any]]  # `columns` and `rows`, as JSON has them


def canonical(content: object) -> str:
    """Return the JSON of a content: keys sorted, no blanks between its parts, ASCII alone.

    A float has the fewest digits that give it back to the last bit, as Python writes it. Raises
    ValueError for a number that is not finite: missing is None.
    """
    return json.dumps(
        content,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
        allow_nan=False,
    )


def sha256_of(content: object) -> str:
    """Return the SHA-256 of the canonical JSON of a content, in hexadecimal."""
    return sha256_of_text(canonical(content))


def sha256_of_text(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def table_of(frame: pd.DataFrame, columns: Sequence[str]) -> Table:
    """Return the named columns of a frame as plain values, row by row; a missing value is None."""
    values_by_column = []
    for name in columns:
        column = frame[name]
        values = column.to_numpy(dtype=object, copy=True)
        values[column.isna()] = None
        values_by_column.append(values.tolist())
    rows = [list(row) for row in zip(*values_by_column, strict=True)]
    return {"columns": list(columns), "rows": rows}


def sha256_of_bars(versions: pd.DataFrame, withdrawals: pd.DataFrame) -> str:
    """Return the SHA-256 of versions of bars and of what was withdrawn.

    It covers, one after the other: the canonical JSON of the names of the columns, of the number of
    versions of each symbol, and of what was withdrawn (symbol, session, check), with a line feed;
    the sessions as days since 1970-01-01, in 64 bits; and the values of each version, in doubles,
    NaN for a missing one. Numbers are little-endian. The moments at which bars became known are not
    covered: they decide which night a version belongs to. Both frames must be sorted, as
    `versions_known` and `withdrawals_known` of `db.rows.prices` return them.
    """
    counts = versions.groupby("symbol", sort=False).size()
    withdrawn_sessions = withdrawals["session"].dt.strftime("%Y-%m-%d")
    header = {
        "columns": list(BAR_VALUES),
        "versions": [[str(symbol), int(count)] for symbol, count in counts.items()],
        "withdrawn": table_of(
            withdrawals.assign(session=withdrawn_sessions), ["symbol", "session", "withdrawn"]
        )["rows"],
    }
    days = versions["session"].to_numpy().astype("datetime64[D]").astype("<i8")
    values = versions[list(BAR_VALUES)].to_numpy(dtype="<f8", copy=True)
    values[np.isnan(values)] = np.nan  # NaN has many bit patterns: always the same one
    digest = hashlib.sha256((canonical(header) + "\n").encode())
    digest.update(days.tobytes())
    digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
