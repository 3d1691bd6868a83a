"""Compare DTML with the best possible accuracy, which is known on the simulated market.

Each variant trains three seeds; the epoch is chosen on 250 validation sessions and the last 500
sessions are read once. Printed: the share of the best possible excess accuracy over one half that
is reached on followers.
"""

import time
from collections.abc import Iterator, Mapping
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
from dtml.training.fit import fit_members, stack_members
from dtml.windows import Windows, build_windows

LAST = date(2025, 12, 31)
TEST, VALIDATION = 500, 250
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
    """Accuracy on followers over the test span: of each seed, of their
    ensemble, and of the best possible rule.
    """

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
    begun = time.perf_counter()
    market = SimulatedMarket()
    windows = simulated_windows(experiment, market)
    train, validation, test = (windows.days(part) for part in _parts(len(windows)))
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
        seconds=time.perf_counter() - begun,
    )


def _parts(days: int) -> Iterator[slice]:
    yield slice(0, days - VALIDATION - TEST)
    yield slice(days - VALIDATION - TEST, days - TEST)
    yield slice(days - TEST, days)


def main() -> None:
    """Print the table of the README.md beside this file."""
    print(f"best possible accuracy in closed form: {SimulatedMarket().best_accuracy:.4f}")
    print(
        "variant | best on the test span | ACC of the seeds | share of the best excess | ensemble "
        "| seconds"
    )
    for name, change in VARIANTS.items():
        found = reach(vary(Experiment(), BASE | change))
        shares = [found.share(accuracy) for accuracy in found.seeds]
        print(
            f"{name} | {found.best:.4f} | {np.mean(found.seeds):.4f} ± "
            f"{np.std(found.seeds, ddof=1):.4f} | "
            f"{np.mean(shares):.0%} ± {np.std(shares, ddof=1):.0%} | "
            f"{found.share(found.ensemble):.0%} | "
            f"{found.seconds:.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
