"""The bars of each way to write a price file, as `dtml fetch` stores them and SQL reads them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.commands import run_in
from tests.support.price_dialects import DIALECTS, Written, bars

MARKET = """
title = "Home"
calendar = "XNYS"
timezone = "America/New_York"
currency = "USD"
[index]
symbol = "MEAN"
name = "The mean of the stocks"
of_constituents = true
"""
FETCH = "fetch home --market-file home.toml --universe source --as-of 2024-03-19 --prices"
COLUMNS = "symbol, session, open, high, low, close, adj_close, volume, dividend, split"
QUERY = f"select {COLUMNS} from price_latest where symbol <> 'MEAN' order by symbol, session"


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("written", DIALECTS.values(), ids=DIALECTS)
def test_a_file_of_each_dialect_is_stored_as_the_bars_it_holds(
    written: Written, tmp_path: Path, prefect_api: str
) -> None:
    (tmp_path / "home.toml").write_text(MARKET)
    folder = tmp_path / "theirs"
    folder.mkdir()
    prices = written.write(bars(), folder)
    environment = {"DTML_DATA": str(tmp_path / "data")}
    for words in ([*FETCH.split(), str(prices)], ["query", QUERY, "--json"]):
        code, said, complaint = run_in(tmp_path, environment, prefect_api, *words)
        assert code == 0, complaint
    expected = written.meant(bars()).sort_values(["symbol", "date"], ignore_index=True)
    expected = expected.rename(columns={"date": "session"})
    for name, of_most_days in {"dividend": 0, "split": 1}.items():
        expected[name] = expected[name].replace(of_most_days, np.nan)
    stored = pd.DataFrame(json.loads(said)).astype(dict.fromkeys(expected.columns[2:], float))
    stored["session"] = pd.to_datetime(stored["session"])
    known = [name for name in expected if name not in written.lacks]
    pd.testing.assert_frame_equal(stored[known], expected[known], check_exact=True)
    assert stored[list(written.lacks)].isna().all(axis=None)
