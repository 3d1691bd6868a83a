"""Test whether the attention of a market's latest model explains anything.

Networks with the settings of that model are trained on true and on shuffled labels, and their
attention is compared. The trainings are short and on a part of the market, so that the test takes
minutes.
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
from db.rows.runs import latest_trained
from db.save import save
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
from flows.console import as_json_values
from flows.nightly.context import MarketContext, experiment_of, stored_bars

VALIDATION_DAYS = 126  # on which a training validates, at most
DAYS = 42  # validation days on which attention is compared, at most
FEWEST_STOCKS = 4  # the test compares how much each stock looks at the others

T = TypeVar("T")
Tell = Callable[[str], object]  # is called with each step, in words


def tell_nobody(_progress: object) -> None:
    """Ignore a step or a number of results: the default where nobody watches the progress."""


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
        for name in ("seeds", "shuffles", "epochs"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, got {getattr(self, name)}")
        # The two groups are compared by a permutation test, whose smallest p-value is 1 divided by
        # the number of ways to split the networks into groups of these sizes. Where the sizes are
        # equal, `comb` counts each split twice: either half may be called the first group.
        times_counted = 2 if self.seeds == self.shuffles else 1
        ways = comb(self.seeds + self.shuffles, self.seeds) // times_counted
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
        run = latest_trained(conn, "run", context.name, on_or_before=as_of)
    if run is not None:
        return run
    if as_of is None:
        raise UsageError(f"market {context.name} has no model: run `dtml train {context.name}`")
    raise UsageError(
        f"market {context.name} has no model trained up to {as_of}: run "
        f"`dtml train {context.name} --as-of {as_of}`, or leave out --as-of"
    )


def explain_run(
    context: MarketContext, run: Mapping[str, Any], trial: Trial, tell: Tell = tell_nobody
) -> dict[str, Any]:
    """Test what networks with the settings of a training run look at, and store the result.

    `run` is the row of the training run. The networks are trained up to its last session, on the
    bars as it knew them. Returns the row stored in the table `explanation`. Raises DtmlError for a
    history too short to train, or with too few stocks.
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
        # A figure that is NaN becomes None, as the store holds missing numbers.
        **as_json_values(asdict(findings)),
        "seconds": time.perf_counter() - begun,
    }
    with transaction(context.engine) as conn:
        save(conn, "explanation", row)
    return row


def history_of(context: MarketContext, run: Mapping[str, Any]) -> History:
    """Return the last sessions that a training run could see, with the bars as it knew them.

    The stocks are those that the model is tied to, if its config lists them, else the constituents
    on the run's last session. Where there are more than `significance.STOCKS`, so many of them are
    drawn, and each call draws the same. There are at most `STOCK_DAYS` stock-days: the fewer
    stocks, the more sessions.
    """
    calendar = context.market.calendar
    as_of = run["train_last"]
    symbols = run["config"].get("stocks") or context.constituents(as_of)
    market = context.market.with_symbols(symbols)
    stocks_used = min(significance.STOCKS, len(market.symbols))
    session_count = STOCK_DAYS // stocks_used
    first = sessions_up_to(calendar, as_of, session_count)[0].date()
    bars, _watermark = stored_bars(context, first, as_of, run["data_watermark"])
    first_stored = bars["session"].min().date()  # after `first` where the store begins later
    # A history has the session after its last bar too.
    sessions = sessions_between(calendar, first_stored, next_session(calendar, as_of))
    whole = History(bars, sessions, market)
    return whole.cut(stocks=significance.STOCKS, sessions=session_count, seed=0)


def explain(
    experiment: Experiment,
    history: History,
    as_of: pd.Timestamp,
    trial: Trial,
    tell: Tell = tell_nobody,
    *,
    seed: int = 0,
) -> Findings:
    """Train networks of an experiment on true and on shuffled labels; test what they look at.

    They are trained as of the session `as_of`, and compared on at most DAYS of their validation
    days. `seed` decides the random draws of the test, but not the trainings. Raises DtmlError where
    fewer than FEWEST_STOCKS stocks are present on most of these days.
    """
    pipeline = Pipeline(shortened(experiment, trial.epochs))
    train, validation = pipeline.spans(pipeline.windows(history), as_of)
    days = days_looked_at(validation)
    is_present = validation.observed[days].numpy()  # [days, stocks]
    # The positions of the stocks that are present on more than half of the days: any two of them
    # share a day.
    stocks = np.flatnonzero(2 * is_present.sum(axis=0) > len(days))
    if len(stocks) < FEWEST_STOCKS:
        raise DtmlError(
            f"only {len(stocks)} stocks of {history.market.name} are present on most validation "
            f"days up to {as_of.date()}, but the test needs at least {FEWEST_STOCKS}: fetch the "
            "missing bars and train the model again, or test a market with more stocks"
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
    # Each result is [days, stocks that look, stocks looked at], over all stocks of the windows;
    # `chosen` selects from it all days and, on both other axes, the `stocks` above.
    chosen = np.ix_(np.arange(len(days)), stocks, stocks)
    symbols = [validation.symbols[stock] for stock in stocks]
    is_chosen_present = is_present[:, stocks]
    # [days, stocks that look, stocks looked at]
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

    No training stops before its last epoch. All else stays as in the run: networks trained as
    briefly as for the look-ahead audit would learn too little about which stock follows which in
    the simulated market for a test of what they look at.
    """
    training = replace(experiment.training, epochs=epochs, patience=None)
    validation_sessions = min(experiment.validation_sessions, VALIDATION_DAYS)
    return replace(experiment, training=training, validation_sessions=validation_sessions)


def days_looked_at(validation: Windows) -> Positions:
    """Return the positions of the validation days to compare, in order.

    They are at most DAYS of the days with an observed stock, evenly spaced among these.
    """
    observed_days = np.flatnonzero(validation.observed.any(dim=1).numpy())
    count = min(DAYS, len(observed_days))
    places = np.linspace(0, len(observed_days) - 1, count).round().astype(int)
    return np.asarray(observed_days[places])


def known_drivers(market: Market, symbols: Sequence[str]) -> dict[int, int]:
    """Return which stock drives which in a simulated market, as positions in `symbols`.

    There, some stocks follow another one, their leader. The result maps the position of each
    follower to that of its leader; followers whose leader is not among `symbols` are left out. It
    is empty for other markets, where nobody knows what drives a stock.
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
    train: Windows,
    validation: Windows,
    experiment: Experiment,
    trial: Trial,
    tell: Tell = tell_nobody,
) -> list[DTML]:
    """Train `trial.seeds` networks on true labels, then `trial.shuffles` on shuffled ones.

    Returns them in this order. Each network has a seed of its own, and each of the second group a
    shuffle of its own.
    """
    count = trial.seeds + trial.shuffles
    tell(f"training {count} networks")
    true_members = experiment.members_of(*range(trial.seeds))
    true_fits = fit_members(train, validation, true_members, device=CPU)

    def fit_shuffled(place: int, stopped: Event) -> Fit:
        """Train the network at `place` of the second group."""

        def end_if_stopped(*_: object) -> None:
            """End this training after an epoch if another one has failed."""
            if stopped.is_set():
                raise InterruptedError

        seed = trial.seeds + place
        fits = fit_members(
            # With 2 * seed and 2 * seed + 1, no two shuffles have the same seed.
            significance.shuffled(train, 2 * seed),
            significance.shuffled(validation, 2 * seed + 1),
            experiment.members_of(seed),
            device=CPU,
            on_epoch=end_if_stopped,
        )
        return fits[0]  # of the one member

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
    work: Callable[[int, Event], T], count: int, report: Callable[[int], object] = tell_nobody
) -> list[T]:
    """Return the results of `work` for the numbers 0 to `count` - 1, in this order.

    They run side by side, on at most as many threads as torch computes with, each on one core.
    `work` also receives an event, which is set when an earlier result is an error and on an
    interrupt: long work should then end. `report` is called with the number of results so far.
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
        stopped.set()  # after an error, this ends the works in progress, for which shutdown waits
        pool.shutdown(cancel_futures=True)
        # Trainings set this number too, and those that end side by side may leave another one.
        torch.set_num_threads(threads)
    return results
