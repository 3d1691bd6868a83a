"""Test whether the attention of a market's latest model explains anything.

Networks like that model are trained on true and on shuffled labels, and their attention is
compared. The trainings are short and on a part of the market, so that the test takes minutes.
"""

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

VALIDATION_DAYS = 126  # at most
DAYS = 42  # at most: of the validation days, evenly spaced, those whose attention is compared
FEWEST_STOCKS = 4  # of which each is compared with the others

T = TypeVar("T")
Tell = Callable[[str], object]  # is called with each step, in words


@dataclass(frozen=True)
class Trial:
    """Say how many networks are trained on true labels (`seeds`) and on shuffled ones (`shuffles`).

    Each is trained for `epochs`. Raises UsageError for numbers below 1, and for so few networks
    that no difference could be significant.
    """

    seeds: int = 4
    shuffles: int = 8
    epochs: int = 12

    def __post_init__(self) -> None:
        if min(self.seeds, self.shuffles, self.epochs) < 1:
            raise UsageError(
                "seeds, shuffles and epochs must be 1 or more; "
                f"got {self.seeds}, {self.shuffles} and {self.epochs}"
            )
        # A permutation test: its smallest p-value is 1 / ways. Of two groups of equal size, it does
        # not matter which is called which.
        names_of_groups = 2 if self.seeds == self.shuffles else 1
        ways = comb(self.seeds + self.shuffles, self.seeds) // names_of_groups
        if ways * significance.SIGNIFICANT < 1:
            raise UsageError(
                f"{self.seeds} seeds and {self.shuffles} shuffles can be grouped in only {ways} "
                f"ways, too few to reach p <= {significance.SIGNIFICANT}: give larger numbers to "
                "--seeds and --shuffles"
            )


def latest_run(context: MarketContext, as_of: date | None) -> dict[str, Any]:
    """Return the row of the market's training run on the latest sessions, up to `as_of` if given.

    Raises UsageError where there is none.
    """
    with reading(context.engine) as conn:
        run = runs.latest_run(conn, context.name, on_or_before=as_of)
    if run is not None:
        return run
    up_to = "" if as_of is None else f" up to {as_of}"
    raise UsageError(
        f"market {context.name} has no model trained{up_to}: run `dtml train {context.name}`"
    )


def explain_run(
    context: MarketContext, run: Mapping[str, Any], trial: Trial, tell: Tell = str
) -> dict[str, Any]:
    """Test what networks with the settings of a run look at, on the bars that the run knew.

    Stores and returns the row of the test. Raises DtmlError for a history too short to train, or
    too few stocks.
    """
    begun = time.perf_counter()
    tell("reading bars")
    history = history_of(context, run)
    as_of = run["train_last"]
    findings = explain(experiment_of(run), history, pd.Timestamp(as_of), trial, tell)
    row = {
        "run_id": run["id"],
        "market": context.name,
        "as_of": as_of,
        "made_at": datetime.now(UTC),
        "epochs": trial.epochs,
        **plain(asdict(findings)),
        "seconds": time.perf_counter() - begun,
    }
    with transaction(context.engine) as conn:
        attention.save_explanation(conn, row)
    return row


def history_of(context: MarketContext, run: Mapping[str, Any]) -> History:
    """Return the last sessions that a run could see, as it knew them, of at most `STOCKS` stocks.

    The stocks are those that the model is tied to, if it is, else constituents on the run's last
    day; each call draws the same. There are at most `STOCK_DAYS` stock-days: the fewer stocks, the
    more sessions.
    """
    calendar = context.market.calendar
    as_of = run["train_last"]
    symbols = run["config"].get("stocks") or context.constituents(as_of)
    market = context.market.with_symbols(symbols)
    count = STOCK_DAYS // min(significance.STOCKS, len(market.symbols))
    first = sessions_up_to(calendar, as_of, count)[0].date()
    bars, _ = stored_bars(context, first, as_of, run["data_watermark"])
    first_stored = bars["session"].min().date()
    sessions = sessions_between(calendar, first_stored, next_session(calendar, as_of))
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
    """Train networks of an experiment on true and on shuffled labels; test what they look at.

    They are trained as of a date. Raises DtmlError where fewer than FEWEST_STOCKS stocks are
    present on most of the validation days that are compared.
    """
    pipeline = Pipeline(shortened(experiment, trial.epochs))
    train, validation = pipeline.spans(pipeline.windows(history), as_of)
    days = days_looked_at(validation)
    is_present = validation.observed[days].numpy()  # [days, stocks]
    # Each is present on more than half of the days, so that any two of them share a day.
    stocks = np.flatnonzero(2 * is_present.sum(axis=0) > len(days))
    if len(stocks) < FEWEST_STOCKS:
        raise DtmlError(
            f"only {len(stocks)} stocks of {history.market.name} are present on most validation "
            f"days up to {as_of.date()}: comparing their attention takes {FEWEST_STOCKS}"
        )

    networks = train_networks(train, validation, pipeline.experiment, trial, tell)
    tell("which stock's input changes which probability")
    true_networks = networks[: trial.seeds]

    # `_side_by_side` also passes the event that asks long work to end; these two do not watch it.
    def importance_of(place: int, _stopped: Event) -> significance.PerDay:
        return significance.importance_by_day(true_networks[place], validation, days, seed=seed)

    def attention_of(place: int, _stopped: Event) -> significance.PerDay:
        return significance.attention_by_day(networks[place], validation, days)

    importances = _side_by_side(importance_of, len(true_networks))
    attentions = _side_by_side(attention_of, len(networks))
    # Each result is [days, stocks that look, stocks looked at].
    chosen = np.ix_(np.arange(len(days)), stocks, stocks)
    symbols = [validation.symbols[stock] for stock in stocks]
    is_chosen_present = is_present[:, stocks]
    are_both_present = is_chosen_present[:, :, None] & is_chosen_present[:, None, :]
    return significance.find(
        attention=np.array([by_day[chosen] for by_day in attentions]),
        importance=np.mean(importances, axis=0)[chosen],
        both_observed=are_both_present,
        seeds=trial.seeds,
        drivers=known_drivers(history.market, symbols),
        seed=seed,
    )


def shortened(experiment: Experiment, epochs: int) -> Experiment:
    """Return the same experiment for so many epochs, with at most VALIDATION_DAYS of validation.

    It never stops before the last epoch. All else stays as in the run: networks trained as briefly
    as for the look-ahead audit would learn too little of the simulated market's leaders for a test
    of what they look at.
    """
    training = replace(experiment.training, epochs=epochs, patience=None)
    validation_sessions = min(experiment.validation_sessions, VALIDATION_DAYS)
    return replace(experiment, training=training, validation_sessions=validation_sessions)


def days_looked_at(validation: Windows) -> Positions:
    """Return the positions of at most DAYS days with an observed stock, evenly spaced."""
    observed_days = np.flatnonzero(validation.observed.any(dim=1).numpy())
    count = min(DAYS, len(observed_days))
    places = np.linspace(0, len(observed_days) - 1, count).round().astype(int)
    return np.asarray(observed_days[places])


def known_drivers(market: Market, symbols: Sequence[str]) -> dict[int, int]:
    """Return the position of the leader of each follower in a simulated market, by the follower's.

    Followers whose leader is not among `symbols` are left out. Empty for other markets, of which
    nothing is known.
    """
    if market.source != "simulated":
        return {}
    law = SimulatedMarket()
    positions = {symbol: position for position, symbol in enumerate(symbols)}
    drivers = {}
    for symbol in symbols:
        if symbol in law.follower_symbols:
            leader = law.leader_of(symbol)
            if leader in positions:
                drivers[positions[symbol]] = positions[leader]
    return drivers


def train_networks(
    train: Windows, validation: Windows, experiment: Experiment, trial: Trial, tell: Tell = str
) -> list[DTML]:
    """Train networks on true labels, then one on each shuffle, and return them in this order.

    Each has a seed of its own.
    """
    count = trial.seeds + trial.shuffles
    tell(f"training {count} networks")
    true_members = experiment.members_of(*range(trial.seeds))
    true_fits = fit_members(train, validation, true_members, device=CPU)

    def fit_shuffled(place: int, stopped: Event) -> Fit:
        def watch(*_: object) -> None:
            if stopped.is_set():
                raise InterruptedError

        seed = trial.seeds + place
        fits = fit_members(
            significance.shuffled(train, 2 * seed),  # no two shuffles have the same seed
            significance.shuffled(validation, 2 * seed + 1),
            experiment.members_of(seed),
            device=CPU,
            on_epoch=watch,
        )
        return fits[0]

    def report(done: int) -> None:
        tell(f"trained {len(true_fits) + done} of {count} networks")

    shuffled_fits = _side_by_side(fit_shuffled, trial.shuffles, report)
    return networks_of(true_fits + shuffled_fits, experiment.model, len(train.symbols))


def networks_of(fits: Sequence[Fit], config: ModelConfig, stocks: int) -> list[DTML]:
    """Return the network of each fit, with the weights that were best on validation."""
    networks = [config.build(stocks) for _ in fits]
    for network, fitted in zip(networks, fits, strict=True):
        network.load_state_dict(fitted.best)
    return [network.eval() for network in networks]


def _side_by_side(
    work: Callable[[int, Event], T], count: int, report: Callable[[int], object] = int
) -> list[T]:
    """Return what `work` makes of 0, 1, ..., on as many threads as there are cores.

    Each thread computes on one core. The event that `work` receives is set when anything fails and
    on an interrupt: long work should then end. `report` is called with the number of results.
    """
    threads = torch.get_num_threads()
    stopped = Event()
    results: list[T] = []
    pool = ThreadPoolExecutor(
        max_workers=min(count, threads),
        initializer=torch.set_num_threads,
        initargs=(1,),
    )
    try:
        for result in pool.map(work, range(count), [stopped] * count):
            results.append(result)
            report(len(results))
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
        # Trainings set this number too, and those that end side by side may leave another one.
        torch.set_num_threads(threads)
    return results
