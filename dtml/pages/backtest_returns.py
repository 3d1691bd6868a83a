"""The returns of a backtest's portfolios as its page shows them: ratios, drawdowns and charts.

Returns are shares of the equity at the fill, after costs where they are called net. Ratios are a
year's, of `year` sessions, without a risk-free rate. What is missing is NaN.
"""

from collections.abc import Collection, Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from dtml.backtest.performance import drawdown
from dtml.evaluation.metrics import MINIMUM_DAYS
from dtml.pages.charts import Chart, Panel, cells, over_sessions
from dtml.pages.figures import day

ROLLED = 63  # sessions of a rolling ratio
DRAWDOWNS = 5  # the deepest ones
BARS = 41  # of a histogram
EXTREMES = 5  # best and worst sessions and months
INDEX = "index"  # the portfolio that holds the index
MONTHS = tuple(f"{pd.Timestamp(2000, month, 1):%b}" for month in range(1, 13))

Net = Mapping[str, "pd.Series[float]"]  # by portfolio


def yearly(tracks: pd.DataFrame, portfolio: str, year: int) -> dict[str, float]:
    """Return a portfolio's `gross`, `costs` and `borrow` of a year, and `end`; NaN without rows.

    `gross` is the geometric return before costs. `costs` (of trades) and `borrow` (of borrowing)
    are the mean costs of a session times the sessions of a year. `end` is the final value of an
    initial 1 after costs.
    """
    rows = tracks[tracks["portfolio"] == portfolio]
    if rows.empty:
        return {"gross": np.nan, "costs": np.nan, "borrow": np.nan, "end": np.nan}
    return {
        "gross": float(np.prod(1 + rows["gross"]) ** (year / len(rows)) - 1),
        "costs": float(year * rows["cost"].mean()),
        "borrow": float(year * rows["borrow"].mean()),
        "end": float(np.prod(1 + rows["net"])),
    }


def year_returns(net: Net) -> dict[int, dict[str, float]]:
    """Return the net return of each portfolio in each calendar year.

    It is that over the portfolio's sessions in the year, NaN without any.
    """
    by_year = {
        portfolio: (1 + line).groupby(pd.DatetimeIndex(line.index).year).prod() - 1
        for portfolio, line in net.items()
    }
    years: set[int] = set()
    for returns in by_year.values():
        years.update(int(year) for year in returns.index)
    rows: dict[int, dict[str, float]] = {}
    for year in sorted(years):
        rows[year] = {}
        for portfolio, returns in by_year.items():
            rows[year][portfolio] = float(returns.get(year, np.nan))
    return rows


def ratios(
    net_returns: "pd.Series[float] | None", index: "pd.Series[float] | None", year: int
) -> dict[str, float]:
    """Return `sortino`, `calmar`, `value_at_risk`, `expected_shortfall` and `beta` of a portfolio.

    Sortino is the mean return over the downside deviation, scaled to a year; Calmar is the return
    of a year over the deepest drawdown. The value at risk is the return that one session in twenty
    falls below, the shortfall the mean of the returns that are not above it; `beta` is the slope on
    the index's return over the sessions of both. `net_returns` are those of the portfolio's
    sessions, None without any, and `index` those of the index, None without one: `beta` is then
    NaN. All are NaN with fewer than `MINIMUM_DAYS` sessions, or without returns; a ratio whose
    denominator is 0 is NaN too.
    """
    if net_returns is None or len(net_returns) < MINIMUM_DAYS:
        return {
            "sortino": np.nan,
            "calmar": np.nan,
            "value_at_risk": np.nan,
            "expected_shortfall": np.nan,
            "beta": np.nan,
        }
    downside_deviation = float(np.sqrt((net_returns.clip(upper=0) ** 2).mean()))
    sortino = np.nan
    if downside_deviation:
        sortino = float(net_returns.mean()) / downside_deviation * np.sqrt(year)
    deepest = float(drawdown(net_returns.to_numpy()).min())
    annual_return = float(
        np.prod(1 + net_returns.to_numpy(dtype=float)) ** (year / len(net_returns)) - 1
    )
    value_at_risk = float(net_returns.quantile(0.05))
    return {
        "sortino": sortino,
        "calmar": annual_return / -deepest if deepest else np.nan,
        "value_at_risk": value_at_risk,
        "expected_shortfall": float(net_returns[net_returns <= value_at_risk].mean()),
        "beta": np.nan if index is None else _beta(net_returns, index),
    }


def _beta(net_returns: "pd.Series[float]", index: "pd.Series[float]") -> float:
    """Return the slope of net returns on the index, NaN where the index does not move."""
    paired = pd.concat([net_returns, index], axis=1, join="inner").to_numpy()  # [sessions 2]
    index_variance = paired[:, 1].var()
    if not index_variance:
        return np.nan
    return float(np.cov(paired.T, ddof=0)[0, 1] / index_variance)


def drawdowns(line: "pd.Series[float]") -> list[dict[str, Any]]:
    """Return the `DRAWDOWNS` deepest drawdowns of a line of net returns, the deepest first.

    Each has `first` (the first session below a peak), `lowest` (the session of the lowest value),
    `depth` (a share of the peak, below 0), `recovered` (the session back at the peak; None: not
    yet) and `sessions` (the number of those below the peak).
    """
    depth = pd.Series(drawdown(line.to_numpy()), line.index)
    below = depth < 0
    # Each session at a peak starts a new number, which the sessions below that peak share.
    peak_number = (~below).cumsum()
    spells: list[dict[str, Any]] = []
    for _, spell in depth[below].groupby(peak_number[below]):
        is_later = depth.index > spell.index[-1]
        later = depth.index[is_later]  # the first of them is back at the peak
        spells.append(
            {
                "first": spell.index[0],
                "lowest": spell.idxmin(),
                "depth": float(spell.min()),
                "recovered": later[0] if len(later) else None,
                "sessions": len(spell),
            }
        )
    return sorted(spells, key=lambda spell: spell["depth"])[:DRAWDOWNS]


def tracks_chart(
    net: Net, hidden: Collection[str], dashed: Collection[str], shaded: str | None = None
) -> Chart | None:
    """Return the value of an initial 1 and the drawdown of portfolios, on one axis of time.

    `hidden` portfolios are drawn once a reader switches them on, `dashed` ones are drawn dashed.
    `shaded` is the portfolio whose drawdowns are shaded, from its value up to the highest so far.
    The chart begins on the evening before each portfolio's first session; None without portfolios.
    """
    value_lines = {}
    drawdown_lines = {}
    for portfolio, line in net.items():
        value_lines[portfolio] = _since((1 + line).cumprod(), 1.0)
        depth = pd.Series(drawdown(line.to_numpy()), line.index)
        drawdown_lines[portfolio] = _since(depth, 0.0)
    bands = {}
    if shaded in value_lines:
        value = value_lines[shaded]
        bands[shaded] = pd.DataFrame({"low": value, "high": value.cummax()})
    panels = [
        Panel("value of 1, after costs", value_lines, base=1.0, height=230, bands=bands),
        Panel("drawdown", drawdown_lines, form="percent", base=0.0, height=90),
    ]
    return over_sessions("Each portfolio after costs", panels, hidden=hidden, dashed=dashed)


def rolling_chart(net: Net, year: int) -> Chart | None:
    """Return the Sharpe ratio, volatility and beta of portfolios over their last sessions.

    Each point covers the last `ROLLED` sessions. Beta is the slope on the index's return: how far a
    portfolio is exposed to the index. None where fewer than two days have values.
    """
    sharpe_lines = {}
    volatility_lines = {}
    beta_lines = {}
    for portfolio, line in net.items():
        window = line.rolling(ROLLED)
        deviation = window.std()
        # Returns that are all equal have no ratio.
        sharpe = window.mean() / deviation.replace(0, np.nan) * np.sqrt(year)
        sharpe_lines[portfolio] = sharpe.dropna()
        volatility_lines[portfolio] = (deviation * np.sqrt(year)).dropna()
        if INDEX in net and portfolio != INDEX:
            beta_lines[portfolio] = rolling_beta(line, net[INDEX])
    panels = [
        Panel("Sharpe ratio", sharpe_lines, form="number", base=0.0, height=120),
        Panel("volatility a year", volatility_lines, form="percent", base=0.0, height=120),
        Panel("beta on the index", beta_lines, form="number", base=0.0, height=120),
    ]
    title = f"Each portfolio over its last {ROLLED} sessions"
    return over_sessions(title, panels)


def rolling_beta(line: "pd.Series[float]", index: "pd.Series[float]") -> "pd.Series[float]":
    """Return the slope of a line of returns on the index over the last `ROLLED` sessions of both.

    A window in which the index does not move has none, and is left out.
    """
    paired = pd.concat([line, index], axis=1, join="inner")
    paired.columns = pd.Index(["line", "index"])
    covariance = paired["line"].rolling(ROLLED).cov(paired["index"])
    variance = paired["index"].rolling(ROLLED).var().replace(0, np.nan)
    return (covariance / variance).dropna()


def extremes(line: "pd.Series[float]") -> list[dict[str, Any]]:
    """Return the `EXTREMES` best and worst sessions and months of a line of net returns.

    Each row has `place` from 1 on, and `best_day, best_day_return`, `worst_day, ...`, `best_month,
    ...` and `worst_month, ...`. At most half of the sessions, and of the months, are among the
    best and as many among the worst, so that none is among both; place 1 is the most extreme. Where
    there are fewer months than sessions in the list, the last rows have None and NaN for them.
    """
    months = month_returns(line)
    sessions = pd.Series(line.to_numpy(dtype=float), [day(each) for each in line.index])
    columns: dict[str, list[tuple[str, float]]] = {}
    for name, values in {"day": sessions, "month": months}.items():
        ordered = values.sort_values(ascending=False, kind="stable")
        count = min(EXTREMES, len(ordered) // 2)
        best = ordered.iloc[:count]
        worst = ordered.iloc[len(ordered) - count :].iloc[::-1]
        columns[f"best_{name}"] = list(zip(best.index.astype(str), best, strict=True))
        columns[f"worst_{name}"] = list(zip(worst.index.astype(str), worst, strict=True))
    rows = []
    for place in range(max(len(values) for values in columns.values())):
        row: dict[str, Any] = {"place": place + 1}
        for name, dated_returns in columns.items():
            has_value = place < len(dated_returns)
            row[name] = dated_returns[place][0] if has_value else None
            row[f"{name}_return"] = dated_returns[place][1] if has_value else np.nan
        rows.append(row)
    return rows


def month_returns(line: "pd.Series[float]") -> "pd.Series[float]":
    """Return the compounded return of each month, by its name such as 2016-06."""
    months = pd.DatetimeIndex(line.index).strftime("%Y-%m")
    return (1 + line).groupby(months).prod() - 1


def _since(line: "pd.Series[float]", start: float) -> "pd.Series[float]":
    """Return a line that begins with `start` on the evening before its first session."""
    evening_before = line.index[0] - pd.Timedelta(days=1)
    return pd.concat([pd.Series([start], index=[evening_before]), line])


def months_chart(name: str, line: "pd.Series[float]") -> Chart:
    """Return a map of the returns of each month, with a row for each year."""
    returns = month_returns(line)
    rows = pd.DataFrame(
        {
            "x": [MONTHS[int(str(month)[5:]) - 1] for month in returns.index],
            "y": returns.index.str[:4],
            "value": returns.to_numpy(dtype=float),
        }
    )
    words = f"from {100 * rows['value'].min():.1f} % to {100 * rows['value'].max():.1f} %"
    # A cell for each month of these years: those without a return stay empty.
    calendar = pd.DataFrame(product(sorted(set(rows["y"])), MONTHS), columns=["y", "x"])
    return cells(
        f"Net return of each month, {name}",
        words,
        calendar[["x", "y"]].merge(rows, how="left"),
        (44, 24),  # width and height of a cell, in pixels
        "percent",
        is_signed=True,
        is_written=True,
    )


def histogram(name: str, line: "pd.Series[float]") -> Chart:
    """Return how often each return of a session occurred."""
    counts, edges = np.histogram(line, bins=BARS)
    rows = pd.DataFrame({"low": edges[:-1], "high": edges[1:], "sessions": counts})
    words = f"{len(line)} sessions, from {100 * line.min():.1f} % to {100 * line.max():.1f} %"
    return Chart(f"Net returns of sessions, {name}", words, "histogram", {"rows": rows})
