"""All that a backtest predicted and what came of it, as arrays: what scores and portfolios are made of."""

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy import ndarray
from sqlalchemy import Connection

from db.engine import reading
from db.rows import backtests, outcomes
from dtml.baselines.naive_rules import MODEL, calls_on, rules_read_from
from dtml.errors import DtmlError
from dtml.evaluation.breakdowns import Calls
from dtml.windows import moves_between
from flows.backtest.folds import Backtest
from flows.nightly.calibration import outcome_rows
from flows.nightly.context import read_bars


@dataclass(frozen=True)
class TrackRecord:
    """All that was predicted and what came of it, on the sessions predicted.

    `probability` is NaN where nothing was predicted, `movement` a ratio minus 1, NaN where it is not known.
    """

    probability: Float[ndarray, "days stocks"]
    movement: Float[ndarray, "days stocks"]
    as_of: pd.DatetimeIndex
    target: pd.DatetimeIndex
    fold: Int[ndarray, " days"]
    symbols: tuple[str, ...]
    rules: pd.DataFrame  # a column a rule, a row a day

    def calls(self) -> Calls:
        """What the model and each rule called, stock by stock."""
        model = np.where(np.isfinite(self.probability), self.probability > 0.5, np.nan)
        everyone = np.ones_like(self.probability)
        rules = {str(rule): everyone * self.rules[rule].to_numpy()[:, None] for rule in self.rules}
        return {MODEL: model, **rules}


def scored_bars(backtest: Backtest) -> pd.DataFrame:
    """The bars of the sessions predicted, and of those before that the rules read."""
    first = rules_read_from(backtest.desk.market.calendar, backtest.plan.first)
    return read_bars(backtest.desk, first, backtest.plan.last, backtest.known_at)


def read_record(backtest: Backtest, bars: pd.DataFrame) -> TrackRecord:
    """The predictions of all folds, and what `bars` say came of them; raises DtmlError when every night was refused."""
    desk = backtest.desk
    with reading(desk.engine) as conn:
        made = backtests.backtest_predictions(conn, backtest.id)
        folds = backtests.backtest_folds(conn, backtest.id)
    if made.empty:
        reasons = pd.Series([reason for refused in folds["refused"] for reason in refused.values()])
        raise DtmlError(f"every one of {len(reasons)} nights was refused, such as: {reasons.iloc[0]}")
    days = made[["as_of", "target"]].drop_duplicates().sort_values("target", ignore_index=True)
    fold = folds["number"].to_numpy()[folds["first"].searchsorted(days["target"], side="right") - 1]
    symbols = desk.market.symbols
    row, column = (
        days.set_index("target").index.get_indexer(pd.Index(made["target"])),
        pd.Index(symbols).get_indexer(pd.Index(made["symbol"])),
    )
    probability = np.full((len(days), len(symbols)), np.nan)
    probability[row, column] = made["probability"]
    as_of, target = pd.DatetimeIndex(days["as_of"]), pd.DatetimeIndex(days["target"])
    movement = moves_between(bars, as_of, target, symbols, desk.market.returns)
    rules = calls_on(as_of, bars, desk.market.index.symbol)
    return TrackRecord(probability, movement, as_of, target, fold, symbols, rules)


def save_outcomes(conn: Connection, backtest: Backtest, record: TrackRecord) -> None:
    """What became of every prediction, as a night's scoring would record it."""
    day, stock = np.nonzero(np.isfinite(record.probability) & np.isfinite(record.movement))
    rows = outcome_rows(pd.Index(record.symbols)[stock], record.target[day], record.movement[day, stock])
    now = datetime.now(UTC)
    outcomes.save_outcomes(conn, backtest.desk.name, rows, known_at=backtest.known_at, recorded_at=now)
