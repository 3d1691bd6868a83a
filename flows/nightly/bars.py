"""Read the prices of a night once, and cut them for each of its stages."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import date, datetime

import pandas as pd
from sqlalchemy import Engine

from db.engine import reading
from db.rows import prices
from db.rows.prices import KnownBars
from dtml import features
from dtml.evaluation import drift
from dtml.prices.changes import MAX_GAP
from dtml.prices.sessions import sessions_up_to
from dtml.ranking import features as ranking_features
from dtml.ranking.relative import RelativeConfig
from flows.nightly.context import MarketContext, no_bars_error, with_watermark

# Sessions that are read beyond those that a feature counts. Up to MAX_GAP sessions may be missing
# between the bars of a feature (`dtml.prices.changes.reads_enough`). As many again are a reserve: a
# session may be missing for the whole market, and a return reaches back to the bar before.
SESSIONS_FOR_GAPS = 2 * MAX_GAP
# Sessions that rankers read to score a night. A network among them looks at a window that ends with
# the night's session, and the features of the window's first session read HISTORY sessions.
RANKER_SESSIONS = ranking_features.HISTORY + RelativeConfig().window - 1
# Sessions that a usual night reads, for its rankers and for what `flows.nightly.drift` watches. A
# stage that asks for earlier ones makes the night read all its bars a second time. So this must be
# no less than what `flows.nightly.ranking.rank_night` and `flows.nightly.drift` ask for; only a
# user's own code, whose HISTORY may be longer, asks for more.
USUAL_SESSIONS = SESSIONS_FOR_GAPS + max(RANKER_SESSIONS, features.HISTORY + drift.RECENT)


@dataclass
class _StoredBars:
    """Read the bars of a market up to a session, as known at a moment (None: now), and hold them.

    `bars` are those of first..last, of all symbols; both fields are None until something is read.
    """

    engine: Engine
    market: str
    usual_first: date  # the first read begins here, or earlier if it is asked to
    last: date
    known_at: datetime | None
    first: date | None = field(default=None, init=False)
    bars: KnownBars | None = field(default=None, init=False)

    def between(
        self, first: date, last: date, symbols: Collection[str] | None = None
    ) -> pd.DataFrame:
        """Return the bars of first..last, of all symbols or of these `symbols` alone.

        They have the column `known_at`, and are cut from the bars held. If `first` lies before
        these, all bars from `first` to `self.last` are read and held instead. In two cases the bars
        are read for this call alone and not held: if `last` lies after `self.last`, and if only
        some `symbols` are asked for and `first` lies before the bars held (`usual_first`, if none
        are held yet). So a long history of a few symbols does not make the night read that of all.
        """
        held_from = self.first or self.usual_first
        ends_later = last > self.last
        asks_few_symbols_earlier = symbols is not None and first < held_from
        if ends_later or asks_few_symbols_earlier:
            with reading(self.engine) as conn:
                return prices.prices(
                    conn, self.market, first, last, known_at=self.known_at, symbols=symbols
                )
        if self.bars is None or first < held_from:
            self.first = min(first, held_from)
            with reading(self.engine) as conn:
                self.bars = prices.known_bars(
                    conn, self.market, self.first, self.last, known_at=self.known_at
                )
        return self.bars.between(first, last, symbols)


class NightBars:
    """Give each stage of a night its bars, up to the session `as_of` from which the night predicts.

    Predictions and rankings come from the bars as `known` at a moment (`known_at`; None: now), and
    earlier nights are scored by the `newest` versions of the bars. Each of the two is read once,
    when a stage first asks for it, and cut for the other stages; if `known_at` is None, they are
    the same bars. Trainings read their longer history themselves.
    """

    def __init__(
        self, context: MarketContext, as_of: date, known_at: datetime | None = None
    ) -> None:
        self.context = context
        self.as_of = as_of
        self.known_at = known_at
        usual_first = sessions_up_to(context.market.calendar, as_of, USUAL_SESSIONS)[0].date()
        self._newest = _StoredBars(context.engine, context.name, usual_first, as_of, None)
        self._known = self._newest
        if known_at is not None:
            self._known = _StoredBars(context.engine, context.name, usual_first, as_of, known_at)

    def known(self, first: date) -> tuple[pd.DataFrame, datetime]:
        """Return the bars from `first` on as the night knew them, and their watermark.

        The watermark is the newest `known_at` of these bars, a column that they no longer have.
        Raises DtmlError when there are no such bars.
        """
        bars = self._known.between(first, self.as_of)
        if bars.empty:
            raise no_bars_error(self.context.name, first, self.as_of, self.known_at)
        return with_watermark(bars)

    def newest_or_error(self, first: date) -> pd.DataFrame:
        """Return the newest version of the bars from `first` on, without the column `known_at`.

        Raises DtmlError when there are no such bars.
        """
        bars = self.newest(first)
        if bars.empty:
            raise no_bars_error(self.context.name, first, self.as_of, None)
        return bars.drop(columns="known_at")

    def symbols_of_the_session(self) -> set[str]:
        """Return the symbols with a bar of the session `as_of`, as the night knew."""
        bars = self._known.between(self.as_of, self.as_of)
        return set(bars["symbol"])

    def newest(
        self, first: date, last: date | None = None, symbols: Collection[str] | None = None
    ) -> pd.DataFrame:
        """Return the newest version of the bars of first..last, with the column `known_at`.

        `last` is `as_of` by default, and may lie after it. There may be no such bars.
        """
        return self._newest.between(first, last or self.as_of, symbols)
