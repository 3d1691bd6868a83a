"""The audit of rankers: each planted leak is caught by its own check, and
honest rankers pass on three markets.
"""

from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pytest

from dtml.lookahead.leaks import fit_for_leaks
from dtml.lookahead.pipeline import History
from dtml.lookahead.ranks import (
    LEAKS,
    SMALL,
    RankingPath,
    audit_ranking,
    fit_honestly,
    prove_ranking,
    same_rankings,
    same_ranks,
    slopes_of_chance,
)
from dtml.markets import load_market
from dtml.markets.definition import Leg
from dtml.prices.sessions import next_session, sessions_between
from dtml.ranking.rankers import RankersConfig
from dtml.sources.simulated import SimulatedMarket, SimulatedSource

pytestmark = pytest.mark.slow

LAST = date(2023, 7, 31)
AT = pd.Timestamp("2023-06-30")


def made(seed: int = 0) -> History:
    """A simulated market whose stocks enter and leave, with 12 stocks and some 390 sessions."""
    shape = SimulatedMarket(leaders=7, followers=1, start=date(2022, 1, 3))
    source = SimulatedSource(market=shape)
    sessions = sessions_between("XNYS", shape.start, next_session("XNYS", LAST))
    market = load_market("simulated").with_symbols(sorted(shape.symbols))
    return fit_for_leaks(History(source.bars(LAST), sessions, market), seed)


def turning(history: History) -> History:
    """The same market with returns that turn half-way round on the next
    session: an order can be foretold.
    """
    bars = history.bars.sort_values(["symbol", "session"])
    change = np.log(bars["adj_close"]).groupby(bars["symbol"]).diff().fillna(0.0)
    turned = change - 0.5 * change.groupby(bars["symbol"]).shift().fillna(0.0)
    level = 100 * np.exp(turned.groupby(bars["symbol"]).cumsum())
    scale = level / bars["close"]
    made = {name: bars[name] * scale for name in ("open", "high", "low")}
    return replace(history, bars=bars.assign(**made, close=level, adj_close=level))


MARKETS = {"simulated": made(), "other entries": made(1), "turning": turning(made(2))}


@pytest.mark.one_case
@pytest.mark.parametrize("name", MARKETS)
def test_honest_rankers_raise_no_alarm(name: str) -> None:
    found = audit_ranking(RankingPath(), MARKETS[name])
    assert [each.check for each in found] == ["same_rankings", "same_ranks", "slopes_of_chance"]
    assert all(each.passed for each in found), found


@pytest.mark.soak
def test_every_planted_leak_is_caught_and_honest_rankers_are_not_accused() -> None:
    proof = prove_ranking(MARKETS["simulated"], RankingPath())
    assert proof["planted"].sum() == len(LEAKS) == 9
    assert proof["caught"].equals(proof["planted"].rename("caught")), proof


@pytest.mark.one_case
@pytest.mark.parametrize(
    "leak",
    [
        "OutcomeAsFeature",
        "RankOverHistory",
        "ScaledOverHistory",
        "ScaledByMaximum",
        "LaterLeg",
        "OutcomeKnown",
        "LaterRankers",
    ],
)
@pytest.mark.parametrize("name", MARKETS)
def test_an_order_that_changes_with_what_came_later_is_found(leak: str, name: str) -> None:
    assert not same_rankings(RankingPath(**LEAKS[leak]), MARKETS[name], AT, seed=0).passed


@pytest.mark.soak
@pytest.mark.one_case
@pytest.mark.parametrize("leg", ["five_days", "ten_days", "twenty_days"])
def test_outcomes_that_begin_later_than_was_said_are_found_for_long_returns_too(leg: Leg) -> None:
    honest = RankingPath(RankersConfig(leg, boosting=SMALL))
    planted = replace(honest, **LEAKS["LaterLeg"])
    assert same_rankings(honest, MARKETS["simulated"], AT, seed=0).passed
    assert not same_rankings(planted, MARKETS["simulated"], AT, seed=0).passed


def test_the_features_of_the_long_set_pass_the_audit() -> None:
    path = RankingPath(feature_set="long")
    assert path.read(MARKETS["simulated"]).features.shape[-1] == 52
    assert same_rankings(path, MARKETS["simulated"], AT, seed=0).passed
    assert same_ranks(path, MARKETS["simulated"], AT).passed


def test_a_feature_that_knows_later_dividends_and_splits_is_found() -> None:
    assert not same_ranks(RankingPath(**LEAKS["PriceAsFeature"]), MARKETS["simulated"], AT).passed
    assert same_ranks(RankingPath(), MARKETS["simulated"], AT).passed


@pytest.mark.soak
@pytest.mark.parametrize("name", MARKETS)
def test_a_slope_that_was_measured_on_fitted_days_is_found(name: str) -> None:
    found = slopes_of_chance(RankingPath(**LEAKS["SlopeOnFittedDays"]), MARKETS[name], AT, seed=0)
    assert not found.passed, found.detail
    assert slopes_of_chance(RankingPath(), MARKETS[name], AT, seed=0).passed


def test_rankers_that_are_trained_are_checked_by_what_they_say() -> None:
    history, honest = MARKETS["simulated"], RankingPath()
    rankers = fit_honestly(honest.read(history), AT, honest.config)
    found = audit_ranking(replace(honest, fit=lambda *_: rankers), history, trains=False)
    assert [each.check for each in found] == ["same_rankings", "same_ranks"]
    assert all(each.passed for each in found)


def test_a_history_too_short_for_rankers_has_none_to_audit() -> None:
    short = MARKETS["simulated"].cut(stocks=12, sessions=200, seed=0)
    assert audit_ranking(RankingPath(), short) == []
    assert prove_ranking(short, RankingPath()).empty
