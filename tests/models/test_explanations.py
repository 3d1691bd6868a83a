"""Tests of attention: each can be passed and failed, and says what was planted."""

import re
from dataclasses import asdict, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy import ndarray
from torch import Tensor

from dtml.attention import significance as explanations
from dtml.attention.findings import words
from dtml.attention.significance import (
    agreement,
    attention_by_day,
    distance_test,
    find,
    importance_by_day,
    share_found,
    shuffled,
)
from dtml.baselines.recurrent import RecurrentConfig
from dtml.checkpoints import Ensemble
from dtml.inference import attention
from dtml.layers.network import Batch, Network
from dtml.model import DTML, ModelConfig
from dtml.training.state import initialise
from dtml.windows import WindowConfig, Windows
from tests.support.bounds import as_drawn, assert_arrays_close_in_float32, in_float64

DAYS, STOCKS, WINDOW, FEATURES = 23, 7, 3, 11
EVERY = np.arange(DAYS)
SHAPE = ModelConfig(hidden=8, heads=2, normalisation="shared")


def made_windows(seed: int = 0) -> Windows:
    """Windows over random rows; some stocks are missing on some days, and some
    returns are not known.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(DAYS + WINDOW - 1, STOCKS + 1, FEATURES, generator=generator)
    views = rows.unfold(0, WINDOW, 1).permute(0, 1, 3, 2)
    days = pd.bdate_range("2024-01-02", periods=DAYS + 1)
    movement = torch.randn(DAYS, STOCKS, generator=generator) / 100
    observed = torch.rand(DAYS, STOCKS, generator=generator) < 0.8
    observed[:, 0] = True
    movement[torch.rand(DAYS, STOCKS, generator=generator) < 0.1] = torch.nan
    symbols = tuple(f"S{i}" for i in range(STOCKS))
    return Windows(views[:, :-1], views[:, -1], observed, movement, days[:-1], days[1:], symbols)


def network_of(config: ModelConfig | RecurrentConfig, seed: int = 1) -> Any:
    network = config.build(STOCKS)
    initialise(network, torch.Generator().manual_seed(seed))
    return network.eval()


def shared_days(windows: Windows) -> ndarray:
    there = windows.observed.numpy()
    return there[:, :, None] & there[:, None, :]


class Planted(Network):
    """The logit of u is a sum over stocks v, its own among them, of weight [u,
    v] times v's last feature.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight

    def logits(self, rows: Tensor, windows: Tensor, observed: Tensor) -> Tensor:
        last = rows[windows[:, -1], :-1, -1] * observed
        return last @ self.weight.T

    def objective(self, batch: Batch, penalty: Tensor) -> Tensor:
        raise NotImplementedError


def drawn_matrices(generator: np.random.Generator, networks: int = 12) -> ndarray:
    return generator.dirichlet(np.ones(STOCKS), (networks, STOCKS))


@pytest.mark.slow
def test_networks_of_one_distribution_are_told_apart_as_often_as_the_level_says() -> None:
    generator = np.random.default_rng(0)
    p = np.array([distance_test(drawn_matrices(generator), 4)[1] for _ in range(600)])
    for level in (0.05, 0.2, 0.5, 0.8):
        assert (p <= level).mean() == as_drawn(
            level, within=3 * np.sqrt(level * (1 - level) / len(p))
        )


def test_attention_that_is_planted_in_one_group_is_told_apart() -> None:
    matrices = drawn_matrices(np.random.default_rng(1))
    matrices[:4] = 0.6 * matrices[:4] + 0.4 * np.eye(STOCKS)[(np.arange(STOCKS) + 1) % STOCKS]
    distance, p = distance_test(matrices, 4)
    # of all the ways to choose 4 of 12, the true one alone parts them as far
    assert p == in_float64(1 / 495)
    assert distance > 2 * distance_test(drawn_matrices(np.random.default_rng(1)), 4)[0]


def test_the_energy_distance_is_that_of_its_definition() -> None:
    matrices = drawn_matrices(np.random.default_rng(2), networks=5)

    def mean_apart(one: ndarray, other: ndarray) -> float:
        return np.mean([np.sqrt(((a - b) ** 2).sum(axis=1).mean()) for a in one for b in other])

    def energy(first: tuple[int, ...]) -> float:
        one, other = matrices[list(first)], np.delete(matrices, first, axis=0)
        return 2 * mean_apart(one, other) - mean_apart(one, one) - mean_apart(other, other)

    every = np.array([energy(first) for first in combinations(range(5), 2)])
    assert distance_test(matrices, 2) == in_float64((every[0], np.mean(every >= every[0])))
    assert distance_test(np.concatenate([matrices, matrices]), 5)[0] == in_float64(0)


def test_groupings_that_are_drawn_give_the_p_value_of_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matrices = drawn_matrices(np.random.default_rng(3), networks=14)
    matrices[:6, :, 0] += 0.05
    exact = distance_test(matrices, 6)
    monkeypatch.setattr(explanations, "WAYS", 2000)  # of 3,003
    assert distance_test(matrices, 6, seed=1) == as_drawn(exact, within=0.03)
    assert distance_test(matrices, 6, seed=1) == distance_test(matrices, 6, seed=1)


def test_permuting_stocks_leaves_the_distance_as_it_is() -> None:
    matrices, run_request = (
        drawn_matrices(np.random.default_rng(4)),
        np.random.default_rng(5).permutation(STOCKS),
    )
    assert distance_test(matrices[:, run_request][:, :, run_request], 4) == in_float64(
        distance_test(matrices, 4)
    )


def test_importance_is_what_a_stock_weighs_in_the_prediction_of_another() -> None:
    weight = torch.zeros(STOCKS, STOCKS)
    weight[2, 5], weight[4, 5], weight[6, 1], weight[3, 3] = 2.0, -1.0, 0.5, 9.0
    windows = made_windows()
    found = importance_by_day(Planted(weight), windows, EVERY)
    off = weight.abs().numpy() * (1 - np.eye(STOCKS))
    assert ((found.sum(axis=0) > 0) == (off > 0)).all()
    assert_arrays_close_in_float32(found[:, 2, 5], 2 * found[:, 4, 5])
    last = windows.stocks[:, 5, -1, -1].numpy()
    pairs = np.abs(last[:, None] - last[None])[np.ix_(*2 * [windows.observed[:, 5].numpy()])]
    many = importance_by_day(Planted(weight), windows, EVERY, draws=300)[
        windows.observed[:, 5].numpy(), 4, 5
    ]
    assert many == as_drawn(pairs.sum(axis=1) / (len(pairs) - 1), share=0.25)


def test_a_stock_that_nobody_sees_moves_nobody() -> None:
    windows = made_windows()
    assert not importance_by_day(network_of(RecurrentConfig(hidden=8)), windows, EVERY).any()
    found = importance_by_day(network_of(SHAPE), windows, EVERY)
    there = windows.observed.numpy()
    assert not found.transpose(0, 2, 1)[~there].any()
    assert (found[shared_days(windows) & ~np.eye(STOCKS, dtype=bool)] > 0).all()


def test_what_moves_through_normalisation_alone_is_importance_that_no_attention_shows() -> None:
    found = importance_by_day(network_of(replace(SHAPE, data_axis=False)), made_windows(), EVERY)
    assert found.max() > 1e-4


def test_every_day_takes_the_rows_of_another_and_gives_its_own_once() -> None:
    there = made_windows().observed.numpy()
    donors = explanations._other_days(there, np.random.default_rng(0))
    for stock in range(STOCKS):
        days = np.flatnonzero(there[:, stock])
        assert sorted(donors[days, stock]) == list(days)
        assert (donors[days, stock] != days).all()


def test_permuting_stocks_permutes_attention_and_importance() -> None:
    windows, network = made_windows(), network_of(SHAPE)
    run_request = torch.randperm(STOCKS, generator=torch.Generator().manual_seed(3))
    other = replace(
        windows, stocks=windows.stocks[:, run_request], observed=windows.observed[:, run_request]
    )
    there = shared_days(windows)
    for measure in (attention_by_day, importance_by_day):
        found, again = measure(network, windows, EVERY) * there, measure(network, other, EVERY)
        assert_arrays_close_in_float32(
            again * shared_days(other), found[:, run_request][:, :, run_request]
        )
        assert found.max() > 1e-3


def test_attention_is_that_of_a_nights_model() -> None:
    windows, network = made_windows(), network_of(SHAPE)
    weights = {name: value.detach().unsqueeze(0) for name, value in network.named_parameters()}
    ensemble = Ensemble("made", windows.symbols, (1,), SHAPE, WindowConfig(window=WINDOW), weights)
    expected = attention(ensemble, windows, torch.device("cpu")).numpy()
    some = EVERY[::4]
    there = windows.observed.numpy()[some]
    found = attention_by_day(network, windows, some)
    assert_arrays_close_in_float32(found[there], expected[some][there])
    assert_arrays_close_in_float32(found.sum(axis=2)[there], 1)
    assert isinstance(network, DTML)


def test_agreement_is_1_of_what_is_the_same_and_minus_1_of_its_reverse() -> None:
    generator = np.random.default_rng(0)
    base = generator.random((STOCKS, STOCKS))
    daily = base + 1e-9 * generator.random((30, STOCKS, STOCKS))
    every = np.ones_like(daily, dtype=bool)
    assert agreement(daily, np.exp(9 * daily), every) == in_float64((1, 1, 1))
    assert agreement(daily, -daily, every) == in_float64((-1, -1, -1))
    assert agreement(daily, np.zeros_like(daily), every)[0] == 0


def test_agreement_of_independent_attention_covers_0_and_that_of_a_common_part_does_not() -> None:
    generator = np.random.default_rng(1)
    one, other = generator.random((2, 40, STOCKS, STOCKS))
    every = np.ones_like(one, dtype=bool)
    _, low, high = agreement(one, other, every)
    assert low < 0 < high
    common = generator.random((STOCKS, STOCKS))
    found, low, high = agreement(one + common, other + common, every)
    assert 0.3 < low < found < high <= 1


def test_agreement_has_no_interval_of_few_days_and_counts_none_on_which_a_stock_is_missing() -> (
    None
):
    windows = made_windows()
    there = shared_days(windows)
    both = np.random.default_rng(2).random((2, DAYS, STOCKS, STOCKS))
    expected = agreement(both[0], both[1], there)
    assert agreement(*np.where(there, both, 99.0), there) == expected
    value, low, high = agreement(both[0, :19], both[1, :19], there[:19])
    assert np.isfinite(value)
    assert np.isnan([low, high]).all()


def test_drivers_are_found_where_they_are_and_by_chance_where_a_row_says_nothing() -> None:
    matrix = np.eye(STOCKS)
    matrix[0, [3, 4, 5]] = 0.5, 0.4, 0.3
    assert share_found(matrix, {0: 5}, 3) == 1
    assert share_found(matrix, {0: 5}, 2) == 0
    assert share_found(matrix, {0: 5, 1: 2}, 3) == in_float64((1 + 3 / (STOCKS - 1)) / 2)
    assert share_found(matrix, {0: 6}, 4) == in_float64(1 / 3)  # one place is left to three equals
    assert share_found(matrix, {}, 3) is None


def test_shuffled_labels_are_the_same_rows_on_other_days() -> None:
    windows = made_windows()
    other = shuffled(windows, seed=3)

    def rows(of: Tensor) -> list[bytes]:
        return [row.tobytes() for row in of.nan_to_num(9.0).numpy()]

    masked = rows(windows.movement.masked_fill(~windows.observed, torch.nan))
    assert sorted(rows(other.movement)) == sorted(masked)
    assert rows(other.movement) != masked
    assert torch.equal(other.observed, windows.observed)
    assert other.digest == windows.digest
    assert not (other.labelled("all") & ~(windows.observed & other.movement.isfinite())).any()
    assert (
        rows(shuffled(windows, seed=3).movement)
        == rows(other.movement)
        != rows(shuffled(windows, 4).movement)
    )


def found_of(planted: float, seed: int = 0) -> dict[str, Any]:
    """What is found of attention with so much of a planted map in the true
    group, and importance that follows it.
    """
    generator = np.random.default_rng(seed)
    truth = np.eye(STOCKS)[(np.arange(STOCKS) + 1) % STOCKS]
    maps = generator.dirichlet(np.ones(STOCKS), (12, 24, STOCKS))
    maps[:4] = (1 - planted) * maps[:4] + planted * truth
    importance = generator.random((24, STOCKS, STOCKS)) + planted * truth
    drivers = {stock: (stock + 1) % STOCKS for stock in range(STOCKS)}
    found = find(maps, importance, np.ones((24, STOCKS, STOCKS), dtype=bool), 4, drivers)
    return asdict(found) | {"epochs": 2}


def test_all_tests_find_what_is_planted_and_the_words_say_so() -> None:
    row = found_of(planted=0.5)
    assert (row["stocks"], row["days"], row["seeds"], row["shuffles"]) == (STOCKS, 24, 4, 8)
    assert row["told_apart"]
    assert (row["drivers"], row["drivers_importance"], row["drivers_chance"]) == (1, 1, 0.5)
    said = words(row)
    assert "this model differs from" in said
    assert "p = 0.002" in said
    assert re.search("100%.*known driver.* 3 stocks", said)
    assert "chance gives 50%" in said
    assert found_of(planted=0.5) == row


def test_attention_that_says_nothing_is_called_no_explanation() -> None:
    row = found_of(planted=0.0)
    assert not row["told_apart"]
    said = words(row)
    assert "does not differ" in said
    assert "does not agree with" in said
    assert "Do not read" in said
