"""Test whether attention is an explanation.

It is compared with chance, with what changes predictions, and with known drivers: three tests, each
of which attention can fail. Networks of the same settings are trained on true labels and on labels
of shuffled days, from which nothing can be learnt: attention that is the same in both groups
explains nothing (`distance_test`). The stocks that a stock looks at most should be those whose
rows, taken from another day, change its prediction most (`importance_by_day`, `agreement`). In a
simulated market, the driver of each stock should be among them (`share_found`).

All random numbers come from a seed.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from math import comb, isqrt

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from scipy.stats import rankdata
from torch import Tensor

from dtml.attention.findings import Findings
from dtml.evaluation.metrics import day_interval
from dtml.layers.network import Network
from dtml.model import DTML
from dtml.windows import Windows

Drivers = Mapping[int, int]  # from a stock to the one that drives it, by position
OfNetworks = Float[ndarray, "networks days stocks stocks"]
PerDay = Float[ndarray, "days stocks stocks"]  # row u, column v: of stock u, about stock v
BothObserved = Bool[ndarray, "days stocks stocks"]  # whether stocks u and v both are, that day
Matrix = Float[ndarray, "stocks stocks"]
Positions = Int[ndarray, " days"]

# The most stocks of a history that is tested. It has `dtml.attention.findings.STOCK_DAYS`, so 1,000
# sessions of 50 stocks, or more sessions of fewer stocks.
STOCKS = 50
DRAWS = 3  # drawings in each of which every day takes the rows of another day
TOP = 3  # sources of a stock among which its driver should be
SIGNIFICANT = 0.05  # the largest p-value that tells true from shuffled labels
WAYS = 10_000  # ways to group networks that are compared, at most; where there are fewer, all
RESAMPLES = 1000  # of days, for the interval of the agreement


def find(
    attention: OfNetworks,
    importance: PerDay,
    both_observed: BothObserved,
    seeds: int,
    drivers: Drivers,
    *,
    seed: int = 0,
) -> Findings:
    """Run every test on the attention of all networks and on their `importance`.

    In `attention`, the `seeds` networks of true labels come first; `importance` is the mean over
    these networks. For a pair of stocks, only the days count on which `both_observed` is true.
    `drivers` maps a stock to the one that drives it; it is empty where none is known. Random draws
    come from `seed`.
    """
    days, stocks = both_observed.shape[:2]
    # [networks stocks stocks]
    attention_means = np.array([over_days(weights, both_observed) for weights in attention])
    distance, p_value = distance_test(attention_means, seeds, seed=seed)
    true_attention = attention[:seeds].mean(axis=0)
    correlation, low, high = agreement(true_attention, importance, both_observed, seed=seed)
    attention_mean = over_days(true_attention, both_observed)
    importance_mean = over_days(importance, both_observed)
    return Findings(
        stocks=stocks,
        days=days,
        seeds=seeds,
        shuffles=len(attention) - seeds,
        distance=distance,
        distance_p=p_value,
        told_apart=p_value <= SIGNIFICANT,
        agreement=correlation,
        agreement_low=low,
        agreement_high=high,
        top=TOP,
        drivers=share_found(attention_mean, drivers, TOP),
        drivers_chance=min(1.0, TOP / (stocks - 1)) if drivers else None,
        drivers_importance=share_found(importance_mean, drivers, TOP),
    )


def shuffled(windows: Windows, seed: int) -> Windows:
    """Return the same windows with the movements of days shuffled: nothing can be learnt from them.

    Movements are shuffled as whole rows, so that stocks still rise together, and as often. The
    movement of a stock that was not observed on its day is dropped; a stock-day that receives none
    has no label.
    """
    order = np.random.default_rng(seed).permutation(len(windows))
    movement = windows.movement.masked_fill(~windows.observed, np.nan)
    return replace(windows, movement=movement[order])


def attention_by_day(network: DTML, windows: Windows, days: Positions) -> PerDay:
    """Return how much stock u (row) looked at stock v (column) on each of these days.

    It is the mean over heads.
    """
    rows = _rows_of(windows, days)
    observed = windows.observed[days]
    with torch.no_grad():
        _, weights = network(rows.flatten(0, 1), _places(rows), observed, need_attention=True)
    assert weights is not None
    return np.asarray(weights.mean(dim=1).double())


def importance_by_day(
    network: Network, windows: Windows, days: Positions, draws: int = DRAWS, seed: int = 0
) -> PerDay:
    """Return how much the logit of stock u (row) changes with another window of stock v (column).

    It is the mean absolute change over `draws` drawings. In each drawing, every day on which stock
    v is observed takes v's window from another such day, or keeps it if there is no other. The
    importance is 0 on the diagonal, and on days on which v is not observed; it means nothing on
    days on which u is not. Its unit is that of a logit, without an upper bound.
    """
    rows = _rows_of(windows, days)
    observed = windows.observed[days]
    stocks = observed.shape[1]
    importance = torch.zeros(len(days), stocks, stocks, dtype=torch.float64)
    with torch.no_grad():
        own_logits = network.logits(rows.flatten(0, 1), _places(rows), observed)
        for draw in range(draws):
            generator = np.random.default_rng([seed, draw])
            source_days = _other_days(observed.numpy(), generator)
            for v in range(stocks):  # all days at once, each with other rows of stock v alone
                changed_rows = rows.clone()
                changed_rows[:, :, v] = rows[source_days[:, v], :, v]
                changed_logits = network.logits(changed_rows.flatten(0, 1), _places(rows), observed)
                importance[:, :, v] += (changed_logits - own_logits).abs() / draws
    importance.diagonal(dim1=1, dim2=2).zero_()
    return np.asarray(importance)


def _rows_of(windows: Windows, days: Positions) -> Tensor:
    """Return the rows that each day sees, `[days window symbols features]`, the index last."""
    stocks = windows.stocks[days].movedim(1, 2)
    index = windows.index[days].unsqueeze(2)
    return torch.cat([stocks, index], dim=2)


def _places(rows: Tensor) -> Tensor:
    """Return the positions of each day's sessions when those of all days are concatenated.

    A network takes one list of sessions and the positions of each window in it. Here the windows of
    different days share no session, so that one day's rows can be changed alone.
    """
    days, window = rows.shape[:2]
    return torch.arange(days * window).view(days, window)


def _other_days(
    observed: Bool[ndarray, "days stocks"], generator: np.random.Generator
) -> Int[ndarray, "days stocks"]:
    """Draw the day from which each day takes a stock's rows.

    The days on which the stock is observed form one cycle, in which each takes those of the day
    before it in the cycle. A day on which the stock is not observed keeps its own rows.
    """
    days, stocks = observed.shape
    # One order for all stocks, so that none depends on its place among them.
    order = generator.permutation(days)
    own_day = np.arange(days)[:, None]
    source_days = np.tile(own_day, stocks)
    for stock in range(stocks):
        cycle = order[observed[order, stock]]
        source_days[cycle, stock] = np.roll(cycle, 1)
    return source_days


def over_days(values: PerDay, both_observed: BothObserved) -> Matrix:
    """Return the mean over the days on which both stocks are observed; 0 where they never are."""
    days = np.maximum(both_observed.sum(axis=0), 1)
    return np.asarray((values * both_observed).sum(axis=0) / days)


def distance_test(
    matrices: Float[ndarray, "networks stocks stocks"], first: int, seed: int = 0
) -> tuple[float, float]:
    """Return the energy distance of the first networks' matrices from the others', and its p-value.

    `first` is the number of networks in the first group. The distance of two matrices is the root
    of the mean squared distance of their rows. The p-value is the share of the groupings, the true
    one included, whose energy distance is at least as large as the true one's
    (Szekely & Rizzo, "Testing for equal distributions in high dimension", 2004). Networks of true
    labels share their labels, and so are slightly more alike than those of shuffled labels: in 98
    markets without any signal, the test was significant at 5 % in 7. With one network of true
    labels against 19 of shuffled labels the p-value is exact, as no two networks share labels.
    """
    networks, stocks = matrices.shape[:2]
    differences = matrices[:, None] - matrices[None]  # [networks networks stocks stocks]
    distances = np.linalg.norm(differences, axis=(-2, -1)) / np.sqrt(stocks)
    generator = np.random.default_rng(seed)
    # Networks of the first group by grouping, the true one first: all groupings, or, if they are
    # more than `WAYS`, the true one and `WAYS` drawn ones.
    if comb(networks, first) <= WAYS:  # the first combination is 0, 1, ...: the true grouping
        chosen = np.array(list(combinations(range(networks), first)))
    else:
        shuffled_networks = generator.random((WAYS, networks)).argsort(axis=1)
        true_grouping = np.arange(first)[None]
        chosen = np.concatenate([true_grouping, shuffled_networks[:, :first]])
    groupings = np.zeros((len(chosen), networks))
    np.put_along_axis(groupings, chosen, 1.0, axis=1)
    energies = _energy(distances, groupings)
    true_energy = energies[0]
    # A grouping with the same distance as the true one may differ from it by rounding.
    as_large = energies >= true_energy - 1e-12
    return float(true_energy), float(as_large.mean())


def _energy(
    distances: Float[ndarray, "networks networks"], in_first: Float[ndarray, "ways networks"]
) -> Float[ndarray, " ways"]:
    """Return the energy distance of each grouping.

    It is twice the mean distance between the groups, less the mean distance within each. The mean
    within a group includes each network's distance of 0 from itself.
    """
    in_second = 1 - in_first
    between = _mean_distance(distances, in_first, in_second)
    within_first = _mean_distance(distances, in_first, in_first)
    within_second = _mean_distance(distances, in_second, in_second)
    return np.asarray(2 * between - within_first - within_second)


def _mean_distance(
    distances: Float[ndarray, "networks networks"],
    in_group: Float[ndarray, "ways networks"],
    in_other: Float[ndarray, "ways networks"],
) -> Float[ndarray, " ways"]:
    pairs = in_group.sum(axis=1) * in_other.sum(axis=1)
    total = ((in_group @ distances) * in_other).sum(axis=1)
    return np.asarray(total / pairs)


def agreement(
    attention: PerDay, importance: PerDay, both_observed: BothObserved, seed: int = 0
) -> tuple[float, float, float]:
    """Return Spearman's correlation of attention with importance, and the ends of its interval.

    Attention and importance are means over days. For each stock, the two are correlated over the
    other stocks: from -1 to 1, and 0 where one of them is the same for all. The result is the mean
    over stocks.

    The 95 % interval is as wide as that of resampled days (`dtml.evaluation.bootstrap`) but centred
    on the estimate, because resamples add an error to both ranks and lie too near 0. Its ends are
    clipped to [-1, 1], and NaN below `dtml.evaluation.metrics.MINIMUM_DAYS`. It allows for other
    days, not for other networks. Two unrelated maps that both prefer a few stocks still reach about
    2 / sqrt(stocks).
    """
    days = len(both_observed)
    # What each day adds to three totals for each pair of stocks: attention, importance, and the
    # number of days on which both are observed. `_correlation` divides the totals.
    summands = (attention * both_observed, importance * both_observed, both_observed)
    of_days = np.concatenate([summand.reshape(days, -1) for summand in summands], axis=1)
    correlation = float(_correlation(of_days.sum(axis=0)))
    of_one_model = of_days[:, None]  # [days models totals], as `day_interval` takes it
    low, high = day_interval(of_one_model, _correlation, resamples=RESAMPLES, seed=seed)
    half_width = float(high[0] - low[0]) / 2
    return (
        correlation,
        float(np.clip(correlation - half_width, -1, 1)),
        float(np.clip(correlation + half_width, -1, 1)),
    )


def _correlation(totals: Float[ndarray, "*batch totals"]) -> Float[ndarray, "*batch"]:
    """Return the mean correlation from the totals over days of attention, importance and days.

    The last axis holds the three one after the other, each a flattened matrix of pairs of stocks.
    """
    stocks = isqrt(totals.shape[-1] // 3)
    batch = totals.shape[:-1]
    matrices = totals.reshape(*batch, 3, stocks, stocks)
    attention, importance, days = np.moveaxis(matrices, -3, 0)
    attention_ranks = _centred_ranks(attention, days)
    importance_ranks = _centred_ranks(importance, days)
    product = (attention_ranks * importance_ranks).sum(axis=-1)
    attention_squares = (attention_ranks**2).sum(axis=-1)
    importance_squares = (importance_ranks**2).sum(axis=-1)
    norm = np.sqrt(attention_squares * importance_squares)
    correlation = np.divide(product, norm, out=np.zeros_like(product), where=norm > 0)
    return np.asarray(correlation.mean(axis=-1))


def _centred_ranks(
    totals: Float[ndarray, "*batch stocks stocks"], days: Float[ndarray, "*batch stocks stocks"]
) -> Float[ndarray, "*batch stocks others"]:
    """Return, for each stock, the ranks of the other stocks by their means over days.

    `totals` are summed over `days`. The mean rank is subtracted.
    """
    stocks = totals.shape[-1]
    means = totals / np.maximum(days, 1)
    of_others = means[..., ~np.eye(stocks, dtype=bool)]  # all pairs but the diagonal, flattened
    by_stock = of_others.reshape(*totals.shape[:-1], stocks - 1)
    # The mean of the ranks 1 .. stocks - 1 is stocks / 2.
    return np.asarray(rankdata(by_stock, axis=-1) - stocks / 2)


def share_found(matrix: Matrix, drivers: Drivers, top: int) -> float | None:
    """Return the share of stocks whose driver is among the `top` largest other entries of its row.

    It is None without any driver. Equal entries share the remaining places, as a draw among them
    would: a constant row finds its driver by chance.
    """
    shares: list[float] = []
    for stock, driver in drivers.items():
        others = np.delete(matrix[stock], stock)
        of_driver = matrix[stock, driver]
        above = (others > of_driver).sum()
        equal = (others == of_driver).sum()  # at least 1: the driver itself
        places_left = top - above
        shares.append(np.clip(places_left / equal, 0, 1))
    return float(np.mean(shares)) if shares else None
