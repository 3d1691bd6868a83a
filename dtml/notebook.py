"""The interface for notebooks: a market's bars and features, walks of estimators and code."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dtml.errors import UsageError
from dtml.evaluation.ranking import (
    FIGURES,
    both_known,
    decile_spreads,
    rank_ics,
    score_ranking,
)
from dtml.markets import Market, load_market, load_market_file
from dtml.markets.definition import LEGS, Leg
from dtml.own.code import OwnCode, fit, scored
from dtml.own.process import IsolatedCode
from dtml.pages.figures import between, counted, figure
from dtml.prices.bars import check
from dtml.prices.returns import index_of_constituents
from dtml.prices.sessions import last_closed_session, sessions_between
from dtml.ranking.features import FEATURE_SETS, RULES, rule_scores
from dtml.ranking.outcomes import overlap_of
from dtml.ranking.panel import Grid
from dtml.ranking.walk import History, folds, market_panel
from dtml.sources import Source, open_source

Day = str | date
CURVE_HEIGHT = 80  # of the drawn curve, in units of its view box


class Walked:
    """The scores of an estimator on the days of a walk, and their quality.

    `scores`, those of each of the `rules`, and `outcome`, returns over `leg`: sessions by stocks.
    `figures`: value, low, high of `dtml.evaluation.ranking.FIGURES`. `daily`: rank IC and decile
    spread of each session.
    """

    def __init__(
        self,
        name: str,
        scores: pd.DataFrame,
        outcome: pd.DataFrame,
        leg: Leg,
        rules: Sequence[Grid],
    ) -> None:
        self.name = name
        self.scores = scores
        score_grid = scores.to_numpy()
        outcome_grid = outcome.to_numpy()
        self._rank_score = score_ranking(score_grid, outcome_grid, rules, overlap=overlap_of(leg))
        ends = {"value": "", "low": "_low", "high": "_high"}
        self.figures = pd.DataFrame(
            {
                column: [self._rank_score[f"{name}{end}"] for name in FIGURES]
                for column, end in ends.items()
            },
            index=FIGURES,
        )
        known_scores, known_outcome = both_known(score_grid, outcome_grid)
        self.daily = pd.DataFrame(
            {
                "rank_ic": rank_ics(known_scores, known_outcome),
                "decile_spread": decile_spreads(known_scores, known_outcome),
            },
            index=scores.index,
        )

    def __repr__(self) -> str:
        found = self._rank_score
        after_rules = ""
        if np.isfinite(found["residual_ic"]):
            ends = between(found["residual_ic_low"], found["residual_ic_high"])
            after_rules = f"after all rules {figure(found['residual_ic'])} {ends}, "
        return (
            f"{self.name}: rank IC {figure(found['rank_ic'])} "
            f"{between(found['rank_ic_low'], found['rank_ic_high'])}, {after_rules}"
            f"t {figure(found['t'], 1)}, {found['days']} days"
        )

    def _repr_html_(self) -> str:
        return (
            f"<p>{escape(repr(self))}</p>"
            f"{self.figures.to_html()}"
            "<p>best tenth minus worst tenth, cumulative:</p>"
            f"{self._spread_curve()}"
        )

    def _spread_curve(self) -> str:
        """Return the decile spread, summed from session to session, as an SVG; a gap adds 0."""
        curve = self.daily["decile_spread"].fillna(0).cumsum()
        # The drawing includes 0, and its height is never 0: a flat curve must not divide by it.
        high = max(curve.max(), 1e-9)
        low = min(curve.min(), 0)
        heights = CURVE_HEIGHT * (high - curve) / (high - low)
        points = " ".join(f"{x},{height:.0f}" for x, height in enumerate(heights))
        return (
            f'<svg viewBox="0 0 {len(curve)} {CURVE_HEIGHT}" width="600" height="{CURVE_HEIGHT}" '
            f'preserveAspectRatio="none">'
            f'<polyline points="{points}" fill="none" stroke="teal"/>'
            "</svg>"
        )


class Study:
    """A market's good bars, `bars`, and the features and outcomes of each day's constituents.

    `market` is a name or a TOML file. Bars come from the files `prices` and `index`, else the
    market's source, from `first` to `last` (None: the last closed session). `outcomes`: returns
    over `leg`, sessions by stocks, NaN unknown.
    """

    def __init__(
        self,
        market: str | Path,
        first: Day,
        last: Day | None = None,
        *,
        prices: str | Path | None = None,
        index: str | Path | None = None,
        leg: Leg = "next_close",
    ) -> None:
        if leg not in LEGS:
            raise UsageError(f"unknown leg {leg!r}: choose one of {', '.join(LEGS)}")
        if str(market).endswith(".toml"):
            loaded = load_market_file(Path(market))
        else:
            loaded = load_market(str(market))
        source = open_source(
            "files" if prices else loaded.source,
            loaded,
            prices=Path(prices) if prices else None,
            index=Path(index) if index else None,
        )
        self.market = loaded
        # The source is opened first, because it may have to say which stocks there are.
        if not loaded.symbols:  # a market without a list: the stocks that the source has
            self.market = loaded.with_symbols(source.symbols() or ())
        start = pd.Timestamp(first).date()
        # A session has no final bar before it closes.
        end = last_closed_session(loaded.calendar, datetime.now(UTC))
        if last:
            end = min(pd.Timestamp(last).date(), end)
        if start > end:
            raise UsageError(f"first, {start}, is after the last session, {end}: give earlier days")
        self.leg = leg
        self.bars = _good_bars(self.market, source, start, end)
        self._panel = market_panel(self.market, self.bars)
        self._history = History.of(
            self._panel,
            leg,
            among=self.market.is_constituent(self._panel.sessions),
            max_return=self.market.checks.max_return,
            feature_set=self.market.features,
        )
        self.outcomes = self._frame(self._history.outcome, slice(None))

    def features(self, day: Day | None = None, code: str | Path | None = None) -> pd.DataFrame:
        """Return the features as of a day (None: the last), a row a stock.

        Ranks of the built-in ones, -0.5 to 0.5, or with `code` the values of your own file's.
        Raises KeyError for a day that is no session, DtmlError where that file cannot be read or
        fails.
        """
        sessions = self._panel.sessions
        row: Any = len(sessions) - 1 if day is None else sessions.get_loc(pd.Timestamp(day))
        names: Sequence[str] = list(FEATURE_SETS[self.market.features])
        values = self._history.features[row]
        if code is not None:
            own = _own(code)
            names = own.description["features"]
            (values,) = own.values(self._panel, [row])
        return pd.DataFrame(
            values,
            index=pd.Index(self._panel.symbols, name="symbol"),
            columns=list(names),
        )

    def walk(self, estimator: Any, first: Day, last: Day | None = None) -> Walked:
        """Walk forward from `first` to `last` (None: the last session); return scores and quality.

        The estimator is scikit-learn's, a torch module, the path of your own file, or a rule's
        name. It is trained every 63 sessions on the outcomes known. Raises DtmlError where no day
        can be ranked, too few sessions precede `first`, the bars end before `last`, or your file
        fails.
        """
        is_named = isinstance(estimator, str | Path)
        if not is_named and not hasattr(estimator, "fit") and not hasattr(estimator, "forward"):
            raise UsageError(
                f"{estimator!r} has neither fit nor forward: give an estimator of scikit-learn, a "
                f"torch module, the path of a file of your own, or one of the rules "
                f"{', '.join(RULES)}"
            )
        history = self._history
        last_day = pd.Timestamp(last or self._panel.sessions[-1])
        walk_folds = folds(history, pd.Timestamp(first), last_day)
        # Only a day's constituents that have a bar are ranked.
        rules = {
            name: np.where(history.there, rule_scores(history.features, name), np.nan)
            for name in RULES
        }
        if not is_named:
            # [sessions stocks], NaN on days that no fold scores and for stocks that are not ranked.
            scores = np.full_like(history.outcome, np.nan)
            for fold in walk_folds:
                learnt = history.features[fold.trained], history.relative[fold.trained]
                model = fit(estimator, *learnt)
                scores[fold.scored] = scored(
                    model,
                    history.features[fold.scored],
                    history.there[fold.scored],
                )
        elif estimator in RULES:
            scores = rules[estimator]
        else:  # a path, or a text that is the name of no rule and so taken for a path
            spans = [(fold.trained, fold.scored) for fold in walk_folds]
            if not Path(estimator).exists():
                raise UsageError(
                    f"{estimator} is neither a file nor a rule: give the path of a file of your "
                    f"own, or one of the rules {', '.join(RULES)}"
                )
            own = _own(estimator)
            scores, _last_model = own.walk(self._panel, history.there, history.relative, spans)
        days = slice(walk_folds[0].scored.start, walk_folds[-1].scored.stop)
        name = str(estimator) if is_named else type(estimator).__name__
        return Walked(
            name,
            self._frame(scores, days),
            self.outcomes[days],
            self.leg,
            [scores_of_rule[days] for scores_of_rule in rules.values()],
        )

    def __repr__(self) -> str:
        sessions = self._panel.sessions
        return (
            f"{self.market.name}: {counted(len(self._panel.symbols), 'stock')}, "
            f"{sessions[0].date()} to {sessions[-1].date()}, {self.leg}"
        )

    def _frame(self, grid: Grid, days: slice) -> pd.DataFrame:
        return pd.DataFrame(
            grid[days],
            index=self._panel.sessions[days],
            columns=list(self._panel.symbols),
        )


def _own(code: str | Path) -> IsolatedCode:
    return IsolatedCode(OwnCode.read(Path(code)))


def _good_bars(market: Market, source: Source, start: date, end: date) -> pd.DataFrame:
    """Fetch a market's bars and index, and return those that pass its checks.

    Where no source has the index (`of_constituents`), it is computed.
    """
    index = market.index
    symbols = market.symbols
    if not index.of_constituents:
        symbols = (*symbols, index.symbol)
    fetched = source.fetch(dict.fromkeys(symbols, start), end)
    checked = check(
        fetched.bars,
        sessions=sessions_between(market.calendar, start, end),
        closed_until=end,
        checks=market.checks,
        index_symbol=index.symbol,
        returns=market.returns,
    )
    bars = checked.accepted
    if not index.of_constituents:
        return bars
    return pd.concat([bars, index_of_constituents(market, bars)], ignore_index=True)
