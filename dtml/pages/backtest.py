"""The report of a backtest: a verdict in sentences, tables in Markdown and one self-contained HTML
page.

Arguments, of the same names everywhere, hold the columns of db's tables: `backtest` those of a row
of `backtest`, its `config` with the experiment and the plan; `folds`, `scores`, `tracks`,
`performances` those of `backtest_fold`, `backtest_score`, `backtest_return`, `backtest_portfolio`.
Returns are shares of the equity at the fill; a year has 252 sessions. What is missing, NaN or None,
is printed as "-".
"""

import json
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from dtml.backtest.performance import drawdown
from dtml.baselines.naive_rules import MODEL, NAIVE_RULES
from dtml.evaluation.metrics import MINIMUM_DAYS, told_apart
from dtml.markets.definition import YEAR
from dtml.pages import figures
from dtml.pages.benchmark import PROTOCOL_WORDS, sample
from dtml.pages.charts import Chart, Panel, calibration, cells, environment, over_sessions, script
from dtml.pages.figures import (
    Row,
    count,
    day,
    figure,
    markdown_table,
    percent,
    records,
    signed_percent,
    with_interval,
)

# Ratios are a year's, of 252 sessions, without a risk-free rate; shares are of the equity.
ROLLED = 63  # sessions of a rolling ratio
DRAWDOWNS = 5  # the deepest ones
BARS = 41  # of a histogram
MONTHS = tuple(f"{pd.Timestamp(2000, month, 1):%b}" for month in range(1, 13))

Net = Mapping[str, "pd.Series[float]"]
INDEX, EQUAL_WEIGHT = YARDSTICKS = (
    "index",
    "equal weight",
)  # the portfolios that follow no prediction
# ends the name of a portfolio filled at the close before its predictions: not tradable
PAPERS = "(the paper's)"
BASELINES = {"acc": 0.5, "mcc": 0.0, "rank_ic": 0.0}  # of predictions without skill
EXTREMES = 10  # stocks at either end of the table
SCORE_COLUMNS = ("predictor", "ACC [95 %]", "MCC [95 %]")
PORTFOLIO_COLUMNS = (
    *(
        "portfolio",
        "return a year, net",
        "volatility",
        "Sharpe [95 %]",
        "deflated",
        "drawdown",
        "days above 0",
    ),
    *("turnover a day", "break-even"),
)


def verdict(backtest: Row, scores: pd.DataFrame, performances: pd.DataFrame) -> str:
    """Say what the backtest shows of directions, order and portfolios; paired
    differences on the same days decide.
    """
    said = (
        directions_verdict(backtest, scores),
        order_verdict(scores),
        portfolio_verdict(performances),
    )
    return " ".join([*filter(None, said), "Nothing here promises profit."])


def directions_verdict(backtest: Row, scores: pd.DataFrame) -> str:
    """Say whether DTML beats the naive rule that had the highest MCC on these
    very days, on all stock-days.
    """
    model, *others = _sliced(scores, "all", "all") or [{"predictor": None}]
    rules = [
        row for row in others if row["days"] == model["days"]
    ]  # the others have too short a history
    if not rules or model["predictor"] != MODEL:
        return f"No prediction for {backtest['market']} has been scored beside a naive rule."
    best = max(rules, key=lambda row: _or_least(row["mcc"]))
    return (
        f"Over {model['days']:,} days and {model['n']:,} stock-days of {backtest['market']} "
        "DTML (MCC "
        f"{with_interval(model, 'mcc')}, ACC {with_interval(model, 'acc')}) "
        f"{_compared(best, 'model_gain')} the best "
        f"naive rule in hindsight, {best['predictor']} (MCC {with_interval(best, 'mcc')}, ACC "
        f"{with_interval(best, 'acc')}){_difference(best, 'model_gain', 4)}."
    )


def order_verdict(scores: pd.DataFrame) -> str:
    """Say how well the probabilities order the stocks of a day, beside the rule
    that yesterday's losers rise.
    """
    row = next((row for row in _sliced(scores, "all", "all") if row["predictor"] == MODEL), None)
    if row is None or pd.isna(row["rank_ic"]):
        return ""
    return (
        "Its probabilities order the stocks of a day with a rank IC of "
        f"{with_interval(row, 'rank_ic')}; that "
        f'{_compared(row, "rank_gain")} "the day\'s losers rise"{_difference(row, "rank_gain", 4)}.'
    )


def portfolio_verdict(performances: pd.DataFrame) -> str:
    """Say which tradable portfolios have an interval of net Sharpe ratio above
    0, and whether they beat the index.
    """
    rows = _ordered(performances)
    index = next((row for row in rows if row["portfolio"] == INDEX), None)
    traded = [row for row in rows if _is_traded(row["portfolio"])]
    if not traded:
        return "No portfolio that can be traded was followed."
    if all(pd.isna(row["sharpe_low"]) for row in traded):
        return (
            f"{max(row['days'] for row in traded):,} days of portfolios are too few for an "
            "interval of any return."
        )
    ordered = _by_sharpe(performances)
    above = [row for row in ordered if _or_least(row["sharpe_low"]) > 0]
    words = (
        "Portfolios that can be traded whose Sharpe ratio after costs lies above 0 with its whole "
        "interval: "
        f"{len(above) or 'none'} of {len(traded)}{':' if above else '; the highest:'} "
        f"{'; '.join(_beside(row, index) for row in above or ordered[:1])}."
    )
    return words if index is None else f"{words} The index has {with_interval(index, 'sharpe', 2)}."


def _beside(row: Row, index: Row | None) -> str:
    gain = f", {_compared(row, 'index_gain')} the index{_difference(row, 'index_gain', 2)}"
    return f"{row['portfolio']} ({with_interval(row, 'sharpe', 2)}){'' if index is None else gain}"


def _compared(row: Row, gain: str) -> str:
    """Compare two figures by the interval of their paired difference on the same days."""
    return (
        told_apart(row[f"{gain}_low"], row[f"{gain}_high"])
        or "cannot be compared, without an interval, with"
    )


def _difference(row: Row, gain: str, digits: int) -> str:
    """Return a paired difference as words to end a sentence; nothing without an interval."""
    there = not pd.isna(row[f"{gain}_low"])
    return f": on the same days {with_interval(row, gain, digits, signed=True)}" if there else ""


def survivorship(backtest: Row) -> str:
    """Say which stocks could be in the panel at all, and which share of the
    constituent-days has no price.
    """
    days = backtest["constituent_days"]
    share = None if pd.isna(days) or days == 0 else backtest["without_price"] / days
    if backtest["list_is_snapshot"]:
        listed: str = (
            "" if pd.isna(backtest["list_as_of"]) else f" of {day(backtest['list_as_of'])}"
        )
        words = (
            f"the list of stocks is a snapshot{listed}: those that left before are missing, "
            "which flatters holders"
        )
    else:
        words = "the list is dated, and a stock counts only while it was a constituent"
    return (
        f"Survivorship: {words}. Of {count(days)} constituent-days {percent(share)} have no price."
    )


def vintage(backtest: Row) -> str:
    """Say as known when the prices were that trainings and predictions read."""
    now = day(backtest["data_watermark"])
    if backtest["config"].get("plan", {}).get("prices_known") == "then":
        return (
            "Prices: each as known before the session that it helps to predict; outcomes as "
            f"known on {now}."
        )
    return f"Prices: as known on {now}, with restatements that came after the sessions predicted."


def settlements(performances: pd.DataFrame) -> str:
    """Say how many positions of each portfolio met a move that nothing explains, and what these
    would have been worth.

    Nothing where there is none.
    """
    met = [
        f"{row['portfolio']} {count(row['settled'])} (its moves would have added "
        f"{signed_percent(row['unbooked'])})"
        for row in _ordered(performances)
        if row["settled"] > 0
    ]
    if not met:
        return ""
    return (
        "Positions settled at the last price before a move that nothing explains, as of a bar "
        "rejected for its return,"
        f" and the equity that is not booked: {'; '.join(met)}."
    )


def readme_lines(backtest: Row, scores: pd.DataFrame, performances: pd.DataFrame) -> str:
    """Return Markdown for a README: a line and a table of scores for each
    protocol, then a table of portfolios.
    """
    blocks = []
    span = (
        f"{day(backtest['first'])} to {day(backtest['last'])}, {count(backtest['stocks'])} stocks"
    )
    for protocol, words in PROTOCOL_WORDS.items():
        rows = _sliced(scores, "all", protocol)
        if rows:
            title = f"**{backtest['market']}, {words}**: {span}, {sample(rows[0])}."
            cells = (
                (row["predictor"], with_interval(row, "acc"), with_interval(row, "mcc"))
                for row in rows
            )
            blocks.append(markdown_table(title, SCORE_COLUMNS, cells))
    title = (
        f"**{backtest['market']}, portfolios**: {span}, trained anew every "
        f"{backtest['retrain_every']} sessions."
    )
    blocks.append(
        markdown_table(title, PORTFOLIO_COLUMNS, map(portfolio_cells, _ordered(performances)))
    )
    return "\n".join(blocks)


def portfolio_cells(row: Row) -> tuple[str, ...]:
    """Return a portfolio's figures below `PORTFOLIO_COLUMNS`."""
    earned = (percent(row[name]) for name in ("annual_return", "annual_volatility"))
    ratio = with_interval(row, "sharpe", 2), figure(row["deflated_sharpe"], 2)
    shares = (percent(row[name]) for name in ("max_drawdown", "hit_rate", "turnover"))
    return (row["portfolio"], *earned, *ratio, *shares, figures.basis_points(row["break_even"]))


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
    """Render a backtest as one HTML file that requests nothing, and draws its charts anew where
    scripts may run.

    `rolling` has `session, predictor, mcc, mcc_low, mcc_high`, `curve` the columns of
    `calibration_curve`, `coverage` those of `dtml.evaluation.calibration.coverage`; each may be
    empty. Folds may say their `validation_acc`. `served` by the dashboard, it has a way back and
    asks for the script instead of carrying it.
    """
    followed = sorted(tracks["portfolio"].unique(), key=_place)
    net = {name: _by_session(tracks[tracks["portfolio"] == name], "net") for name in followed}
    curve = curve.dropna(subset=["mean_probability", "share_risen"]) if len(curve) else curve
    whole = {
        protocol: rows for protocol in PROTOCOL_WORDS if (rows := _sliced(scores, "all", protocol))
    }
    best = next(
        (row["portfolio"] for row in _by_sharpe(performances) if row["portfolio"] in net), None
    )
    hidden = (
        () if best is None else set(followed) - {best, *YARDSTICKS}
    )  # which wait to be switched on
    dashed = {name for name in followed if not _is_traded(name)} - set(YARDSTICKS)
    return _template().render(
        served=served,
        backtest=backtest,
        scores=scores,
        performances=performances,
        net=net,
        followed=followed,
        tracks=tracks_chart(net, hidden, dashed),
        rolled=ROLLED,
        best=best,
        months=None if best is None else months_chart(best, net[best]),
        histogram=None if best is None else histogram(best, net[best]),
        drawdowns=[] if best is None else drawdowns(net[best]),
        rolling=predictor_charts(
            rolling, *(name for name in ("mcc", "rank_ic") if name in rolling)
        ),
        curve=calibration({MODEL: curve})[MODEL] if len(curve) else None,
        coverage=records(coverage),
        held=[
            row
            | yearly(tracks, row["portfolio"])
            | ratios(net.get(row["portfolio"]), net.get(INDEX))
            for row in _ordered(performances)
        ],
        whole=whole,
        folds=fold_rows(folds, scores),
        config=json.dumps(backtest["config"], indent=2, ensure_ascii=False, default=str),
    )


def _by_sharpe(performances: pd.DataFrame) -> list[Row]:
    """Return the portfolios that can be traded, that of the highest Sharpe ratio first."""
    traded = [row for row in records(performances) if _is_traded(row["portfolio"])]
    return sorted(traded, key=lambda row: -_or_least(row["sharpe"]))


def predictor_charts(scores: pd.DataFrame, *columns: str) -> Chart | None:
    """Return a panel a figure of `session, predictor, COLUMN, COLUMN_low, COLUMN_high`: the model's
    band, and lines.

    The rules wait to be switched on, all but the one that says the same of every session.
    """
    lines = (
        {str(name): rows for name, rows in scores.groupby("predictor", sort=False)}
        if len(scores)
        else {}
    )
    named = sorted(lines, key=lambda name: (name != MODEL, name))
    panels = []
    for column in columns:
        band = {
            end: _by_session(lines[MODEL], f"{column}_{end}")
            for end in ("low", "high")
            if MODEL in lines
        }
        series = {
            name: _by_session(lines[name], column)
            for name in named
            if lines[name][column].notna().any()
        }
        bands = {MODEL: pd.DataFrame(band)} if band else {}
        figure_name = column.removeprefix("running_")
        title = figure_name.replace("_", " ") if "_" in figure_name else figure_name.upper()
        panels.append(Panel(title, series, base=BASELINES[figure_name], bands=bands))
    shown = (MODEL, next(iter(NAIVE_RULES)))
    return over_sessions(
        "Scores so far, 95 % interval of the model", panels, hidden=set(named) - set(shown)
    )


def yearly(tracks: pd.DataFrame, portfolio: str) -> dict[str, float]:
    """Return a year's return before costs, costs of trades and of borrowing,
    and what 1 became after costs.
    """
    rows = tracks[tracks["portfolio"] == portfolio]
    if rows.empty:
        return dict.fromkeys(("gross", "costs", "borrow", "end"), np.nan)
    grown = float(np.prod(1 + rows["gross"]) ** (YEAR / len(rows)) - 1)
    paid = {
        "costs": float(YEAR * rows["cost"].mean()),
        "borrow": float(YEAR * rows["borrow"].mean()),
    }
    return {"gross": grown, **paid, "end": float(np.prod(1 + rows["net"]))}


def year_returns(net: Mapping[str, "pd.Series[float]"]) -> dict[int, dict[str, float]]:
    """Return the net return of each portfolio in each calendar year, over the
    sessions that it has there.
    """
    by_year = {name: (1 + line).groupby(line.index.year).prod() - 1 for name, line in net.items()}  # type: ignore[attr-defined]
    years = sorted({int(year) for line in by_year.values() for year in line.index})
    return {
        year: {name: float(line.get(year, np.nan)) for name, line in by_year.items()}
        for year in years
    }


def year_rows(scores: pd.DataFrame) -> dict[str, dict[str, Row]]:
    """Return the scores of each year on all stock-days, by predictor."""
    rows = _sliced(scores, "year", "all")
    years = sorted({row["value"] for row in rows})
    return {year: {row["predictor"]: row for row in rows if row["value"] == year} for year in years}


def fold_rows(folds: pd.DataFrame, scores: pd.DataFrame) -> list[dict[str, Any]]:
    """Return each fold with the model's scores on all stock-days; NaN where
    nothing has an outcome.
    """
    found = {
        row["value"]: row for row in _sliced(scores, "fold", "all") if row["predictor"] == MODEL
    }
    names = (
        "validation_acc",
        *(f"{name}{end}" for name in ("acc", "mcc") for end in ("", "_low", "_high")),
    )
    return [
        dict.fromkeys(names, np.nan) | found.get(str(fold["number"]), {}) | fold
        for fold in records(folds)
    ]


def stock_rows(scores: pd.DataFrame) -> dict[str, Any]:
    """Return the stocks with the highest and the lowest MCC, none in both, and
    how many have an interval above 0.
    """
    wanted = (
        (scores["slice"] == "symbol")
        & (scores["protocol"] == "all")
        & (scores["predictor"] == MODEL)
    )
    kept = (
        scores[wanted].dropna(subset=["mcc"]).sort_values(["mcc", "value"], ascending=[False, True])
    )
    best = min(EXTREMES, (len(kept) + 1) // 2)
    return {
        "best": records(kept.iloc[:best]),
        "worst": records(kept.iloc[max(best, len(kept) - EXTREMES) :]),
        "measured": int(kept["mcc_low"].notna().sum()),
        "above": int((kept["mcc_low"] > 0).sum()),
    }


def _is_traded(portfolio: str) -> bool:
    return portfolio not in YARDSTICKS and not portfolio.endswith(PAPERS)


def _place(portfolio: str) -> int:
    """Return the order of a portfolio: tradable ones first, then the paper's, then yardsticks."""
    return (
        2 + YARDSTICKS.index(portfolio)
        if portfolio in YARDSTICKS
        else int(not _is_traded(portfolio))
    )


def _ordered(performances: pd.DataFrame) -> list[dict[str, Any]]:
    return sorted(records(performances), key=lambda row: _place(row["portfolio"]))


def _sliced(scores: pd.DataFrame, name: str, protocol: str) -> list[dict[str, Any]]:
    """Return the scores of a breakdown, the model before the rules."""
    rows = records(scores[(scores["slice"] == name) & (scores["protocol"] == protocol)])
    return sorted(rows, key=lambda row: bool(row["predictor"] != MODEL))


def _by_session(rows: pd.DataFrame, column: str) -> "pd.Series[float]":
    return pd.Series(
        rows[column].to_numpy(dtype=float), index=pd.DatetimeIndex(rows["session"])
    ).sort_index()


def _or_least(value: float | None) -> float:
    return -np.inf if value is None or pd.isna(value) else value


@cache
def _template() -> jinja2.Template:
    verdicts = (
        directions_verdict,
        order_verdict,
        portfolio_verdict,
        survivorship,
        vintage,
        settlements,
    )
    found = environment(sample, *verdicts, year_rows, year_returns, stock_rows)
    found.globals.update(
        words=PROTOCOL_WORDS,
        rules=NAIVE_RULES,
        model=MODEL,
        papers=PAPERS,
        live=True,
        script=script,
    )
    return found.get_template("backtest.html")


def tracks_chart(net: Net, hidden: Collection[str], dashed: Collection[str]) -> Chart | None:
    """Return what 1 became, the drawdown and the rolling Sharpe ratio of each
    portfolio, on one axis of time.
    """
    value = {name: _since((1 + line).cumprod(), 1.0) for name, line in net.items()}
    fallen = {
        name: _since(pd.Series(drawdown(line.to_numpy()), line.index), 0.0)
        for name, line in net.items()
    }
    last = {name: line.rolling(ROLLED) for name, line in net.items()}
    sharpe = {
        name: each.mean() / each.std().replace(0, np.nan) * np.sqrt(YEAR)
        for name, each in last.items()
    }
    rolled = {name: line.dropna() for name, line in sharpe.items()}
    panels = [Panel("value of 1, after costs", value, base=1.0, height=230)]
    panels += [Panel("drawdown", fallen, "percent", 0.0, height=110)]
    panels += [Panel("Sharpe ratio, rolling", rolled, base=0.0, height=110)]
    return over_sessions("Each portfolio after costs", panels, hidden=hidden, dashed=dashed)


def _since(line: "pd.Series[float]", start: float) -> "pd.Series[float]":
    """Return a line from `start` on the evening before its first session."""
    return pd.concat([pd.Series([start], index=[line.index[0] - pd.Timedelta(days=1)]), line])


def ratios(line: "pd.Series[float] | None", index: "pd.Series[float] | None") -> dict[str, float]:
    """Return sortino, calmar, value_at_risk, expected_shortfall, beta; NaN with too few sessions
    for them.

    The value at risk is the return that one session in twenty falls below, the shortfall the mean
    of those below; `beta` is the slope on the index's return over the sessions of both.
    """
    names = ("sortino", "calmar", "value_at_risk", "expected_shortfall", "beta")
    if line is None or len(line) < MINIMUM_DAYS:
        return dict.fromkeys(names, np.nan)
    below, deepest = (
        float(np.sqrt((line.clip(upper=0) ** 2).mean())),
        float(drawdown(line.to_numpy()).min()),
    )
    grown = float(np.prod(1 + line.to_numpy(dtype=float)) ** (YEAR / len(line)) - 1)
    risk = float(line.quantile(0.05))
    found = {"sortino": float(line.mean()) / below * np.sqrt(YEAR) if below else np.nan}
    found |= {"calmar": grown / -deepest if deepest else np.nan, "value_at_risk": risk}
    found |= {"expected_shortfall": float(line[line <= risk].mean()), "beta": np.nan}
    if index is not None:
        both = pd.concat([line, index], axis=1, join="inner").to_numpy()
        spread = both[:, 1].var()
        found["beta"] = float(np.cov(both.T, ddof=0)[0, 1] / spread) if spread else np.nan
    return found


def drawdowns(line: "pd.Series[float]") -> list[dict[str, Any]]:
    """Return the deepest drawdowns: first below a peak, lowest, depth,
    recovered (None: not yet), sessions.
    """
    depth = pd.Series(drawdown(line.to_numpy()), line.index)
    below = depth < 0
    found = []
    for _, run in depth[below].groupby((~below).cumsum()[below]):
        after = depth.index[depth.index > run.index[-1]]
        recovered = after[0] if len(after) else None
        lowest = {"lowest": run.idxmin(), "depth": float(run.min())}
        found.append(
            {"first": run.index[0], **lowest, "recovered": recovered, "sessions": len(run)}
        )
    return sorted(found, key=lambda each: each["depth"])[:DRAWDOWNS]


def months_chart(name: str, line: "pd.Series[float]") -> Chart:
    """Return a map of the returns of each month, a row a year."""
    grown = (1 + line).groupby(pd.DatetimeIndex(line.index).strftime("%Y-%m")).prod() - 1
    made = {
        "x": [MONTHS[int(str(month)[5:]) - 1] for month in grown.index],
        "y": grown.index.str[:4],
    }
    rows = pd.DataFrame(made | {"value": grown.to_numpy(dtype=float)})
    words = f"from {100 * rows['value'].min():.1f} % to {100 * rows['value'].max():.1f} %"
    whole = pd.DataFrame(
        [(month, year) for year in sorted(set(rows["y"])) for month in MONTHS], columns=["x", "y"]
    )
    rows = whole.merge(rows, how="left")
    return cells(
        f"Net return of each month, {name}",
        words,
        rows,
        (44, 24),
        "percent",
        is_signed=True,
        is_written=True,
    )


def histogram(name: str, line: "pd.Series[float]") -> Chart:
    """Return how often each return of a session came."""
    counts, edges = np.histogram(line, bins=BARS)
    rows = pd.DataFrame({"low": edges[:-1], "high": edges[1:], "sessions": counts})
    words = f"{len(line)} sessions, from {100 * line.min():.1f} % to {100 * line.max():.1f} %"
    return Chart(f"Net returns of sessions, {name}", words, "histogram", {"rows": rows})
