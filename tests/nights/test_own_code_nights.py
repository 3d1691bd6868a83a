"""A user's own file in nights: stored, scored, replayed, walked, and kept from
the night when it fails.
"""

import logging
from dataclasses import replace
from datetime import date

import pandas as pd
import pytest
from sqlalchemy import text

from db.engine import reading
from db.read import read, read_row
from db.rows.runs import latest_trained
from dtml.experiments import vary
from dtml.prices.sessions import next_session
from flows.nightly.context import stored_bars
from flows.nightly.night import run_night
from flows.replay import replay_of
from flows.studies.ranking import Plan, Walk
from flows.studies.study import run_study
from tests.support.nights import AS_OF

TARGET = next_session("XNYS", AS_OF)
FIRST, LAST = date(2024, 6, 3), date(2024, 9, 13)  # two folds
MINE = '''"""Two features of my own."""


def near_high(bars):
    return bars.close / bars.high.rolling(60).max() - 1


def reversal(bars):
    return -bars.close.pct_change(fill_method=None)
'''

# Prices that the file reads from elsewhere are its user's business: they can be later ones.
TOMORROW = """

def tomorrow(bars):
    import pandas as pd

    later = pd.read_csv({file!r}, index_col="session", parse_dates=True)
    return later.reindex(index=bars.close.index, columns=bars.close.columns)
"""


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return file


@pytest.fixture
def owned(ranking_context, mine):
    market = replace(ranking_context.market, code=mine, ranker="own")
    return replace(ranking_context, market=market)


def said(context, target=TARGET):
    with reading(context.engine) as conn:
        made = read(
            conn,
            "stock_rank",
            market=context.name,
            target=target,
            order="target, made_at, predictor, place",
        )
    return made[made["predictor"] == "own"]


def reason(context, as_of=AS_OF):
    with reading(context.engine) as conn:
        row = read_row(conn, "night_log", market=context.name, as_of=as_of)
    assert row is not None
    assert row["status"] == "complete"
    return row["reason"]


def recorded(context):
    with reading(context.engine) as conn:
        row = latest_trained(conn, "ranker", context.name, on_or_before=date.max)
    assert row is not None
    return row["config"]["own"]


@pytest.mark.soak
def test_own_features_order_a_night_are_stored_scored_and_replayed(owned, archive, mine):
    run_night(owned, AS_OF)
    made = said(owned)
    assert made["place"].tolist() == list(range(1, 10))
    assert made["probability"].between(0, 1).all()
    assert recorded(owned)["features"] == ["near_high", "reversal"]
    assert reason(owned) is None
    with reading(owned.engine) as conn:
        latest = pd.read_sql(text("select * from latest_ranking order by place"), conn)
    assert latest["predictor"].unique().tolist() == ["own"]
    run_night(owned, TARGET)
    with reading(owned.engine) as conn:
        scored = read(conn, "rank_score", market=owned.name, span="running", leg="next_close")
    assert "own" in set(scored["predictor"])
    mine.unlink()  # what was stored with the run replays the night
    assert replay_of(archive, archive.night(AS_OF)).reasons == []


@pytest.mark.soak
def test_a_night_whose_file_changed_says_so_trains_again_and_still_replays_the_older(
    owned, archive, mine, caplog
):
    run_night(owned, AS_OF)
    first = recorded(owned)["sha256"]
    assert run_night(owned, AS_OF).changed == ""
    mine.write_text(
        MINE + "\n\ndef spread(bars):\n    return (bars.high - bars.low) / bars.close\n"
    )
    assert "own code changed: mine.py" in run_night(owned, AS_OF).changed
    with caplog.at_level(logging.WARNING):
        run_night(owned, TARGET)
    assert recorded(owned)["features"] == ["near_high", "reversal", "spread"]
    assert recorded(owned)["sha256"] != first
    assert "own code changed: mine.py" in str(reason(owned, TARGET))
    assert f"was mine.py ({str(first)[:12]})" in caplog.text
    assert replay_of(archive, archive.night(AS_OF)).reasons == []
    assert replay_of(archive, archive.night(TARGET)).reasons == []


@pytest.mark.soak
def test_code_that_came_with_a_store_does_not_run_until_its_reader_lets_it(
    owned, mine, monkeypatch, tmp_path
):
    run_night(owned, AS_OF)
    # The same store before somebody who never had the file.
    mine.unlink()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    run_night(owned, TARGET)
    assert said(owned, next_session("XNYS", TARGET)).empty
    why = str(reason(owned, TARGET))
    assert "came with the store" in why
    (refused,) = (tmp_path / "home").rglob("refused/*.py")
    assert refused.read_text() == MINE
    known = refused.parents[1] / refused.name
    assert f"read {refused}, " in why
    assert f"move it to {known} " in why
    refused.rename(known)
    after = next_session("XNYS", TARGET)
    run_night(owned, after)
    assert len(said(owned, next_session("XNYS", after))) == 9


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.soak
def test_what_is_too_good_to_be_true_is_ranked_with_a_warning_until_the_market_file_allows_it(
    owned, mine, tmp_path
):
    run_night(owned, AS_OF)
    bars, _ = stored_bars(owned, date(2023, 1, 3), AS_OF)
    close = bars.pivot(index="session", columns="symbol", values="close")
    later = tmp_path / "later.csv"
    close.pct_change(fill_method=None).shift(-1).to_csv(later)
    mine.write_text(f"{MINE}{TOMORROW.format(file=str(later))}")
    run_night(owned, TARGET)
    assert "mine.py: its rank IC of " in str(reason(owned, TARGET))
    assert len(said(owned, next_session("XNYS", TARGET))) == 9
    checks = replace(owned.market.checks, max_rank_ic=1.0)
    allowing = replace(owned, market=replace(owned.market, checks=checks))
    after = next_session("XNYS", TARGET)
    run_night(allowing, after)
    assert "max_rank_ic 1.0, was mine.py" in str(reason(owned, after))
    assert "doubt" not in recorded(owned)


BAD = {
    "1 / 0": "mine.py, line 12: ZeroDivisionError: ",
    "while True:\n    pass": "more than 6 s",
    "def word(bars):\n    return 'high'": "word returned str: ",
}


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.soak
@pytest.mark.one_case("pass")
@pytest.mark.parametrize("bad", BAD, ids=[each.splitlines()[-1].strip() for each in BAD])
def test_what_fails_ends_its_own_model_with_the_reason_and_never_the_night(
    owned, mine, bad, monkeypatch
):
    mine.write_text(f"{MINE}\n\n{bad}\n")
    if "while True" in bad:
        monkeypatch.setenv("DTML_CODE_SECONDS", "6")
    run_night(owned, AS_OF)
    assert said(owned).empty
    assert BAD[bad] in str(reason(owned))
    assert BAD[bad] in str(recorded(owned)["refused"])
    with reading(owned.engine) as conn:
        others = read(
            conn,
            "stock_rank",
            market=owned.name,
            target=TARGET,
            order="target, made_at, predictor, place",
        )
    assert set(others["predictor"]) == {"ridge", "boosting", "blend", "dtml"}


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.soak
def test_a_walk_compares_own_code_with_the_built_in(owned):
    varied = replace(owned, experiment=vary(owned.experiment, {"train_sessions": 400}))
    run_night(varied, date(2024, 12, 2))
    walk = Walk(varied, Plan(FIRST, LAST))
    found = run_study(walk)
    assert "own" in set(found.scores["predictor"])
    assert found.row["config"]["own"]["file"] == "mine.py"
    gains = found.differences[
        (found.differences["predictor"] == "own") & (found.differences["other"] == "boosting")
    ]
    assert gains["gain"].notna().all()
