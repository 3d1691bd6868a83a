"""Qlib's table of CSI 300: the task, on a made market of a few stocks."""

from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pytest

from dtml.evaluation.ranking import both_known, pearson_ics
from dtml.pages.ranking import published_table
from dtml.prices.sessions import sessions_between
from flows.studies import csi300
from flows.studies.csi300 import Csi300, Files, Table
from flows.studies.study import run_study
from tests.support.kinds import sqlite_alone

STOCKS = [f"SH60{number:04d}" for number in range(14)]
LISTED = 13  # constituents on each session
DAYS = sessions_between("XSHG", date(2014, 1, 2), date(2016, 3, 31))
LEFT = date(2015, 9, 30)  # the last day of the first stock, which the last one replaces


@pytest.fixture
def files(tmp_path, engine, monkeypatch):
    """Bars in which the losers of a day rise on the session after the next one."""
    monkeypatch.setenv("DTML_DATABASE_URL", engine.url.render_as_string(hide_password=False))
    monkeypatch.setattr(csi300, "MARKET", csi300.MARKET.replace("300\nmem", f"{LISTED}\nmem"))
    monkeypatch.setattr(csi300, "BEGINNING", DAYS[0].date())
    changes = np.random.default_rng(7).normal(0, 0.01, (len(DAYS), len(STOCKS)))
    changes[2:] -= 0.5 * changes[:-2]
    close = pd.DataFrame(20 * np.cumprod(1 + changes, axis=0), DAYS, STOCKS)
    bars = close.stack().rename_axis(["date", "symbol"]).rename("close").reset_index()
    bars = bars.assign(open=bars["close"] * 0.999, high=bars["close"] * 1.002, volume=1000.0)
    bars = bars.assign(low=bars["close"] * 0.998, adj_close=bars["close"])
    bars.loc[::3, "volume"] += 99
    index = bars.groupby("date", as_index=False).mean(numeric_only=True)
    prices, of_index, members = (
        tmp_path / name for name in ("prices.parquet", "index.parquet", "members.csv")
    )
    bars[(bars["symbol"] != STOCKS[1]) | (bars["date"] <= "2016-03-01")].to_parquet(prices)
    index.assign(symbol="SH000300").to_parquet(of_index)
    begin = DAYS[0].date()
    rows = [f"{STOCKS[0]},{begin},{LEFT}", *(f"{symbol},{begin}," for symbol in STOCKS[1:-1])]
    members.write_text("\n".join(["symbol,since,until", *rows, f"{STOCKS[-1]},2015-10-01,"]))
    spans = replace(
        Table.read(),
        test=(date(2016, 1, 1), date(2016, 4, 1)),
        validation=(date(2015, 6, 1), date(2015, 12, 31)),
    )
    monkeypatch.setattr(Table, "read", lambda: spans)
    return Files(prices=prices, index=of_index, members=members)


@pytest.mark.soak
@pytest.mark.slow
@sqlite_alone
def test_our_rankers_stand_beside_the_published_figures_and_what_differs_is_said(files, command):
    found = run_study(Csi300(files, (), 1))
    assert (found.row["leg"], found.row["folds"]) == ("second_close", 1)
    assert found.row["first"] == date(2016, 1, 4)
    table = found.row["config"]["table"]
    # Outcomes that the models learn from were known before the validation began.
    assert date.fromisoformat(table["trained"][1]) < date(2015, 6, 1)
    counts = found.row["config"]["list"]
    assert counts["names"] == LISTED
    assert counts["without_price"] == int((DAYS > "2016-03-01").sum())
    scores = found.scores.query("slice == 'all'").set_index("predictor")["rank_ic"]
    assert scores[["ridge", "day_losers"]].min() > 0.15
    columns = {each["model"]: each for each in table["columns"]}
    assert columns["ridge"]["rank_ic"] == pytest.approx(scores["ridge"])
    beside = published_table(found)
    assert beside is not None
    cells = {row[0]: tuple(row) for row in beside.cells}
    published = cells["LightGBM, Alpha158 (published: Qlib, examples/benchmarks/README.md)"]
    assert published[1:] == (".0469", ".3877", ".0448", ".3660")
    again = run_study(Csi300(files, (), 1))
    assert again.row["read_at"] == found.row["read_at"]  # stored, and not made again
    of_files = [f"--{name}={file}" for name, file in vars(files).items()]
    code, said, mistake = command("benchmark", "csi300", *of_files, "--markdown")
    assert code == 0, mistake
    assert said.count("LightGBM, Alpha158 (published") == 1


def test_the_correlation_of_a_day_is_pearson_s_on_the_stocks_that_have_both():
    random = np.random.default_rng(13)
    scores, returns = random.normal(size=(2, 11, 17))
    scores[3, 5] = np.nan
    returns[4, 2:] = np.nan  # two stocks are too few
    expected = [pd.Series(day).corr(pd.Series(of)) for day, of in zip(scores, returns, strict=True)]
    expected[4] = np.nan
    found = pearson_ics(*both_known(scores, returns))
    assert found == pytest.approx(expected, nan_ok=True)
