"""What a notebook asks of this package: a market's bars and features,
estimators walked forward, own code audited.
"""

from datetime import UTC, date, datetime
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dtml.evaluation.ranking import decile_spreads, rank_ics, score_ranking
from dtml.markets import load_market, load_market_file
from dtml.markets.definition import Leg
from dtml.own.admission import admit, past_of
from dtml.own.code import OwnCode, fit, scored
from dtml.own.process import Asked
from dtml.pages.figures import between, figure
from dtml.prices.bars import check
from dtml.prices.returns import index_of_constituents
from dtml.prices.sessions import last_closed_session, sessions_between
from dtml.ranking.features import FEATURES
from dtml.ranking.outcomes import RULES, rule_scores, sessions_to
from dtml.ranking.panel import Grid
from dtml.ranking.walk import History, folds, market_panel
from dtml.sources import open_source

Day = str | date


class Walked:
    """The scores of an estimator on the days of a walk, `scores` [sessions
    stocks], and what they were worth.
    """

    def __init__(self, name: str, scores: pd.DataFrame, outcome: pd.DataFrame, leg: Leg) -> None:
        self.name, self.scores, grids = name, scores, (scores.to_numpy(), outcome.to_numpy())
        self._found = score_ranking(*grids, overlap=sessions_to(leg))
        names = ("rank_ic", "auc", "acc", "mcc", "decile_spread")
        self.figures = pd.DataFrame({each: vars(getattr(self._found, each)) for each in names}).T
        daily = {"rank_ic": rank_ics(*grids), "decile_spread": decile_spreads(*grids)}
        self.daily = pd.DataFrame(daily, index=scores.index)

    def __repr__(self) -> str:
        ic, t = self._found.rank_ic, figure(self._found.t, 1)
        return (
            f"{self.name}: rank IC {figure(ic.value)} {between(ic.low, ic.high)}, t {t}, "
            f"{self._found.days} days"
        )

    def _repr_html_(self) -> str:
        curve = self.daily["decile_spread"].fillna(0).cumsum()
        high, low = max(curve.max(), 1e-9), min(curve.min(), 0)
        points = " ".join(f"{x},{80 * (high - y) / (high - low):.0f}" for x, y in enumerate(curve))
        line = f'<polyline points="{points}" fill="none" stroke="teal"/>'
        drawn = (
            f'<svg viewBox="0 0 {len(curve)} 80" width="600" height="80" '
            f'preserveAspectRatio="none">{line}</svg>'
        )
        return (
            f"<p>{escape(repr(self))}</p>{self.figures.to_html()}<p>best tenth less worst, "
            f"summed:</p>{drawn}"
        )


class Study:
    """A market's good bars, `bars`, and what rankers read of them: features and outcomes of each
    day's constituents.

    `market` is a name, or the path of a TOML file. Bars come from the files `prices` and `index`,
    else from the market's own source, from `first` to `last` (None: the last closed session); `leg`
    is the return to be ordered.
    """

    def __init__(
        self,
        market: str | Path,
        first: Day,
        last: Day | None = None,
        *,
        prices: Path | None = None,
        index: Path | None = None,
        leg: Leg = "next_close",
    ) -> None:
        named = (
            load_market_file(Path(market))
            if str(market).endswith(".toml")
            else load_market(str(market))
        )
        source = open_source("files" if prices else named.source, named, prices=prices, index=index)
        self.market = named if named.symbols else named.with_symbols(source.symbols() or ())
        start, closed = (
            pd.Timestamp(first).date(),
            last_closed_session(named.calendar, datetime.now(UTC)),
        )
        end = min(pd.Timestamp(last).date(), closed) if last else closed
        made, whole = named.index.of_constituents, named.index.symbol
        asked = self.market.symbols if made else (*self.market.symbols, whole)
        bars = source.fetch(dict.fromkeys(asked, start), end).bars
        days = sessions_between(named.calendar, start, end)
        self.bars = check(
            bars,
            sessions=days,
            closed_until=end,
            checks=named.checks,
            index_symbol=whole,
            returns=named.returns,
        ).accepted
        if made:
            self.bars = pd.concat(
                [self.bars, index_of_constituents(self.market, self.bars)], ignore_index=True
            )
        self.leg, panel = leg, market_panel(self.market, self.bars)
        among = self.market.membership(panel.sessions)
        self._panel, self._history = (
            panel,
            History.of(panel, leg, among, max_return=named.checks.max_return),
        )
        self.outcomes = self._frame(self._history.outcome, slice(None))

    def features(self, day: Day | None = None, code: str | Path | None = None) -> pd.DataFrame:
        """Return the features as of a day (None: the last), a row a stock: the built-in ones'
        ranks, -0.5 to 0.5.

        With `code`, a file of your own: its values, computed in a process of its own.
        """
        names, values = list(FEATURES), self._history.features
        if code is not None:
            told, values = Asked(OwnCode.read(Path(code))).values(self._panel)
            names = told["features"]
        row = -1 if day is None else self._panel.sessions.get_loc(pd.Timestamp(day))
        return pd.DataFrame(
            values[row], index=pd.Index(self._panel.symbols, name="symbol"), columns=names
        )

    def walk(self, estimator: Any, first: Day, last: Day | None = None) -> Walked:
        """Walk forward from first to last: train every 63 sessions on what was known, and score
        each day.

        `estimator` is a scikit-learn estimator, a torch module, the path of a file of your own, or
        the name of a rule.
        """
        of, name = (
            self._history,
            estimator if isinstance(estimator, str) else type(estimator).__name__,
        )
        walked = folds(of, pd.Timestamp(first), pd.Timestamp(last or self._panel.sessions[-1]))
        scores = np.full_like(of.outcome, np.nan)
        if name in RULES:
            scores = np.where(of.there, rule_scores(of.features, name), np.nan)
        elif isinstance(estimator, str | Path):
            spans = [(each.trained, each.scored) for each in walked]
            scores, _ = Asked(OwnCode.read(Path(estimator))).walk(
                self._panel, of.there, of.relative, spans
            )
        else:
            for each in walked:
                model = fit(estimator, of.features, of.relative, each.trained)
                scores[each.scored] = scored(model, of.features[each.scored], of.there[each.scored])
        days = slice(walked[0].scored.start, walked[-1].scored.stop)
        return Walked(name, self._frame(scores, days), self.outcomes[days], self.leg)

    def audit(self, code: str | Path) -> pd.DataFrame:
        """Look for look-ahead in a file of your own: rows check, what, passed, detail."""
        return pd.DataFrame(
            admit(Asked(OwnCode.read(Path(code))), past_of(self.market, self.bars), self.leg)
        )

    def __repr__(self) -> str:
        sessions, symbols = self._panel.sessions, self._panel.symbols
        return (
            f"{self.market.name}: {len(symbols)} stocks, {sessions[0].date()} to "
            f"{sessions[-1].date()}, {self.leg}"
        )

    def _frame(self, grid: Grid, days: slice) -> pd.DataFrame:
        return pd.DataFrame(
            grid[days], index=self._panel.sessions[days], columns=list(self._panel.symbols)
        )
