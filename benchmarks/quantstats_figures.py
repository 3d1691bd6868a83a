"""Compare a backtest's figures with those of quantstats, which must be installed (0.0.86).

`python -m benchmarks.quantstats_figures` makes the returns of a portfolio and of an index, and
prints each figure that both compute, as dtml and as quantstats compute it. It exits with 1 if any
two differ. Their values at risk differ on purpose: quantstats assumes a normal distribution.
"""

import sys
from collections.abc import Iterator

import numpy as np
import pandas as pd

from dtml.backtest.performance import drawdown, session_sharpe
from dtml.evaluation.breakdowns import ROLLING_SESSIONS
from dtml.markets.definition import YEAR
from dtml.pages.backtest import extremes, month_returns, ratios, rolling_chart

CLOSE = 1e-9  # a relative difference of rounding alone
SESSIONS = 1000


def compared() -> Iterator[tuple[str, float, float]]:
    """Yield each figure: its name, as dtml computes it, and as quantstats does."""
    from quantstats import stats

    generator = np.random.default_rng(31)
    days = pd.bdate_range("2021-01-04", periods=SESSIONS)
    index = pd.Series(0.0003 + 0.01 * generator.standard_normal(SESSIONS), days)
    line = 0.6 * index + pd.Series(0.0002 + 0.006 * generator.standard_normal(SESSIONS), days)
    own = ratios(line, index, YEAR)
    net = line.to_numpy()
    yield "Sharpe", session_sharpe(net) * np.sqrt(YEAR), stats.sharpe(line)
    yield "volatility", float(line.std() * np.sqrt(YEAR)), stats.volatility(line)
    yield "Sortino", own["sortino"], stats.sortino(line)
    yield "largest drawdown", float(drawdown(net).min()), stats.max_drawdown((1 + line).cumprod())
    yield "beta", own["beta"], float(stats.greeks(line, index)["beta"])
    best = extremes(line)[0]
    yield "best session", best["best_day_return"], stats.best(line)
    yield "worst session", best["worst_day_return"], stats.worst(line)
    yield "best month", best["best_month_return"], stats.best(line, aggregate="eom")
    yield "worst month", best["worst_month_return"], stats.worst(line, aggregate="eom")
    months = stats.monthly_returns(line, eoy=False)
    last = pd.Timestamp(month_returns(line).index[-1])
    its_last = float(months.loc[str(last.year), f"{last:%b}".upper()])
    yield "last month", float(month_returns(line).iloc[-1]), its_last
    chart = rolling_chart({"long, next open": line, "index": index}, YEAR)
    assert chart is not None
    sharpe, volatility, beta = (float(chart.data[f"panel{n}"]["v0"].iloc[-1]) for n in range(3))
    theirs = {
        "rolling Sharpe": stats.rolling_sharpe(line, rolling_period=ROLLING_SESSIONS),
        "rolling volatility": stats.rolling_volatility(line, rolling_period=ROLLING_SESSIONS),
        "rolling beta": stats.rolling_greeks(line, index, periods=ROLLING_SESSIONS)["beta"],
    }
    for (name, values), value in zip(theirs.items(), (sharpe, volatility, beta), strict=True):
        yield name, value, float(values.iloc[-1])


def main() -> int:
    """Print the comparison, and return the exit code."""
    differing = 0
    for name, own, other in compared():
        is_equal = abs(own - other) <= CLOSE * max(abs(own), abs(other), 1)
        differing += not is_equal
        print(f"{name:<20} {own:>12.8f} {other:>12.8f}  {'equal' if is_equal else 'DIFFERENT'}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
