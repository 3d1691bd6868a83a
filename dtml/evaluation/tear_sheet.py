"""What the tear sheet of a ranking shows: is there an order, is it steady, can it be traded?

Every figure is one number a day, averaged, with an interval as in `dtml.evaluation.ranking`; below
`MINIMUM_DAYS` an interval is missing (NaN). Grids are [days stocks], NaN where a stock is not
ranked or has no outcome. Returns are ratios minus 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dtml.evaluation.metrics import MINIMUM_DAYS
from dtml.evaluation.ranking import (
    DECILES,
    Daily,
    Days,
    Estimate,
    both_known,
    mean_of_days,
    rank_ics,
)
from dtml.markets.definition import YEAR, Costs
from dtml.ranking.panel import ranked

POINTS = 30  # of the band around a cumulative rank IC, at most
HORIZONS = (1, 2, 3, 5, 10, 20)  # ranked days between two rankings that are compared
NO_GROUP = -1

Groups = Int[ndarray, "days stocks"]
Members = Bool[ndarray, "days stocks"]


@dataclass(frozen=True)
class TearSheet:
    """The tables of a tear sheet, whose functions in this module describe their columns.

    `predictor` is the ranking shown and `rule` the rule drawn beside it, None without one. `leg` is
    the return that its figures are of, `spread_leg` the one that the spread is of. `overlap` is the
    number of consecutive days whose outcomes of `leg` share a part of their span, 1 if none do
    (`dtml.ranking.outcomes.overlap_of`). A table without data has no rows.
    """

    predictor: str
    rule: str | None
    leg: str
    spread_leg: str
    cumulative: pd.DataFrame  # `cumulative_ic`, with a column `predictor`
    months: pd.DataFrame
    halves: pd.DataFrame
    groups: pd.DataFrame
    spread: pd.DataFrame
    horizons: pd.DataFrame
    legs: pd.DataFrame  # leg, days, rank_ic, rank_ic_low, rank_ic_high, t
    sectors: pd.DataFrame  # sector, days, n, rank_ic, rank_ic_low, rank_ic_high
    coverage: pd.DataFrame
    overlap: int = 1

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the tables by their names."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, pd.DataFrame)}

    @property
    def daily(self) -> pd.DataFrame:
        """Return the rows of `cumulative` of the ranking itself, one a day."""
        rows: pd.DataFrame = self.cumulative[self.cumulative["predictor"] == self.predictor]
        return rows


def running_means(rank_ic: Daily, *, overlap: int = 1) -> pd.DataFrame:
    """Return the mean rank IC over the days up to some of them, each with its interval.

    Columns: `days` (how many of the first days a row covers), `rank_ic, rank_ic_low, rank_ic_high`.
    There are `POINTS` rows at most, from the first `MINIMUM_DAYS` days to all days. The figures of
    the last row are therefore those of `score_ranking` with the same `overlap`. Days without a rank
    IC are left out. No rows below `MINIMUM_DAYS`.
    """
    known = rank_ic[np.isfinite(rank_ic)]
    rows = []
    if len(known) >= MINIMUM_DAYS:
        counts = np.linspace(MINIMUM_DAYS, len(known), POINTS).round().astype(int)
        for count in np.unique(counts):
            mean = mean_of_days(known[:count], overlap=overlap)
            rows.append({"days": int(count), **mean.named("rank_ic")})
    return pd.DataFrame(rows, columns=["days", "rank_ic", "rank_ic_low", "rank_ic_high"])


def cumulative_ic(
    sessions: pd.DatetimeIndex, rank_ic: Daily, running: pd.DataFrame
) -> pd.DataFrame:
    """Return the sum of the daily rank ICs so far, with the ends of its interval.

    `running` has the interval of the mean over the first `days` days, as `running_means` gives it
    and as the store keeps it for nights: its ends, times the days, are those of the sum. Columns:
    `session, rank_ic, total, low, high`, a row for each day with a rank IC; the ends are NaN on a
    day that `running` lacks.
    """
    is_known = np.isfinite(rank_ic)
    known = rank_ic[is_known]
    days = np.arange(1, len(known) + 1)
    # A night without a rank IC repeats the number of days of the night before.
    ends = running.drop_duplicates("days").set_index("days").reindex(days)
    return pd.DataFrame(
        {
            "session": sessions[is_known],
            "rank_ic": known,
            "total": known.cumsum(),
            "low": ends["rank_ic_low"].to_numpy(dtype=float) * days,
            "high": ends["rank_ic_high"].to_numpy(dtype=float) * days,
        }
    )


def monthly_ic(cumulative: pd.DataFrame) -> pd.DataFrame:
    """Return the mean rank IC of each calendar month: `year, month, days, rank_ic`.

    `cumulative` has the columns `session, rank_ic`.
    """
    sessions = pd.DatetimeIndex(cumulative["session"])
    daily = pd.DataFrame(
        {
            "year": sessions.year,
            "month": sessions.month,
            "rank_ic": cumulative["rank_ic"].to_numpy(dtype=float),
        }
    )
    months = daily.groupby(["year", "month"])["rank_ic"].agg(["size", "mean"]).reset_index()
    return months.set_axis(["year", "month", "days", "rank_ic"], axis=1)


def halves_ic(cumulative: pd.DataFrame, *, overlap: int = 1) -> pd.DataFrame:
    """Return the mean rank IC of the first and of the second half of the days.

    Columns: `half` (1 or 2), `first, last, days, rank_ic, rank_ic_low, rank_ic_high`. Of an odd
    number of days the first half has the middle one. No rows below two days. `cumulative` has the
    columns `session, rank_ic`; `overlap` is as in `score_ranking`.
    """
    columns = ["half", "first", "last", "days", "rank_ic", "rank_ic_low", "rank_ic_high"]
    middle = (len(cumulative) + 1) // 2
    rows = []
    if len(cumulative) > 1:
        for half, days in enumerate((cumulative.iloc[:middle], cumulative.iloc[middle:]), start=1):
            mean = mean_of_days(days["rank_ic"].to_numpy(dtype=float), overlap=overlap)
            rows.append(
                {
                    "half": half,
                    "first": days["session"].iloc[0],
                    "last": days["session"].iloc[-1],
                    "days": len(days),
                    **mean.named("rank_ic"),
                }
            )
    return pd.DataFrame(rows, columns=columns)


def score_groups(scores: Days) -> Groups:
    """Return the group of each stock-day, from 0 for the lowest scores to 9 for the highest.

    Each group has about a tenth of the day's stocks. The first and the last are the tenths that
    `decile_spreads` compares. Equal scores share a group, so a group may be empty. Stocks that are
    not ranked have `NO_GROUP`.
    """
    share_below = ranked(scores) + 0.5  # 0 for the lowest score of the day, 1 for the highest
    edges = np.arange(1, DECILES) / DECILES
    middle = DECILES // 2
    # Edges belong to the outer group on both sides, so that both ends are cut alike.
    # The comparisons are [days stocks edges].
    lower_edges_passed = (share_below[..., None] > edges[:middle]).sum(axis=-1)
    upper_edges_passed = (share_below[..., None] >= edges[middle:]).sum(axis=-1)
    group = lower_edges_passed + upper_edges_passed
    return np.where(np.isfinite(share_below), group, NO_GROUP)


def group_returns(scores: Days, outcome: Days, *, overlap: int = 1) -> pd.DataFrame:
    """Return the mean return of each score group, and its excess over that of all stocks ranked.

    Columns: `group` (1 for the lowest scores, 10 for the highest), `days` (those on which the group
    has a stock), `mean_return`, and `excess, excess_low, excess_high`. Which stock-days count, and
    what `overlap` means, is as in `score_ranking`.
    """
    scores, outcome = both_known(scores, outcome)
    group_of = score_groups(scores)
    of_all = _mean_of_members(outcome, np.isfinite(outcome))
    rows = []
    for group in range(DECILES):
        of_group = _mean_of_members(outcome, group_of == group)
        excess = mean_of_days(of_group - of_all, overlap=overlap)
        rows.append(
            {
                "group": group + 1,
                "days": int(np.isfinite(of_group).sum()),
                "mean_return": mean_of_known_days(of_group),
                **excess.named("excess"),
            }
        )
    return pd.DataFrame(rows)


def _mean_of_members(values: Days, members: Members) -> Daily:
    """Return the mean value of each day's members; NaN on a day without one."""
    counts = members.sum(axis=1)
    totals = np.where(members, values, 0.0).sum(axis=1)
    missing = np.full(len(values), np.nan)
    return np.asarray(np.divide(totals, counts, out=missing, where=counts > 0))


def mean_of_known_days(daily: Daily) -> float:
    """Return the mean of the days that have a value, NaN without one."""
    known = daily[np.isfinite(daily)]
    return float(known.mean()) if len(known) else float("nan")


def net_spread(
    scores: Days, gross: Daily, sessions: pd.DatetimeIndex, costs: Costs | None, year: int = YEAR
) -> pd.DataFrame:
    """Return what the best tenth earns more than the worst on each day, before and after costs.

    `gross` is the spread of each day, as `decile_spreads` returns it, NaN where it is not known.
    The portfolio holds 1 in the best tenth and is short 1 in the worst, in equal parts, and trades
    to these weights on every ranked day; it pays `costs` (None: unknown) on each purchase and sale,
    and for borrowing the short side. Columns: `session, gross, cost, net, turnover, gross_total,
    net_total`; `turnover` is the value traded, 4 if every holding is replaced. Totals add up daily
    returns without compounding. Days without a spread have no row, and what is traded on them is
    not in the totals; without costs, `cost`, `net` and `net_total` are NaN.
    """
    # A day without a ranking keeps the weights of the day before, which are 0 before any ranking.
    group_of = score_groups(scores)
    weights = np.zeros(scores.shape)
    for group, side in ((DECILES - 1, 1.0), (0, -1.0)):
        members = group_of == group
        counts = members.sum(axis=1, keepdims=True)
        weights += side * members / np.maximum(counts, 1)
    is_ranked = (group_of != NO_GROUP).any(axis=1)
    last_ranked = np.maximum.accumulate(np.where(is_ranked, np.arange(len(weights)), 0))
    bought, sold = _trades(weights[last_ranked])
    cost = np.full(len(gross), np.nan)
    if costs is not None:
        purchase_rate, sale_rate = costs.of_trades(sessions)
        cost = bought * purchase_rate + sold * sale_rate + costs.of_shorts(sessions, year)
    days = pd.DataFrame(
        {
            "session": sessions,
            "gross": gross,
            "cost": cost,
            "net": gross - cost,
            "turnover": bought + sold,
        }
    )
    known: pd.DataFrame = days[np.isfinite(gross)].reset_index(drop=True)
    return known.assign(gross_total=known["gross"].cumsum(), net_total=known["net"].cumsum())


def _trades(weights: Float[ndarray, "days stocks"]) -> tuple[Daily, Daily]:
    """Return the value bought and the value sold on each day, from nothing before the first."""
    changes = np.diff(weights, axis=0, prepend=np.zeros((1, weights.shape[1])))
    return np.maximum(changes, 0).sum(axis=1), np.maximum(-changes, 0).sum(axis=1)


def by_horizon(scores: Days) -> pd.DataFrame:
    """Compare each day's ranking with earlier ones, `HORIZONS` ranked days before it.

    Columns: `horizon` (of `HORIZONS`), `days` (pairs of days), `autocorrelation` (mean over days of
    Spearman's correlation of the scores of the stocks that both days rank) and `replaced` (mean
    share of the best tenth that was not in the best tenth before), each with the ends of its
    interval. Days without a ranking are left out. No rows for a horizon without a pair.
    """
    is_ranked = np.isfinite(scores).any(axis=1)
    scores = scores[is_ranked]
    best = score_groups(scores) == DECILES - 1
    rows = []
    for horizon in HORIZONS:
        if horizon >= len(scores):
            break
        now, before = both_known(scores[horizon:], scores[:-horizon])
        new = best[horizon:] & ~best[:-horizon]
        replaced = _mean_of_members(new.astype(float), best[horizon:])
        autocorrelation = mean_of_days(rank_ics(now, before))
        rows.append(
            {
                "horizon": horizon,
                "days": len(new),
                **autocorrelation.named("autocorrelation"),
                **mean_of_days(replaced).named("replaced"),
            }
        )
    ends = ("", "_low", "_high")
    figures = [f"{name}{end}" for name in ("autocorrelation", "replaced") for end in ends]
    return pd.DataFrame(rows, columns=["horizon", "days", *figures])


def by_sector(
    scores: Days, outcome: Days, sectors: Sequence[str | None], *, overlap: int = 1
) -> pd.DataFrame:
    """Return the rank IC within each sector, the sectors in the order of their names.

    `sectors` has that of each column of the grids, None or "" without one. Columns: `sector, days,
    n, rank_ic, rank_ic_low, rank_ic_high`, as `score_ranking` gives them of the sector's stocks.
    """
    names = np.array([sector or "" for sector in sectors], dtype=object)
    rows = []
    for sector in sorted(set(names) - {""}):
        of_sector = np.where(names == sector, scores, np.nan)
        known_scores, known_outcome = both_known(of_sector, outcome)
        daily = rank_ics(known_scores, known_outcome)
        rows.append(
            {
                "sector": sector,
                "days": int(np.isfinite(daily).sum()),
                "n": int(np.isfinite(known_scores).sum()),
                **mean_of_days(daily, overlap=overlap).named("rank_ic"),
            }
        )
    columns = ["sector", "days", "n", "rank_ic", "rank_ic_low", "rank_ic_high"]
    return pd.DataFrame(rows, columns=columns)


def coverage(
    sessions: pd.DatetimeIndex,
    constituents: Int[ndarray, " days"],
    scores: Days,
    outcome: Days,
) -> pd.DataFrame:
    """Return how many constituents of each day were ranked, and how many also have an outcome.

    Columns: `session, constituents, ranked, scored`, and the shares `ranked_share, scored_share` of
    the constituents, NaN on a day without one. `scored_share` is NaN too where `scored` is 0: the
    outcomes may not be known yet.
    """
    has_score = np.isfinite(scores)
    has_both = has_score & np.isfinite(outcome)
    days = pd.DataFrame(
        {
            "session": sessions,
            "constituents": constituents,
            "ranked": has_score.sum(axis=1),
            "scored": has_both.sum(axis=1),
        }
    )
    members = days["constituents"].where(days["constituents"] > 0)
    return days.assign(
        ranked_share=days["ranked"] / members,
        scored_share=days["scored"].where(days["scored"] > 0) / members,
    )


@dataclass(frozen=True)
class Answers:
    """The figures of a ranking: has it an order, is it steady, can it be traded.

    `days` counts those with a rank IC, `positive` is the share of them above 0. `months` is the
    number of months, `positive_months` how many of them have a mean above 0. `gross`, `net` and
    `cost` are of the spread of the tenths a day; `net` and `cost` are NaN without costs. `replaced`
    is the share of the best tenth that changes from one ranked day to the next.
    """

    days: int
    rank_ic: Estimate
    positive: float
    months: int
    positive_months: int
    halves: tuple[Estimate, ...]
    gross: Estimate
    net: Estimate
    cost: float
    replaced: float


def answers(sheet: TearSheet) -> Answers:
    """Return the figures of the sentences with which a tear sheet's page begins.

    Without a day with a rank IC, the counts are 0, and `rank_ic` and `positive` are NaN. `halves`
    is empty below two such days. The others do not depend on these days: `gross`, `net` and `cost`
    are NaN where no day has a spread (`net` and `cost` also without costs), `replaced` where fewer
    than two days were ranked.
    """
    daily = sheet.daily["rank_ic"].to_numpy(dtype=float)
    spread = sheet.spread
    halves = [_estimate(half, "rank_ic") for _, half in sheet.halves.iterrows()]
    horizons = sheet.horizons
    replaced = horizons.loc[horizons["horizon"] == 1, "replaced"].to_numpy(dtype=float)
    return Answers(
        days=len(daily),
        rank_ic=mean_of_days(daily, overlap=sheet.overlap),
        positive=mean_of_known_days((daily > 0).astype(float)),
        months=len(sheet.months),
        positive_months=int((sheet.months["rank_ic"] > 0).sum()),
        halves=tuple(halves),
        # Without `overlap`: unlike `leg`, `spread_leg` always spans a single session.
        gross=mean_of_days(spread["gross"].to_numpy(dtype=float)),
        net=mean_of_days(spread["net"].to_numpy(dtype=float)),
        cost=mean_of_known_days(spread["cost"].to_numpy(dtype=float)),
        replaced=mean_of_known_days(replaced),
    )


def _estimate(row: "pd.Series[Any]", name: str) -> Estimate:
    return Estimate(row[name], row[f"{name}_low"], row[f"{name}_high"])
