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

# Sessions before the last one that a ranker may look at.
SEEN = RelativeConfig().window - 1
# What a usual night reads: the inputs of its rankers, and those that are watched for drift.
USUAL_SESSIONS = max(
    ranking_features.HISTORY + SEEN + 2 * MAX_GAP,
    features.HISTORY + drift.RECENT + 2 * MAX_GAP,
)


@dataclass
class _StoredBars:
    """The bars of a market up to a session, as known at a moment (None: now), held once read."""

    engine: Engine
    market: str
    usual_first: date
    last: date
    known_at: datetime | None
    first: date | None = field(default=None, init=False)
    bars: KnownBars | None = field(default=None, init=False)

    def between(
        self, first: date, last: date, symbols: Collection[str] | None = None
    ) -> pd.DataFrame:
        """Return the bars of first..last.

        Where earlier sessions are held than `first`, nothing is read. Otherwise all bars from it on
        are read and held, but the bars of a few `symbols`, or of sessions after the last one, are
        read for this call alone.
        """
        held_from = self.first or self.usual_first
        if last > self.last or (symbols is not None and first < held_from):
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
    """The bars that a night of `context` works with, up to the session `as_of` that it stands on.

    Predictions and rankings come from the bars as `known` at a moment (`known_at`; None: now), and
    earlier nights are scored by the `newest` ones. Each is read once, when a stage first asks, and
    cut for the other stages. Trainings read their longer history themselves.
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

        That is when the newest of them was fetched. Raises DtmlError when there is none.
        """
        bars = self._known.between(first, self.as_of)
        if bars.empty:
            raise no_bars_error(self.context.name, first, self.as_of, self.known_at)
        return with_watermark(bars)

    def newest_or_error(self, first: date) -> pd.DataFrame:
        """Return the newest version of the bars from `first` on, without `known_at`.

        Raises DtmlError when there is none.
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
        """Return the newest version of the bars of first..last, with `known_at`; maybe none.

        They end at `as_of` unless `last` is given, which may lie after it.
        """
        return self._newest.between(first, last or self.as_of, symbols)
