"""Who orders the stocks of a night where that is earned: a first one by a walk,
another when nights have shown it.
"""

import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import text

from db.engine import reading, transaction
from db.read import read
from db.rows import rankings
from db.save import save
from dtml.errors import UsageError
from dtml.evaluation.evidence import TENURE
from dtml.experiments import vary
from dtml.markets import read_market
from dtml.markets.definition import EARNED
from dtml.prices.sessions import next_session, sessions_between
from flows.nightly import ranking
from flows.nightly.context import MarketContext
from flows.nightly.night import run_night
from flows.nightly.ranking import promote
from flows.service.alerts import after_night
from flows.service.status import market_status
from tests.support.benchmark_rows import ranker
from tests.support.nights import AS_OF, after_nights

TARGET = next_session("XNYS", AS_OF)
NIGHTS = 120


@pytest.fixture
def earning(context: MarketContext) -> MarketContext:
    """The market of the nights, with history enough for rankers, which lets its
    candidates earn their place.
    """
    varied = vary(context.experiment, {"train_sessions": 400})
    return replace(context, experiment=varied, market=replace(context.market, ranker=EARNED))


def stored(context: MarketContext, target: date | None = None) -> dict[str, object]:
    with reading(context.engine) as conn:
        row = rankings.champion(conn, context.name, target)
    assert row is not None
    return row


def sessions_after(day: date, number: int) -> date:
    for _ in range(number):
        day = next_session("XNYS", day)
    return day


def score(context: MarketContext, gain: float) -> date:
    """Store scores of nights from the first target on, in which boosting has
    that gain; return the last of them.
    """
    rng, champion = np.random.default_rng(3), stored(context)["predictor"]
    days = sessions_between("XNYS", TARGET, date(2026, 6, 30))[:NIGHTS]
    rows = [
        {
            "target": day,
            "span": "night",
            "leg": "next_close",
            "predictor": name,
            "is_rule": False,
            "days": 1,
            "n": 9,
        }
        | {
            "rank_ic": rng.normal(0.05 + gain * (name == "boosting"), 0.1)
            if name in (champion, "boosting")
            else 0.0
        }
        for day in days
        for name in ("ridge", "boosting", "blend", "dtml")
    ]
    with transaction(context.engine) as conn:
        save(
            conn, "rank_score", pd.DataFrame(rows), market=context.name, scored_at=datetime.now(UTC)
        )
    return days[-1].date()


@pytest.mark.soak
def test_the_first_champion_is_chosen_by_a_walk_and_speaks_on_the_night(
    earning: MarketContext,
) -> None:
    after_nights(earning, AS_OF)
    first = stored(earning)
    assert (first["since"], first["replaced"], first["gain"]) == (TARGET, None, None)
    assert first["predictor"] in earning.market.candidates
    assert first["nights"] > 0
    with reading(earning.engine) as conn:
        said = read(
            conn,
            "stock_rank",
            market=earning.name,
            target=TARGET,
            order="target, made_at, predictor, place",
        )
        latest = pd.read_sql(text("select * from latest_ranking"), conn)
    assert said.groupby("predictor")["chosen"].all().to_dict() == {
        name: name == first["predictor"] for name in ("blend", "boosting", "dtml", "ridge")
    }
    assert latest["predictor"].unique().tolist() == [first["predictor"]]
    run_night(earning, AS_OF)
    assert stored(earning) == first
    status = market_status(earning.engine, earning.name, earning.market, datetime.now(UTC))
    assert status.ranked_by == f"{first['predictor']} since {TARGET}"


@pytest.mark.parametrize("gain", [0.2, 0.0])
def test_a_better_candidate_replaces_the_champion_once_and_an_equal_one_does_not(
    earning: MarketContext, gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with transaction(earning.engine) as conn:
        first = {
            "market": earning.name,
            "since": TARGET,
            "predictor": "ridge",
            "replaced": None,
            "nights": 0,
        }
        first |= {"gain": None, "stake": None, "needed": None, "decided_at": datetime.now(UTC)}
        save(conn, "champion", first)
    last = score(earning, gain)
    with monkeypatch.context() as ended, transaction(earning.engine) as conn:
        ended.setattr(ranking, "next_known_session", lambda *_: None)
        assert promote(conn, earning, last) is None  # there is no session yet to begin with
    with transaction(earning.engine) as conn:
        made = promote(conn, earning, last)
    if not gain:
        assert made is None
        assert stored(earning)["predictor"] == "ridge"
        return
    row = stored(earning)
    assert (row["predictor"], row["replaced"], row["since"]) == (
        "boosting",
        "ridge",
        sessions_after(last, 2),
    )
    assert row["stake"] >= row["needed"]
    assert row["nights"] >= TENURE
    # of the night that was ordered before
    assert stored(earning, sessions_after(last, 1))["predictor"] == "ridge"
    with transaction(earning.engine) as conn:
        assert promote(conn, earning, last) is None


def test_a_night_run_late_sees_no_later_score_and_changes_no_night_that_was_ordered(
    earning: MarketContext,
) -> None:
    with transaction(earning.engine) as conn:
        first = {
            "market": earning.name,
            "since": TARGET,
            "predictor": "ridge",
            "replaced": None,
            "nights": 0,
        }
        first |= {"gain": None, "stake": None, "needed": None, "decided_at": datetime.now(UTC)}
        save(conn, "champion", first)
        save(
            conn,
            "ranker",
            ranker(market=earning.name, checkpoint_path="none", checkpoint_hash="0" * 64),
        )
    score(earning, 0.2)
    days = [day.date() for day in sessions_between("XNYS", TARGET, date(2026, 6, 30))]
    early, late, ordered = days[TENURE // 2], days[NIGHTS - 9], days[NIGHTS + 3]
    rows = pd.DataFrame(
        {"symbol": earning.market.symbols, "score": 0.0, "place": 1, "probability": np.nan}
    )
    rows = rows.assign(
        chosen=True, predictor="ridge", ranker_id=ranker()["id"], target=pd.Timestamp(ordered)
    )
    with transaction(earning.engine) as conn:
        assert promote(conn, earning, early) is None
        now = datetime.now(UTC)
        stocks = rows[["symbol"]].assign(
            kind="stock", source_symbol=rows["symbol"], name=None, sector=None
        )
        save(conn, "instrument", stocks, market=earning.name)
        save(
            conn,
            "stock_rank",
            rows.assign(as_of=pd.Timestamp(days[NIGHTS + 2])),
            market=earning.name,
            known_at=now,
            made_at=now,
        )
        made = promote(conn, earning, late)
    assert made is not None
    assert made["since"] == sessions_after(ordered, 1)
    assert made["nights"] == NIGHTS - 8


@pytest.mark.soak
@pytest.mark.parametrize("by_a_later_night", [False, True])
def test_a_promotion_is_told_once_with_its_evidence(
    earning: MarketContext, by_a_later_night: bool
) -> None:
    after_nights(earning, AS_OF)
    # The later night was run before this one.
    decided_at = datetime.now(UTC) - timedelta(days=int(by_a_later_night))
    with transaction(earning.engine) as conn:
        row = {
            "market": earning.name,
            "since": next_session("XNYS", TARGET),
            "predictor": "dtml",
            "replaced": "ridge",
        }
        row |= {
            "nights": 33,
            "gain": 0.25,
            "stake": 70.0,
            "needed": 60.0,
            "decided_at": decided_at,
        }
        save(conn, "champion", row)
    for _ in range(2):
        after_night(earning.engine, earning.name, AS_OF)
    with reading(earning.engine) as conn:
        told = pd.read_sql(
            text("select kind, message from alert_log where kind = 'promoted'"), conn
        )
    if by_a_later_night:
        assert told.empty
        return
    (message,) = told["message"]
    assert re.match(f"DTML .*champion since {row['since']} .* ridge: ", message)
    assert re.search(r":.* 33 nights.*\+\.250 .*IC,.* 70,.* 60 ", message)


def test_a_market_names_its_candidates(tmp_path: Path) -> None:
    text_of = 'title = "T"\ncalendar = "XNYS"\ntimezone = "America/New_York"\ncurrency = "USD"\n'
    text_of += '{}\n[index]\nsymbol = "I"\nname = "I"\n'
    file = tmp_path / "home.toml"
    file.write_text(text_of.format('ranker = "earned"\ncandidates = ["ridge", "lstm_relative"]'))
    assert read_market(file).eligible_rankers == ("ridge", "lstm_relative")
    for wrong, said in (
        ('ranker = "earned"\ncandidates = ["ridge"]', "candidates: .*2 items or more"),
        ('ranker = "earned"\ncandidates = ["ridge", "earned"]', "candidates.*'earned'"),
        ('candidates = ["ridge", "blend"]', 'with ranker = "earned"'),
    ):
        file.write_text(text_of.format(wrong))
        with pytest.raises(UsageError, match=said):
            read_market(file)
