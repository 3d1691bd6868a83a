"""Hold what a ranking chose for longer than a session.

A ranking of the returns over many sessions need not be traded every session. Here are three ways to
trade it less: all at once, every so many sessions; in staggered parts, each of which is traded so
seldom, but another one each time (Jegadeesh and Titman, 1993); and by two rankings, one of which
says what to buy and the other what to go on holding.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dtml.backtest.portfolio import KeptDays, PerDay, Stocks, Weights, follow_on
from dtml.backtest.quotes import Quotes
from dtml.backtest.turnover import (
    RANKED_PER_TARGET,
    aim,
    mean_of_last,
    strategy_of,
)
from dtml.errors import UsageError
from dtml.markets.definition import Trading
from dtml.ranking.panel import places, ranked

# The columns of a track that are shares of the equity at the fill.
SHARES = ("gross", "turnover", "cost", "borrow", "net", "long", "short", "unbooked")


@dataclass(frozen=True)
class Stagger:
    """How often a portfolio is traded: `parts` of it, each one every `horizon` sessions.

    With one part, all of it is traded at once. With as many parts as sessions, one part is traded
    each session.
    """

    horizon: int
    parts: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.parts <= self.horizon:
            raise UsageError(f"parts must be 1 to horizon ({self.horizon}), got {self.parts}")

    def sessions_of(self, part: int, days: int) -> "np.ndarray":
        """Return on which of so many `days` a part, counted from 0, is traded: a flag for each.

        A part has its turn every `horizon` days, and the turns of the parts are at equal distances,
        as far as whole sessions allow. All parts are traded on the first day too, so that none
        waits in cash for its turn.
        """
        day_places = np.arange(days)
        own_turn = part * self.horizon // self.parts
        is_traded = day_places % self.horizon == own_turn
        is_traded[:1] = True
        return np.asarray(is_traded)


def staggered_track(
    scores: PerDay, as_of: pd.DatetimeIndex, quotes: Quotes, trading: Trading, stagger: Stagger
) -> pd.DataFrame:
    """Return what a portfolio of staggered parts earned, in the columns of `follow_on`'s track.

    Each part has the same equity at first, and an account of its own from then on. On the days on
    which it is traded, it trades to the best stocks as `dtml.backtest.turnover.targets` does; in
    between it lets them drift. `trading.smooth` counts all days, also those without a trade. The
    columns of `SHARES` (returns, costs, turnover, values held) are means over the parts, weighted
    by their equity at the fill; `settled` is the sum over the parts. Raises DtmlError where a part
    loses all its equity.
    """
    place = places(mean_of_last(ranked(scores), trading.smooth))
    tracks = []
    for part in range(stagger.parts):
        is_traded = stagger.sessions_of(part, len(place))
        # NaN on days without a trade or a ranking: the part keeps the targets that it had before.
        weights = np.full(place.shape, np.nan)
        is_kept = np.zeros(place.shape, dtype=bool)
        was_target = np.zeros(place.shape[1], dtype=bool)
        for day in np.flatnonzero(is_traded):
            weights[day], is_kept[day] = aim(place[day], trading, was_target)
            if not np.isnan(weights[day]).any():
                was_target = weights[day] > 0
        followed = follow_on(weights, as_of, quotes, strategy_of(trading), kept=is_kept)
        tracks.append(followed.track)
    net = np.stack([track["net"].to_numpy() for track in tracks], axis=1)  # [fills parts]
    # [fills parts]: the equity of each part before the return of the fill; each began with 1.
    equity = np.vstack([np.ones(net.shape[1]), np.cumprod(1 + net, axis=0)])[:-1]
    share = equity / equity.sum(axis=1, keepdims=True)
    whole = tracks[0].copy()
    for name in SHARES:
        of_parts = np.stack([track[name].to_numpy() for track in tracks], axis=1)
        whole[name] = (share * of_parts).sum(axis=1)
    whole["settled"] = sum(track["settled"] for track in tracks)
    return whole


def two_rank_track(
    buy: PerDay, hold: PerDay, as_of: pd.DatetimeIndex, quotes: Quotes, trading: Trading
) -> pd.DataFrame:
    """Return what a portfolio of `two_rank_targets` earned, in the columns of `follow_on`'s track.

    In both rankings, ranks are averaged over the last `trading.smooth` days.
    """
    weights, is_kept = two_rank_targets(buy, hold, trading)
    return follow_on(weights, as_of, quotes, strategy_of(trading), kept=is_kept).track


def two_rank_targets(buy: PerDay, hold: PerDay, trading: Trading) -> tuple[PerDay, KeptDays]:
    """Return the holdings of a portfolio that buys by one ranking and holds by another.

    A stock that was a target on the ranked day before remains one while its place in `hold` is at
    most `trading.band` times the number of targets. This number is `trading.top`, or a third of the
    stocks in both rankings if that is fewer, but at least one. The vacancies go to the stocks with
    the best places in `buy` among those that `hold` would keep; such stocks may be fewer than the
    vacancies. Places are those of ranks averaged over the last `trading.smooth` days. Scores are
    NaN where a stock is not ranked; a stock that lacks one of the two counts as not ranked.

    Returns two grids, [days stocks], as `dtml.backtest.turnover.targets` does: shares of the
    equity, and which stocks are kept and so not traded. The weights of the new targets add up to 1
    by themselves: `follow_on` scales them down to the equity that the kept stocks leave, so that
    what is sold pays for what is bought and no cash is left over.
    """
    is_ranked = np.isfinite(buy) & np.isfinite(hold)
    buy_place, hold_place = (
        places(mean_of_last(ranked(np.where(is_ranked, scores, np.nan)), trading.smooth))
        for scores in (buy, hold)
    )
    weights = np.full(buy.shape, np.nan)
    is_kept = np.zeros(buy.shape, dtype=bool)
    was_target = np.zeros(buy.shape[1], dtype=bool)
    for day in np.flatnonzero(is_ranked.any(axis=1)):
        weights[day], is_kept[day] = _aim_by_two(
            buy_place[day], hold_place[day], trading, was_target
        )
        was_target = weights[day] > 0
    return weights, is_kept


def _aim_by_two(
    buy_place: Weights, hold_place: Weights, trading: Trading, was_target: Stocks
) -> tuple[Weights, Stocks]:
    """Return the weights of a day, and which of the stocks that were targets before are kept.

    `two_rank_targets` states the rule. A place is 1 for the best stock, NaN for one not ranked.
    """
    ranked_stocks = int(np.isfinite(buy_place).sum())
    size = min(trading.top, max(1, ranked_stocks // RANKED_PER_TARGET))
    may_be_held = hold_place <= trading.band * size  # false where a stock is not ranked
    is_kept = was_target & may_be_held
    vacancies = max(0, size - int(is_kept.sum()))
    candidates = np.where(may_be_held & ~is_kept, buy_place, np.nan)
    # Without a vacancy the limit is 0, which no place reaches.
    best = np.sort(candidates[np.isfinite(candidates)])[:vacancies]
    is_new = candidates <= best.max(initial=0)
    # Together the weights may exceed 1: what is kept is not traded, and the rest is scaled down.
    return is_kept / size + is_new / max(1, int(is_new.sum())), is_kept
