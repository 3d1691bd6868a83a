"""Trade the rankings of CSI 300 in the portfolio of Qlib's table, and print what it earned.

`python -m benchmarks.dropout [--with dtml] [--seeds 20] [--prices FOLDER] [--index FOLDER]`. The
models are those of `dtml benchmark csi300`; the portfolio is `TopkDropoutStrategy` of Qlib 0.9
(`qlib/contrib/strategy/signal_strategy.py`) with its defaults, traded at the close as its
benchmarks are. Excess is the mean of its return after costs less the index's, in a year of
`QLIB_YEAR` sessions; the ratio is that mean over the standard deviation, scaled to such a year.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from numpy import ndarray

from benchmarks.shared_data import SHARED
from dtml.evaluation.metrics import Estimate
from dtml.evaluation.ranking import mean_of_days
from dtml.prices.returns import on_grid
from flows.studies.csi300 import Csi300, Files, per_day_ratio

Grid = Float[ndarray, "sessions stocks"]
Stocks = Float[ndarray, " stocks"]
Flags = Bool[ndarray, " stocks"]

QLIB_YEAR = 238  # sessions, by which Qlib scales to a year
INVESTED = 0.95  # of the cash, at each session's purchases; Qlib's `risk_degree`


TOP = 50  # stocks held
EXCHANGED = 5  # of them, at most, a session
PURCHASE, SALE = 0.0005, 0.0015  # costs, as shares of the value traded
# A stock whose close moved up so far cannot be bought, and one that moved down as far not be sold.
LIMIT = 0.095


def follow_dropout(scores: Grid, close: Grid, sessions: pd.DatetimeIndex) -> pd.DataFrame:
    """Return the returns of the portfolio that follows the scores of each session.

    `scores` are known at the close of their session and traded at the close of the next one; NaN
    for a stock that is not ranked. `close` is adjusted, NaN where a stock does not trade: it is
    then neither bought nor sold, and keeps its last price. There is a row for each session from the
    one after the first purchase on. Columns: `session`, `net` (the return from the close before,
    costs deducted) and `turnover` (value sold, and paid for purchases with their costs, as a share
    of equity).
    """
    last_close = pd.DataFrame(close).ffill().to_numpy()
    units = np.zeros(close.shape[1])
    cash = 1.0
    equity: list[float] = []
    turnover: list[float] = []
    for place in range(1, len(sessions)):
        to_sell, to_buy = _trades(scores[place - 1], units)
        price = close[place]
        change = price / last_close[place - 1] - 1
        # Negated, so that a stock without an earlier close, whose change is NaN, can be traded.
        can_sell = np.isfinite(price) & ~(change <= -LIMIT)
        can_buy = np.isfinite(price) & ~(change >= LIMIT)
        sold = to_sell & can_sell
        proceeds = float((units * np.where(sold, price, 0.0)).sum())
        cash += proceeds * (1 - SALE)
        units[sold] = 0.0
        bought = to_buy & can_buy
        # As in Qlib, the cash is divided among all that should be bought, tradable or not.
        spent_on_each = INVESTED * cash / max(int(to_buy.sum()), 1)
        units[bought] += spent_on_each / (1 + PURCHASE) / price[bought]
        spent = spent_on_each * int(bought.sum())
        cash -= spent
        worth = cash + float(np.nansum(units * last_close[place]))
        equity.append(worth)
        turnover.append((proceeds + spent) / worth)
    values = np.array(equity)
    # `values` begins at the close of the second session. Returns begin after the session of the
    # first purchase, so that the cost of this purchase is in none of them.
    has_traded = np.array(turnover) > 0
    begun = int(has_traded.argmax()) + 1 if has_traded.any() else len(values)
    return pd.DataFrame(
        {
            "session": sessions[1 + begun :],
            "net": values[begun:] / values[begun - 1 : -1] - 1,
            "turnover": turnover[begun:],
        }
    )


def _trades(score: Stocks, units: Stocks) -> tuple[Flags, Flags]:
    """Return which stocks should be sold on a day's scores, and which bought, if they can be.

    The stocks held are compared with the best of the others: `EXCHANGED` of them, and one more for
    each vacancy below `TOP`. Of all these, the worst `EXCHANGED` are sold if they are held. A stock
    that is held and no longer ranked counts as the worst. The best of the others are bought, one
    for each stock sold and each vacancy. Where more than `TOP` are held, because a sale was not
    possible, so many fewer are compared and bought. Without any score nothing is traded.
    """
    is_held = units > 0
    sold = np.zeros(len(units), dtype=bool)
    bought = np.zeros(len(units), dtype=bool)
    if not np.isfinite(score).any():
        return sold, bought
    best_first = np.argsort(np.where(np.isfinite(score), -score, np.inf), kind="stable")
    vacancies = TOP - int(is_held.sum())
    is_new = ~is_held[best_first] & np.isfinite(score[best_first])
    new = best_first[is_new][: max(EXCHANGED + vacancies, 0)]
    is_compared = is_held.copy()
    is_compared[new] = True
    compared = best_first[is_compared[best_first]]
    worst = compared[max(len(compared) - EXCHANGED, 0) :]
    sold[worst] = True
    sold &= is_held
    bought[new[: max(int(sold.sum()) + vacancies, 0)]] = True
    return sold, bought


def measure(study: Csi300) -> None:
    """Print the excess and the ratio of each model, with their intervals, and its turnover."""
    panel = study.history.panel
    scored = study.days
    scores = study.with_rules(study.models())
    index = on_grid(study.bars, "close", panel.sessions, (study.market.index.symbol,))[:, 0]
    index_return = pd.Series(index, index=panel.sessions).pct_change(fill_method=None)
    # Two sessions more than are tested, if there are any: the last scores are traded and earn.
    days = slice(scored.start, min(scored.stop + 2, len(panel.sessions)))
    print("| model | excess a year [95 %] | information ratio [95 %] | turnover a day |")
    print("| --- | --- | --- | --- |")
    for name, grid in scores.items():
        tested = grid[days]
        tested[scored.stop - days.start :] = np.nan
        track = follow_dropout(tested, panel.close[days], panel.sessions[days])
        excess = track["net"].to_numpy() - index_return.reindex(track["session"]).to_numpy()
        cells = (
            name,
            with_ends(mean_of_days(excess), 100 * QLIB_YEAR, 1, " %"),
            with_ends(per_day_ratio(excess), QLIB_YEAR**0.5, 2),
            f"{track['turnover'].mean():.1%}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)


def with_ends(estimate: Estimate, unit: float, digits: int, percent: str = "") -> str:
    """Return a figure with its interval."""
    value, low, high = (
        f"{end * unit:.{digits}f}{percent}" for end in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} [{low}, {high}]"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--with", dest="networks", action="append", default=[])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--prices", type=Path, default=SHARED / "prices", metavar="FOLDER")
    parser.add_argument("--index", type=Path, default=SHARED / "index", metavar="FOLDER")
    options = parser.parse_args()
    files = Files(
        prices=options.prices / "csi300_asof.parquet",
        index=options.index / "SH000300.parquet",
        members=options.prices / "csi300_asof_members.csv",
    )
    measure(Csi300(files, tuple(options.networks), options.seeds))


if __name__ == "__main__":
    main()
