"""The order of a day's stocks: features, outcomes, models and the walk, against
formulas and laws.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as TheirRidge

from dtml.errors import DtmlError
from dtml.evaluation.splits import GAP
from dtml.ranking.features import (
    FEATURE_SETS,
    FEATURES,
    HISTORY,
    RULES,
    Bars,
    peer_returns,
    ranked_features,
    rule_scores,
)
from dtml.ranking.models import BoostingConfig, RidgeConfig, blend, fit_boosting, fit_ridge
from dtml.ranking.outcomes import LEGS, measured_legs, outcomes, sessions_to
from dtml.ranking.panel import ranked
from dtml.ranking.rankers import (
    Rankers,
    RankersConfig,
    load_rankers,
    ranking_of_day,
    save_rankers,
    slope_of,
    walk,
)
from dtml.ranking.walk import RETRAIN_EVERY, History, folds
from tests.support.bounds import as_solved, assert_arrays_close_in_float64, in_float64
from tests.support.panels import SESSIONS, made_bars, made_panel, reverting

DAY = 300  # with a whole history behind it
STOCK = "S04"  # with a bar on every session
PRICES = ["open", "high", "low", "close", "adj_close"]


OF_ONE_STOCK = {name: each for name, each in FEATURES.items() if not name.startswith("less_peers")}


def one(bars, symbol=STOCK):
    return bars[bars["symbol"] == symbol].set_index("session").sort_index()


def full_bars():
    """Bars of the stocks that have one on every session."""
    bars = made_bars()
    return bars.loc[~bars["symbol"].isin(["S00", "S01", "S02"])]


def by_hand(bars):
    """The features of one stock on one day, by the formulas of pandas."""
    stock = one(bars).iloc[: DAY + 1]
    opened, high, low, close, volume = (
        stock[name] for name in ("open", "high", "low", "close", "volume")
    )
    r, gap, session = close.pct_change(), opened / close.shift() - 1, close / opened - 1
    closes = bars.pivot(index="session", columns="symbol", values="close").iloc[: DAY + 1]
    market = closes.pct_change(fill_method=None).mean(axis=1)
    flow = (volume / volume.shift()).transform(np.log)
    slope = r.tail(60).cov(market.tail(60)) / market.tail(60).var()
    found = {
        f"return_{k}": close.iloc[-1] / close.iloc[-1 - k] - 1 for k in (1, 2, 3, 5, 10, 20, 60)
    }
    found |= {f"momentum_{k}": close.iloc[-21] / close.iloc[-1 - k] - 1 for k in (120, 250)}
    found |= {f"volatility_{k}": r.tail(k).std(ddof=0) for k in (5, 20, 60)}
    found |= {
        f"place_in_range_{k}": (close.iloc[-1] - low.tail(k).min())
        / (high.tail(k).max() - low.tail(k).min())
        for k in (5, 20, 60)
    }
    found |= {f"relative_volume_{k}": volume.iloc[-1] / volume.tail(k).mean() for k in (5, 20, 60)}
    found |= {f"residual_{k}": r.tail(k).mean() - slope * market.tail(k).mean() for k in (1, 5, 20)}
    found |= {
        f"average_{k}": close.tail(k).mean() / close.iloc[-1] - 1 for k in (5, 10, 15, 20, 25, 30)
    }
    found |= {
        f"{name}_over_close": stock[name].iloc[-1] / close.iloc[-1] - 1
        for name in ("open", "high", "low")
    }
    return found | {
        "range": (high.iloc[-1] - low.iloc[-1]) / close.iloc[-1],
        "session": session.iloc[-1],
        "gap": gap.iloc[-1],
        "place_in_day": (close.iloc[-1] - low.iloc[-1]) / (high.iloc[-1] - low.iloc[-1]),
        "highest_return_20": r.tail(20).max(),
        "lowest_return_20": r.tail(20).min(),
        "traded_value_20": (close * volume).tail(20).mean(),
        "overnight_20": gap.tail(20).mean(),
        "intraday_20": session.tail(20).mean(),
        "volume_correlation_20": r.tail(20).corr(flow.tail(20)),
        "excess_20": (r.iloc[-1] - market.iloc[-1]) / r.tail(20).std(ddof=0),
        "beta_60": slope,
        "illiquidity_20": (r.abs() / (close * volume)).tail(20).mean(),
    }


def test_every_feature_is_its_formula():
    bars = full_bars()
    panel = made_panel(bars)
    held, column = Bars.of(panel), panel.symbols.index(STOCK)
    found = {name: float(feature.of(held)[DAY, column]) for name, feature in OF_ONE_STOCK.items()}
    assert found == in_float64(by_hand(bars))


@pytest.mark.slow
def test_a_feature_says_how_many_bars_it_reads():
    bars = full_bars()
    panel = made_panel(bars)
    held = Bars.of(panel)
    for name, feature in FEATURE_SETS["long"].items():
        if name.startswith("less_peers"):
            continue
        values = feature.of(held)
        assert np.isfinite(values).all(axis=1).argmax() <= feature.bars - 1, name
        scrambled = bars.copy()
        early = scrambled["session"] <= panel.sessions[DAY - feature.bars]
        scrambled.loc[early, [*PRICES, "volume"]] *= 1.7
        after = feature.of(Bars.of(made_panel(scrambled)))[DAY]
        np.testing.assert_allclose(after, values[DAY], rtol=1e-9, atol=1e-12, err_msg=name)


def peers_by_hand(returns, day):
    """The correlations from which the peers of a day's month are chosen: those
    of returns less the day's mean.
    """
    month = returns.index[day].to_period("M")
    first = int(np.argmax(returns.index.to_period("M") == month))
    seen = returns.iloc[max(0, first - 250) : first]
    return seen.sub(seen.mean(axis=1), axis=0).corr()


def test_the_return_of_peers_is_that_of_the_stocks_a_stock_moved_with_before_the_month():
    drawn = np.random.default_rng(4)
    sectors = drawn.standard_normal((400, 3))
    values = 0.01 * (sectors[:, np.arange(36) % 3] + drawn.standard_normal((400, 36)))
    returns = pd.DataFrame(values, index=pd.bdate_range("2020-01-01", periods=400))
    found = peer_returns(returns.to_numpy(), pd.DatetimeIndex(returns.index))
    assert np.isnan(found[:60]).all()
    for day in (140, 333, 399):
        together = peers_by_hand(returns, day)
        for stock in (0, 17, 35):
            own = together[stock].drop(stock).nlargest(10)
            assert {each % 3 for each in own.index} == {stock % 3}
            assert found[day, stock] == in_float64(returns.iloc[day][own.index].mean())


@pytest.mark.slow
def test_no_feature_reads_a_later_bar_and_a_rescaled_past_changes_no_price_feature():
    bars = made_bars()

    def seen(bars):
        return ranked_features(made_panel(bars), feature_set="long")[: DAY + 1]

    later, rescaled = bars.copy(), bars.copy()
    later.loc[later["session"] > SESSIONS[DAY], [*PRICES, "volume"]] *= 3.3
    rescaled.loc[rescaled["symbol"] == STOCK, "adj_close"] *= 0.37  # a dividend after the last bar
    for changed in (later, rescaled):
        assert np.array_equal(seen(changed), seen(bars), equal_nan=True)


def test_ranks_lie_between_minus_and_plus_one_half_share_ties_and_keep_what_is_missing():
    found = ranked(np.array([[3.0, 1.0, 1.0, np.nan, 9.0], [np.nan, 5.0, np.nan, np.nan, np.nan]]))
    assert_arrays_close_in_float64(found[0], [1 / 6, -1 / 3, -1 / 3, np.nan, 0.5])
    assert_arrays_close_in_float64(found[1], [np.nan, 0.0, np.nan, np.nan, np.nan])


def test_a_bar_without_volume_is_none_unless_the_source_has_no_volumes():
    bars, third = made_bars(), 2
    early = (bars["symbol"] == "S02") & (bars["session"] < SESSIONS[200])
    later = bars["volume"].mask(early, 0.0)  # nobody knew of volumes to come
    for volume, is_there in ((bars["volume"], False), (0.0, True), (later, True)):
        closes = made_panel(bars.assign(volume=volume)).close[100:103, third]
        assert np.isfinite(closes).tolist() == [is_there] * 3


def test_all_four_prices_are_adjusted_by_one_factor():
    bars = made_bars()
    early = bars["session"] < SESSIONS[150]
    halved = bars.assign(adj_close=bars["close"].where(~early, bars["close"] / 2))
    panel, whole = made_panel(halved), made_panel(bars)
    for name in ("open", "high", "low", "close"):
        assert_arrays_close_in_float64(getattr(panel, name)[:150], getattr(whole, name)[:150] / 2)
    assert np.array_equal(panel.value, whole.value, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leg", "begin", "end"),
    [
        ("next_close", ("close", 0), ("close", 1)),
        ("overnight", ("close", 0), ("open", 1)),
        ("intraday", ("open", 1), ("close", 1)),
        ("open_to_open", ("open", 1), ("open", 2)),
        ("second_close", ("close", 1), ("close", 2)),
        ("five_days", ("open", 1), ("open", 6)),
        ("ten_days", ("open", 1), ("open", 11)),
        ("twenty_days", ("open", 1), ("open", 21)),
    ],
)
def test_a_leg_is_the_ratio_of_its_two_prices_and_needs_the_bars_it_says(leg, begin, end):
    stock, panel = one(made_bars()), made_panel()
    first, last = (stock[name].shift(-sessions) for name, sessions in (begin, end))
    found = outcomes(panel, leg)[:, panel.symbols.index(STOCK)]
    assert_arrays_close_in_float64(found, last / first - 1)
    assert np.isnan(found).sum() == sessions_to(leg)


def test_prices_of_closes_alone_measure_no_return_from_or_to_an_open():
    bars = made_bars()
    closes = bars.assign(open=bars["close"], high=bars["close"], low=bars["close"])
    panel = made_panel(closes)
    assert measured_legs(panel) == ("next_close", "second_close")
    assert np.isfinite(History.of(panel, "second_close").outcome).any()
    with pytest.raises(DtmlError, match=r"five_days .*closes alone:.*next_close or second_"):
        History.of(panel, "five_days")
    closes.loc[3, "open"] *= 1.001  # one open of its own
    assert measured_legs(made_panel(closes)) == LEGS


def test_a_change_of_unit_is_no_outcome_and_no_feature_reads_across_it():
    bars = made_bars()
    leapt = (bars["symbol"] == STOCK) & bars["session"].isin(SESSIONS[DAY:])
    bars.loc[leapt, PRICES] *= 10
    panel = made_panel(bars)
    column = panel.symbols.index(STOCK)
    for leg, gone in {"next_close": [DAY - 1], "five_days": list(range(DAY - 6, DAY))}.items():
        found = outcomes(panel, leg, max_return=0.5)[: DAY + 2, column]
        assert np.flatnonzero(np.isnan(found)).tolist() == gone
    names = list(FEATURES)
    after = ranked_features(panel, max_return=0.5)[DAY, column]
    assert np.isnan(after[names.index("return_1")])
    assert np.isfinite(after[names.index("session")])


def test_a_ridge_is_scikit_learns():
    drawn = np.random.default_rng(5)
    x, y = drawn.uniform(-0.5, 0.5, (311, 13)), drawn.uniform(-0.5, 0.5, 311)
    ours = fit_ridge(x, y, RidgeConfig(penalty=0.3)).score(x)
    theirs = TheirRidge(alpha=0.3 * 311 / 12, fit_intercept=False).fit(x, y).predict(x)
    assert_arrays_close_in_float64(ours, theirs)


def test_a_boosting_in_arrays_is_that_of_scikit_learn_also_where_features_are_missing():
    drawn = np.random.default_rng(6)
    x = drawn.uniform(-0.5, 0.5, (2003, 7)).astype(np.float32)
    y = np.where(x[:, 0] > 0.1, 0.3, -0.2) * x[:, 3] + 0.1 * drawn.standard_normal(2003)
    x[drawn.random(x.shape) < 0.2] = np.nan
    config = BoostingConfig(trees=29, leaves=11, rows_a_leaf=20)
    theirs = HistGradientBoostingRegressor(
        max_iter=29,
        max_leaf_nodes=11,
        learning_rate=config.rate,
        min_samples_leaf=20,
        max_features=0.2,
        early_stopping=False,
        random_state=0,
    ).fit(x, y)
    assert_arrays_close_in_float64(
        fit_boosting(x, y, config).score(x) + y.mean(), theirs.predict(x)
    )


def test_the_slope_of_the_probabilities_is_that_of_a_logistic_regression():
    drawn = np.random.default_rng(8)
    rank = drawn.uniform(-0.5, 0.5, (37, 29))
    relative = np.where(drawn.random((37, 29)) < 1 / (1 + np.exp(-2 * rank)), 0.3, -0.3)
    relative[drawn.random((37, 29)) < 0.1] = np.nan
    known = np.isfinite(relative)
    theirs = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10).fit(
        rank[known][:, None], relative[known] > 0
    )
    assert slope_of(rank, relative) == as_solved(theirs.coef_[0, 0], 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("models", [2, 3])
def test_equal_means_of_ranks_are_equal_blends_and_ordered_by_symbol(models):
    drawn, stocks = np.random.default_rng(models), 97
    days = np.array([[drawn.permutation(stocks) for _ in range(40)] for _ in range(models)])
    blends = blend({str(name): each.astype(float) for name, each in enumerate(days)})
    symbols = tuple(f"S{number:02}" for number in drawn.permutation(stocks))
    for found, total in zip(blends, days.sum(axis=0), strict=True):
        order = ranking_of_day({"blend": found}, {}, symbols)
        by_hand = sorted(range(stocks), key=lambda stock: (-total[stock], symbols[stock]))
        assert order["symbol"].tolist() == [symbols[stock] for stock in by_hand]


@pytest.mark.slow
def test_a_walk_finds_what_is_there_and_its_folds_know_no_outcome_of_what_they_score():
    history = reverting()
    walked = folds(history, SESSIONS[280], SESSIONS[400])
    second = 280 + RETRAIN_EVERY
    assert [fold.scored for fold in walked] == [slice(280, second), slice(second, 401)]
    for fold in walked:
        assert fold.trained.stop - 1 + sessions_to(history.leg) + GAP == fold.scored.start
    scores = walk(history, walked, RankersConfig(boosting=BoostingConfig(trees=20, rows_a_leaf=50)))
    both = blend({name: scores[name] for name in ("ridge", "boosting")})
    np.testing.assert_array_equal(scores["blend"], both)
    outcome = history.relative[280:400]
    for name, found in scores.items():
        assert np.isnan(found[:280]).all()
        known = np.isfinite(found[280:400]) & np.isfinite(outcome)
        assert np.corrcoef(found[280:400][known], outcome[known])[0, 1] > 0.2, name


@pytest.mark.slow
def test_later_bars_change_no_score_of_a_walk():
    history, cut = reverting(), 340
    features, outcome = history.features.copy(), history.outcome.copy()
    features[cut:] *= -1
    outcome[cut - 1 :] *= -3
    torn = replace(history, features=features, outcome=outcome)
    walked = folds(history, SESSIONS[280], SESSIONS[400])
    config = RankersConfig(boosting=BoostingConfig(trees=5, rows_a_leaf=50))
    one, other = (walk(each, walked, config) for each in (history, torn))
    for name, scores in one.items():
        assert np.array_equal(scores[:cut], other[name][:cut], equal_nan=True)


def test_a_walk_that_begins_too_early_says_what_to_do():
    with pytest.raises(DtmlError, match=r"begin later.*before 2020-01-02"):
        folds(reverting(), SESSIONS[100], SESSIONS[200])


def test_every_rule_orders_by_its_feature():
    features = ranked_features(made_panel())
    for rule, (name, sign) in RULES.items():
        expected = sign * features[DAY, :, list(FEATURES).index(name)]
        np.testing.assert_array_equal(rule_scores(features, rule)[DAY], expected)
    assert HISTORY == 296


def test_what_was_earned_overnight_and_by_day_is_the_product_of_its_returns():
    bars, count = made_bars(), 60
    stock = bars[bars["symbol"] == STOCK].set_index("session").sort_index()
    panel = made_panel(bars)
    for name, ratios in (
        ("overnight", stock["open"] / stock["close"].shift()),
        ("intraday", stock["close"] / stock["open"]),
    ):
        expected = ratios.rolling(count).apply(np.prod, raw=True).to_numpy() - 1
        found = FEATURE_SETS["long"][f"{name}_return_{count}"].of(Bars.of(panel))
        assert_arrays_close_in_float64(found[:, panel.symbols.index(STOCK)], expected)


@pytest.mark.slow
@pytest.mark.parametrize("leg", LEGS)
def test_no_outcome_that_a_fold_trains_on_reads_a_price_of_the_days_it_scores(leg):
    panel = made_panel()
    history = History.of(panel, leg)
    walked = folds(history, SESSIONS[280], SESSIONS[-40])
    for fold in walked:
        known = fold.scored.start  # prices from here on are unknown when the fold is trained
        of_torn = outcomes(_torn_from(panel, known), leg)
        torn = np.where(history.there, of_torn, np.nan)
        trained = history.outcome[fold.trained]
        np.testing.assert_array_equal(torn[fold.trained], trained)
        # The first day that is left out is the first that would.
        stop = fold.trained.stop
        assert not np.array_equal(torn[stop], history.outcome[stop], equal_nan=True)


def _torn_from(panel, position):
    """The panel with other prices from a position on."""
    drawn = np.random.default_rng(0)
    opened = panel.open.copy()
    closed = panel.close.copy()
    opened[position:] *= 1 + drawn.random(opened[position:].shape)
    closed[position:] *= 1 + drawn.random(closed[position:].shape)
    return replace(panel, open=opened, close=closed)


def test_rankers_of_other_features_than_the_market_names_are_refused(tmp_path):
    rows = np.random.default_rng(0).random((200, len(FEATURES))) - 0.5
    ridge = fit_ridge(rows, rows[:, 0], RidgeConfig())
    settings = {"market": "toy", "config": {"features": list(FEATURES), "networks": []}}
    made = Rankers({"ridge": ridge}, {"ridge": 1.0})
    file, sha = save_rankers(made, settings, tmp_path / "toy")
    with pytest.raises(DtmlError, match=r'other features.* "long"'):
        load_rankers(file, market="toy", sha=sha, feature_set="long")
