"""Order the stocks of each day on real markets, walked forward, and print how well each model and rule did.

`python -m benchmarks.ranking [SET ...] [--leg next_close] [--dtml]`: every set of the shared data, or those named.
Settings were chosen on the half years before the first days of kospi200's sets; the days here are read once.
"""

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from benchmarks.shared_data import SHARED
from dtml.evaluation.ranking import Estimate, RankScore, paired_rank_ic, score_ranking
from dtml.markets import load_market
from dtml.markets.definition import Returns
from dtml.pages.figures import between, figure, markdown, signed_percent
from dtml.ranking.outcomes import LEGS, Leg, sessions_to
from dtml.ranking.panel import Grid, panel_of
from dtml.ranking.rankers import RankersConfig, walk
from dtml.ranking.relative import RelativeConfig
from dtml.ranking.rules import RULES, rule_scores
from dtml.ranking.walk import Fold, History, folds

COLUMNS = ("", "rank IC [95 %]", "t", "less the ridge's", "less the day's losers'", "AUC", "ACC", "decile spread a day")
A_YEAR = 4  # folds of 63 sessions


@dataclass(frozen=True)
class MarketSet:
    """A file of prices, the market whose checks it has, and the closes after which its stocks are ordered."""

    market: str
    first: str
    last: str
    returns: Returns = "close"


SETS = {
    "kospi200_2020": MarketSet("kospi200", "2022-01-03", "2026-05-29"),
    "kospi200_2015": MarketSet("kospi200", "2017-01-02", "2020-12-18"),
    "sp500": MarketSet("sp500", "2018-01-02", "2022-12-30"),
    "kdd17": MarketSet("kdd17", "2009-01-02", "2016-12-30", "adj_close"),
    "ndx100": MarketSet("ndx100", "2014-01-02", "2017-12-08"),
    "acl18": MarketSet("acl18", "2014-01-02", "2017-09-01", "adj_close"),
}


def history_of(name: str, leg: Leg) -> History:
    """Return what the models read of a set; every stock of a file counts on every day on which it has a bar."""
    chosen = SETS[name]
    bars = pd.read_parquet(SHARED / "prices" / f"{name}.parquet").rename(columns={"date": "session"})
    bars["symbol"] = bars["symbol"].astype(str)
    panel = panel_of(
        bars,
        sessions=pd.DatetimeIndex(sorted(bars["session"].unique())),
        symbols=tuple(sorted(bars["symbol"].unique())),
        returns=chosen.returns,
    )
    largest = load_market(chosen.market).checks.max_return
    return History.of(panel, leg, max_return=np.inf if largest is None else largest)


def print_set(name: str, leg: Leg, *, dtml: bool = False) -> None:
    """Walk every model and rule through a set, and print a table of them."""
    began = time.process_time()
    history = history_of(name, leg)
    walked = folds(history, pd.Timestamp(SETS[name].first), pd.Timestamp(SETS[name].last))
    if dtml:
        groups = [walked[first : first + A_YEAR] for first in range(0, len(walked), A_YEAR)]
        walked = [Fold(own[0].trained, slice(own[0].scored.start, own[-1].scored.stop)) for own in groups]
    scores = walk(history, walked, RankersConfig(leg, dtml_relative=RelativeConfig() if dtml else None))
    scores |= {rule: np.where(history.there, rule_scores(history.features, rule), np.nan) for rule in RULES}
    seconds = time.process_time() - began
    days = slice(walked[0].scored.start, walked[-1].scored.stop)
    scored = {each: score[days] for each, score in scores.items()}
    print(f"\n{name}, {leg}, closes {SETS[name].first} to {SETS[name].last}, {len(walked)} trainings, ", end="")
    print(f"{seconds:.0f} s of processor time\n\n{markdown(COLUMNS)}\n{markdown('---' for _ in COLUMNS)}")
    outcome = history.outcome[days]
    found = {each: score_ranking(score, outcome, overlap=sessions_to(leg)) for each, score in scored.items()}
    for predictor in sorted(found, key=lambda each: found[each].rank_ic.value):  # worst first
        print(markdown(_cells(predictor, found[predictor], scored, outcome)), flush=True)


def _cells(predictor: str, found: RankScore, scored: Mapping[str, Grid], outcome: Grid) -> tuple[str, ...]:
    gains = (
        "" if predictor == other else _said(paired_rank_ic(scored[predictor], scored[other], outcome), signed=True)
        for other in ("ridge", "day_losers")
    )
    return (
        predictor,
        _said(found.rank_ic),
        figure(found.t, 1),
        *gains,
        _said(found.auc),
        _said(found.acc),
        signed_percent(found.decile_spread.value),
    )


def _said(estimate: Estimate, *, signed: bool = False) -> str:
    return f"{figure(estimate.value, signed=signed)} {between(estimate.low, estimate.high, signed=signed)}".strip()


def main() -> None:
    """Print the table of each set that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="*", choices=[*SETS, []], help="by default all of them")
    parser.add_argument("--leg", choices=LEGS, default="next_close")
    parser.add_argument("--dtml", action="store_true", help="DTML too, and every model trained every 252 sessions")
    asked = parser.parse_args()
    for name in asked.sets or SETS:
        if (SHARED / "prices" / f"{name}.parquet").exists():
            print_set(name, asked.leg, dtml=asked.dtml)
        else:
            print(f"{name}: its prices are not in {SHARED}")


if __name__ == "__main__":
    main()
