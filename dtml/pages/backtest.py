"""The report of a backtest: a verdict in sentences, Markdown tables and a self-contained HTML page.

Arguments, of the same names everywhere, hold the columns of db's tables: `backtest` those of a row
of `backtest`, its `config` with the experiment and the plan; `folds`, `scores`, `tracks`,
`performances` those of `backtest_fold`, `backtest_score`, `backtest_return`, `backtest_portfolio`.
Returns are shares of the equity at the fill; a year has the sessions of the calendar. Missing
values, NaN or None, are printed as "-".
"""

import json
from collections.abc import Collection, Mapping
from functools import cache
from itertools import product
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from dtml.backtest.performance import drawdown
from dtml.baselines.naive_rules import MODEL, NAIVE_RULES
from dtml.evaluation.family import beside_strongest_rule
from dtml.evaluation.metrics import MINIMUM_DAYS, told_apart
from dtml.markets.definition import YEAR
from dtml.pages.benchmark import PROTOCOL_WORDS, sample
from dtml.pages.charts import (
    Chart,
    Form,
    Panel,
    calibration,
    cells,
    environment,
    over_sessions,
    script,
)
from dtml.pages.figures import (
    NO_INTERVAL,
    Row,
    basis_points,
    count,
    counted,
    day,
    figure,
    in_print,
    kind_of,
    markdown_table,
    percent,
    quoted,
    records,
    signed_percent,
    with_interval,
    written,
)
from dtml.pages.survivorship import of_backtest

_STOCKS_SHOWN = 10  # stocks at either end of the table
FOLD_FIGURES = ("validation_acc", "acc", "acc_low", "acc_high", "mcc", "mcc_low", "mcc_high")


def year_rows(scores: pd.DataFrame) -> dict[str, dict[str, Row]]:
    """Return the scores of each year on all stock-days: by year, then by predictor."""
    rows = sliced(scores, "year", "all")
    by_year: dict[str, dict[str, Row]] = {}
    for row in sorted(rows, key=lambda row: str(row["value"])):
        by_year.setdefault(row["value"], {})[row["predictor"]] = row
    return by_year


def fold_rows(folds: pd.DataFrame, scores: pd.DataFrame) -> list[dict[str, Any]]:
    """Return each fold with the model's scores on all stock-days; NaN without an outcome."""
    fold_scores = {
        row["value"]: row for row in sliced(scores, "fold", "all") if row["predictor"] == MODEL
    }
    missing = dict.fromkeys(FOLD_FIGURES, np.nan)
    # Later entries replace earlier ones: a fold's own `validation_acc`, if it has one, is kept.
    return [
        {
            **missing,
            **fold_scores.get(str(fold["number"]), {}),
            **fold,
        }
        for fold in records(folds)
    ]


def stock_rows(scores: pd.DataFrame) -> dict[str, Any]:
    """Return the model's scores of the stocks with the highest and the lowest MCC.

    `best` and `worst` are these stocks, each from the highest MCC down and none in both; `measured`
    counts the stocks that have an interval, `above` those whose interval is above 0.
    """
    of_stocks = (
        (scores["slice"] == "symbol")
        & (scores["protocol"] == "all")
        & (scores["predictor"] == MODEL)
    )
    stocks = scores[of_stocks].dropna(subset=["mcc"])
    stocks = stocks.sort_values(["mcc", "value"], ascending=[False, True])
    best_count = min(_STOCKS_SHOWN, (len(stocks) + 1) // 2)  # at most the better half
    first_worst = max(best_count, len(stocks) - _STOCKS_SHOWN)
    return {
        "best": records(stocks.iloc[:best_count]),
        "worst": records(stocks.iloc[first_worst:]),
        "measured": int(stocks["mcc_low"].notna().sum()),
        "above": int((stocks["mcc_low"] > 0).sum()),
    }


def sliced(scores: pd.DataFrame, name: str, protocol: str) -> list[dict[str, Any]]:
    """Return the scores of a breakdown, the model before the rules."""
    is_sliced = (scores["slice"] == name) & (scores["protocol"] == protocol)
    rows = records(scores[is_sliced])
    return sorted(rows, key=lambda row: bool(row["predictor"] != MODEL))


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


# The portfolios that follow no prediction.
EQUAL_WEIGHT = "equal weight"
YARDSTICKS = (INDEX, EQUAL_WEIGHT)
# Ends the name of a portfolio filled at the close before its predictions: not tradable.
PAPER_SUFFIX = "(the paper's)"
BASELINES = {"acc": 0.5, "mcc": 0.0, "rank_ic": 0.0}  # of predictions without skill
SCORE_COLUMNS = ("predictor", "ACC [95 %]", "MCC [95 %]")
PORTFOLIO_COLUMNS = (
    "portfolio",
    "return a year, net",
    "volatility",
    "Sharpe [95 %]",
    "deflated",
    "drawdown",
    "days above 0",
    "turnover a day",
    "break-even",
)


def verdict(backtest: Row, scores: pd.DataFrame, performances: pd.DataFrame) -> str:
    """Say what the backtest shows about directions, ranking and portfolios, a sentence for each."""
    sentences = (
        directions_verdict(backtest, scores),
        ranking_verdict(scores),
        portfolio_verdict(performances),
        "Nothing here promises profit.",
    )
    return " ".join(sentence for sentence in sentences if sentence)


def directions_verdict(backtest: Row, scores: pd.DataFrame) -> str:
    """Say whether DTML beats the strongest naive rule, on all stock-days, by MCC.

    Without scores of the model, or of a rule on as many days, the sentence says so.
    """
    rows = sliced(scores, "all", "all")
    model = rows[0] if rows and rows[0]["predictor"] == MODEL else None  # it comes first
    # Rules of fewer days than the model have too short a history to be compared with it.
    rules = [] if model is None else [row for row in rows[1:] if row["days"] == model["days"]]
    gains = pd.DataFrame(rules)
    best = beside_strongest_rule(gains, "model_gain", "predictor") if rules else None
    if model is None or best is None:
        return f"No prediction for {backtest['market']} has been scored beside a naive rule."
    difference = _difference(best, "model_gain")
    if difference and best["rules"] > 1:
        difference += f", an interval widened for {best['rules']} rules"
    return (
        f"DTML {best['verb'] or NO_INTERVAL} {quoted(best['predictor'])}, in hindsight the "
        f"strongest of {counted(best['rules'], 'naive rule')}, over "
        f"{counted(model['days'], 'day')} and {model['n']:,} stock-days of "
        f"{backtest['market']}{difference}. "
        f"DTML has an MCC of {with_interval(model, 'mcc')} and an ACC of "
        f"{with_interval(model, 'acc')}, the rule {written(best, 'mcc')} and "
        f"{written(best, 'acc')}."
    )


def ranking_verdict(scores: pd.DataFrame) -> str:
    """Say how well the probabilities rank the stocks of a day; empty without a rank IC.

    The ranking is compared with that of the rule that the losers of the day will rise.
    """
    rows = sliced(scores, "all", "all")
    model = next((row for row in rows if row["predictor"] == MODEL), None)
    if model is None or pd.isna(model["rank_ic"]):
        return ""
    return (
        "Its probabilities rank the stocks of a day with a rank IC of "
        f"{with_interval(model, 'rank_ic')}; this ranking {_compared(model, 'rank_gain')} "
        f'"the day\'s losers rise"{_difference(model, "rank_gain")}.'
    )


def portfolio_verdict(performances: pd.DataFrame) -> str:
    """Say for which tradable portfolios the interval of the net Sharpe ratio is above 0.

    Say also whether these portfolios beat the index, if there is one, and what share of portfolios
    chance alone puts above 0. If there are none, compare the portfolio of the highest Sharpe ratio
    with the index instead. Where no portfolio is tradable, or none has an interval, the sentence
    says so.
    """
    rows = _ordered(performances)
    index = next((row for row in rows if row["portfolio"] == INDEX), None)  # None: no index
    traded = [row for row in rows if _is_traded(row["portfolio"])]
    if not traded:
        return "There is no tradable portfolio."
    if all(pd.isna(row["sharpe_low"]) for row in traded):
        days = max(row["days"] for row in traded)
        return f"{days:,} days are too few for an interval of any portfolio's return."
    by_sharpe = _by_sharpe(performances)
    above = [row for row in by_sharpe if _or_least(row["sharpe_low"]) > 0]
    # Where none is above 0, the portfolio of the highest Sharpe ratio is named.
    listed = "; ".join(_beside(row, index) for row in above or by_sharpe[:1])
    of_index = "" if index is None else f" The index has {with_interval(index, 'sharpe')}."
    if above:
        return (
            "The 95 % interval of the Sharpe ratio after costs lies above 0 for "
            f"{len(above)} of {len(traded)} tradable portfolios: {listed}.{of_index} Of "
            "portfolios whose true Sharpe ratio is 0, chance puts 2.5 % there."
        )
    return (
        "The 95 % interval of the Sharpe ratio after costs lies above 0 for none of "
        f"{len(traded)} tradable portfolios; the highest is that of {listed}.{of_index}"
    )


def _beside(row: Row, index: Row | None) -> str:
    """Return a portfolio and its Sharpe ratio in words, compared with the index if there is one."""
    portfolio = f"{quoted(row['portfolio'])} ({with_interval(row, 'sharpe')})"
    if index is None:
        return portfolio
    compared = _compared(row, "index_gain")
    return f"{portfolio}, which {compared} the index{_difference(row, 'index_gain')}"


def _compared(row: Row, gain: str) -> str:
    """Compare two figures by the interval of column `gain`, their difference on the same days."""
    words = told_apart(row[f"{gain}_low"], row[f"{gain}_high"])
    return words or NO_INTERVAL


def _difference(row: Row, gain: str) -> str:
    """Return the paired difference of column `gain` in words; empty without an interval."""
    if pd.isna(row[f"{gain}_low"]):
        return ""
    return f": difference on the same days {with_interval(row, gain, signed=True)}"


def vintage(backtest: Row) -> str:
    """Say when the prices were known that trainings and predictions read."""
    now = day(backtest["data_watermark"])
    if backtest["config"].get("plan", {}).get("prices_known") == "then":
        return (
            "Prices: each is as known before the session that it helps to predict; outcomes are "
            f"as known on {now}."
        )
    return f"Prices: as known on {now}, including restatements made after the sessions predicted."


def sessions_of_a_year(backtest: Row) -> int:
    """Return the sessions of a year in its figures: backtests of earlier versions have no number.

    They counted 252 for every market.
    """
    sessions: int = backtest["config"].get("sessions_a_year", YEAR)
    return sessions


def settlements(performances: pd.DataFrame) -> str:
    """Say how many positions of each portfolio met an unexplained move; empty without any.

    Say also what these moves would have added to the portfolio's equity.
    """
    settled = [
        f"{row['portfolio']} {count(row['settled'])} (its moves would have added "
        f"{signed_percent(row['unbooked'])})"
        for row in _ordered(performances)
        if row["settled"] > 0
    ]
    if not settled:
        return ""
    return (
        "Positions settled at the last price before an unexplained move, such as that of a bar "
        f"rejected for its return, and the equity that is not booked: {'; '.join(settled)}."
    )


def readme_lines(backtest: Row, scores: pd.DataFrame, performances: pd.DataFrame) -> str:
    """Return Markdown for a README: titled tables of scores and of portfolios.

    Each protocol under which something was scored has a table of scores.
    """
    days_and_stocks = (
        f"{day(backtest['first'])} to {day(backtest['last'])}, {count(backtest['stocks'])} stocks"
    )
    tables = []
    for protocol, words in PROTOCOL_WORDS.items():
        rows = sliced(scores, "all", protocol)
        if rows:
            scored = sample(rows[0])
            title = f"**{backtest['market']}, {words}**: {days_and_stocks}, {scored}."
            cells = [(row["predictor"], in_print(row, "acc"), in_print(row, "mcc")) for row in rows]
            tables.append(markdown_table(title, SCORE_COLUMNS, cells))
    title = (
        f"**{backtest['market']}, portfolios**: {days_and_stocks}, retrained every "
        f"{backtest['retrain_every']} sessions."
    )
    portfolios = [portfolio_cells(row) for row in _ordered(performances)]
    tables.append(markdown_table(title, PORTFOLIO_COLUMNS, portfolios))
    return "\n".join(tables)


def portfolio_cells(row: Row) -> tuple[str, ...]:
    """Return a portfolio's figures below `PORTFOLIO_COLUMNS`."""
    return (
        row["portfolio"],
        percent(row["annual_return"]),
        percent(row["annual_volatility"]),
        with_interval(row, "sharpe"),
        figure(row["deflated_sharpe"], 2),
        percent(row["max_drawdown"]),
        percent(row["hit_rate"]),
        percent(row["turnover"]),
        basis_points(row["break_even"]),
    )


def backtest_page(
    *,
    backtest: Row,
    folds: pd.DataFrame,
    scores: pd.DataFrame,
    tracks: pd.DataFrame,
    performances: pd.DataFrame,
    rolling: pd.DataFrame,
    curve: pd.DataFrame,
    coverage: pd.DataFrame,
    served: bool = False,
) -> str:
    """Render a backtest as one HTML file without requests.

    Where scripts may run, they redraw its charts. `rolling` has `session, predictor`, and `mcc` or
    `rank_ic` or both, each with the ends of its interval (`mcc_low, mcc_high`); `curve` has the
    columns of `calibration_curve`, `coverage` those of `dtml.evaluation.calibration.coverage`; each
    may be empty. Folds may have a `validation_acc`. A page `served` by the dashboard links back,
    and loads the script instead of containing it.
    """
    portfolios = sorted(tracks["portfolio"].unique(), key=_place)
    net = {
        portfolio: _by_session(tracks[tracks["portfolio"] == portfolio], "net")
        for portfolio in portfolios
    }
    best = _best(performances, net)
    year = sessions_of_a_year(backtest)
    rolled_scores = [name for name in ("mcc", "rank_ic") if name in rolling]
    # Only the best and the yardsticks are shown at first, all where none is best. The paper's
    # portfolios, which cannot be traded, are dashed.
    hidden = set() if best is None else set(net) - {best, *YARDSTICKS}
    dashed = {portfolio for portfolio in net if not _is_traded(portfolio)} - set(YARDSTICKS)
    in_order = {**_compared_lines(net, best), **net}  # the lines that are shown come first
    index = net.get(INDEX)
    rows = {protocol: sliced(scores, "all", protocol) for protocol in PROTOCOL_WORDS}
    return _template().render(
        served=served,
        backtest=backtest,
        year=year,
        scores=scores,
        performances=performances,
        net=net,
        followed=portfolios,
        lead=lead(performances, best),
        tracks=tracks_chart(in_order, hidden, dashed, best),
        rolling_returns=rolling_chart(_compared_lines(net, best), year),
        extremes=[] if best is None else extremes(net[best]),
        rolled=ROLLED,
        best=best,
        months=None if best is None else months_chart(best, net[best]),
        histogram=None if best is None else histogram(best, net[best]),
        drawdowns=[] if best is None else drawdowns(net[best]),
        rolling=predictor_charts(rolling, *rolled_scores),
        curve=_curve(curve),
        coverage=records(coverage),
        held=[
            {
                **row,
                **yearly(tracks, row["portfolio"], year),
                **ratios(net.get(row["portfolio"]), index, year),
            }
            for row in _ordered(performances)
        ],
        whole={protocol: scored for protocol, scored in rows.items() if scored},
        folds=fold_rows(folds, scores),
        config=json.dumps(backtest["config"], indent=2, ensure_ascii=False, default=str),
    )


def _best(performances: pd.DataFrame, net: Net) -> str | None:
    """Return the portfolio of the highest Sharpe ratio among those traded; None without any."""
    for row in _by_sharpe(performances):
        if row["portfolio"] in net:
            return str(row["portfolio"])
    return None


def _compared_lines(net: Net, best: str | None) -> dict[str, "pd.Series[float]"]:
    """Return the lines of the best portfolio, of equal parts and of the index, where they exist."""
    names = [EQUAL_WEIGHT, INDEX] if best is None else [best, EQUAL_WEIGHT, INDEX]
    return {name: net[name] for name in names if name in net}


def lead(performances: pd.DataFrame, best: str | None) -> tuple[str, str]:
    """Say what the best tradable portfolio earned beside the market, and which it is.

    `best` is the name of that portfolio. Both sentences are empty where it is None or has no return
    of a year.
    """
    rows = {row["portfolio"]: row for row in records(performances)}
    row = rows.get(best) if best else None
    if row is None or pd.isna(row["annual_return"]):
        return "", ""
    earned = row["annual_return"]
    of_all = rows.get(EQUAL_WEIGHT, {}).get("annual_return", np.nan)
    verdict = ""
    if not pd.isna(of_all):
        verdict = "Yes, more: " if earned > of_all else "No, less: "
    others = [
        f"{words} {percent(rows[name]['annual_return'])}"
        for name, words in ((EQUAL_WEIGHT, "all stocks in equal parts"), (INDEX, "the index"))
        if name in rows and not pd.isna(rows[name]["annual_return"])
    ]
    beside = f"; {', '.join(others)}" if others else ""
    return (
        f"{verdict}{percent(earned)} a year after costs{beside}.",
        f"By {quoted(best)}, chosen in hindsight for the best Sharpe ratio, "
        f"{with_interval(row, 'sharpe')}.",
    )


def _curve(curve: pd.DataFrame) -> Chart | None:
    if curve.empty:
        return None
    known_points = curve.dropna(subset=["mean_probability", "share_risen"])
    if known_points.empty:
        return None
    return calibration({MODEL: known_points})[MODEL]


def _by_sharpe(performances: pd.DataFrame) -> list[Row]:
    """Return the portfolios that can be traded, that of the highest Sharpe ratio first."""
    traded = [row for row in records(performances) if _is_traded(row["portfolio"])]
    return sorted(traded, key=lambda row: -_or_least(row["sharpe"]))


def predictor_charts(scores: pd.DataFrame, *columns: str) -> Chart | None:
    """Return a chart with a panel for each of `columns`; None if fewer than two days have values.

    `columns` are keys of `BASELINES`, which may begin with "running_". `scores` has `session,
    predictor` and, for each column, COLUMN, COLUMN_low, COLUMN_high. Lines are predictors, the
    model with a band. The rules are hidden until a reader switches them on, except the one that
    predicts the same for every session.
    """
    lines = {}
    if len(scores):
        lines = {str(name): rows for name, rows in scores.groupby("predictor", sort=False)}
    panels = [_predictor_panel(lines, column) for column in columns]
    constant_rule = next(iter(NAIVE_RULES))  # the first of them, `always_up`
    shown = {MODEL, constant_rule}
    return over_sessions(
        "Scores so far, 95 % interval of the model", panels, hidden=set(lines) - shown
    )


def _predictor_panel(lines: Mapping[str, pd.DataFrame], column: str) -> Panel:
    """Return the panel of one figure, the model first; `lines` are the scores by predictor."""
    series = {}
    for name in sorted(lines, key=lambda name: (name != MODEL, name)):
        rows = lines[name]
        if rows[column].notna().any():
            series[name] = _by_session(rows, column)
    bands = {}
    if MODEL in lines:
        low = _by_session(lines[MODEL], f"{column}_low")
        high = _by_session(lines[MODEL], f"{column}_high")
        bands = {MODEL: pd.DataFrame({"low": low, "high": high})}
    figure_name = column.removeprefix("running_")  # with which the dashboard's columns begin
    title = figure_name.replace("_", " ") if "_" in figure_name else figure_name.upper()
    form: Form = "percent" if kind_of(figure_name) == "share" else "ratio"
    return Panel(title, series, form=form, base=BASELINES[figure_name], bands=bands)


def _is_traded(portfolio: str) -> bool:
    return portfolio not in YARDSTICKS and not portfolio.endswith(PAPER_SUFFIX)


def _place(portfolio: str) -> int:
    """Return the order of a portfolio: tradable ones first, then the paper's, then yardsticks."""
    if portfolio in YARDSTICKS:
        return 2 + YARDSTICKS.index(portfolio)
    return 0 if _is_traded(portfolio) else 1


def _ordered(performances: pd.DataFrame) -> list[dict[str, Any]]:
    return sorted(records(performances), key=lambda row: _place(row["portfolio"]))


def _by_session(rows: pd.DataFrame, column: str) -> "pd.Series[float]":
    values = rows[column].to_numpy(dtype=float)
    return pd.Series(values, index=pd.DatetimeIndex(rows["session"])).sort_index()


def _or_least(value: float | None) -> float:
    """Return a value, or minus infinity for a missing one, so that it sorts as the least."""
    return -np.inf if value is None or pd.isna(value) else value


@cache
def _template() -> jinja2.Template:
    pages = environment(
        sample,
        directions_verdict,
        ranking_verdict,
        portfolio_verdict,
        of_backtest,
        vintage,
        settlements,
        year_rows,
        year_returns,
        stock_rows,
    )
    pages.globals.update(
        words=PROTOCOL_WORDS,
        rules=NAIVE_RULES,
        model=MODEL,
        paper_suffix=PAPER_SUFFIX,
        live=True,
        script=script,
    )
    return pages.get_template("backtest.html")
