"""The tear sheet that a walk writes: its figures are those that the walk stores."""

from datetime import date

import pandas as pd
import pytest

from db.rows import rankings
from dtml.evaluation.tear_sheet import answers
from dtml.pages.ranking import ranking_page
from flows.nightly.context import open_stored_context
from flows.studies.ranking import Plan, Walk
from flows.studies.study import run_study
from flows.studies.tear_sheet import sheet_file
from tests.support.bounds import in_float64
from tests.support.kinds import sqlite_alone

FIRST, LAST = date(2024, 2, 1), date(2024, 5, 17)

pytestmark = sqlite_alone


@pytest.mark.soak
def test_the_sheet_of_a_walk_has_the_figures_that_the_walk_stores_also_where_it_was_killed_then(
    run_request, monkeypatch
):
    save_ranking = rankings.save_ranking

    def killed(conn, *rows):
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
    assert found.strongest is not None
    scores = found.scores[found.scores["slice"] == "all"].set_index(["predictor", "leg"])
    cumulative = found.sheet.cumulative
    for predictor in ("blend", found.strongest["other"]):
        rows = cumulative[cumulative["predictor"] == predictor]
        means = rows[["total", "low", "high"]].iloc[-1] / len(rows)
        stored = scores.loc[(predictor, "next_close")]
        assert len(rows) == stored["days"]
        figures = stored[["rank_ic", "rank_ic_low", "rank_ic_high"]].tolist()
        assert means.tolist() == in_float64(figures)
    traded = scores.loc[("blend", "open_to_open")]
    gross = answers(found.sheet).gross
    figures = traded[["decile_spread", "decile_spread_low"]].tolist()
    assert [gross.value, gross.low] == in_float64(figures)

    again = walk.stored()
    assert again is not None
    assert again.sheet is not None
    for name, table in found.sheet.tables.items():
        pd.testing.assert_frame_equal(again.sheet.tables[name], table, check_dtype=False)
    sheet_file(found.row).write_text("no sheet", encoding="utf-8")
    without = walk.stored()
    assert without is not None
    assert "missing here" in ranking_page(without)
