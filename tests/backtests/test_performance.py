"""Statistics of a portfolio: against another library's figures, by hand, and
what intervals promise.
"""

import numpy as np
import pandas as pd
import pytest

from dtml.backtest.performance import (
    deflated_sharpe,
    drawdown,
    equity,
    expected_best,
    performance,
    session_sharpe,
    sharpe,
)
from tests.support.bounds import as_printed, in_float64

DAYS, RESAMPLES = 300, 499


def track_of(net, turnover=0.5, paid=0.0, borrow=0.0):
    earned = {"net": net, "turnover": turnover, "borrow": borrow, "gross": net + paid + borrow}
    return pd.DataFrame(earned | {"settled": 0, "unbooked": 0.0})


@pytest.fixture
def net():
    return np.random.default_rng(0).normal(0.0005, 0.01, DAYS)


def test_the_standard_statistics_are_those_of_empyrical(net):
    """Golden numbers printed by empyrical-reloaded 0.7.1 for these 300 returns:
    annual_return and so on.
    """
    found = performance(track_of(net), trials=[session_sharpe(net)], resamples=RESAMPLES)
    assert found.days == DAYS
    assert found.annual_return == in_float64(0.022951861578771826)
    assert found.annual_volatility == in_float64(0.16184381677326068)
    assert found.sharpe == in_float64(0.22083857554449943)
    assert found.max_drawdown == in_float64(-0.15107926999942237)
    assert found.sharpe_low < found.sharpe < found.sharpe_high


def test_four_days_by_hand():
    """1 becomes 1.1, 0.99, 0.99 and 1.0395; mean 0.0125; deviations .0875,
    -.1125, -.0125, .0375 squared: .021875.
    """
    net = np.array([0.1, -0.1, 0.0, 0.05])
    found = performance(
        track_of(net, turnover=0.5, paid=0.001, borrow=0.0005), trials=[0.1], resamples=RESAMPLES
    )
    assert equity(net) == in_float64([1.1, 0.99, 0.99, 1.0395])
    assert drawdown(net) == in_float64([0, -0.1, -0.1, 1.0395 / 1.1 - 1])
    assert found.annual_return == in_float64(1.0395**63 - 1)
    assert found.annual_volatility == in_float64((0.021875 / 3 * 252) ** 0.5)
    daily = performance(track_of(net), trials=[0.1], resamples=RESAMPLES, year=365)
    assert daily.annual_return == in_float64(1.0395 ** (365 / 4) - 1)
    assert found.sharpe == in_float64(0.0125 / (0.021875 / 3) ** 0.5 * 252**0.5)
    assert found.max_drawdown == in_float64(-0.1)
    assert found.hit_rate == 0.5
    assert found.turnover == 0.5
    assert found.break_even == in_float64((0.0125 + 0.001) / 0.5 * 1e4)
    assert np.isnan([found.sharpe_low, found.sharpe_high]).all()


def test_a_loss_on_the_first_day_is_a_drawdown():
    assert drawdown(np.array([-0.2, 0.1])) == in_float64([-0.2, -0.12])


def test_without_trading_there_is_no_break_even_and_without_variation_no_sharpe():
    idle = track_of(np.zeros(DAYS), turnover=0.0)
    found = performance(idle, trials=[np.nan, 0.1], resamples=RESAMPLES)
    of_variation = (found.sharpe, found.sharpe_low, found.sharpe_high, found.deflated_sharpe)
    assert np.isnan([found.break_even, *of_variation]).all()
    assert (found.annual_return, found.annual_volatility, found.max_drawdown) == (0, 0, 0)


def test_the_interval_of_the_sharpe_ratio_holds_the_true_one_about_95_times_in_100():
    """400 series of 131 independent days, of fat tails and a Sharpe ratio of 0.1 per session."""
    noise = np.random.default_rng(2).standard_t(5, (131, 400)) / np.sqrt(5 / 3)
    ends = [sharpe(each, resamples=RESAMPLES) for each in 0.01 * (noise + 0.1).T]
    true = 0.1 * np.sqrt(252)
    assert 0.92 < np.mean([each.low < true < each.high for each in ends]) < 0.98


def test_the_probabilistic_sharpe_ratio_by_hand():
    """The formula of Bailey & Lopez de Prado (2012), worked out on paper.

    Of -1, 0, 0, 1, 2 percent: mean 0.4, deviations -1.4, -.4, -.4, .6, 1.6. Squares 1.96 .16 .16
    .36 2.56 add up to
    5.2: of a population 1.04, of a sample 1.3, so the ratio is .4 / sqrt(1.3) = .350823. Cubes
    -2.744 -.064 -.064 .216 4.096 add up to 1.44: skew .288 / 1.04^1.5 = .271545. Fourth powers
    3.8416 .0256 .0256 .1296 6.5536 add up
    to 10.576: kurtosis 2.1152 / 1.0816 = 1.955621. Error: sqrt(1 - .271545 * .350823 + .955621 / 4
    * .350823^2) = sqrt(1 - .095264 + .029404) = .966510. Phi(.350823 * 2 / .966510) = Phi(.725958)
    = .7661.
    """
    net = np.array([-0.01, 0.0, 0.0, 0.01, 0.02])
    assert session_sharpe(net) == as_printed(0.350823, 6)
    assert deflated_sharpe(net, [session_sharpe(net)]) == as_printed(0.7661, 4)


def test_the_best_of_ten_tries_by_hand():
    """Ten ratios of sample variance 0.01: 0.1 times (1 - .577216) z(.9) + .577216 z(1 - .1 / e).

    Tables: z(.9) = 1.281552 and z(.963212) = 1.789240, so .541818 + 1.032777 = 1.574595.
    """
    tries = np.tile([-1.0, 1.0], 5) * 0.1 * np.sqrt(9 / 10)
    assert expected_best(tries.tolist()) == as_printed(0.1574595, 5)  # of tables of six digits
    assert expected_best([0.3]) == expected_best([0.3, np.nan]) == expected_best([0.05] * 10) == 0


def test_a_portfolio_is_told_from_the_index_on_the_same_sessions_though_their_own_intervals_meet(
    net,
):
    """It follows the index and adds a little each session."""
    days = pd.bdate_range("2021-01-01", periods=DAYS)
    little = 0.0004 + 0.0002 * np.random.default_rng(12).standard_normal(DAYS)
    track, index = (track_of(each).assign(session=days) for each in (net + little, net))
    found = performance(track, trials=None, index=index, resamples=RESAMPLES)
    alone = performance(index, trials=None, resamples=RESAMPLES)
    assert found.sharpe_low < alone.sharpe_high
    assert 0 < found.index_gain_low < found.index_gain < found.index_gain_high
    assert found.index_gain == in_float64(found.sharpe - alone.sharpe)
    # what was not tried is not deflated
    assert np.isnan([alone.index_gain, alone.deflated_sharpe]).all()
