"""The report of a backtest: a verdict in sentences, Markdown tables and a self-contained HTML page.

`backtest` is a row of db's table, `folds`, `scores`, `tracks`, `performances` those of
`backtest_fold`, `backtest_score`, `backtest_return`, `backtest_portfolio`. Returns are shares of
the equity at the fill; a year has the sessions of the calendar.
"""

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd

from dtml.backtest.performance import drawdown
from dtml.baselines.naive_rules import MODEL, NAIVE_RULES
from dtml.evaluation.breakdowns import ROLLING_SESSIONS
from dtml.evaluation.family import beside_strongest_rule
from dtml.evaluation.metrics import MINIMUM_DAYS
from dtml.pages.charts import (
    Chart,
    Panel,
    calibration,
    histogram,
    months_map,
    over_sessions,
)
from dtml.pages.figures import PROTOCOL_WORDS, Page, Row, Table, day, kind_of, named, records
from dtml.pages.rendering import markdown, page, said
from dtml.pages.survivorship import of_study

INDEX = "index"  # the portfolio that holds the index
EQUAL_WEIGHT = "equal weight"
YARDSTICKS = (INDEX, EQUAL_WEIGHT)  # the portfolios that follow no prediction
# Ends the name of a portfolio filled at the close before its predictions: not tradable.
PAPER_SUFFIX = "(the paper's)"
BASELINES = {"acc": 0.5, "mcc": 0.0, "rank_ic": 0.0}  # of predictors without skill
BRIEF_PORTFOLIOS = {  # in Markdown and on the console
    "portfolio": "portfolio:text",
    "return a year, net": "annual_return",
    "volatility": "annual_volatility",
    "Sharpe [95 %]": "sharpe",
    "deflated": "deflated_sharpe",
    "drawdown": "max_drawdown",
    "days above 0": "hit_rate",
    "turnover a day": "turnover",
    "break-even": "break_even",
}
SHOWN = 10  # stocks at either end of the table
DRAWDOWNS = 5  # the deepest ones
EXTREMES = 5  # best and worst sessions and months

Net = Mapping[str, "pd.Series[float]"]  # by portfolio


def sliced(scores: pd.DataFrame, name: str, protocol: str = "all") -> list[Row]:
    """Return the scores of a breakdown by value, the model before the rules."""
    rows = records(scores[(scores["slice"] == name) & (scores["protocol"] == protocol)])
    return sorted(rows, key=lambda row: (str(row["value"]), bool(row["predictor"] != MODEL)))


def fold_rows(folds: pd.DataFrame, scores: pd.DataFrame) -> list[Row]:
    """Return each fold with the model's scores on all stock-days; NaN without an outcome."""
    of_model = {row["value"]: row for row in sliced(scores, "fold") if row["predictor"] == MODEL}
    missing = dict.fromkeys(("validation_acc", "acc", "mcc"), np.nan)
    return [
        missing
        | of_model.get(str(fold["number"]), {})
        | fold
        | {"span": f"{day(fold['first'])} to {day(fold['last'])}"}
        for fold in records(folds)
    ]


def stock_rows(scores: pd.DataFrame) -> Row:
    """Return the model's scores of the stocks with the highest and lowest MCC, the highest first.

    `measured` counts the stocks with an interval, `above` those with one above 0.
    """
    is_model = (scores["predictor"] == MODEL) & (scores["protocol"] == "all")
    stocks = scores[is_model & (scores["slice"] == "symbol")].dropna(subset=["mcc"])
    stocks = stocks.sort_values(["mcc", "value"], ascending=[False, True])
    highest = min(SHOWN, (len(stocks) + 1) // 2)  # at most the better half
    return {
        "highest": records(stocks.iloc[:highest]),
        "lowest": records(stocks.iloc[max(highest, len(stocks) - SHOWN) :]),
        "measured": int(stocks["mcc_low"].notna().sum()),
        "above": int((stocks["mcc_low"] > 0).sum()),
    }


def portfolio_rows(performances: pd.DataFrame, tracks: pd.DataFrame, year: int) -> list[Row]:
    """Return the portfolios in order, with further figures of their tracks.

    `gross` is the geometric return of a year before costs. `costs` (of trades) and `borrow` (of
    borrowing) are the mean costs of a session times the sessions of a year. `end` is the final
    value of an initial 1 after costs.

    With MINIMUM_DAYS sessions, `sortino` is the mean return over the downside deviation, scaled to
    a year, `calmar` the return of a year over the deepest drawdown, `value_at_risk` the return that
    one session in twenty falls below, `expected_shortfall` the mean of the returns that are not
    above it, and `beta` the slope on the index's return; NaN where a denominator is 0.
    """
    net = tracks.pivot(index="session", columns="portfolio", values="net")
    days = net.count()
    of_portfolio = tracks.assign(growth=1 + tracks["gross"]).groupby("portfolio")
    sums = pd.DataFrame(
        {
            "gross": of_portfolio["growth"].prod() ** (year / days) - 1,
            "costs": year * of_portfolio["cost"].mean(),
            "borrow": year * of_portfolio["borrow"].mean(),
            "end": (1 + net).prod(),
        }
    )
    index = net.reindex(columns=[INDEX])[INDEX]  # NaN without one
    variance = net.notna().apply(lambda is_held: index[is_held].var())
    downside = np.sqrt((net.clip(upper=0) ** 2).mean())
    value_at_risk = net.quantile(0.05)
    ratios = pd.DataFrame(
        {
            "sortino": net.mean() / downside.replace(0, np.nan) * year**0.5,
            "value_at_risk": value_at_risk,
            "expected_shortfall": net[net <= value_at_risk].mean(),
            "beta": net.apply(index.cov) / variance.replace(0, np.nan),
        }
    )
    found = performances.set_index("portfolio").join(sums).join(ratios[days >= MINIMUM_DAYS])
    calmar = found["annual_return"] / -found["max_drawdown"].replace(0, np.nan)
    return ordered(found.assign(calmar=calmar.where(days >= MINIMUM_DAYS)).reset_index())


def drawdowns(line: "pd.Series[float]") -> list[Row]:
    """Return the `DRAWDOWNS` deepest drawdowns of a line of net returns, the deepest first.

    `first` session below a peak, `lowest` session, `depth` (of the peak, below 0), `recovered`
    (day, or "not yet"), `sessions` below the peak.
    """
    depth = pd.Series(drawdown(line.to_numpy()), line.index)
    below = depth < 0
    peaks = depth.index[~below]
    number = (~below).cumsum()  # of peaks up to each session
    spells = []
    for _, spell in depth[below].groupby(number[below]):
        later_peaks = peaks[number[spell.index[0]] :]
        spells.append(
            {
                "first": spell.index[0],
                "lowest": spell.idxmin(),
                "depth": float(spell.min()),
                "recovered": day(later_peaks[0]) if len(later_peaks) else "not yet",
                "sessions": len(spell),
            }
        )
    return sorted(spells, key=lambda spell: float(spell["depth"]))[:DRAWDOWNS]


def tracks_chart(
    net: Net, hidden: Collection[str], dashed: Collection[str], shaded: str | None = None
) -> Chart | None:
    """Return the value of an initial 1 and the drawdown of portfolios, on one axis of time.

    Lines begin on the evening before the first session. Those in `hidden` are drawn once a reader
    switches them on. The drawdowns of `shaded` are filled.
    """
    values = {}
    depths = {}
    for portfolio, line in net.items():
        evening_before = line.index[0] - pd.Timedelta(days=1)
        values[portfolio] = (1 + pd.concat([pd.Series(0.0, [evening_before]), line])).cumprod()
        depths[portfolio] = values[portfolio] / values[portfolio].cummax() - 1
    bands = {}
    if shaded:
        value = values[shaded]
        bands[shaded] = pd.DataFrame({"low": value, "high": value.cummax()})
    panels = [
        Panel("value of 1, after costs", values, base=1.0, height=230, bands=bands),
        Panel("drawdown", depths, form="percent", base=0.0, height=90),
    ]
    return over_sessions("Each portfolio after costs", panels, hidden=hidden, dashed=dashed)


def rolling_chart(net: Net, year: int) -> Chart | None:
    """Return the Sharpe ratio, volatility and beta of portfolios over their last ROLLING_SESSIONS.

    Beta is the slope on the index. None where fewer than two days have values.
    """
    windows = {name: line.rolling(ROLLING_SESSIONS) for name, line in net.items()}
    # Returns that are all equal have no ratio.
    sharpe = {
        name: window.mean() / window.std().replace(0, np.nan) * year**0.5
        for name, window in windows.items()
    }
    volatility = {name: window.std() * year**0.5 for name, window in windows.items()}
    betas = {}  # on the index, over sessions of both, where it moves
    for name, line in net.items():
        if name != INDEX and INDEX in net:
            both = pd.concat({"own": line, "index": net[INDEX]}, axis=1, join="inner")
            covariance = both["own"].rolling(ROLLING_SESSIONS).cov(both["index"])
            variance = both["index"].rolling(ROLLING_SESSIONS).var()
            betas[name] = covariance / variance.replace(0, np.nan)
    panels = [
        Panel("Sharpe ratio", sharpe, form="ratio", base=0.0, height=120),
        Panel("volatility a year", volatility, form="percent", base=0.0, height=120),
        Panel("beta on the index", betas, form="ratio", base=0.0, height=120),
    ]
    return over_sessions(f"Each portfolio over its last {ROLLING_SESSIONS} sessions", panels)


def extremes(line: "pd.Series[float]") -> list[Row]:
    """Return the `EXTREMES` best and worst sessions and months of a line of net returns.

    Columns: `place` from 1 on, `best_day, best_day_return`, `worst_day, ...`, `best_month, ...` and
    `worst_month, ...`. None is among both; NaN where there are fewer months.
    """
    sessions = line.set_axis([day(each) for each in line.index])
    columns = {}
    for name, returns in {"day": sessions, "month": month_returns(line)}.items():
        number = min(EXTREMES, len(returns) // 2)
        best, worst = returns.nlargest(number), returns.nsmallest(number)
        for which, extreme in {"best": best, "worst": worst}.items():
            columns[f"{which}_{name}"] = pd.Series(extreme.index, dtype=object)
            columns[f"{which}_{name}_return"] = pd.Series(extreme.to_numpy())
    rows = pd.DataFrame(columns)
    return records(rows.assign(place=rows.index + 1))


def month_returns(line: "pd.Series[float]") -> "pd.Series[float]":
    """Return the compounded return of each month, by its name such as 2016-06."""
    months = pd.DatetimeIndex(line.index).strftime("%Y-%m")
    return (1 + line).groupby(months).prod() - 1


def verdict(backtest: Row, scores: pd.DataFrame, performances: pd.DataFrame) -> str:
    """Say what the backtest shows about portfolios, directions and ranking, a sentence for each."""
    return said("backtest_verdict", backtest["market"], findings(scores, performances))


def findings(scores: pd.DataFrame, performances: pd.DataFrame) -> Page:
    """Return what a backtest shows.

    `traded` are the tradable portfolios, that of the highest Sharpe ratio first, `above` those of
    them whose interval of the net Sharpe ratio is above 0, and `index` is the index's row. `dtml`
    and `rule` are those of `beside_rules`.
    """
    traded = by_sharpe(performances)
    return {
        "traded": traded,
        "above": [row for row in traded if row["sharpe_low"] > 0],
        "index": next((row for row in records(performances) if row["portfolio"] == INDEX), None),
        **beside_rules(scores),
    }


def beside_rules(scores: pd.DataFrame) -> Page:
    """Return the scores of DTML over all stock-days, and those of the naive `rule` of highest MCC.

    Each is None where it was not scored, and the rule where none has as many days as the model:
    others have too short a history to be compared with it.
    """
    rows = sliced(scores, "all")
    model = rows[0] if rows and rows[0]["predictor"] == MODEL else None  # it comes first
    rules = [row for row in rows[1:] if model and row["days"] == model["days"]]
    best = None
    if rules:
        best = beside_strongest_rule(pd.DataFrame(rules), "model_gain", "predictor")
    return {"dtml": model, "rule": best}


def readme_lines(backtest: Row, scores: pd.DataFrame, performances: pd.DataFrame) -> str:
    """Return Markdown for a README: a titled table of scores a protocol, and one of portfolios."""
    by_protocol = {
        words: sliced(scores, "all", protocol) for protocol, words in PROTOCOL_WORDS.items()
    }
    return markdown("backtest", backtest, by_protocol, ordered(performances), BRIEF_PORTFOLIOS)


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

    `rolling`: `session, predictor`, and `mcc` or `rank_ic` with ends (`mcc_low`); `curve` and
    `coverage`: as `curve_with_intervals` and `coverage` of `dtml.evaluation.calibration`; each may
    be empty. A page `served` by the dashboard links back and loads its script.
    """
    by_place = sorted(tracks["portfolio"].unique(), key=_place)
    wide = tracks.pivot(index="session", columns="portfolio", values="net")[by_place]
    net = {str(name): line.dropna() for name, line in wide.items()}
    of_years = (1 + wide).groupby(pd.DatetimeIndex(wide.index).year).prod(min_count=1) - 1
    year = backtest["config"]["sessions_a_year"]
    # The best and the yardsticks are shown at first, all where none is best. The paper's
    # portfolios, which cannot be traded, are dashed.
    names = [row["portfolio"] for row in by_sharpe(performances) if row["portfolio"] in net]
    best = names[0] if names else None
    shown = {name: net[name] for name in (best, EQUAL_WEIGHT, INDEX) if name in net}
    hidden = set(net) - set(shown) if best else ()
    dashed = {name for name in net if name.endswith(PAPER_SUFFIX)}
    return page(
        "backtest.html",
        *(sliced, fold_rows, stock_rows, extremes, drawdowns, month_returns, rolling_chart),
        *(of_study, calibration, histogram, months_map),
        served=served,
        live=True,
        backtest=backtest,
        folds=folds,
        scores=scores,
        performances=performances,
        found=findings(scores, performances),
        earned=earned(performances, best),
        year=year,
        rolled=ROLLING_SESSIONS,
        paper=PAPER_SUFFIX[1:-1],
        best=best,
        net=net,
        shown=shown,
        tracks=tracks_chart({**shown, **net}, hidden, dashed, best),
        rolling=predictor_charts(rolling, *(name for name in BASELINES if name in rolling)),
        curve=curve.dropna(subset=["mean_probability", "share_risen"]) if len(curve) else curve,
        coverage=records(coverage),
        returns=Table.of(
            of_years.rename_axis("year").reset_index(),
            {"year": "year"} | {named(name): f"{name}:percent" for name in net},
        ),
        portfolios=portfolio_rows(performances, tracks, year),
    )


def earned(performances: pd.DataFrame, best: str | None) -> str:
    """Say what the best tradable portfolio, of this name, earned a year beside the market.

    Empty where there is none, or where it has no return of a year.
    """
    rows = {row["portfolio"]: row for row in records(performances)}
    own = rows.get(best or "")
    if own is None or pd.isna(own["annual_return"]):
        return ""
    return said("earned", own, *(rows.get(name) for name in (EQUAL_WEIGHT, INDEX)))


def by_sharpe(performances: pd.DataFrame) -> list[Row]:
    """Return the portfolios that can be traded, that of the highest Sharpe ratio first."""
    rows = performances.sort_values("sharpe", ascending=False, kind="stable")
    return [row for row in records(rows) if _place(row["portfolio"]) == 0]


def predictor_charts(scores: pd.DataFrame, *columns: str) -> Chart | None:
    """Return a chart with a panel for each of `columns`; None if fewer than two days have values.

    `columns` are keys of `BASELINES`. `scores` has `session, predictor` and, for each column,
    COLUMN, COLUMN_low, COLUMN_high. Lines are predictors, the model with a band. The rules are
    hidden until a reader switches them on, except the one that predicts the same for every session.
    """
    if scores.empty:
        return None
    of_predictors = {
        str(name): rows for name, rows in scores.set_index("session").groupby("predictor")
    }
    names = sorted(of_predictors, key=lambda name: (name != MODEL, name))
    panels = []
    for column in columns:
        bands = {}
        if MODEL in of_predictors:
            ends = of_predictors[MODEL][[f"{column}_low", f"{column}_high"]]
            bands[MODEL] = ends.set_axis(["low", "high"], axis=1).astype(float)
        panels.append(
            Panel(
                column.replace("_", " ") if "_" in column else column.upper(),
                {name: of_predictors[name][column].astype(float) for name in names},
                form=kind_of(column),
                base=BASELINES[column],
                bands=bands,
            )
        )
    constant_rule = next(iter(NAIVE_RULES))  # the first of them, `always_up`
    return over_sessions(
        "Scores so far, 95 % interval of the model",
        panels,
        hidden=set(names) - {MODEL, constant_rule},
    )


def _place(portfolio: str) -> int:
    """Return the order of a portfolio: tradable ones first, then the paper's, then yardsticks."""
    if portfolio in YARDSTICKS:
        return 2 + YARDSTICKS.index(portfolio)
    return 1 if portfolio.endswith(PAPER_SUFFIX) else 0


def ordered(performances: pd.DataFrame) -> list[Row]:
    """Return the portfolios, tradable ones first, the yardsticks last."""
    return sorted(records(performances), key=lambda row: _place(row["portfolio"]))
