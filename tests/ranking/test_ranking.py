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
    FEATURES,
    HISTORY,
    RULES,
    Bars,
    peer_returns,
    ranked_features,
    rule_scores,
)
from dtml.ranking.models import BoostingConfig, RidgeConfig, blend, fit_boosting, fit_ridge
from dtml.ranking.outcomes import LEGS, has_opens, measured_legs, outcomes, sessions_to
from dtml.ranking.panel import panel_of, ranked
from dtml.ranking.rankers import RankersConfig, ranking_of_day, slope_of, walk
from dtml.ranking.walk import RETRAIN_EVERY, History, folds
from tests.support.bounds import as_solved, assert_arrays_close_in_float64, in_float64
from tests.support.panels import SESSIONS, made_bars, made_panel

DAY = 300  # with a whole history behind it
STOCK = "S04"  # with a bar on every session


OF_ONE_STOCK = {name: each for name, each in FEATURES.items() if not name.startswith("less_peers")}


def one(bars: pd.DataFrame, symbol: str = STOCK) -> pd.DataFrame:
    return bars[bars["symbol"] == symbol].set_index("session").sort_index()


def full_bars() -> pd.DataFrame:
    """Bars of the stocks that have one on every session."""
    bars = made_bars()
    return bars.loc[~bars["symbol"].isin(["S00", "S01", "S02"])]


def by_hand(bars: pd.DataFrame) -> dict[str, float]:
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


def test_every_feature_is_its_formula() -> None:
    bars = full_bars()
    panel = made_panel(bars)
    held, column = Bars.of(panel), panel.symbols.index(STOCK)
    found = {name: float(feature.of(held)[DAY, column]) for name, feature in OF_ONE_STOCK.items()}
    assert found == in_float64(by_hand(bars))


@pytest.mark.slow
def test_a_feature_says_how_many_bars_it_reads() -> None:
    bars = full_bars()
    panel = made_panel(bars)
    held = Bars.of(panel)
    for name, feature in OF_ONE_STOCK.items():
        values = feature.of(held)
        first = np.isfinite(values).all(axis=1).argmax()
        assert first <= feature.bars - 1, name
        scrambled = bars.copy()
        early = scrambled["session"] <= panel.sessions[DAY - feature.bars]
        scrambled.loc[early, ["open", "high", "low", "close", "adj_close", "volume"]] *= 1.7
        after = feature.of(Bars.of(made_panel(scrambled)))[DAY]
        np.testing.assert_allclose(after, values[DAY], rtol=1e-9, atol=1e-12, err_msg=name)


def peers_by_hand(returns: pd.DataFrame, day: int) -> pd.DataFrame:
    """The correlations from which the peers of a day's month are chosen: those
    of returns less the day's mean.
    """
    month = returns.index[day].to_period("M")
    first = int(np.argmax(returns.index.to_period("M") == month))
    seen = returns.iloc[max(0, first - 250) : first]
    return seen.sub(seen.mean(axis=1), axis=0).corr()


def test_the_return_of_peers_is_that_of_the_stocks_a_stock_moved_with_before_the_month() -> None:
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
def test_peers_are_the_same_whenever_the_history_begins_and_whatever_follows() -> None:
    bars = made_bars(stocks=23)
    whole = ranked_features(made_panel(bars))
    late = bars[bars["session"] >= SESSIONS[DAY + 1 - HISTORY]]
    columns = [list(FEATURES).index(f"less_peers_{k}") for k in (1, 5, 20)]
    found = ranked_features(made_panel(late))
    assert np.isfinite(found[DAY + 1 - len(SESSIONS) + len(found) - 1][:, columns]).any()
    np.testing.assert_array_equal(found[HISTORY - 1][:, columns], whole[DAY][:, columns])


def test_a_stock_without_enough_returns_or_alone_has_no_peers() -> None:
    drawn = np.random.default_rng(4).standard_normal((130, 5))
    drawn[:, 1:] += np.array([2, 2, 2, -2]) * drawn[:, :1]
    drawn[:75, 2] = np.nan
    found = peer_returns(drawn, pd.bdate_range("2020-01-01", periods=130))
    assert np.isnan(found[-1, :4]).tolist() == [False, False, True, False]
    assert found[-1, 0] == in_float64(drawn[-1, [1, 3]].mean())
    alone = peer_returns(drawn[:, :1], pd.bdate_range("2020-01-01", periods=130))
    assert np.isnan(alone).all()


@pytest.mark.slow
def test_no_feature_reads_a_later_bar_and_a_rescaled_past_changes_no_price_feature() -> None:
    bars, panel = made_bars(), made_panel()
    before = ranked_features(panel)[: DAY + 1]
    later = bars.copy()
    later.loc[
        later["session"] > SESSIONS[DAY], ["open", "high", "low", "close", "adj_close", "volume"]
    ] *= 3.3
    assert np.array_equal(ranked_features(made_panel(later))[: DAY + 1], before, equal_nan=True)
    rescaled = bars.copy()
    rescaled.loc[rescaled["symbol"] == STOCK, "adj_close"] *= 0.37  # a dividend after the last bar
    assert np.array_equal(ranked_features(made_panel(rescaled))[: DAY + 1], before, equal_nan=True)


def test_a_history_shorter_than_a_feature_leaves_it_missing() -> None:
    bars = made_bars()
    found = ranked_features(made_panel(bars[bars["session"] < SESSIONS[30]]))
    names = list(FEATURES)
    assert np.isnan(found[..., names.index("momentum_250")]).all()
    assert np.isfinite(found[-1, 3:, names.index("return_20")]).all()
    assert np.isnan(outcomes(made_panel(bars[bars["session"] < SESSIONS[3]]), "five_days")).all()


def test_ranks_lie_between_minus_and_plus_one_half_share_ties_and_keep_what_is_missing() -> None:
    found = ranked(np.array([[3.0, 1.0, 1.0, np.nan, 9.0], [np.nan, 5.0, np.nan, np.nan, np.nan]]))
    assert_arrays_close_in_float64(found[0], [1 / 6, -1 / 3, -1 / 3, np.nan, 0.5])
    assert_arrays_close_in_float64(found[1], [np.nan, 0.0, np.nan, np.nan, np.nan])


def test_a_bar_without_volume_is_none_unless_the_source_has_no_volumes() -> None:
    bars, third = made_bars(), 2
    assert np.isnan(made_panel(bars).close[100:103, third]).all()
    none = made_panel(bars.assign(volume=0.0))
    assert np.isfinite(none.close[100:103, third]).all()
    early = (bars["symbol"] == "S02") & (bars["session"] < SESSIONS[200])
    later = bars.assign(volume=bars["volume"].mask(early, 0.0))
    assert np.isfinite(
        made_panel(later).close[100:103, third]
    ).all()  # nobody knew of volumes to come


def test_all_four_prices_are_adjusted_by_one_factor() -> None:
    bars = made_bars()
    halved = bars.assign(
        adj_close=np.where(bars["session"] < SESSIONS[150], bars["close"] / 2, bars["close"])
    )
    panel, whole = made_panel(halved), made_panel(bars)
    for name in ("open", "high", "low", "close"):
        assert_arrays_close_in_float64(getattr(panel, name)[:150], getattr(whole, name)[:150] / 2)
    assert np.array_equal(panel.value, whole.value, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("leg", LEGS)
def test_a_leg_is_the_ratio_of_its_two_prices_and_needs_the_bars_it_says(leg: str) -> None:
    stock = one(made_bars())
    opened, close = stock["open"], stock["close"]
    expected = {
        "next_close": close.shift(-1) / close,
        "overnight": opened.shift(-1) / close,
        "intraday": close.shift(-1) / opened.shift(-1),
        "open_to_open": opened.shift(-2) / opened.shift(-1),
        "second_close": close.shift(-2) / close.shift(-1),
        "five_days": opened.shift(-6) / opened.shift(-1),
        "ten_days": opened.shift(-11) / opened.shift(-1),
        "twenty_days": opened.shift(-21) / opened.shift(-1),
    }[leg].to_numpy() - 1
    panel = made_panel()
    found = outcomes(panel, leg)[:, panel.symbols.index(STOCK)]  # type: ignore[arg-type]
    assert_arrays_close_in_float64(found, expected)
    assert np.isnan(found).sum() == sessions_to(leg)  # type: ignore[arg-type]


def test_prices_of_closes_alone_measure_no_return_from_or_to_an_open() -> None:
    bars = made_bars()
    closes = bars.assign(open=bars["close"], high=bars["close"], low=bars["close"])
    closes["adj_close"] = closes["close"] * 0.97
    panel = made_panel(closes)
    assert not has_opens(panel)
    assert measured_legs(panel) == ("next_close", "second_close")
    for leg in LEGS:
        if leg in measured_legs(panel):
            assert np.isfinite(History.of(panel, leg).outcome).any()
            continue
        with pytest.raises(DtmlError, match=rf"{leg} .*closes alone:.*next_close or second_"):
            History.of(panel, leg)
    closes.loc[3, "open"] *= 1.001  # one open of its own
    assert measured_legs(made_panel(closes)) == LEGS


def test_a_change_of_unit_is_no_outcome_and_no_feature_reads_across_it() -> None:
    bars = made_bars()
    bars.loc[
        (bars["symbol"] == STOCK) & (bars["session"] >= SESSIONS[DAY]),
        ["open", "high", "low", "close"],
    ] *= 10
    panel = made_panel(bars.assign(adj_close=bars["close"]))
    column = panel.symbols.index(STOCK)
    assert np.isnan(outcomes(panel, "next_close", max_return=0.5)[DAY - 1, column])
    assert np.isnan(outcomes(panel, "five_days", max_return=0.5)[DAY - 6 : DAY, column]).all()
    assert np.isfinite(outcomes(panel, "next_close", max_return=0.5)[DAY, column])
    names = list(FEATURES)
    after = ranked_features(panel, max_return=0.5)[DAY, column]
    assert np.isnan(after[names.index("return_1")])
    assert np.isfinite(after[names.index("session")])


def test_an_open_far_from_the_close_before_it_begins_and_ends_no_return() -> None:
    bars = made_bars()
    bars.loc[(bars["symbol"] == STOCK) & (bars["session"] == SESSIONS[DAY]), "open"] *= 2
    panel = made_panel(bars)
    column = panel.symbols.index(STOCK)
    for leg, gone in {
        "overnight": [DAY - 1],
        "intraday": [DAY - 1],
        "open_to_open": [DAY - 2, DAY - 1],
    }.items():
        found = outcomes(panel, leg, max_return=0.5)[:, column]  # type: ignore[arg-type]
        missing = np.flatnonzero(np.isnan(found[: DAY + 2]))
        assert missing.tolist() == gone
    assert np.isfinite(outcomes(panel, "next_close", max_return=0.5)[: DAY + 2, column]).all()


def test_a_change_of_unit_over_sessions_without_a_bar_is_no_outcome_either() -> None:
    bars = made_bars()
    bars.loc[
        (bars["symbol"] == STOCK) & (bars["session"] >= SESSIONS[DAY]),
        ["open", "high", "low", "close"],
    ] *= 10
    refused = (bars["symbol"] == STOCK) & (bars["session"] == SESSIONS[DAY])
    panel = made_panel(bars.assign(adj_close=bars["close"])[~refused])
    column = panel.symbols.index(STOCK)
    assert not np.isfinite(
        outcomes(panel, "five_days", max_return=0.5)[DAY - 6 : DAY + 1, column]
    ).any()
    assert np.isfinite(outcomes(panel, "five_days", max_return=0.5)[DAY + 1, column])


def test_a_change_of_unit_of_one_stock_moves_no_market_return() -> None:
    bars = made_bars()
    times = np.where((bars["symbol"] == "S05") & (bars["session"] >= SESSIONS[DAY]), 10, 1)
    torn = bars.assign(
        **{name: bars[name] * times for name in ("open", "high", "low", "close", "adj_close")}
    )
    bars = bars[(bars["symbol"] != "S05") | (bars["session"] != SESSIONS[DAY])]
    torn = torn[(torn["symbol"] != "S05") | (torn["session"] != SESSIONS[DAY])]
    column = made_panel(bars).symbols.index(STOCK)
    whole, found = (
        Bars.of(made_panel(each), max_return=0.5).market[DAY + 1, column] for each in (bars, torn)
    )
    assert abs(found - whole) < 0.02  # and not 900 % of a seventh


def test_a_ridge_is_scikit_learns() -> None:
    drawn = np.random.default_rng(5)
    x, y = drawn.uniform(-0.5, 0.5, (311, 13)), drawn.uniform(-0.5, 0.5, 311)
    ours = fit_ridge(x, y, RidgeConfig(penalty=0.3)).score(x)
    theirs = TheirRidge(alpha=0.3 * 311 / 12, fit_intercept=False).fit(x, y).predict(x)
    assert_arrays_close_in_float64(ours, theirs)


def test_a_boosting_in_arrays_is_that_of_scikit_learn_also_where_features_are_missing() -> None:
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


def test_the_slope_of_the_probabilities_is_that_of_a_logistic_regression() -> None:
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
def test_equal_means_of_ranks_are_equal_blends_and_ordered_by_symbol(models: int) -> None:
    drawn, stocks = np.random.default_rng(models), 97
    days = [[drawn.permutation(stocks) for _ in range(40)] for _ in range(models)]
    blends = blend({str(name): np.array(each, dtype=float) for name, each in enumerate(days)})
    totals = np.sum(days, axis=0)
    symbols = tuple(f"S{number:02}" for number in drawn.permutation(stocks))
    for found, total in zip(blends, totals, strict=True):
        assert len(np.unique(found)) == len(np.unique(total))
        order = ranking_of_day({"blend": found}, {}, symbols)
        by_hand = sorted(range(stocks), key=lambda stock: (-total[stock], symbols[stock]))
        assert order["symbol"].tolist() == [symbols[stock] for stock in by_hand]
        assert order["place"].tolist() == list(range(1, stocks + 1))


def test_a_model_without_a_known_outcome_is_an_error() -> None:
    x, y = np.zeros((0, 2)), np.zeros(0)
    with pytest.raises(DtmlError, match=r"no stock-day.*known outcome"):
        fit_ridge(x, y, RidgeConfig())
    with pytest.raises(DtmlError, match=r"no stock-day.*known outcome"):
        fit_boosting(x, y, BoostingConfig())


def leading(seed: int = 3) -> History:
    """A market in which yesterday's losers win today."""
    bars = made_bars(stocks=23, seed=seed)
    grid = bars.pivot(index="session", columns="symbol", values="close").to_numpy()
    r = np.diff(np.log(grid), axis=0, prepend=np.nan)
    r[2:] -= 0.6 * np.nan_to_num(r[1:-1])
    close = 50 * np.exp(np.cumsum(np.nan_to_num(r), axis=0))
    wide = pd.DataFrame(close, index=SESSIONS, columns=sorted(bars["symbol"].unique()))
    made = bars.assign(
        made=wide.to_numpy()[
            bars["session"].map(SESSIONS.get_loc), bars["symbol"].str[1:].astype(int)
        ]
    )
    factor = made["made"] / made["close"]
    made = made.assign(
        **{name: made[name] * factor for name in ("open", "high", "low", "close", "adj_close")}
    )
    symbols = tuple(sorted(made["symbol"].unique()))
    return History.of(
        panel_of(made, sessions=SESSIONS, symbols=symbols, returns="adj_close"), "next_close"
    )


@pytest.mark.slow
def test_a_walk_finds_what_is_there_and_its_folds_know_no_outcome_of_what_they_score() -> None:
    history = leading()
    walked = folds(history, SESSIONS[280], SESSIONS[400])
    assert [fold.scored for fold in walked] == [
        slice(280, 280 + RETRAIN_EVERY),
        slice(280 + RETRAIN_EVERY, 401),
    ]
    for fold in walked:
        assert fold.trained.stop - 1 + sessions_to(history.leg) + GAP == fold.scored.start
    scores = walk(history, walked, RankersConfig(boosting=BoostingConfig(trees=20, rows_a_leaf=50)))
    np.testing.assert_array_equal(
        scores["blend"], blend({name: scores[name] for name in ("ridge", "boosting")})
    )
    days = slice(280, 400)
    for name, found in scores.items():
        assert np.isnan(found[:280]).all()
        both = np.isfinite(found[days]) & np.isfinite(history.relative[days])
        assert np.corrcoef(found[days][both], history.relative[days][both])[0, 1] > 0.2, name


@pytest.mark.slow
def test_later_bars_change_no_score_of_a_walk() -> None:
    history, cut = leading(), 340
    torn = replace(
        history,
        features=np.concatenate([history.features[:cut], -history.features[cut:]]),
        outcome=np.concatenate([history.outcome[: cut - 1], -3 * history.outcome[cut - 1 :]]),
    )
    walked = folds(history, SESSIONS[280], SESSIONS[400])
    config = RankersConfig(boosting=BoostingConfig(trees=5, rows_a_leaf=50))
    one, other = (walk(each, walked, config) for each in (history, torn))
    for name, scores in one.items():
        assert np.array_equal(scores[:cut], other[name][:cut], equal_nan=True)


def test_a_walk_that_begins_too_early_says_what_to_do() -> None:
    with pytest.raises(DtmlError, match=r"begin later.*before 2020-01-02"):
        folds(leading(), SESSIONS[100], SESSIONS[200])


def test_days_whose_outcomes_are_equal_have_no_order_to_find() -> None:
    history = leading()
    flat = replace(history, outcome=np.zeros_like(history.outcome))
    with pytest.raises(DtmlError, match="known outcomes that differ"):
        folds(flat, SESSIONS[280], SESSIONS[400])


def test_every_rule_orders_by_its_feature() -> None:
    features = ranked_features(made_panel())
    for rule, (name, sign) in RULES.items():
        expected = sign * features[DAY, :, list(FEATURES).index(name)]
        np.testing.assert_array_equal(rule_scores(features, rule)[DAY], expected)
    assert HISTORY == 296


def test_a_relative_outcome_does_not_know_what_all_stocks_did_together() -> None:
    found = outcomes(made_panel(), "next_close")
    together = np.random.default_rng(1).standard_normal((len(found), 1))
    assert np.array_equal(ranked(found), ranked(found + together), equal_nan=True)
