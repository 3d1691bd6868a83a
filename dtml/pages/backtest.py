"""The report of a backtest: a verdict in sentences, Markdown tables and a self-contained HTML page.

Arguments, of the same names everywhere, hold the columns of db's tables: `backtest` those of a row
of `backtest`, its `config` with the experiment and the plan; `folds`, `scores`, `tracks`,
`performances` those of `backtest_fold`, `backtest_score`, `backtest_return`, `backtest_portfolio`.
Returns are shares of the equity at the fill; a year has the sessions of the calendar. Missing
values, NaN or None, are printed as "-".
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from dtml.baselines.naive_rules import MODEL, NAIVE_RULES
from dtml.evaluation.family import beside_strongest_rule
from dtml.evaluation.metrics import told_apart
from dtml.markets.definition import YEAR
from dtml.pages.backtest_returns import (
    INDEX,
    ROLLED,
    Net,
    drawdowns,
    extremes,
    histogram,
    months_chart,
    ratios,
    rolling_chart,
    tracks_chart,
    year_returns,
    yearly,
)
from dtml.pages.backtest_rows import fold_rows, sliced, stock_rows, year_rows
from dtml.pages.benchmark import PROTOCOL_WORDS, sample
from dtml.pages.charts import Chart, Form, Panel, calibration, environment, over_sessions, script
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
    return _template().render(
        served=served,
        backtest=backtest,
        year=year,
        scores=scores,
        performances=performances,
        net=net,
        followed=portfolios,
        lead=lead(performances, best),
        tracks=_tracks(net, best),
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
        held=_portfolio_rows(performances, tracks, net, year),
        whole=_by_protocol(scores),
        folds=fold_rows(folds, scores),
        config=json.dumps(backtest["config"], indent=2, ensure_ascii=False, default=str),
    )


def _best(performances: pd.DataFrame, net: Net) -> str | None:
    """Return the portfolio of the highest Sharpe ratio among those traded; None without any."""
    for row in _by_sharpe(performances):
        if row["portfolio"] in net:
            return str(row["portfolio"])
    return None


def _hidden_and_dashed(net: Net, best: str | None) -> tuple[set[str], set[str]]:
    """Return the portfolios whose lines are hidden, and those whose lines are dashed.

    All but the best and the yardsticks are hidden, none where there is no best one. Dashed are the
    paper's portfolios, which cannot be traded.
    """
    hidden = set() if best is None else set(net) - {best, *YARDSTICKS}
    dashed = {portfolio for portfolio in net if not _is_traded(portfolio)} - set(YARDSTICKS)
    return hidden, dashed


def _tracks(net: Net, best: str | None) -> Chart | None:
    """Return the chart of all portfolios, with the drawdowns of the best one shaded."""
    hidden, dashed = _hidden_and_dashed(net, best)
    in_order = {**_compared_lines(net, best), **net}  # the lines that are shown come first
    return tracks_chart(in_order, hidden, dashed, best)


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


def _portfolio_rows(
    performances: pd.DataFrame, tracks: pd.DataFrame, net: Net, year: int
) -> list[dict[str, Any]]:
    """Return each portfolio's performance with the figures of a year and the ratios."""
    index = net.get(INDEX)
    return [
        {
            **row,
            **yearly(tracks, row["portfolio"], year),
            **ratios(net.get(row["portfolio"]), index, year),
        }
        for row in _ordered(performances)
    ]


def _by_protocol(scores: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """Return the scores of all days by protocol, without protocols that have no scores."""
    rows = {protocol: sliced(scores, "all", protocol) for protocol in PROTOCOL_WORDS}
    return {protocol: scored for protocol, scored in rows.items() if scored}


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
