"""Who orders the stocks of a night where that is earned: a first one by a walk,
another when nights have shown it.
"""

import re
from dataclasses import replace
from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
import pytest

from db.engine import reading, transaction
from db.read import read
from db.rows import rankings
from db.save import save
from dtml.errors import UsageError
from dtml.evaluation.evidence import RESTART, TENURE, YEAR, Evidence, evidence, promoted
from dtml.experiments import vary
from dtml.markets import read_market
from dtml.markets.definition import EARNED
from dtml.prices.sessions import next_session, sessions_between
from flows.nightly import ranking
from flows.nightly.night import run_night
from flows.nightly.ranking import promote
from flows.service.alerts import after_night
from flows.service.status import market_status
from tests.support.benchmark_rows import ranker
from tests.support.bounds import in_float64
from tests.support.nights import AS_OF, after_nights, small_market

TARGET = next_session("XNYS", AS_OF)
NIGHTS = 120


@pytest.fixture
def earning(context):
    """The market of the nights, with history enough for rankers, which lets its
    candidates earn their place.
    """
    varied = vary(context.experiment, {"train_sessions": 400})
    return replace(context, experiment=varied, market=replace(context.market, ranker=EARNED))


def stored(context, target=None):
    with reading(context.engine) as conn:
        row = rankings.champion(conn, context.name, target)
    assert row is not None
    return row


def score(context, gain):
    """Store scores of nights from the first target on, in which boosting has
    that gain; return their targets.
    """
    rng = np.random.default_rng(3)
    days = sessions_between("XNYS", TARGET, date(2026, 6, 30))
    rows = [
        {"target": day, "predictor": name, "rank_ic": rng.normal(0.05 + gain * better, 0.1)}
        for day in days[:NIGHTS]
        for name, better in (("ridge", False), ("boosting", True))
    ]
    rows += [
        {"target": day, "predictor": name, "rank_ic": 0.0}
        for day in days[:NIGHTS]
        for name in ("blend", "dtml")
    ]
    scores = pd.DataFrame(rows).assign(span="night", leg="next_close", is_rule=False, days=1, n=9)
    with transaction(context.engine) as conn:
        save(conn, "rank_score", scores, market=context.name, scored_at=datetime.now(UTC))
    return [day.date() for day in days]


@pytest.mark.soak
def test_the_first_champion_is_chosen_by_a_walk_and_speaks_on_the_night(earning):
    after_nights(earning, AS_OF)
    first = stored(earning)
    assert (first["since"], first["replaced"], first["gain"]) == (TARGET, None, None)
    assert first["predictor"] in earning.market.candidates
    with reading(earning.engine) as conn:
        said = read(conn, "stock_rank", market=earning.name, target=TARGET)
        latest = read(conn, "latest_ranking", market=earning.name)
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
    earning, gain, monkeypatch
):
    crown(earning)
    days = score(earning, gain)
    last, ordered, since = days[NIGHTS - 1 : NIGHTS + 2]
    with monkeypatch.context() as ended, transaction(earning.engine) as conn:
        ended.setattr(ranking, "next_known_session", lambda *_: None)
        assert promote(conn, earning, last) is None  # there is no session yet to begin with
    with transaction(earning.engine) as conn:
        made = promote(conn, earning, last)
        again = promote(conn, earning, last)
    row = stored(earning)
    assert again is None
    assert (made is None, row["predictor"]) == ((False, "boosting") if gain else (True, "ridge"))
    if gain:
        assert (row["replaced"], row["since"]) == ("ridge", since)
        assert row["stake"] >= row["needed"]
        assert row["nights"] >= TENURE
        assert stored(earning, ordered)["predictor"] == "ridge"


def test_a_night_run_late_sees_no_later_score_and_changes_no_night_that_was_ordered(earning):
    crown(earning)
    days = score(earning, 0.2)
    early, late = days[TENURE // 2], days[NIGHTS - 9]
    before, ordered, following = days[NIGHTS + 2 : NIGHTS + 5]
    symbols = pd.DataFrame({"symbol": earning.market.symbols})
    stocks = symbols.assign(kind="stock", source_symbol=symbols["symbol"], name=None, sector=None)
    rows = symbols.assign(score=0.0, place=1, probability=np.nan, chosen=True, predictor="ridge")
    rows = rows.assign(ranker_id=ranker()["id"], as_of=before, target=ordered)
    now = datetime.now(UTC)
    of_market = {"market": earning.name}
    with transaction(earning.engine) as conn:
        assert promote(conn, earning, early) is None
        trained = ranker(**of_market, checkpoint_path="none", checkpoint_hash="0" * 64)
        save(conn, "ranker", trained)
        save(conn, "instrument", stocks, **of_market)
        save(conn, "stock_rank", rows, **of_market, known_at=now, made_at=now)
        made = promote(conn, earning, late)
    assert made is not None
    assert (made["since"], made["nights"]) == (following, NIGHTS - 8)


def test_a_market_names_its_candidates(tmp_path):
    file = tmp_path / "home.toml"
    file.write_text(f'ranker = "earned"\ncandidates = ["ridge", "lstm_relative"]\n{small_market()}')
    assert read_market(file).eligible_rankers == ("ridge", "lstm_relative")
    for wrong, said in (
        ('ranker = "earned"\ncandidates = ["ridge"]', "candidates: .*2 items or more"),
        ('ranker = "earned"\ncandidates = ["ridge", "earned"]', "candidates.*'earned'"),
        ('candidates = ["ridge", "blend"]', 'with ranker = "earned"'),
    ):
        file.write_text(f"{wrong}\n{small_market()}")
        with pytest.raises(UsageError, match=said):
            read_market(file)


def crown(context, **known):
    """Store a champion: ridge, from the first target on, chosen by no nights."""
    row = dict.fromkeys(("replaced", "gain", "stake", "needed"))
    row |= {"market": context.name, "since": TARGET, "predictor": "ridge", "nights": 0}
    with transaction(context.engine) as conn:
        save(conn, "champion", row | {"decided_at": datetime.now(UTC)} | known)


def promoted_after(gains, challengers=1):
    """The nights after which the evidence suffices, asked every night."""
    for night in range(TENURE, len(gains) + 1):
        if evidence("b", gains[:night], challengers=challengers).suffices:
            return night
    return None


@pytest.mark.soak
@pytest.mark.parametrize("deviation", [0.1, 0.25, 0.5])
def test_equals_are_exchanged_in_fewer_than_one_year_in_twenty(deviation):
    random = np.random.default_rng(5)
    years = [promoted_after(random.normal(0, deviation, YEAR).clip(-2, 2)) for _ in range(100)]
    assert np.mean([each is not None for each in years]) < 0.05


@pytest.mark.slow
def test_equals_whose_outcomes_overlap_are_not_exchanged_by_one_lucky_outcome():
    random = np.random.default_rng(8)
    overlap, nights = 20, 2 * YEAR
    stakes = []
    for _ in range(25):
        daily = random.normal(0, 0.15, nights + overlap - 1)
        gains = np.convolve(daily, np.ones(overlap) / np.sqrt(overlap), "valid").clip(-2, 2)
        stakes.append([evidence("b", gains[:k], overlap=overlap) for k in range(20, nights, 20)])
    assert sum(any(each.suffices for each in of_nights) for of_nights in stakes) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 97, 400])
def test_a_champion_whose_edge_goes_to_a_challenger_is_replaced_within_sixty_nights(before):
    """The edge is that of the simulated market: a rank IC of .45 against 0,
    whatever the nights before said.
    """
    random = np.random.default_rng(6)
    delays = []
    for _ in range(20):
        gains = np.concatenate(
            [random.normal(-0.02, 0.25, before), random.normal(0.45, 0.25, 70)]
        ).clip(-2, 2)
        delays.append((promoted_after(gains, challengers=3) or np.inf) - before)
    assert min(delays) > 0
    assert np.mean(np.array(delays) <= 60) >= 0.8


def test_the_stake_by_hand():
    """After one night: half was bet from the start; of the year's restarts one
    has begun before the night.
    """
    starts = -(-YEAR // RESTART)
    grown = (1.05 + 1.225) / 2
    made = evidence("b", np.array([0.5]))
    assert made.stake == in_float64((grown + (grown + starts - 1) / starts) / 2)
    assert (made.needed, made.nights, made.gain) == (20.0, 1, 0.5)
    assert evidence("b", np.array([])).stake == 1.0


def test_unknown_nights_are_left_out_and_several_challengers_share_the_error():
    gains = np.array([0.3, np.nan, -0.2])
    assert evidence("b", gains) == evidence("b", gains[[0, 2]])
    assert evidence("b", gains, challengers=3).needed == in_float64(60)


def test_a_new_champion_speaks_for_a_while_and_the_best_challenger_comes_next():
    early, sure, surer = (
        Evidence(name, stake, 20.0, nights, 0.5)
        for name, stake, nights in (
            ("early", 1e9, TENURE - 1),
            ("sure", 21.0, TENURE),
            ("surer", 22.0, TENURE),
        )
    )
    assert promoted([early, sure, surer]) == surer
    assert promoted([early]) is None


@pytest.mark.soak
def test_a_promotion_is_told_once_with_its_evidence(earning):
    after_nights(earning, AS_OF)
    since = next_session("XNYS", TARGET)
    evidence = {"nights": 33, "gain": 0.25, "stake": 70.0, "needed": 60.0}
    told = {"since": since, "predictor": "dtml", "replaced": "ridge"}
    crown(earning, **told, **evidence)
    for _ in range(2):
        after_night(earning.engine, earning.name, AS_OF)
    with reading(earning.engine) as conn:
        alerts = read(conn, "alert", columns="message", market=earning.name, kind="promoted")
    (message,) = alerts["message"]
    assert re.match(f"DTML .*since {since} .* ridge: .* 33 nights.*\\+\\.250 .* 70,.* 60 ", message)
