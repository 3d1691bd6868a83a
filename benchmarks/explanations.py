"""Test whether the attention of a market's latest model explains its predictions.

`python -m benchmarks.explanations MARKET [--seeds 4] [--shuffles 8] [--epochs 12]`, after a night
of the market. Networks with the settings of its latest model are trained on true labels and on
labels of shuffled days, from which nothing can be learnt; attention that is the same in both groups
explains nothing (`distance_test`). The stocks that a stock looks at most should be those whose
rows, taken from another day, change its prediction most (`agreement`). In the simulated market, the
driver of each stock should be among them (`share_found`).
"""

import argparse
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import combinations
from math import comb, isqrt

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from scipy.stats import rankdata
from torch import Tensor

from db.engine import reading
from db.rows.runs import latest_trained
from dtml.evaluation.metrics import day_interval
from dtml.lookahead.pipeline import CPU, History, Pipeline
from dtml.markets import Market
from dtml.model import DTML
from dtml.prices.sessions import next_session, sessions_between, sessions_up_to
from dtml.sources.simulated import SimulatedMarket
from dtml.training import Fit, fit_members
from dtml.windows import Windows
from flows.markets.opened import RunRequest
from flows.nightly.context import experiment_of, open_stored_context, stored_bars

PerDay = Float[ndarray, "days stocks stocks"]  # row u, column v: of stock u, about stock v
BothObserved = Bool[ndarray, "days stocks stocks"]
Matrix = Float[ndarray, "stocks stocks"]
Positions = Int[ndarray, " days"]

STOCKS = 50  # of the market, at most; drawn where there are more
STOCK_DAYS = 50_000  # of the history, at most: the fewer stocks, the more sessions
VALIDATION_DAYS = 126  # on which a training validates, at most
DAYS = 42  # validation days on which attention is compared, at most
DRAWS = 3  # drawings in each of which every day takes the rows of another day
TOP = 3  # sources of a stock among which its driver should be
WAYS = 10_000  # ways to group networks that are compared, at most; where there are fewer, all
RESAMPLES = 1000  # of days, for the interval of the agreement


def measure(market: str, *, seeds: int, shuffles: int, epochs: int) -> None:
    """Train the networks on the bars as the market's latest model knew them, and print findings."""
    context = open_stored_context(RunRequest(market))
    with reading(context.engine) as conn:
        run = latest_trained(conn, "run", market)
    assert run is not None, f"{market} has no model: run dtml train {market}"
    as_of = run["train_last"]
    market_of_run = context.market.with_symbols(
        run["config"].get("stocks") or context.constituents(as_of)
    )
    count = STOCK_DAYS // min(STOCKS, len(market_of_run.symbols))
    calendar = context.market.calendar
    first = sessions_up_to(calendar, as_of, count)[0].date()
    bars, _watermark = stored_bars(context, first, as_of, run["data_watermark"])
    sessions = sessions_between(
        calendar, bars["session"].min().date(), next_session(calendar, as_of)
    )
    history = History(bars, sessions, market_of_run).cut(stocks=STOCKS, sessions=count, seed=0)

    experiment = experiment_of(run)
    pipeline = Pipeline(
        replace(
            experiment,
            training=replace(experiment.training, epochs=epochs, patience=None),
            validation_sessions=min(experiment.validation_sessions, VALIDATION_DAYS),
        )
    )
    train, validation = pipeline.spans(pipeline.windows(history), pd.Timestamp(as_of))
    observed_days = np.flatnonzero(validation.observed.any(dim=1).numpy())
    places = np.linspace(0, len(observed_days) - 1, min(DAYS, len(observed_days)))
    days = observed_days[places.round().astype(int)]
    is_present = validation.observed[days].numpy()  # [days stocks]
    # Stocks that are present on more than half of the days: any two of them share a day.
    stocks = np.flatnonzero(2 * is_present.sum(axis=0) > len(days))

    networks = trained(pipeline, train, validation, seeds, shuffles)
    chosen = np.ix_(np.arange(len(days)), stocks, stocks)
    attention = np.array(
        [attention_by_day(network, validation, days)[chosen] for network in networks]
    )
    importance = np.mean(
        [importance_by_day(network, validation, days) for network in networks[:seeds]], axis=0
    )[chosen]
    both = is_present[:, stocks, None] & is_present[:, None, stocks]
    drivers = known_drivers(history.market, [validation.symbols[stock] for stock in stocks])
    report(attention, importance, both, seeds, drivers)


def report(
    attention: Float[ndarray, "networks days stocks stocks"],
    importance: PerDay,
    both: BothObserved,
    seeds: int,
    drivers: Mapping[int, int],
) -> None:
    """Print every test; the `seeds` networks of true labels come first in `attention`."""
    stocks = both.shape[1]
    distance, p = distance_test(np.array([over_days(each, both) for each in attention]), seeds)
    true_attention = attention[:seeds].mean(axis=0)
    value, low, high = agreement(true_attention, importance, both)
    print(f"{stocks} stocks, {len(both)} days, {seeds} and {len(attention) - seeds} networks")
    print(f"energy distance of true from shuffled labels {distance:.3f}, p = {p:.2g}")
    print(f"Spearman's correlation with importance {value:+.2f} [{low:+.2f}, {high:+.2f}]")
    if drivers:
        print(
            f"the driver is among the {TOP} highest: "
            f"{share_found(over_days(true_attention, both), drivers):.0%} by attention, "
            f"{share_found(over_days(importance, both), drivers):.0%} by importance, "
            f"{min(1.0, TOP / (stocks - 1)):.0%} by chance"
        )


def known_drivers(market: Market, symbols: list[str]) -> dict[int, int]:
    """Return the position of each follower's leader in the simulated market; else nothing."""
    if market.source != "simulated":
        return {}
    law = SimulatedMarket()
    leaders = {each: law.leader_of(each) for each in symbols if each in law.follower_symbols}
    return {
        symbols.index(follower): symbols.index(leader)
        for follower, leader in leaders.items()
        if leader in symbols
    }


def trained(
    pipeline: Pipeline, train: Windows, validation: Windows, seeds: int, shuffles: int
) -> list[DTML]:
    """Train `seeds` networks on true labels, then `shuffles` on labels shuffled each its own way.

    The second group is trained side by side, each network on one core.
    """
    experiment = pipeline.experiment

    def fit_shuffled(seed: int) -> Fit:
        # With 2 * seed and 2 * seed + 1, no two shuffles have the same seed.
        spans = shuffled(train, 2 * seed), shuffled(validation, 2 * seed + 1)
        return fit_members(*spans, experiment.members_of(seed), device=CPU)[0]

    fits = fit_members(train, validation, experiment.members_of(*range(seeds)), device=CPU)
    threads = torch.get_num_threads()
    begin = partial(torch.set_num_threads, 1)
    with ThreadPoolExecutor(min(shuffles, threads), initializer=begin) as pool:
        fits += pool.map(fit_shuffled, range(seeds, seeds + shuffles))
    torch.set_num_threads(threads)
    networks = [experiment.model.build(len(train.symbols)) for _ in fits]
    for network, fit in zip(networks, fits, strict=True):
        network.load_state_dict(fit.best)
    return [network.eval() for network in networks]


def shuffled(windows: Windows, seed: int) -> Windows:
    """Return the windows with the movements of days shuffled as whole rows.

    The movement of a stock that was not observed on its day is dropped.
    """
    order = np.random.default_rng(seed).permutation(len(windows))
    movement = windows.movement.masked_fill(~windows.observed, np.nan)
    return replace(windows, movement=movement[order])


def attention_by_day(network: DTML, windows: Windows, days: Positions) -> PerDay:
    """Return how much stock u (row) looked at stock v (column), the mean over heads."""
    rows = _rows_of(windows, days)
    with torch.no_grad():
        _, weights = network(
            rows.flatten(0, 1), _places(rows), windows.observed[days], need_attention=True
        )
    assert weights is not None
    return np.asarray(weights.mean(dim=1).double())


def importance_by_day(network: DTML, windows: Windows, days: Positions) -> PerDay:
    """Return how much the logit of stock u (row) changes with another window of stock v (column).

    It is the mean absolute change over `DRAWS` drawings, in each of which every day on which v is
    observed takes v's window from another such day.
    """
    rows = _rows_of(windows, days)
    observed = windows.observed[days]
    stocks = observed.shape[1]
    importance = torch.zeros(len(days), stocks, stocks, dtype=torch.float64)
    with torch.no_grad():
        own_logits = network.logits(rows.flatten(0, 1), _places(rows), observed)
        for draw in range(DRAWS):
            source_days = _other_days(observed.numpy(), np.random.default_rng([0, draw]))
            for v in range(stocks):  # all days at once, each with other rows of stock v alone
                changed_rows = rows.clone()
                changed_rows[:, :, v] = rows[source_days[:, v], :, v]
                changed_logits = network.logits(changed_rows.flatten(0, 1), _places(rows), observed)
                importance[:, :, v] += (changed_logits - own_logits).abs() / DRAWS
    importance.diagonal(dim1=1, dim2=2).zero_()
    return np.asarray(importance)


def _rows_of(windows: Windows, days: Positions) -> Tensor:
    """Return the rows that each day sees, [days window symbols features], the index last."""
    return windows.views[days].movedim(1, 2)


def _places(rows: Tensor) -> Tensor:
    """Return the positions of each day's sessions when those of all days are concatenated.

    Windows of different days share no session here, so that one day's rows can be changed alone.
    """
    days, window = rows.shape[:2]
    return torch.arange(days * window).view(days, window)


def _other_days(
    observed: Bool[ndarray, "days stocks"], generator: np.random.Generator
) -> Int[ndarray, "days stocks"]:
    """Draw the day from which each day takes a stock's rows: those before it in one cycle."""
    days, stocks = observed.shape
    order = generator.permutation(days)
    source_days = np.tile(np.arange(days)[:, None], stocks)
    for stock in range(stocks):
        cycle = order[observed[order, stock]]
        source_days[cycle, stock] = np.roll(cycle, 1)
    return source_days


def over_days(values: PerDay, both: BothObserved) -> Matrix:
    """Return the mean over the days on which both stocks are observed; 0 where they never are."""
    return np.asarray((values * both).sum(axis=0) / np.maximum(both.sum(axis=0), 1))


def distance_test(
    matrices: Float[ndarray, "networks stocks stocks"], first: int
) -> tuple[float, float]:
    """Return the energy distance of the `first` networks' matrices from the others', and its p.

    The distance of two matrices is the root of the mean squared distance of their rows; p is the
    share of the groupings, the true one included, whose energy distance is at least as large
    (Szekely & Rizzo, "Testing for equal distributions in high dimension", 2004).
    """
    networks, stocks = matrices.shape[:2]
    differences = matrices[:, None] - matrices[None]
    distances = np.linalg.norm(differences, axis=(-2, -1)) / np.sqrt(stocks)
    if comb(networks, first) <= WAYS:  # the first combination is 0, 1, ...: the true grouping
        chosen = np.array(list(combinations(range(networks), first)))
    else:
        drawn = np.random.default_rng(0).random((WAYS, networks)).argsort(axis=1)[:, :first]
        chosen = np.concatenate([np.arange(first)[None], drawn])
    in_first = np.zeros((len(chosen), networks))
    np.put_along_axis(in_first, chosen, 1.0, axis=1)
    in_second = 1 - in_first

    def mean_distance(group: Matrix, other: Matrix) -> Float[ndarray, " ways"]:
        pairs = group.sum(axis=1) * other.sum(axis=1)
        return np.asarray(((group @ distances) * other).sum(axis=1) / pairs)

    energies = (
        2 * mean_distance(in_first, in_second)
        - mean_distance(in_first, in_first)
        - mean_distance(in_second, in_second)
    )
    # A grouping with the same distance as the true one may differ from it by rounding.
    return float(energies[0]), float((energies >= energies[0] - 1e-12).mean())


def agreement(
    attention: PerDay, importance: PerDay, both: BothObserved
) -> tuple[float, float, float]:
    """Return Spearman's correlation of attention with importance, and the ends of its interval.

    For each stock, the two are correlated over the other stocks; the result is the mean over
    stocks. The 95 % interval is as wide as that of resampled days but centred on the estimate,
    because resamples add an error to both ranks and lie too near 0. Two unrelated maps that both
    prefer a few stocks still reach about 2 / sqrt(stocks).
    """
    # What each day adds to three totals for each pair of stocks: attention, importance, and the
    # number of days on which both are observed.
    summands = (attention * both, importance * both, both)
    of_days = np.concatenate([each.reshape(len(both), -1) for each in summands], axis=1)
    value = float(_correlation(of_days.sum(axis=0)))
    low, high = day_interval(of_days[:, None], _correlation, resamples=RESAMPLES)
    half_width = float(high[0] - low[0]) / 2
    ends = np.clip([value - half_width, value + half_width], -1, 1)
    return value, *ends.tolist()


def _correlation(totals: Float[ndarray, "*batch totals"]) -> Float[ndarray, "*batch"]:
    stocks = isqrt(totals.shape[-1] // 3)
    matrices = totals.reshape(*totals.shape[:-1], 3, stocks, stocks)
    attention, importance, days = np.moveaxis(matrices, -3, 0)
    attention_ranks = _centred_ranks(attention, days)
    importance_ranks = _centred_ranks(importance, days)
    product = (attention_ranks * importance_ranks).sum(axis=-1)
    norm = np.sqrt((attention_ranks**2).sum(axis=-1) * (importance_ranks**2).sum(axis=-1))
    correlation = np.divide(product, norm, out=np.zeros_like(product), where=norm > 0)
    return np.asarray(correlation.mean(axis=-1))


def _centred_ranks(
    totals: Float[ndarray, "*batch stocks stocks"], days: Float[ndarray, "*batch stocks stocks"]
) -> Float[ndarray, "*batch stocks others"]:
    """Return, for each stock, the ranks of the others by their means over days, less the mean."""
    stocks = totals.shape[-1]
    means = totals / np.maximum(days, 1)
    of_others = means[..., ~np.eye(stocks, dtype=bool)]  # all pairs but the diagonal, flattened
    by_stock = of_others.reshape(*totals.shape[:-1], stocks - 1)
    return np.asarray(rankdata(by_stock, axis=-1) - stocks / 2)


def share_found(matrix: Matrix, drivers: Mapping[int, int]) -> float:
    """Return the share of stocks whose driver is among the `TOP` largest other entries of its row.

    Equal entries share the remaining places: a constant row finds its driver by chance.
    """
    shares = []
    for stock, driver in drivers.items():
        others = np.delete(matrix[stock], stock)
        above = (others > matrix[stock, driver]).sum()
        equal = (others == matrix[stock, driver]).sum()  # at least 1: the driver itself
        shares.append(np.clip((TOP - above) / equal, 0, 1))
    return float(np.mean(shares))


def main() -> None:
    """Print what is found in the market named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("market")
    for name, default in (("seeds", 4), ("shuffles", 8), ("epochs", 12)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    measure(options.market, seeds=options.seeds, shuffles=options.shuffles, epochs=options.epochs)


if __name__ == "__main__":
    main()
