"""All that a backtest predicted and what came of it, as arrays: what scores and portfolios are made of."""

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy import ndarray
from sqlalchemy import Connection

from db import backtests, repositories
from db.engine import reading
from dtml.rules import RULE_HISTORY, naive_calls
from dtml.sessions import sessions_up_to
from dtml.slices import Calls
from dtml.windows import adjusted_price, paper_labels
from flows.backtest import Backtest
from flows.train import stored_bars


@dataclass(frozen=True)
class History:
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
        return {"dtml": model, **rules}


def scored_bars(backtest: Backtest) -> pd.DataFrame:
    """The bars of the sessions predicted, and of those before and after that rules and fills read."""
    first = sessions_up_to(backtest.desk.market.calendar, backtest.plan.first, 2 * RULE_HISTORY)[0].date()
    return stored_bars(backtest.desk, first, backtest.until, backtest.known_at)[0]


def read_history(backtest: Backtest, bars: pd.DataFrame) -> History:
    """The predictions of all folds, and what `bars` say came of them."""
    desk = backtest.desk
    with reading(desk.engine) as conn:
        made = backtests.backtest_predictions(conn, backtest.id)
        folds = backtests.backtest_folds(conn, backtest.id)
    days = made[["as_of", "target"]].drop_duplicates().sort_values("target", ignore_index=True)
    fold = folds["number"].to_numpy()[folds["first"].searchsorted(days["target"], side="right") - 1]
    symbols = desk.market.symbols
    row, column = (
        days.set_index("target").index.get_indexer(pd.Index(made["target"])),
        pd.Index(symbols).get_indexer(pd.Index(made["symbol"])),
    )
    probability = np.full((len(days), len(symbols)), np.nan)
    probability[row, column] = made["probability"]
    price = bars.assign(price=adjusted_price(bars, desk.market.returns))
    closes = price.pivot(index="session", columns="symbol", values="price").reindex(columns=list(symbols))
    ends = (closes.reindex(days[day]).to_numpy() for day in ("target", "as_of"))
    movement = np.divide(*ends) - 1
    index = bars[bars["symbol"] == desk.market.index.symbol].set_index("session")["close"]
    return History(
        probability,
        movement,
        pd.DatetimeIndex(days["as_of"]),
        pd.DatetimeIndex(days["target"]),
        fold,
        symbols,
        naive_calls(index).reindex(days["as_of"]),
    )


def save_outcomes(conn: Connection, backtest: Backtest, history: History) -> None:
    """What became of every prediction, as a night's scoring would record it."""
    day, stock = np.nonzero(np.isfinite(history.probability) & np.isfinite(history.movement))
    move = history.movement[day, stock]
    rows = pd.DataFrame(
        {
            "symbol": pd.Index(history.symbols)[stock],
            "session": history.target[day],
            "move": move,
            "rise": move > 0,
            "label": paper_labels(move),
        }
    )
    now = datetime.now(UTC)
    repositories.save_outcomes(conn, backtest.desk.name, rows, known_at=backtest.known_at, recorded_at=now)
