"""A frame has the dtype of each SQL type, with and without missing values."""

from datetime import UTC, date, datetime

import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from db.connection.frames import _typed
from db.tables import UtcTimestamp

NOON = datetime(2024, 1, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value", "dtype", "dtype_with_missing"),
    [
        (sa.Float(), 1.5, "float64", "float64"),
        (sa.Integer(), 3, "int64", "Int64"),
        (sa.Boolean(), True, "bool", "boolean"),
        (sa.Date(), date(2024, 1, 2), "datetime64[ns]", "datetime64[ns]"),
        (UtcTimestamp(), NOON, "datetime64[ns, UTC]", "datetime64[ns, UTC]"),
        (sa.Text(), "a", "str", "str"),
        (sa.JSON(), ["a", "b"], "object", "object"),
    ],
)
def test_a_column_has_the_dtype_of_its_type(
    kind: TypeEngine[object], value: object, dtype: str, dtype_with_missing: str
) -> None:
    whole = pd.Series(_typed(kind, [value, value]))
    assert (whole.dtype, len(whole)) == (dtype, 2)
    missing = pd.Series(_typed(kind, [value, None]))
    assert missing.dtype == dtype_with_missing
    assert missing.isna().tolist() == [False, True]
    assert (
        missing.iloc[0]
        == whole.iloc[1]
        == (pd.Timestamp(value) if isinstance(value, date) else value)
    )
    assert len(pd.Series(_typed(kind, []))) == 0
