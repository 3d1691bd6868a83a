"""The tear sheet that a walk writes: its figures are those that the walk stores."""

import json
from dataclasses import replace
from datetime import date
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import Connection

from db.rows import rankings
from dtml.evaluation.tear_sheet import answers
from dtml.pages.ranking import ranking_page
from dtml.ranking.outcomes import overlap_of
from flows.markets.opened import RunRequest
from flows.nightly.context import open_stored_context
from flows.settings import page_of
from flows.studies.ranking import Plan, Walk
from flows.studies.study import run_study
from flows.studies.tear_sheet import read_sheet, sheet_file, write_sheet
from tests.support.bounds import in_float64

FIRST, LAST = date(2024, 2, 1), date(2024, 5, 17)

pytestmark = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)


@pytest.mark.soak
def test_the_sheet_of_a_walk_has_the_figures_that_the_walk_stores_also_where_it_was_killed_then(
    run_request: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_ranking = rankings.save_ranking

    def killed(conn: Connection, *rows: Any) -> None:
        save_ranking(conn, *rows)
        conn.commit()
        raise KeyboardInterrupt

    walk = Walk(open_stored_context(run_request), Plan(FIRST, LAST))
    with monkeypatch.context() as patch:
        patch.setattr(rankings, "save_ranking", killed)
        with pytest.raises(KeyboardInterrupt):
            run_study(walk)
    found = run_study(walk)
    assert found.sheet is not None
    scores = found.scores[found.scores["slice"] == "all"].set_index(["predictor", "leg"])
    assert found.strongest is not None
    for predictor in ("blend", found.strongest["other"]):
        stored = scores.loc[(predictor, "next_close")]
        rows = found.sheet.cumulative
        last = rows[rows["predictor"] == predictor].iloc[-1]
        days = int((rows["predictor"] == predictor).sum())
        assert days == stored["days"]
        assert last["total"] / days == in_float64(stored["rank_ic"])
        assert last["low"] / days == in_float64(stored["rank_ic_low"])
        assert last["high"] / days == in_float64(stored["rank_ic_high"])
    traded = scores.loc[("blend", "open_to_open")]
    assert answers(found.sheet).gross.value == in_float64(traded["decile_spread"])
    assert answers(found.sheet).gross.low == in_float64(traded["decile_spread_low"])

    again = walk.stored()
    assert again is not None
    assert again.sheet is not None
    for name, table in found.sheet.tables.items():
        pd.testing.assert_frame_equal(again.sheet.tables[name], table, check_dtype=False)
    page = page_of("ranking", found.row).read_text(encoding="utf-8")
    assert page == ranking_page(found)

    # The days that an outcome of the leg spans widen the intervals of a sheet that is read again.
    write_sheet(found.row, replace(found.sheet, leg="five_days", overlap=overlap_of("five_days")))
    of_five_days = read_sheet(found.row)
    assert of_five_days is not None
    assert of_five_days.overlap == overlap_of("five_days") > found.sheet.overlap

    file = sheet_file(found.row)
    content = json.loads(file.read_text(encoding="utf-8"))
    content.pop("groups")
    file.write_text(json.dumps(content), encoding="utf-8")
    assert read_sheet(found.row) is None
    file.write_text("no sheet", encoding="utf-8")
    assert read_sheet(found.row) is None
    file.unlink()
    without = walk.stored()
    assert without is not None
    assert without.sheet is None
    assert "missing here" in ranking_page(without)
