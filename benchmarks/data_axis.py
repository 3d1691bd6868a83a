"""Compare DTML with the best possible accuracy, which is known on the simulated market.

Each variant trains three seeds; the epoch is chosen on 250 validation sessions and the last 500
sessions are read once. Printed: the share of the best possible excess accuracy over one half that
is reached on followers.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor

from dtml.checkpoints import Ensemble
from dtml.experiments import Experiment, vary
from dtml.inference import member_probabilities
from dtml.prices.sessions import next_session, sessions_between
from dtml.sources.simulated import SimulatedMarket, SimulatedSource
from dtml.training import fit_members, stack_members
from dtml.windows import Windows, build_windows

LAST = date(2025, 12, 31)
TEST = 500  # sessions
VALIDATION = 250
SEEDS = (0, 1, 2)
BASE = {
    "window": 5,
    "hidden": 32,
    "beta": 0.1,
    "protocol": "all",
    "penalty": 0.01,
    "identity": 1.0,
    "learning_rate": 3e-3,
    "batch_days": 32,
    "epochs": 30,
    "first_kept_epoch": 1,
    "train_sessions": 5000,
    "validation_sessions": VALIDATION,
}
VARIANTS: Mapping[str, Mapping[str, object]] = {
    "DTML, 5,000 sessions": {},
    "DTML, 2,500 sessions": {"train_sessions": 2500},
    "DTML, 1,750 sessions": {"train_sessions": 1750, "epochs": 60},
    "DTML, 700 sessions": {"train_sessions": 700, "epochs": 100},
    "one stock at a time, 5,000 sessions": {"data_axis": False},
    "gains shared by all stocks, 5,000 sessions": {"normalisation": "shared", "identity": 0.0},
    "lambda 1, 5,000 sessions": {"penalty": 1.0},
    "lambda 1, 1,750 sessions": {"train_sessions": 1750, "epochs": 60, "penalty": 1.0},
    "offsets start at 0 as in the paper, 5,000 sessions": {"identity": 0.0},
    "offsets start at 0 as in the paper, 1,750 sessions": {
        "train_sessions": 1750,
        "epochs": 60,
        "identity": 0.0,
    },
    "the paper's recipe (offsets 0, lambda 1, rate 0.001, 64 days), 1,750 sessions": {
        "train_sessions": 1750,
        "epochs": 60,
        "identity": 0.0,
        "penalty": 1.0,
        "learning_rate": 1e-3,
        "batch_days": 64,
    },
}


@dataclass(frozen=True)
class Reached:
    """Accuracies on followers over the test span: of seeds, their ensemble, and the best rule."""

    seeds: list[float]
    ensemble: float
    best: float
    seconds: float

    def share(self, accuracy: float) -> float:
        """Return the share of the best possible excess over one half."""
        return (accuracy - 0.5) / (self.best - 0.5)


def simulated_windows(experiment: Experiment, market: SimulatedMarket) -> Windows:
    """Return windows of training, validation and test together, the test's last."""
    source = SimulatedSource(market=market)
    days = (experiment.train_sessions or 0) + VALIDATION + TEST
    sessions = sessions_between(source.calendar, market.start, next_session(source.calendar, LAST))
    bars = source.bars(LAST)
    bars = bars[bars["session"] >= sessions[-(days + experiment.windows.history + 1)]]
    windows = build_windows(
        bars,
        sessions=sessions,
        symbols=market.symbols,
        index_symbol=source.index_symbol,
        config=experiment.windows,
    )
    known = windows.between(last=pd.Timestamp(LAST))
    return known.days(slice(max(0, len(known) - days), len(known)))


def leaders_last_return(windows: Windows, market: SimulatedMarket) -> Bool[Tensor, "days stocks"]:
    """Return the best possible directions: the sign of the leader's last adjusted return."""
    returns = windows.stocks[:, :, -1, 4]
    leader = [windows.symbols.index(market.leader_of(symbol)) for symbol in windows.symbols]
    return returns[:, leader] > 0


def reach(experiment: Experiment, seeds: tuple[int, ...] = SEEDS) -> Reached:
    """Train the experiment on the simulated market and read its test span once."""
    start = time.perf_counter()
    market = SimulatedMarket()
    windows = simulated_windows(experiment, market)
    test_start = len(windows) - TEST
    validation_start = test_start - VALIDATION
    train = windows.days(slice(0, validation_start))
    validation = windows.days(slice(validation_start, test_start))
    test = windows.days(slice(test_start, len(windows)))
    fits = fit_members(train, validation, experiment.members_of(*seeds), device=torch.device("cpu"))
    ensemble = Ensemble(
        "simulated",
        windows.symbols,
        seeds,
        experiment.model,
        experiment.windows,
        stack_members(fits),
    )
    chances = member_probabilities(ensemble, test, torch.device("cpu"))
    counted = test.labelled("all").clone()
    counted[:, : len(market.leader_symbols)] = False

    def accuracy(direction: Bool[Tensor, "days stocks"]) -> float:
        return float((direction == test.rises())[counted].double().mean())

    return Reached(
        seeds=[accuracy(chance > 0.5) for chance in chances],
        ensemble=accuracy(chances.mean(dim=0) > 0.5),
        best=accuracy(leaders_last_return(test, market)),
        seconds=time.perf_counter() - start,
    )


def main() -> None:
    """Print the table of the README.md beside this file."""
    print(f"best possible accuracy in closed form: {SimulatedMarket().best_accuracy:.4f}")
    print(
        "variant | best on the test span | ACC of the seeds | share of the best excess | ensemble "
        "| seconds"
    )
    for name, change in VARIANTS.items():
        reached = reach(vary(Experiment(), BASE | change))
        shares = [reached.share(accuracy) for accuracy in reached.seeds]
        cells = [
            name,
            f"{reached.best:.4f}",
            f"{np.mean(reached.seeds):.4f} ± {np.std(reached.seeds, ddof=1):.4f}",
            f"{np.mean(shares):.0%} ± {np.std(shares, ddof=1):.0%}",
            f"{reached.share(reached.ensemble):.0%}",
            f"{reached.seconds:.0f}",
        ]
        print(" | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
