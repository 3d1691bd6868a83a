"""Test what a market's latest model looks at: train networks like it on true labels and on
nonsense, and compare.

It trains shortly on a part of the market, in some minutes, and prints that it did.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from math import comb
from threading import Event
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch

from db.engine import reading, transaction
from db.rows import attention, runs
from dtml.attention import significance
from dtml.attention.findings import STOCK_DAYS, Findings
from dtml.attention.significance import Positions
from dtml.errors import DtmlError, UsageError
from dtml.experiments import Experiment
from dtml.lookahead.pipeline import CPU, History, Pipeline
from dtml.markets import Market
from dtml.model import DTML, ModelConfig
from dtml.prices.sessions import next_session, sessions_between, sessions_up_to
from dtml.sources.simulated import SimulatedMarket
from dtml.training.fit import fit_members
from dtml.training.state import Fit
from dtml.windows import Windows
from flows.console import plain
from flows.nightly.context import MarketContext, experiment_of, stored_bars

VALIDATION_DAYS, DAYS = 126, 42  # at most: of validation, and, evenly spaced, of those looked at
FEWEST_STOCKS = 4

T = TypeVar("T")
Tell = Callable[[str], object]


@dataclass(frozen=True)
class Trial:
    """Say how many networks are trained on true labels and on shuffled ones,
    and for how many epochs.
    """

    seeds: int = 4
    shuffles: int = 8
    epochs: int = 12

    def __post_init__(self) -> None:
        if min(self.seeds, self.shuffles, self.epochs) < 1:
            raise UsageError(
                f"seeds, shuffles and epochs are 1 or more; got {self.seeds}, {self.shuffles} and "
                f"{self.epochs}"
            )
        swapped = 2 if self.seeds == self.shuffles else 1  # groups of equal size may swap names
        ways = comb(self.seeds + self.shuffles, self.seeds) // swapped
        if ways * significance.SIGNIFICANT < 1:
            grouped = (
                f"{self.seeds} seeds and {self.shuffles} shuffles can be grouped in {ways} ways"
            )
            never = f"never be told apart at p <= {significance.SIGNIFICANT}"
            raise UsageError(f"{grouped} and {never}: ask for more of them")


def latest_run(context: MarketContext, as_of: date | None) -> dict[str, Any]:
    """Return the row of the market's model trained on the latest sessions, up
    to a day if one is named.
    """
    with reading(context.engine) as conn:
        run = runs.latest_run(conn, context.name, on_or_before=as_of)
    if run is None:
        up_to = "" if as_of is None else f" up to {as_of}"
        raise UsageError(
            f"market {context.name} has no model trained{up_to}: run `dtml train {context.name}`"
        )
    return run


def explain_run(
    context: MarketContext, run: Mapping[str, Any], trial: Trial, tell: Tell = str
) -> dict[str, Any]:
    """Test what networks of a run's settings look at, on the bars that the run knew; store and
    return the row.

    `tell` is called with each step in words. Raises DtmlError for a history too short to train, or
    too few stocks.
    """
    begun = time.perf_counter()
    tell("reading bars")
    history, as_of = history_of(context, run), run["train_last"]
    found = explain(experiment_of(run), history, pd.Timestamp(as_of), trial, tell)
    row = {
        "run_id": run["id"],
        "market": context.name,
        "as_of": as_of,
        "made_at": datetime.now(UTC),
    }
    row |= {"epochs": trial.epochs, **plain(asdict(found)), "seconds": time.perf_counter() - begun}
    with transaction(context.engine) as conn:
        attention.save_explanation(conn, row)
    return row


def history_of(context: MarketContext, run: Mapping[str, Any]) -> History:
    """Return the last sessions that a run could see, as it knew them, of at most `STOCKS` of its
    stocks.

    The stocks are constituents on that day, or those that the model is tied to, the same at each
    call. There are at most `STOCK_DAYS` stock-days: the fewer stocks, the more sessions.
    """
    calendar, as_of = context.market.calendar, run["train_last"]
    market = context.market.with_symbols(run["config"].get("stocks") or context.constituents(as_of))
    count = STOCK_DAYS // min(significance.STOCKS, len(market.symbols))
    first = sessions_up_to(calendar, as_of, count)[0].date()
    bars, _ = stored_bars(context, first, as_of, run["data_watermark"])
    sessions = sessions_between(
        calendar, bars["session"].min().date(), next_session(calendar, as_of)
    )
    return History(bars, sessions, market).cut(stocks=significance.STOCKS, sessions=count, seed=0)


def explain(
    experiment: Experiment,
    history: History,
    as_of: pd.Timestamp,
    trial: Trial,
    tell: Tell = str,
    *,
    seed: int = 0,
) -> Findings:
    """Train networks of an experiment as of a date, on true labels and on
    shuffled ones, and test what they look at.
    """
    pipeline = Pipeline(shortened(experiment, trial.epochs))
    train, validation = pipeline.spans(pipeline.windows(history), as_of)
    days = days_looked_at(validation)
    there = validation.observed[days].numpy()
    stocks = np.flatnonzero(2 * there.sum(axis=0) > len(days))  # so any two of them share a day
    if len(stocks) < FEWEST_STOCKS:
        there_are = (
            f"{len(stocks)} stocks of {history.market.name} are there on most days of validation"
        )
        raise DtmlError(
            f"{there_are} up to {as_of.date()}: to compare what they look at takes {FEWEST_STOCKS}"
        )
    networks = train_networks(train, validation, pipeline.experiment, trial, tell)
    tell("whose input changes whose probability")
    true = networks[: trial.seeds]
    moved = _side_by_side(
        lambda i, _: significance.importance_by_day(true[i], validation, days, seed=seed), len(true)
    )
    looked = _side_by_side(
        lambda i, _: significance.attention_by_day(networks[i], validation, days), len(networks)
    )
    here = np.ix_(np.arange(len(days)), stocks, stocks)
    attention, importance = np.array([each[here] for each in looked]), np.mean(moved, axis=0)[here]
    together = there[:, stocks, None] & there[:, None, stocks]
    drivers = known_drivers(history.market, [validation.symbols[stock] for stock in stocks])
    return significance.find(attention, importance, together, trial.seeds, drivers, seed=seed)


def shortened(experiment: Experiment, epochs: int) -> Experiment:
    """Return the same experiment for so many epochs, whatever validation says, and a shorter
    validation.

    All else stays as in the run: networks hurried as for the look-ahead audit would learn too
    little of the simulated market's leaders to test what they look at.
    """
    training = replace(experiment.training, epochs=epochs, patience=None)
    validation_sessions = min(experiment.validation_sessions, VALIDATION_DAYS)
    return replace(experiment, training=training, validation_sessions=validation_sessions)


def days_looked_at(validation: Windows) -> Positions:
    """Return positions of days with an observed stock, evenly spaced over all of them."""
    days = np.flatnonzero(validation.observed.any(dim=1).numpy())
    chosen = np.linspace(0, len(days) - 1, min(DAYS, len(days))).round().astype(int)
    return np.asarray(days[chosen])


def known_drivers(market: Market, symbols: Sequence[str]) -> dict[int, int]:
    """Return which stock each follower of a simulated market follows, by
    position; nothing for others.
    """
    law, place = SimulatedMarket(), {symbol: position for position, symbol in enumerate(symbols)}
    if market.source != "simulated":
        return {}
    pairs = [
        (symbol, law.leader_of(symbol)) for symbol in symbols if symbol in law.follower_symbols
    ]
    return {place[follower]: place[leader] for follower, leader in pairs if leader in place}


def train_networks(
    train: Windows, validation: Windows, experiment: Experiment, trial: Trial, tell: Tell = str
) -> list[DTML]:
    """Train networks on true labels, then one on each shuffle; each has a seed of its own."""
    count = trial.seeds + trial.shuffles
    tell(f"training {count} networks")
    true = fit_members(train, validation, experiment.members_of(*range(trial.seeds)), device=CPU)

    def fit(place: int, stopped: Event) -> Fit:
        def watch(*_: object) -> None:
            if stopped.is_set():
                raise InterruptedError

        seed = trial.seeds + place
        parts = (
            significance.shuffled(train, 2 * seed),
            significance.shuffled(validation, 2 * seed + 1),
        )
        return fit_members(*parts, experiment.members_of(seed), device=CPU, on_epoch=watch)[0]

    fits = _side_by_side(
        fit, trial.shuffles, lambda done: tell(f"trained {len(true) + done} of {count} networks")
    )
    return networks_of(true + fits, experiment.model, len(train.symbols))


def networks_of(fits: Sequence[Fit], config: ModelConfig, stocks: int) -> list[DTML]:
    """Return the network of each fit, with the weights that were best on validation."""
    networks = [config.build(stocks) for _ in fits]
    for network, fitted in zip(networks, fits, strict=True):
        network.load_state_dict(fitted.best)
    return [network.eval() for network in networks]


def _side_by_side(
    work: Callable[[int, Event], T], count: int, report: Callable[[int], object] = int
) -> list[T]:
    """Return what `work` makes of 0, 1, ..., on as many threads as there are
    cores, each computing on one.
    """
    # The event that each is given is set once anything fails, and on an interrupt.
    threads, interval, stopped = torch.get_num_threads(), sys.getswitchinterval(), Event()
    made: list[T] = []
    pool = ThreadPoolExecutor(min(count, threads), initializer=torch.set_num_threads, initargs=(1,))
    try:
        for each in pool.map(work, range(count), [stopped] * count):
            made.append(each)
            report(len(made))
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
        sys.setswitchinterval(interval)  # trainings that end side by side may leave one another's
    return made
