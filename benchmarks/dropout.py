"""Trade the rankings of CSI 300 in the portfolio of Qlib's table, and print what it earned.

`python -m benchmarks.dropout [--with dtml] [--seeds 20] [--prices FOLDER] [--index FOLDER]`. The
models are those of `dtml benchmark csi300`; the portfolio is `TopkDropoutStrategy` of Qlib 0.9
(`qlib/contrib/strategy/signal_strategy.py`) with its defaults, traded at the close as its
benchmarks are. Excess is the mean of its return after costs less the index's, in a year of
`QLIB_YEAR` sessions; the ratio is that mean over the standard deviation, scaled to such a year.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from benchmarks.shared_data import SHARED
from dtml.evaluation.metrics import Estimate
from dtml.evaluation.ranking import mean_of_days
from dtml.prices.returns import on_grid
from dtml.ranking.features import RULES, rule_scores
from flows.studies.csi300 import Csi300, Files, per_day_ratio

Grid = Float[ndarray, "sessions stocks"]
Stocks = Float[ndarray, " stocks"]

QLIB_YEAR = 238  # sessions, by which Qlib scales to a year
INVESTED = 0.95  # of the cash, at each session's purchases; Qlib's `risk_degree`


@dataclass(frozen=True)
class Dropout:
    """The settings of the portfolio, those of Qlib's tables.

    It holds `top` stocks and sells up to `exchanged` of them a session. `purchase` and `sale` are
    costs, as shares of the value traded. A stock whose close moved up by `limit` or more cannot be
    bought, and one that moved down as far cannot be sold.
    """

    top: int = 50
    exchanged: int = 5
    purchase: float = 0.0005
    sale: float = 0.0015
    limit: float = 0.095


def follow_dropout(
    scores: Grid, close: Grid, sessions: pd.DatetimeIndex, settings: Dropout | None = None
) -> pd.DataFrame:
    """Return the returns of the portfolio that follows the scores of each session.

    `scores` are known at the close of their session and traded at the close of the next one; NaN
    for a stock that is not ranked. `close` is adjusted, NaN where a stock does not trade: it is
    then neither bought nor sold, and keeps its last price. There is a row for each session from the
    one after the first purchase on. Columns: `session`, `net` (the return from the close before,
    costs deducted) and `turnover` (value sold, and paid for purchases with their costs, as a share
    of equity).
    """
    settings = settings or Dropout()
    last_close = pd.DataFrame(close).ffill().to_numpy()
    units = np.zeros(close.shape[1])
    cash = 1.0
    equity: list[float] = []
    turnover: list[float] = []
    for place in range(1, len(sessions)):
        trades = _trades(scores[place - 1], units, settings)
        price = close[place]
        change = price / last_close[place - 1] - 1
        # Negated, so that a stock without an earlier close, whose change is NaN, can be traded.
        can_sell = np.isfinite(price) & ~(change <= -settings.limit)
        can_buy = np.isfinite(price) & ~(change >= settings.limit)
        sold = trades.sold & can_sell
        proceeds = float((units * np.where(sold, price, 0.0)).sum())
        cash += proceeds * (1 - settings.sale)
        units[sold] = 0.0
        bought = trades.bought & can_buy
        # As in Qlib, the cash is divided among all that should be bought, tradable or not.
        spent_on_each = INVESTED * cash / max(int(trades.bought.sum()), 1)
        units[bought] += spent_on_each / (1 + settings.purchase) / price[bought]
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


@dataclass(frozen=True)
class _Trades:
    """Which stocks should be sold, and which bought: a flag for each stock."""

    sold: ndarray
    bought: ndarray


def _trades(score: Stocks, units: Stocks, settings: Dropout) -> _Trades:
    """Return what should be traded on a day's scores, whether or not it can be.

    The stocks held are compared with the best of the others: `exchanged` of them, and one more for
    each vacancy below `top`. Of all these, the worst `exchanged` are sold if they are held. A stock
    that is held and no longer ranked counts as the worst. The best of the others are bought, one
    for each stock sold and each vacancy. Where more than `top` are held, because a sale was not
    possible, so many fewer are compared and bought. Without any score nothing is traded.
    """
    is_held = units > 0
    sold = np.zeros(len(units), dtype=bool)
    bought = np.zeros(len(units), dtype=bool)
    if not np.isfinite(score).any():
        return _Trades(sold=sold, bought=bought)
    best_first = np.argsort(np.where(np.isfinite(score), -score, np.inf), kind="stable")
    vacancies = settings.top - int(is_held.sum())
    is_new = ~is_held[best_first] & np.isfinite(score[best_first])
    new = best_first[is_new][: max(settings.exchanged + vacancies, 0)]
    is_compared = is_held.copy()
    is_compared[new] = True
    compared = best_first[is_compared[best_first]]
    worst = compared[max(len(compared) - settings.exchanged, 0) :]
    sold[worst] = True
    sold &= is_held
    bought[new[: max(int(sold.sum()) + vacancies, 0)]] = True
    return _Trades(sold=sold, bought=bought)


def measure(study: Csi300) -> None:
    """Print the excess and the ratio of each model, with their intervals, and its turnover."""
    panel = study.history.panel
    scored = study.spans[0].scored
    rules = {name: rule_scores(study.history.features, name) for name in RULES}
    scores = study.models() | rules
    index = on_grid(study.bars, "close", panel.sessions, (study.market.index.symbol,))[:, 0]
    index_return = pd.Series(index, index=panel.sessions).pct_change(fill_method=None)
    # Two sessions more than are tested, if there are any: the last scores are traded and earn.
    days = slice(scored.start, min(scored.stop + 2, len(panel.sessions)))
    print("| model | excess a year [95 %] | information ratio [95 %] | turnover a day |")
    print("| --- | --- | --- | --- |")
    for name, grid in scores.items():
        tested = np.where(study.history.there, grid, np.nan)[days]
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
