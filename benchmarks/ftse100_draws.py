"""Show how DTML's figure on FTSE100 moves with the stocks: three draws of 24 of the 92.

The paper has 24 stocks, which it does not name. Each draw is trained by the published recipe, three
seeds, and scored on the same test span; nothing is chosen by these figures. Needs the shared data:
minutes on 2 cores.
"""

from dataclasses import replace

import numpy as np

from benchmarks.stores import published_market
from dtml.published import SETS
from flows.console import say
from flows.studies.printed import benchmark_parts
from flows.studies.published import PublishedExperiment
from flows.studies.study import run_study
from translation.environment import prepare_torch

DRAWS, STOCKS, SEEDS = 3, 24, (0, 1, 2)


def main() -> None:
    """Print the scoreboard of each draw."""
    prepare_torch()
    every = SETS["ftse100-paper"]
    paper = replace(every, stocks=STOCKS, recipes={"dtml": every.recipes["dtml"]})
    draw = np.random.default_rng(0)
    with published_market(every.market, prices="ftse100", index="FTSE") as context:
        for _ in range(DRAWS):
            symbols = sorted(draw.choice(context.market.symbols, STOCKS, replace=False))
            say(" ".join(symbols))
            drawn = replace(context, market=context.market.with_symbols(symbols))
            for part in benchmark_parts(run_study(PublishedExperiment(drawn, paper, SEEDS))):
                say(part)


if __name__ == "__main__":
    main()
