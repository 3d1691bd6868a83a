"""What the tear sheet of a ranking shows: is there an order, is it steady, can it be traded?

Figures and intervals are as in `dtml.evaluation.ranking`. Grids are [days stocks], NaN where a
stock is not ranked or has no outcome. Returns are ratios minus 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Int
from numpy import ndarray

from dtml.evaluation.metrics import MINIMUM_DAYS, Estimate
from dtml.evaluation.ranking import (
    DECILES,
    NO_GROUP,
    Daily,
    Days,
    both_known,
    mean_of_days,
    mean_of_members,
    rank_ics,
    score_groups,
)
from dtml.markets.definition import YEAR, Costs, Leg

POINTS = 30  # of the band around a cumulative rank IC, at most
HORIZONS = (1, 2, 3, 5, 10, 20)  # ranked days between two rankings that are compared
TRADED_LEG: Leg = "open_to_open"  # of the spread: a ranking made at a close cannot be traded at it
RANK_IC = ["rank_ic", "rank_ic_low", "rank_ic_high"]
OF_LEGS = ["leg", "days", *RANK_IC, "t"]
OF_SECTORS = ["sector", "days", "n", *RANK_IC]


@dataclass(frozen=True)
class TearSheet:
    """The tables of a tear sheet, whose functions in this module describe their columns.

    `rule` is drawn beside `predictor`. `leg` is the return of its figures, `spread_leg` that of the
    spread; outcomes of `overlap` consecutive days share a part
    (`dtml.ranking.outcomes.overlap_of`).
    """

    predictor: str
    rule: str | None
    leg: str
    spread_leg: str
    overlap: int
    cumulative: pd.DataFrame  # `cumulative_ic`, with a column `predictor`
    groups: pd.DataFrame
    spread: pd.DataFrame
    horizons: pd.DataFrame
    legs: pd.DataFrame  # OF_LEGS
    sectors: pd.DataFrame  # OF_SECTORS
    coverage: pd.DataFrame

    @classmethod
    def of(
        cls,
        *,
        predictor: str,
        leg: str,
        spread_leg: str,
        overlap: int,
        cumulative: Mapping[str, pd.DataFrame],
        sessions: pd.DatetimeIndex,
        scores: Days,
        outcome: Days,
        gross: Daily,
        constituents: Int[ndarray, " days"],
        costs: Costs | None,
        year: int = YEAR,
        legs: pd.DataFrame,
        sectors: pd.DataFrame,
    ) -> "TearSheet":
        """Compute a sheet from the grids of a ranking.

        `cumulative`: rows of `cumulative_ic` by name; `gross`: as `net_spread` says;
        `constituents`: a day's number.
        """
        named = [rows.assign(predictor=name) for name, rows in cumulative.items()]
        return cls(
            predictor=predictor,
            rule=next((name for name in cumulative if name != predictor), None),
            leg=leg,
            spread_leg=spread_leg,
            overlap=overlap,
            cumulative=pd.concat(named, ignore_index=True),
            groups=group_returns(scores, outcome, overlap=overlap),
            spread=net_spread(scores, gross, sessions, costs, year),
            horizons=by_horizon(scores),
            legs=legs,
            sectors=sectors,
            coverage=coverage(sessions, constituents, scores, outcome),
        )

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the tables by their names."""
        return {name: each for name, each in vars(self).items() if isinstance(each, pd.DataFrame)}

    @property
    def daily(self) -> pd.DataFrame:
        """Return the rows of `cumulative` of the ranking itself, one a day."""
        rows: pd.DataFrame = self.cumulative[self.cumulative["predictor"] == self.predictor]
        return rows

    @property
    def months(self) -> pd.DataFrame:
        """Return the mean rank IC of each calendar month: `year, month, days, rank_ic`."""
        sessions = pd.DatetimeIndex(self.daily["session"])
        daily = self.daily["rank_ic"].astype(float)
        keys = [sessions.year.rename("year"), sessions.month.rename("month")]
        by_month = daily.groupby(keys).agg(["size", "mean"]).reset_index()
        return by_month.rename(columns={"size": "days", "mean": "rank_ic"})

    @property
    def halves(self) -> pd.DataFrame:
        """Return the mean rank IC of the first and of the second half of the days.

        Columns: `half` (1, 2), `first, last, days, rank_ic, rank_ic_low, rank_ic_high`. A middle
        day is in the first half. With fewer than two days there is no row.
        """
        daily = self.daily
        middle = (len(daily) + 1) // 2
        halves = (daily.iloc[:middle], daily.iloc[middle:]) if len(daily) > 1 else ()
        rows = []
        for half, days in enumerate(halves, start=1):
            rank_ic = mean_of_days(days["rank_ic"].to_numpy(dtype=float), overlap=self.overlap)
            first, last = days["session"].iloc[[0, -1]]
            of_half = {"half": half, "first": first, "last": last, "days": len(days)}
            rows.append({**of_half, **rank_ic.named("rank_ic")})
        return pd.DataFrame(rows, columns=["half", "first", "last", "days", *RANK_IC])


def running_means(rank_ic: Daily, *, overlap: int = 1) -> pd.DataFrame:
    """Return the mean rank IC over the days up to some of them, each with its interval.

    Columns: `days`, `rank_ic, rank_ic_low, rank_ic_high`; `POINTS` rows at most, from
    `MINIMUM_DAYS` known days to all, the last as `score_ranking`.
    """
    known = rank_ic[np.isfinite(rank_ic)]
    counts: Sequence[int] = ()
    if len(known) >= MINIMUM_DAYS:
        points = np.linspace(MINIMUM_DAYS, len(known), POINTS).round().astype(int)
        counts = np.unique(points).tolist()
    means = [mean_of_days(known[:count], overlap=overlap).named("rank_ic") for count in counts]
    return pd.DataFrame(means, columns=RANK_IC).assign(days=counts)


def cumulative_ic(
    sessions: pd.DatetimeIndex, rank_ic: Daily, running: pd.DataFrame
) -> pd.DataFrame:
    """Return the sum of the daily rank ICs so far, with the ends of its interval.

    `running` is as of `running_means`: its ends times the days. Columns: `session, rank_ic, total,
    low, high`; ends NaN on days that `running` lacks.
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


def group_returns(scores: Days, outcome: Days, *, overlap: int = 1) -> pd.DataFrame:
    """Return the mean return of each score group, and its excess over that of all stocks ranked.

    Columns: `group` (1 lowest, 10 highest), `days` (with a stock), `mean_return`, and `excess` with
    its interval; stock-days and `overlap` as in `score_ranking`.
    """
    scores, outcome = both_known(scores, outcome)
    group_of = score_groups(scores)
    of_all = mean_of_members(outcome, np.isfinite(outcome))
    rows = []
    for group in range(DECILES):
        of_group = mean_of_members(outcome, group_of == group)
        known = of_group[np.isfinite(of_group)]
        rows.append(
            {
                "group": group + 1,
                "days": len(known),
                "mean_return": known.mean() if len(known) else np.nan,
                **mean_of_days(of_group - of_all, overlap=overlap).named("excess"),
            }
        )
    return pd.DataFrame(rows)


def net_spread(
    scores: Days, gross: Daily, sessions: pd.DatetimeIndex, costs: Costs | None, year: int = YEAR
) -> pd.DataFrame:
    """Return what the best tenth earns more than the worst on each day, before and after costs.

    `gross` is as of `decile_spreads`. The portfolio holds 1 in the best tenth, is short 1 in the
    worst, in equal parts, and trades to that on every ranked day at `costs` (None: unknown), with
    borrowing. Columns: `session, gross, cost, net, turnover` (value traded, 4 if all is replaced),
    `gross_total, net_total` (not compounded). Days without a spread have no row, nor their trades
    in the totals.
    """
    # A day without a ranking keeps the weights of the day before, which are 0 before any ranking.
    group_of = score_groups(scores)
    weights = np.zeros(scores.shape)
    for group, side in ((DECILES - 1, 1.0), (0, -1.0)):
        members = group_of == group
        weights += side * members / np.maximum(members.sum(axis=1, keepdims=True), 1)
    is_ranked = (group_of != NO_GROUP).any(axis=1)
    last_ranked = np.maximum.accumulate(np.where(is_ranked, np.arange(len(weights)), 0))
    # From nothing before the first day.
    changes = np.diff(weights[last_ranked], axis=0, prepend=np.zeros((1, scores.shape[1])))
    bought = np.maximum(changes, 0).sum(axis=1)
    sold = np.maximum(-changes, 0).sum(axis=1)
    cost = np.full(len(gross), np.nan)
    if costs is not None:
        purchase_rate, sale_rate = costs.of_trades(sessions)
        cost = bought * purchase_rate + sold * sale_rate + costs.of_shorts(sessions, year)
    columns = {"gross": gross, "cost": cost, "net": gross - cost, "turnover": bought + sold}
    days = pd.DataFrame({"session": sessions, **columns})
    known: pd.DataFrame = days[np.isfinite(gross)].reset_index(drop=True)
    return known.assign(gross_total=known["gross"].cumsum(), net_total=known["net"].cumsum())


def by_horizon(scores: Days) -> pd.DataFrame:
    """Compare each day's ranking with earlier ones, `HORIZONS` ranked days before it.

    Columns, with intervals: `horizon`, `days` (pairs), `autocorrelation` (mean Spearman correlation
    of the scores of common stocks), `replaced` (mean share of the best tenth that is new).
    """
    scores = scores[np.isfinite(scores).any(axis=1)]
    best = score_groups(scores) == DECILES - 1
    rows = []
    for horizon in HORIZONS:
        if horizon >= len(scores):
            break
        daily_correlation = rank_ics(*both_known(scores[horizon:], scores[:-horizon]))
        new = (best[horizon:] & ~best[:-horizon]).astype(float)
        rows.append(
            {
                "horizon": horizon,
                "days": len(new),
                **mean_of_days(daily_correlation).named("autocorrelation"),
                **mean_of_days(mean_of_members(new, best[horizon:])).named("replaced"),
            }
        )
    ends = [
        f"{name}{end}" for name in ("autocorrelation", "replaced") for end in ("", "_low", "_high")
    ]
    return pd.DataFrame(rows, columns=["horizon", "days", *ends])


def by_sector(
    scores: Days, outcome: Days, sectors: Sequence[str | None], *, overlap: int = 1
) -> pd.DataFrame:
    """Return the rank IC within each sector, by name: `OF_SECTORS`, as `score_ranking`.

    `sectors` has that of each column, None or "" without one.
    """
    names = np.array([sector or "" for sector in sectors], dtype=object)
    rows = []
    for sector in sorted(set(names) - {""}):
        known = both_known(np.where(names == sector, scores, np.nan), outcome)
        daily = rank_ics(*known)
        rows.append(
            {
                "sector": sector,
                "days": int(np.isfinite(daily).sum()),
                "n": int(np.isfinite(known[0]).sum()),
                **mean_of_days(daily, overlap=overlap).named("rank_ic"),
            }
        )
    return pd.DataFrame(rows, columns=OF_SECTORS)


def coverage(
    sessions: pd.DatetimeIndex,
    constituents: Int[ndarray, " days"],
    scores: Days,
    outcome: Days,
) -> pd.DataFrame:
    """Return how many constituents of each day were ranked, and how many also have an outcome.

    Columns: `session, constituents, ranked, scored, ranked_share, scored_share`, NaN without any;
    the last also where `scored` is 0.
    """
    has_score = np.isfinite(scores)
    scored = (has_score & np.isfinite(outcome)).sum(axis=1)
    columns = {"constituents": constituents, "ranked": has_score.sum(axis=1), "scored": scored}
    days = pd.DataFrame({"session": sessions, **columns})
    members = days["constituents"].where(days["constituents"] > 0)
    return days.assign(
        ranked_share=days["ranked"] / members,
        scored_share=days["scored"].where(days["scored"] > 0) / members,
    )


@dataclass(frozen=True)
class Answers:
    """The figures of a ranking: has it an order, is it steady, can it be traded.

    `days` have a rank IC, `positive_months` of `months` a mean above 0. `gross` and `net` (NaN
    without costs) are of the spread of the tenths a day.
    """

    days: int
    rank_ic: Estimate
    months: int
    positive_months: int
    halves: tuple[Estimate, ...]
    gross: Estimate
    net: Estimate


def answers(sheet: TearSheet) -> Answers:
    """Return the figures of the sentences with which a tear sheet's page begins.

    Without a day `rank_ic` is NaN; `halves` is empty below two.
    """
    daily = sheet.daily["rank_ic"].to_numpy(dtype=float)
    gross, net = sheet.spread[["gross", "net"]].to_numpy(dtype=float).T
    months = sheet.months
    return Answers(
        days=len(daily),
        rank_ic=mean_of_days(daily, overlap=sheet.overlap),
        months=len(months),
        positive_months=int((months["rank_ic"] > 0).sum()),
        halves=tuple(Estimate(*ends) for ends in sheet.halves[RANK_IC].to_numpy(dtype=float)),
        # Without `overlap`: unlike `leg`, `spread_leg` always spans a single session.
        gross=mean_of_days(gross),
        net=mean_of_days(net),
    )
