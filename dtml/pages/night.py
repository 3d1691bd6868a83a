"""The report of a night: one self-contained HTML page, readable in ten years.

It runs no scripts and makes no requests. Missing values, NaN or None, are printed as "-".
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from dtml.attention import KEPT, Attention
from dtml.baselines.naive_rules import MODEL, NAIVE_RULES
from dtml.evaluation.breakdowns import ROLLING_SESSIONS
from dtml.evaluation.calibration import Calibration, curve_with_intervals, recalibrated
from dtml.markets.definition import Leg
from dtml.pages.backtest import directions_verdict, predictor_charts
from dtml.pages.benchmark import PROTOCOL_WORDS
from dtml.pages.charts import (
    Axis,
    Chart,
    cells,
    environment,
    probability_axis,
    square,
    stacked,
)
from dtml.pages.charts import calibration as calibration_charts
from dtml.pages.figures import (
    Row,
    counted,
    figure,
    named,
    percent,
    quoted,
    records,
    whole_percent,
    with_interval,
)

SHOWN = 10  # stocks of each end
LEG_WORDS: Mapping[Leg, str] = {
    "next_close": "from this close to the next",
    "overnight": "from this close to the next open",
    "intraday": "from the next open to its close",
    "open_to_open": "from the next open to the one after",
    "second_close": "from the next close to the one after",
    "five_days": "from the next open to the open five sessions on",
    "ten_days": "from the next open to the open ten sessions on",
    "twenty_days": "from the next open to the open twenty sessions on",
}


def ranking_words(
    ranking: pd.DataFrame, scores: pd.DataFrame, champion: Mapping[str, Any] | None = None
) -> str:
    """Say which ranker ranked a night's stocks, and how good its rankings have been.

    Its rankings are compared with those of the rule that has been the best so far. `ranking` has
    `predictor, leg` and at least one row. `scores` has the columns of table `rank_score`, for each
    predictor those over all nights on which it was scored so far, which may be other nights for
    each; only those of the ranking's leg count. `champion` is the
    row of table `champion` that holds on this night, if there is one; if it is of this ranker, its
    promotion is told too.
    """
    name = ranking["predictor"].iloc[0]
    leg = ranking["leg"].iloc[0]
    leg_words = LEG_WORDS[leg]
    words = (
        f"{len(ranking)} stocks are ranked by {named(name)} for the return {leg_words}, best first"
    )
    if champion and champion["predictor"] == name:
        words = f"{words}. {promotion_words(champion)}"
    # After a change of the market's leg, the newest scores may still be those of the old one.
    of_leg = scores[scores["leg"] == leg]
    ranker_scores = of_leg[of_leg["predictor"] == name]
    if of_leg.empty:
        return f"{words}. No ranking has an outcome yet."
    if ranker_scores.empty or not ranker_scores["days"].iloc[0]:
        return f"{words}. No ranking by {named(name)} was scored on the last scored night."
    score = records(ranker_scores)[0]
    rules = of_leg[of_leg["is_rule"].astype(bool)].sort_values("rank_ic", ascending=False)
    rule = records(rules)[0]  # there is one, as every night that is scored scores the rules too
    # A ranker that is new has fewer nights than the rules.
    rule_nights = "" if rule["days"] == score["days"] else f" over {counted(rule['days'], 'night')}"
    return (
        f"{words}. Over {counted(score['days'], 'night')}, "
        f"its rank IC is {with_interval(score, 'rank_ic')}; "
        f"that of the best rule, {quoted(rule['predictor'])}, is {with_interval(rule, 'rank_ic')}"
        f"{rule_nights}. "
        "0 means no skill."
    )


def promotion_words(champion: Mapping[str, Any]) -> str:
    """Say which ranker has been champion since when, and on what evidence: a row of `champion`."""
    champion_since = f"{named(champion['predictor'])} has been champion since {champion['since']}"
    if not champion["replaced"]:
        return f"{champion_since}, the best of a walk of {champion['nights']} sessions"
    replaced = named(champion["replaced"])
    return (
        f"{champion_since} instead of {replaced}: over {champion['nights']} nights it "
        f"gained {figure(champion['gain'], signed=True)} in rank IC, and its bets reached a wealth "
        f"of {champion['stake']:.0f}, where {champion['needed']:.0f} was needed"
    )


def ranking_part(
    ranking: pd.DataFrame, scores: pd.DataFrame, champion: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a page's values of a night's ranking; they are empty where no stock was ranked."""
    return {
        "ranking": ends(ranking),
        "ranking_words": ranking_words(ranking, scores, champion) if len(ranking) else None,
    }


def ends(ranking: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of the best and the worst stocks of a night, or all of a short list."""
    if len(ranking) <= 2 * SHOWN:
        return records(ranking)
    return records(pd.concat([ranking.head(SHOWN), ranking.tail(SHOWN)]))


NAMES = ("symbol", "name", "sector")
FIGURES = ("probability", "probability_std", "calibrated", "lowest", "highest", "rising_share")
DIRECTION_COLUMNS = (*NAMES, *FIGURES)
GROUPS = ("rise", "fall", "none")
FIRST_DRIVERS = 3  # drivers that a direction is shown with: the stocks that it looks at most
LISTED = 12  # stocks that the others look at most
Sectors = Mapping[str, Any]  # of symbols; None, NaN or no entry is no sector
MOST = 40  # stocks on a map: more would leave no room for their names
NO_SECTOR = "no sector"
WIDE = 720  # width of a map without its names, in pixels
SMALLEST = 12  # bounds of a cell's side, in pixels
LARGEST = 30
UNFOLDED = 60  # the most stocks without a direction whose table is not collapsed


def night_report(
    *,
    title: str,
    night: Row,
    directions: pd.DataFrame,
    level: float,
    threshold: float | None,
    scores: pd.DataFrame,
    rolling: pd.DataFrame,
    bins: pd.DataFrame,
    coverage: pd.DataFrame,
    attention: Attention,
    rejected: pd.DataFrame,
    warnings: pd.DataFrame,
    ranking: Mapping[str, Any],
    rejected_sessions: int,
    receipt: Mapping[str, object],
    calibrations: Mapping[str, Calibration] | None = None,
    drift: str = "",
    second_source: Sequence[str] = (),
    frozen: object | None = None,
    survivorship: str = "",
) -> str:
    """Render a night as one HTML page. All frames but `directions` may be empty.

    - `night` is the night's row; `frozen` has the `number` and `digest` of its link, if it has one;
    - `directions` has a row for each stock, `DIRECTION_COLUMNS` and `direction`, that at the
      nominal `level`, whose `threshold` is that of calibrated probabilities. Without a threshold
      (None) or calibrated probabilities, one half decides on the probability shown;
    - `scores` has for every night the scores of all nights up to it, `target, protocol, predictor,
      nights, n, acc, acc_low, ...`; `rolling` has for every session the scores of the last
      `ROLLING_SESSIONS` up to it, on all stock-days, `session, predictor, acc, acc_low, ...`;
    - `bins` has the columns of table calibration_bin, `coverage` those of
      `dtml.evaluation.calibration.coverage`. Of the `calibrations`, by run id, that of the night's
      run calibrates the range of its seeds, and all of them the curve of `bins`;
    - `attention` is that between the stocks; `ranking` is that of `ranking_part`;
    - `rejected` has `symbol, session, reason, value` of the last `rejected_sessions`, `warnings`
      has `symbol, reason, value`; `receipt` says how predictions were made, with its `config`;
    - these are words: `drift` on changes since the training, `second_source` on where another
      source differs, `survivorship` on whom the list names.
    """
    by_run = calibrations or {}
    rows = direction_rows(directions, threshold, attention, by_run.get(night["run_id"]))
    weekday = pd.Timestamp(night["target"]).day_name()
    # An empty frame may have no columns.
    with_outcome = coverage[coverage["n"] > 0] if len(coverage) else coverage
    bins_by_name = {"uncalibrated": bins, "calibrated": recalibrated(bins, by_run)}
    curves = {}
    for name, counts in bins_by_name.items():
        curve = curve_with_intervals(counts) if len(counts) else counts
        if len(curve):
            curves[name] = curve
    return _template().render(
        title=title,
        drift=drift,
        night=night,
        weekday=weekday,
        frozen=frozen,
        **_directions(rows, level, threshold),
        **_scores(title, scores, rolling),
        curves=calibration_charts(curves),
        curve_nights=bins["target"].nunique() if len(bins) else 0,
        coverage=records(with_outcome),
        kept_chart=coverage_chart(with_outcome, level) if len(with_outcome) else None,
        **_attention(rows, attention),
        **ranking,
        rejected=records(rejected),
        warnings=records(warnings),
        rejected_sessions=rejected_sessions,
        second_source=second_source,
        survivorship=survivorship,
        receipt={name: value for name, value in receipt.items() if name != "config"},
        config=json.dumps(receipt.get("config"), indent=2, ensure_ascii=False, default=str),
    )


@cache
def _template() -> jinja2.Template:
    """Compile the template once a process, for nights that are caught up one after the other."""
    pages = environment()
    pages.globals.update(
        rules=NAIVE_RULES,
        model=MODEL,
        protocols=PROTOCOL_WORDS,
        window=ROLLING_SESSIONS,
    )
    return pages.get_template("night.html")


def direction_rows(
    directions: pd.DataFrame,
    threshold: float | None,
    attention: Attention,
    calibration: Calibration | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each stock with its direction, the most probable rise first.

    To `DIRECTION_COLUMNS`, in which a column that `directions` lacks is NaN, it adds

    - `shown`, the probability by which rows are sorted (then by symbol), calibrated if the night
      has calibrated probabilities;
    - `low, high`, the range of the seeds on the scale of `shown`;
    - `direction`, 'rise', 'fall' or 'none', as it is given or, without a threshold or calibrated
      probabilities, a rise above one half;
    - `drivers`, the symbols of the `FIRST_DRIVERS` stocks that the stock looks at most, the
      strongest first.
    """
    frame = directions.reindex(columns=[*DIRECTION_COLUMNS, "direction"])
    frame[list(FIGURES)] = frame[list(FIGURES)].astype(float)
    is_calibrated = bool(frame["calibrated"].notna().any())
    frame["shown"] = frame["calibrated"] if is_calibrated else frame["probability"]
    frame["low"] = _on_shown_scale(frame["lowest"], calibration, is_calibrated)
    frame["high"] = _on_shown_scale(frame["highest"], calibration, is_calibrated)
    if threshold is None or not is_calibrated:
        shown = frame["shown"]
        frame["direction"] = np.select([shown > 0.5, shown.notna()], ["rise", "fall"], "none")
    drivers = attention.drivers(FIRST_DRIVERS)
    sources: dict[str, list[str]] = {}
    for symbol, weighted_sources in drivers.items():
        sources[symbol] = [source for source, _ in weighted_sources]
    frame["drivers"] = [sources.get(symbol, []) for symbol in frame["symbol"]]
    return records(frame.sort_values(["shown", "symbol"], ascending=[False, True]))


def _on_shown_scale(
    probability: "pd.Series[float]", calibration: Calibration | None, is_calibrated: bool
) -> Any:
    """Return an end of the seeds' range on the scale of what is shown.

    It is NaN where calibrated probabilities are shown and their calibration is not known.
    """
    end = probability.to_numpy(dtype=float)
    # A run that has a calibration has calibrated probabilities, and they are what is shown.
    if calibration is not None:
        return calibration.apply(end)
    return np.nan if is_calibrated else end


def _directions(
    rows: list[dict[str, Any]], level: float, threshold: float | None
) -> dict[str, Any]:
    """Return the page's values of the directions.

    The stocks are in groups by direction, the most certain first (those without one: the most
    probable rise first), and all on one scale. `has` says which columns have any value.
    """
    is_calibrated = any(not pd.isna(row["calibrated"]) for row in rows)
    # The threshold is one of calibrated probabilities: others are decided by one half.
    threshold_in_use = threshold if is_calibrated else None
    band = None if threshold_in_use is None else (1 - threshold_in_use, threshold_in_use)
    axis = _axis(rows, threshold_in_use)
    groups: dict[str, list[dict[str, Any]]] = {group: [] for group in GROUPS}
    for row in rows:
        groups[row["direction"]].append(row)
    groups["fall"].reverse()  # the rows begin with the most probable rise
    undecided = len(groups["none"])
    has_values = {}
    for name in DIRECTION_COLUMNS:
        has_values[name] = any(not pd.isna(row[name]) for row in rows)
    return {
        "groups": groups,
        "stocks": len(rows),
        "calibrated": is_calibrated,
        "axis": axis,
        "abstention_band": band,
        "shaded": _shading(axis, threshold_in_use),
        "level": level,
        "marks": _marks(rows, groups, axis, band),
        # A long table is folded, unless it is the only one because no stock has a direction.
        "unfolded": undecided <= UNFOLDED or undecided == len(rows),
        "has": has_values,
    }


def _axis(rows: list[dict[str, Any]], threshold: float | None) -> Axis:
    """Return the scale that holds every stock with the range of its seeds.

    It holds the abstention band too, unless that would compress the stocks.
    """
    values: list[float] = []
    for row in rows:
        values += [row["shown"], row["low"], row["high"]]
    axis = probability_axis(values)
    if threshold is None:
        return axis
    reach_of_stocks = axis.high - 0.5
    reach_of_band = threshold - 0.5
    if reach_of_band > 2 * reach_of_stocks:  # the stocks would fill less than half of the scale
        return axis
    return probability_axis([*values, threshold])


def _marks(
    rows: list[dict[str, Any]],
    groups: Mapping[str, list[dict[str, Any]]],
    axis: Axis,
    band: tuple[float, float] | None,
) -> Chart | None:
    """Return the chart with a mark for each stock that has a probability; None without stocks."""
    if not rows:
        return None
    marks = pd.DataFrame(
        {
            "value": [row["shown"] for row in rows],
            "kind": [row["direction"] for row in rows],
            "words": [f"{row['symbol']} {percent(row['shown'])}" for row in rows],
        }
    )
    sizes = ", ".join(f"{len(stocks)} {group}" for group, stocks in groups.items())
    return stacked("Probability of a rise, one mark a stock", sizes, marks, axis, band)


def _shading(axis: Axis, threshold: float | None) -> str:
    """Return the background of a row's scale in CSS.

    The abstention band is shaded, one half a thin line.
    """
    half = (
        "linear-gradient(to right, transparent calc(50% - .75px), "
        "var(--line) 0 calc(50% + .75px), transparent 0)"
    )
    if threshold is None:
        return half
    low = axis.at(min(max(1 - threshold, axis.low), axis.high))
    high = axis.at(min(max(threshold, axis.low), axis.high))
    return (
        f"{half}, linear-gradient(to right, transparent {low}%, "
        f"var(--shaded) 0 {high}%, transparent 0)"
    )


def _scores(title: str, scores: pd.DataFrame, rolling: pd.DataFrame) -> dict[str, Any]:
    """Return the sentence on the directions so far, a table for each protocol, and the chart.

    `scores` and `rolling` are as in `night_report`. The chart's lines show for each session the
    scores of the last `ROLLING_SESSIONS` up to it; while there are none yet, those of all nights up
    to it.
    """
    latest = scores[scores["target"] == scores["target"].max()]
    ordered = latest.assign(rule=latest["predictor"] != MODEL).sort_values(["rule", "predictor"])
    tables = {}
    for protocol in reversed(PROTOCOL_WORDS):  # all stock-days before the published labels
        rows = records(ordered[ordered["protocol"] == protocol])
        if rows:
            tables[protocol] = rows
    # `directions_verdict` reads a backtest's scores, so the newest running scores get the columns
    # of those.
    whole = latest.assign(slice="all", value="").rename(columns={"nights": "days"})
    running = scores[scores["protocol"] == "all"].rename(columns={"target": "session"})
    has_rolling = not rolling.empty
    drawn = rolling if has_rolling else running
    return {
        "so_far": directions_verdict({"market": title}, whole),
        "scored": tables,
        "scored_until": latest["target"].max() if len(latest) else None,
        "rolls": has_rolling,
        "lines": predictor_charts(drawn, "acc", "mcc") if len(drawn) else None,
    }


def coverage_chart(rows: pd.DataFrame, level: float) -> Chart:
    """Return the actual coverage of each nominal level, with its interval if one is known.

    `rows` are those of `dtml.evaluation.calibration.coverage`. The page's own `level` has another
    colour.
    """
    short_names = {
        "level": "x",
        "coverage": "y",
        "coverage_low": "low",
        "coverage_high": "high",
    }
    points = rows.rename(columns=short_names)[["x", "y", "low", "high"]]
    # Few days have no interval: without the columns of its ends, the chart draws none.
    drawn = points.astype(float).dropna(axis=1, how="all")
    lowest = float(drawn.min(axis=None))  # type: ignore[arg-type]
    low = max(lowest - 0.03, 0)
    words = "; ".join(
        f"nominal {whole_percent(x)}, actual {percent(y)}" for x, y in drawn[["x", "y"]].to_numpy()
    )
    return square(
        "Nominal and actual coverage of each level",
        words,
        drawn.assign(chosen=drawn["x"] == level),
        axes=("level", "coverage"),
        domain=[round(low, 2), 1.0],
        joined=False,
    )


def _attention(rows: list[dict[str, Any]], attention: Attention) -> dict[str, Any]:
    """Return the page's values of the attention."""
    sectors = {row["symbol"]: row["sector"] for row in rows}
    drivers = attention.drivers()
    to_itself = attention.own[np.isfinite(attention.own)]  # by stock, where it is known
    return {
        "attention": attention,
        "map": heat_map(attention, sectors),
        "most": MOST,
        "sectors": sector_map(attention, sectors),
        "most_looked_at": list(attention.looked_at.head(LISTED).items()),
        "own": to_itself.mean() if len(to_itself) else np.nan,
        "drivers": [
            (symbol, own, drivers[symbol])
            for symbol, own in zip(attention.symbols, attention.own, strict=True)
        ],
        # Columns of the table of drivers; the template fills shorter rows with "-".
        "kept": max((len(sources) for sources in drivers.values()), default=0),
    }


def heat_map(attention: Attention, sectors: Sectors, most: int = MOST) -> Chart | None:
    """Return the map of the attention between the `most` stocks that the others look at most.

    They are in the order of their sectors and symbols, those without a sector last. None without
    stocks.
    """
    most_looked_at = attention.looked_at.index[:most]
    chosen = sorted(most_looked_at, key=lambda symbol: (*_sector_key(sectors, symbol), symbol))
    if not chosen:
        return None
    # A frame whose rows look at its columns, then a row for each pair that has a weight.
    places = pd.Index(attention.symbols).get_indexer(pd.Index(chosen))
    weights_of_chosen = attention.weights[np.ix_(places, places)]
    weights = pd.DataFrame(weights_of_chosen, index=chosen, columns=chosen)
    rows = weights.rename_axis("y").reset_index().melt("y", var_name="x").dropna()
    of_others = rows[rows["x"] != rows["y"]]
    # As many pairs are named as drivers are kept of a stock.
    strongest = of_others.nlargest(KEPT, "value")[["y", "x", "value"]]
    listed = "; ".join(
        f"{y} to {x} {percent(value)}" for y, x, value in strongest.itertuples(index=False)
    )
    words = (
        f"{len(chosen)} stocks; each row gives attention to the columns. The strongest: {listed}."
    )
    side = max(SMALLEST, min(LARGEST, WIDE // len(chosen)))  # of a cell, in pixels
    return cells("Attention between stocks", words, rows, (side, side), "percent", order=chosen)


def sector_map(attention: Attention, sectors: Sectors) -> Chart | None:
    """Return the map of how much attention the stocks of each sector give to those of each sector.

    It is relative to attention without any preference; rows look at columns. Stocks without a
    sector count as one sector more. None with fewer than two sectors, or where a pair of stocks has
    no weight.
    """
    sector_keys = [_sector_key(sectors, symbol) for symbol in attention.symbols]
    names = [name for _, name in sorted(set(sector_keys))]
    if len(names) < 2 or not attention.is_whole:
        return None
    sector_of_stock = np.array([names.index(name) for _, name in sector_keys])
    belongs = np.eye(len(names))[sector_of_stock]  # [stocks sectors]
    sizes = belongs.sum(axis=0)  # stocks of each sector
    # The mean attention that the stocks of one sector give to all stocks of another together, and
    # what they would give without any preference: that sector's share of the stocks.
    share = (belongs / sizes).T @ attention.weights @ belongs  # [sectors sectors]
    share_without_preference = sizes / len(sector_keys)
    times = pd.DataFrame(share / share_without_preference, index=names, columns=names)
    rows = times.rename_axis("y").reset_index().melt("y", var_name="x")
    words = (
        f"{len(names)} sectors; 1 is attention without any preference, "
        f"{figure(rows['value'].max(), 2)} the highest"
    )
    return cells("Attention between sectors", words, rows, (66, 26), "ratio", is_written=True)


def _sector_key(sectors: Sectors, symbol: str) -> tuple[bool, str]:
    """Return a key that sorts stocks by sector, those without one last.

    Its second part is the sector's name.
    """
    name = sectors.get(symbol)
    if name is None or pd.isna(name):
        return True, NO_SECTOR
    return False, str(name)
