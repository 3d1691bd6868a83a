"""Compare the tear sheet of a ranking with alphalens' on the same ranking.

`python -m benchmarks.tear_sheet_alphalens`. A ridge regression and a gradient boosting are walked
over a made market in which part of a day's return is taken back the next day. Both programs
describe the same rankings: those of the ridge regression, whose scores all differ; these with one
score in twenty missing; and those of the blend, in which many scores are equal. alphalens is no
dependency of dtml: `pip install alphalens-reloaded` installs it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from benchmarks.ranking_noise import BEFORE, SCORED, SMALL, noise
from dtml.evaluation.ranking import both_known, decile_spreads, rank_ics
from dtml.evaluation.tear_sheet import by_horizon, group_returns
from dtml.markets.definition import BASIS_POINT
from dtml.ranking.panel import Panel
from dtml.ranking.rankers import walk
from dtml.ranking.walk import History, folds

REVERSAL = 0.15  # share of a day's return that the next day takes back
MISSING = 0.05  # share of the scores of the second case
GROUPS = 10


class Ranking(NamedTuple):
    """Scores of stocks, [days stocks], with the closes that their returns are taken from."""

    days: pd.DatetimeIndex
    scores: pd.DataFrame
    closes: pd.DataFrame


class Compared(NamedTuple):
    """A quantity of both programs, and the largest difference of a day or of a group."""

    quantity: str
    ours: float
    theirs: float
    largest: float


def market(seed: int) -> Panel:
    """Return a market of random bars whose returns partly reverse the next day."""
    panel = noise(seed)
    returns = np.diff(np.log(panel.close), axis=0)
    for day in range(1, len(returns)):
        returns[day] -= REVERSAL * returns[day - 1]
    gap = np.log(panel.open[1:] / panel.close[:-1])
    close = panel.close.copy()
    close[1:] = close[0] * np.exp(returns.cumsum(axis=0))
    opened = panel.open.copy()
    opened[1:] = close[:-1] * np.exp(gap)
    return replace(
        panel,
        open=opened,
        close=close,
        high=np.maximum(opened, close) * 1.001,
        low=np.minimum(opened, close) / 1.001,
        value=close * panel.volume,
    )


def rankings(seed: int) -> dict[str, Ranking]:
    """Return the rankings of three cases over a made market, by their names."""
    panel = market(seed)
    history = History.of(panel, "next_close")
    walked = folds(history, panel.sessions[BEFORE], panel.sessions[BEFORE + SCORED - 1])
    scores = walk(history, walked, SMALL)
    days = slice(BEFORE, BEFORE + SCORED)
    names = list(panel.symbols)
    sessions = panel.sessions[days]
    closes = pd.DataFrame(panel.close, index=panel.sessions, columns=names)
    ridge, blend = (
        pd.DataFrame(scores[name][days], index=sessions, columns=names)
        for name in ("ridge", "blend")
    )
    is_missing = np.random.default_rng(1).random(ridge.shape) < MISSING
    return {
        "all scores differ": Ranking(sessions, ridge, closes),
        "one score in twenty is missing": Ranking(sessions, ridge.mask(is_missing), closes),
        "many scores are equal": Ranking(sessions, blend, closes),
    }


def theirs(made: Ranking) -> Mapping[str, ndarray]:
    """Return what alphalens computes of a ranking: values by day or by group."""
    from alphalens import performance, utils

    factor = made.scores.stack().rename_axis(["date", "asset"])
    data = utils.get_clean_factor_and_forward_returns(
        factor, made.closes, quantiles=GROUPS, periods=(1,), max_loss=1.0
    )
    by_day, _ = performance.mean_return_by_quantile(data, by_date=True, demeaned=False)
    pooled, _ = performance.mean_return_by_quantile(data, demeaned=True)
    spread, _ = performance.compute_mean_returns_spread(by_day, GROUPS, 1)
    turnover = performance.quantile_turnover(data["factor_quantile"], GROUPS)
    return {
        "ic": performance.factor_information_coefficient(data)["1D"].to_numpy(),
        "groups": pooled["1D"].to_numpy(),
        # Theirs holds half of the equity long and half short, ours as much as the equity on each.
        "spread": 2 * spread["1D"].to_numpy(),
        "autocorrelation": performance.factor_rank_autocorrelation(data).to_numpy(),
        "turnover": turnover.to_numpy(),
    }


def ours(made: Ranking) -> Mapping[str, ndarray]:
    """Return the same of dtml."""
    scores = made.scores.to_numpy()
    returns = made.closes.pct_change().shift(-1).reindex(made.days).to_numpy()
    known = both_known(scores, returns)
    return {
        "ic": rank_ics(*known),
        "groups": group_returns(scores, returns)["excess"].to_numpy(),
        "spread": decile_spreads(*known),
        "autocorrelation": by_horizon(scores)["autocorrelation"].to_numpy()[:1],
        "turnover": by_horizon(scores)["replaced"].to_numpy()[:1],
    }


def compared(made: Ranking) -> Iterator[Compared]:
    """Yield each quantity of both programs."""
    own, other = ours(made), theirs(made)
    yield _of_days("mean rank IC", own["ic"], other["ic"])
    yield _of_days("best less worst tenth, bp a day", own["spread"], other["spread"], BASIS_POINT)
    for group, (mine, its) in enumerate(zip(own["groups"], other["groups"], strict=True), start=1):
        name = f"group {group} above all stocks, bp a day"
        yield Compared(name, mine / BASIS_POINT, its / BASIS_POINT, abs(mine - its) / BASIS_POINT)
    for name in ("autocorrelation", "turnover"):
        mean = float(np.nanmean(other[name]))
        mine = float(own[name][0])
        yield Compared(f"{name}, one day apart", mine, mean, abs(mine - mean))


def _of_days(
    name: str, own: Float[ndarray, " days"], other: Float[ndarray, " days"], unit: float = 1.0
) -> Compared:
    largest = float(np.nanmax(np.abs(own - other)))
    return Compared(
        name, float(np.nanmean(own)) / unit, float(np.nanmean(other)) / unit, largest / unit
    )


def main() -> None:
    """Print both programs' figures of both cases."""
    try:
        import alphalens
    except ImportError as error:
        raise SystemExit(
            f"{error}: this comparison needs alphalens: run `pip install alphalens-reloaded`"
        ) from error
    print(f"alphalens {alphalens.__version__}")
    for name, made in rankings(seed=0).items():
        print(f"\n**{name}**\n\n| quantity | ours | alphalens | largest difference |")
        print("| --- | --- | --- | --- |")
        for row in compared(made):
            print(f"| {row.quantity} | {row.ours:.6f} | {row.theirs:.6f} | {row.largest:.1e} |")


if __name__ == "__main__":
    main()
