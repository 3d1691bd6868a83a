"""The report of a night: one self-contained HTML page, readable in ten years, without scripts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dtml.attention import KEPT, Attention
from dtml.baselines.naive_rules import MODEL
from dtml.evaluation.breakdowns import ROLLING_SESSIONS
from dtml.evaluation.calibration import Calibration, curve_with_intervals, recalibrated
from dtml.markets.definition import LEVELS
from dtml.pages.backtest import beside_rules, predictor_charts
from dtml.pages.charts import Chart, cells, probability_axis, square, stacked
from dtml.pages.charts import calibration as calibration_charts
from dtml.pages.figures import PROTOCOL_WORDS, Page, Row, figure, fmt, percent, records
from dtml.pages.rendering import page, said

SHOWN = 10  # stocks of each end
FIGURES = ("probability", "probability_std", "calibrated", "lowest", "highest", "rising_share")
FIRST_DRIVERS = 3  # drivers that a direction is shown with: the stocks that it looks at most
MOST = 40  # stocks on a map: more would leave no room for their names
WIDE = 720  # width of a map without its names, in pixels
SMALLEST, LARGEST = 12, 30  # bounds of a cell's side, in pixels
UNFOLDED = 60  # the most stocks without a direction whose table is not collapsed
NO_SECTOR = "no sector"


def ranking_words(ranking: pd.DataFrame, scores: Sequence[Row], champion: Row | None = None) -> str:
    """Say which ranker ranked a night's stocks, and how good it has been beside the best rule.

    `ranking` has `predictor, leg` and a row. `scores` are rows of `rank_score` over all nights so
    far, of the ranking's leg. `champion` is the row that holds on this night.
    """
    shown = ranking.iloc[0]
    of_leg = [row for row in scores if row["leg"] == shown["leg"]]
    own = [row for row in of_leg if row["predictor"] == shown["predictor"] and row["days"]]
    rules = by_rank_ic(row for row in of_leg if row["is_rule"])
    is_champion = champion and champion["predictor"] == shown["predictor"]
    return said(
        "ranking_words", len(ranking), shown, champion if is_champion else None, of_leg, own, rules
    )


def by_rank_ic(scores: Iterable[Row]) -> list[Row]:
    """Return scores of rankings by their rank IC, the best first, missing ones last."""
    return sorted(scores, key=lambda row: (row["rank_ic"] is None, -(row["rank_ic"] or 0)))


def promotion_words(champion: Row) -> str:
    """Say which ranker has been champion since when, and on what evidence: a row of `champion`."""
    return said("promotion", champion)


def ends(ranking: pd.DataFrame) -> list[Row]:
    """Return the rows of the best and the worst stocks of a night, or all of a short list."""
    if len(ranking) <= 2 * SHOWN:
        return records(ranking)
    return records(pd.concat([ranking.head(SHOWN), ranking.tail(SHOWN)]))


def night_report(
    *,
    night: Row,
    level: float,
    directions: pd.DataFrame,
    threshold: float | None,
    scores: pd.DataFrame,
    rolling: pd.DataFrame,
    bins: pd.DataFrame,
    coverage: pd.DataFrame,
    attention: Attention,
    calibrations: Mapping[str, Calibration],
    facts: Page,
    served: bool = False,
) -> str:
    """Render a night as one HTML page. All frames but `directions` may be empty.

    - `night` is the night's row;
    - `directions`: `symbol, name, sector`, FIGURES, and `direction` at the `level`, whose
      `threshold` is of calibrated probabilities; without, one half decides on the probability
      shown;
    - `scores` of all nights up to each: `target, protocol, predictor, nights, n, acc, acc_low,
      ...`; `rolling` over `ROLLING_SESSIONS`, on all stock-days: `session, predictor, acc, acc_low,
      ...`;
    - `bins`: calibration_bin, `coverage`: `dtml.evaluation.calibration.coverage`; `calibrations` by
      run id;
    - `facts` are what `night.html` shows as it is, from the `title` to the `receipt`;
    - a page `served` by the dashboard has its menu.
    """
    rows = direction_rows(directions, threshold, attention, calibrations.get(night["run_id"]))
    sectors = rows.set_index("symbol")["sector"]
    # An empty frame may have no columns.
    with_outcome = coverage[coverage["n"] > 0] if len(coverage) else coverage
    curves = {}
    for name, counts in {
        "uncalibrated": bins,
        "calibrated": recalibrated(bins, calibrations),
    }.items():
        if len(counts) and len(curve := curve_with_intervals(counts)):
            curves[name] = curve
    return page(
        "night.html",
        served=served,
        shown=SHOWN,
        night=night,
        weekday=pd.Timestamp(night["target"]).day_name(),
        level=level,
        levels=LEVELS,
        **_directions(rows, threshold),
        **_scores(facts["title"], scores, rolling),
        curves=calibration_charts(curves),
        bins=bins,
        coverage=records(with_outcome),
        kept_chart=coverage_chart(with_outcome, level) if len(with_outcome) else None,
        attention=attention,
        map=heat_map(attention, sectors),
        most=MOST,
        sectors=sector_map(attention, sectors),
        own=pd.Series(attention.own, dtype=float).mean(),
        **facts,
    )


def direction_rows(
    directions: pd.DataFrame,
    threshold: float | None,
    attention: Attention,
    calibration: Calibration | None = None,
) -> pd.DataFrame:
    """Return a row for each stock with its direction, the most probable rise first.

    It adds to `directions`

    - `shown`, the probability, calibrated if possible, by which rows are sorted (then by symbol);
    - `low, high`, the range of the seeds on its scale;
    - `direction`, 'rise', 'fall' or 'none', without a threshold a rise above one half;
    - `drivers`, the `FIRST_DRIVERS` stocks that it looks at most, strongest first.
    """
    frame = directions.astype(dict.fromkeys(FIGURES, float))
    is_calibrated = bool(frame["calibrated"].notna().any())
    frame["shown"] = frame["calibrated" if is_calibrated else "probability"]
    for end, seeds in {"low": "lowest", "high": "highest"}.items():
        # A run that has a calibration has calibrated probabilities, and they are what is shown;
        # where it is not known, the range of its seeds is not either.
        if calibration is not None:
            frame[end] = calibration.apply(frame[seeds].to_numpy())
        else:
            frame[end] = np.nan if is_calibrated else frame[seeds]
    if threshold is None or not is_calibrated:
        shown = frame["shown"]
        frame["direction"] = np.select([shown > 0.5, shown.notna()], ["rise", "fall"], "none")
    drivers = attention.drivers(FIRST_DRIVERS)
    frame["drivers"] = [
        [source for source, _ in drivers.get(symbol, ())] for symbol in frame["symbol"]
    ]
    return frame.sort_values(["shown", "symbol"], ascending=[False, True])


def _directions(rows: pd.DataFrame, threshold: float | None) -> Page:
    """Return the page's values of the directions, in groups, the most certain first.

    All on one scale, which holds the abstention band unless stocks would fill less than half.
    """
    is_calibrated = bool(rows["calibrated"].notna().any())
    values = rows[["shown", "low", "high"]].to_numpy(dtype=float).ravel()
    axis = probability_axis(values)
    band = None
    # The threshold is one of calibrated probabilities: others are decided by one half.
    if threshold is not None and is_calibrated:
        band = (1 - threshold, threshold)
        if threshold - 0.5 <= 2 * (axis.high - 0.5):
            axis = probability_axis([*values, *band])
    groups = {
        group: records(rows[rows["direction"] == group]) for group in ("rise", "fall", "none")
    }
    groups["fall"].reverse()  # the rows begin with the most probable rise
    undecided = len(groups["none"])
    marks = pd.DataFrame(
        {
            "value": rows["shown"],
            "kind": rows["direction"],
            "words": rows["symbol"] + " " + rows["shown"].map(percent),
        }
    )
    sizes = ", ".join(f"{len(stocks)} {group}" for group, stocks in groups.items())
    drawing = "Probability of a rise, one mark a stock"
    return {
        "groups": groups,
        "stocks": len(rows),
        "calibrated": is_calibrated,
        "has_sectors": bool(rows["sector"].notna().any()),
        "axis": axis,
        "abstention_band": band,
        "marks": stacked(drawing, sizes, marks, axis, band) if len(rows) else None,
        # A long table is folded, unless it is the only one because no stock has a direction.
        "unfolded": undecided <= UNFOLDED or undecided == len(rows),
    }


def _scores(title: str, scores: pd.DataFrame, rolling: pd.DataFrame) -> Page:
    """Return the sentence on the directions so far, a table for each protocol, and the chart.

    Its lines are `rolling` or, while there is none, over all nights.
    """
    latest = scores[scores["target"] == scores["target"].max()]
    ordered = latest.assign(rule=latest["predictor"] != MODEL).sort_values(["rule", "predictor"])
    # The newest running scores, with the columns of a backtest's.
    so_far = latest.assign(slice="all", value="").rename(columns={"nights": "days"})
    running = scores[scores["protocol"] == "all"].rename(columns={"target": "session"})
    drawn = running if rolling.empty else rolling
    return {
        "so_far": said("directions", title, **beside_rules(so_far)),
        "scored": {  # all stock-days before the published labels
            protocol: rows
            for protocol in reversed(PROTOCOL_WORDS)
            if (rows := records(ordered[ordered["protocol"] == protocol]))
        },
        "scored_until": latest["target"].max() if len(latest) else None,
        "rolls": not rolling.empty,
        "window": ROLLING_SESSIONS,
        "lines": predictor_charts(drawn, "acc", "mcc") if len(drawn) else None,
    }


def coverage_chart(rows: pd.DataFrame, level: float) -> Chart:
    """Return the actual coverage of each nominal level, with its interval; `level` has a colour."""
    columns = ["level", "coverage", "coverage_low", "coverage_high"]
    points = rows[columns].set_axis(["x", "y", "low", "high"], axis=1)
    # Few days have no interval: without the columns of its ends, the chart draws none.
    drawn = points.astype(float).dropna(axis=1, how="all")
    words = "; ".join(
        f"nominal {fmt(x, 'whole_percent')}, actual {percent(y)}"
        for x, y in drawn[["x", "y"]].to_numpy()
    )
    return square(
        "Nominal and actual coverage of each level",
        words,
        drawn.assign(chosen=drawn["x"] == level),
        axes=("level", "coverage"),
        domain=[round(max(float(np.nanmin(drawn)) - 0.03, 0), 2), 1.0],
        joined=False,
    )


def heat_map(attention: Attention, sectors: "pd.Series[Any]") -> Chart | None:
    """Return the map of the attention between the MOST stocks that the others look at most.

    `sectors` has the sector of each symbol. The stocks are in the order of their sectors and
    symbols, those without a sector last. None without stocks.
    """
    most_looked_at = sorted(attention.looked_at.index[:MOST])
    chosen = sectors.reindex(most_looked_at).sort_values(kind="stable").index.tolist()
    if not chosen:
        return None
    # Rows look at columns.
    weights = pd.DataFrame(attention.weights, attention.symbols, attention.symbols)
    weights = weights.loc[chosen, chosen]
    of_others = weights.mask(np.eye(len(chosen), dtype=bool))
    # As many pairs are named as drivers are kept of a stock.
    strongest = of_others.melt(var_name="x", ignore_index=False).nlargest(KEPT, "value")
    listed = "; ".join(f"{y} to {x} {percent(value)}" for y, x, value in strongest.itertuples())
    words = (
        f"{len(chosen)} stocks; each row gives attention to the columns. The strongest: {listed}."
    )
    side = max(SMALLEST, min(LARGEST, WIDE // len(chosen)))  # of a cell, in pixels
    return cells("Attention between stocks", words, weights, (side, side), "percent")


def sector_map(attention: Attention, sectors: "pd.Series[Any]") -> Chart | None:
    """Return the map of how much attention stocks of a sector (row) give to those of another.

    It is 1 where there is no preference. Stocks without a sector count as one sector more. None
    with fewer than two sectors, or where a pair of stocks has no weight.
    """
    numbers, known = pd.factorize(sectors.reindex(attention.symbols), sort=True)
    names = [*known, *([NO_SECTOR] if (numbers < 0).any() else [])]
    if len(names) < 2 or not attention.is_whole:
        return None
    belongs = np.eye(len(names))[numbers]  # [stocks sectors]; the number -1 is the last one
    sizes = belongs.sum(axis=0)  # stocks of each sector
    # The mean attention that the stocks of one sector give to all stocks of another together, and
    # what they would give without any preference: that sector's share of the stocks.
    share = (belongs / sizes).T @ attention.weights @ belongs  # [sectors sectors]
    share_without_preference = sizes / sizes.sum()
    times = pd.DataFrame(share / share_without_preference, index=names, columns=names)
    words = (
        f"{len(names)} sectors; 1 is attention without any preference, "
        f"{figure(times.to_numpy().max(), 2)} the highest"
    )
    side = (66, 26)  # of a cell, in pixels
    return cells("Attention between sectors", words, times, side, "coefficient", is_written=True)
