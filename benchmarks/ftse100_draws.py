"""Show how DTML's figure on FTSE100 moves with the stocks: three draws of 24 of the 92, and all 92.

The paper has 24 stocks, which it does not name; 92 in the public prices have each of its sessions.
Each set is trained by the published recipe, three seeds, and scored on the same test span; nothing
is chosen by these figures. Needs the shared data: an hour on 2 cores.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from benchmarks.shared_data import SHARED
from benchmarks.stores import published_market
from dtml.published import SETS
from flows.commands.benchmark import benchmark_parts
from flows.console import say
from flows.studies.published import PublishedExperiment
from flows.studies.study import run_study
from translation.environment import prepare_torch

PAPER = SETS["ftse100-paper"]
DRAWS, SEEDS = 3, (0, 1, 2)


def stocks_with_every_session() -> list[str]:
    """Return the stocks of the public prices that have each session of the paper, sorted."""
    bars = pd.read_parquet(SHARED / "prices" / "ftse100.parquet")
    paper = bars[bars["date"].between(str(PAPER.train[0]), str(PAPER.test[1]))]
    sessions = paper["symbol"].astype(str).value_counts()
    return sorted(sessions.index[sessions == paper["date"].nunique()])


def stock_sets() -> Iterator[list[str]]:
    """Yield the draws, then all stocks."""
    every = stocks_with_every_session()
    draw = np.random.default_rng(0)
    for _ in range(DRAWS):
        yield sorted(draw.choice(every, PAPER.stocks, replace=False))
    yield every


def main() -> None:
    """Print the scoreboard of each set of stocks."""
    prepare_torch()
    dtml_alone = {"dtml": PAPER.recipes["dtml"]}
    with published_market(
        PAPER.market, prices="ftse100", index="FTSE", universe="source"
    ) as context:
        for symbols in stock_sets():
            say(" ".join(symbols))
            chosen = replace(context, market=context.market.with_symbols(symbols))
            paper = replace(PAPER, stocks=len(symbols), recipes=dtml_alone, notes=())
            for part in benchmark_parts(run_study(PublishedExperiment(chosen, paper, SEEDS))):
                say(part)


if __name__ == "__main__":
    main()
