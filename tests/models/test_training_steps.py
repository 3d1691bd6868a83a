"""The steps of a training: those of a plain loop, in parts that add up, whoever trains beside."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dtml import network as network_module
from dtml.baselines.recurrent import RecurrentConfig
from dtml.baselines.stocknet import StockNetConfig
from dtml.errors import UsageError
from dtml.model import ModelConfig
from dtml.network import Batch, Dropout, Gaussian
from dtml.ranking.relative import RelativeModelConfig
from dtml.training import Fit, Member, Span, TrainingConfig, fit_members
from tests.support.bounds import assert_close_in_float64, float64_by_default, in_float32, in_float64  # noqa: F401 - a fixture
from tests.support.windows import CPU, STOCKS, WINDOW, in_double, random_windows

TRAIN, VALIDATION = random_windows(71), random_windows(29, seed=1)
TRAIN_64, VALIDATION_64 = in_double(TRAIN), in_double(VALIDATION)
# 6 steps an epoch, 24 in all
RECIPE = TrainingConfig(protocol="all", epochs=4, batch_days=13, first_kept_epoch=1)
MODEL = ModelConfig(hidden=14, heads=2)
VARIED = [
    Member(0, MODEL, RECIPE),
    Member(1, replace(MODEL, beta=0.9), RECIPE),
    Member(2, MODEL, replace(RECIPE, learning_rate=3e-3, penalty=0.01)),
    Member(0, replace(MODEL, beta=0.0), replace(RECIPE, epochs=2)),
    Member(3, MODEL, replace(RECIPE, patience=1)),
    Member(0, replace(MODEL, hidden=6), replace(RECIPE, batch_days=7)),
    Member(0, RecurrentConfig(hidden=5, attention=False), RECIPE),
    Member(0, StockNetConfig(hidden=7), RECIPE),
]


def assert_parity(one, other):
    assert one.steps == other.steps
    assert [e.loss for e in one.epochs] == in_float64([e.loss for e in other.epochs])
    assert [e.validation_acc for e in one.epochs] == in_float64(
        [e.validation_acc for e in other.epochs]
    )
    assert one.best_epoch == other.best_epoch
    for name, value in one.best.items():
        assert_close_in_float64(value, other.best[name])


@pytest.mark.soak
def test_a_member_is_the_same_to_the_last_bit_whatever_trains_beside_it():
    """Networks, seeds, beta, lambda, learning rate, batches, epochs and
    patience differ; dropout is on.
    """
    together = fit_members(TRAIN, VALIDATION, VARIED, device=CPU)
    assert [fit.member for fit in together] == VARIED
    assert [fit.steps for fit in together[:4]] == [24, 24, 24, 12]
    for found in together:
        alone = fit_members(TRAIN, VALIDATION, [found.member], device=CPU)[0]
        assert found.epochs == alone.epochs
        assert all(torch.equal(value, alone.best[name]) for name, value in found.best.items())


@pytest.mark.slow
@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize(
    "config",
    [replace(MODEL, dropout=0.0), RecurrentConfig(hidden=5, epsilon=0.01, adversarial=0.01)],
    ids=["dtml", "adv_alstm"],
)
def test_a_training_takes_the_steps_of_a_plain_loop_of_torch(config):
    """Backward and Adam as torch has them, day batches cut from whole windows;
    no random numbers, 24 steps.
    """
    found = fit_members(TRAIN_64, VALIDATION_64, [Member(0, config, RECIPE)], device=CPU)[0]
    begun = Fit.start(Member(0, config, RECIPE), STOCKS, CPU)
    network = config.build(STOCKS)
    network.load_state_dict(begun.network.state_dict())
    optimiser = torch.optim.Adam(network.parameters(), lr=RECIPE.learning_rate)
    span, rows = Span.of(TRAIN_64, "all", CPU), TRAIN_64.rows
    for epoch in found.epochs:
        losses = []
        for days in span.days[torch.randperm(len(span.days), generator=begun.order)].split(
            RECIPE.batch_days
        ):
            windows = days.unsqueeze(1) + torch.arange(WINDOW)
            labels = span.rises[days], span.counted[days], torch.tensor(0.0), span.movement[days]
            batch = Batch(rows, windows, span.observed[days], *labels)
            loss = network.objective(batch, torch.tensor(RECIPE.penalty))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        assert epoch.loss == in_float64(sum(losses) / len(losses))


@pytest.mark.one_case
@pytest.mark.slow
@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize(
    "config",
    [
        MODEL,
        replace(MODEL, normalisation="shared", data_axis=False),
        RecurrentConfig(hidden=5, epsilon=0.1, adversarial=0.5),
        StockNetConfig(hidden=7),
        RelativeModelConfig(features=11, hidden=8),
    ],
    ids=["dtml", "shared", "adv_alstm", "stocknet", "correlation"],
)
def test_the_parts_of_a_step_add_up_to_the_whole(config, monkeypatch):
    """A day at a time, three days at a time and all at once: 12 steps; days count unequally many
    stocks.

    In float64: the correlation does not see the bias of the last layer, whose gradient is then the
    noise of rounding alone, and in float32 Adam makes of that noise steps as long as any other.
    """
    monkeypatch.setattr(Dropout, "forward", lambda _, x: x)  # masks are drawn for each part
    monkeypatch.setattr(Gaussian, "forward", lambda _, like: torch.zeros_like(like))
    member, found = Member(0, config, replace(RECIPE, epochs=2)), []
    for stock_days in (STOCKS, 3 * STOCKS, 1_000):
        monkeypatch.setattr(network_module, "STOCK_DAYS", stock_days)
        found += fit_members(TRAIN_64, VALIDATION_64, [member], device=CPU)
    for parts in found[:2]:
        assert_parity(parts, found[2])


def test_a_step_of_some_stocks_sees_those_alone_and_the_index():
    span, days, some = Span.of(TRAIN, "all", CPU), torch.tensor([5, 6, 40]), torch.tensor([0, 3])
    whole, part = span.batch(days, 3), span.batch(days, 3, some)
    assert torch.equal(part.rows, whole.rows[:, [0, 3, STOCKS]])
    assert torch.equal(part.windows, whole.windows)
    for name in ("observed", "rises", "counted", "movement"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[:, some])


def test_steps_of_few_stocks_are_reproducible_and_one_of_none_that_counts_learns_nothing():
    """Two days a step and one stock of five, of which few are there: many steps
    draw none that counts.
    """
    random = torch.Generator().manual_seed(3)
    there = torch.rand(TRAIN.observed.shape, generator=random) < 0.05
    rare = replace(TRAIN, observed=TRAIN.observed & there)
    recipe = replace(RECIPE, batch_days=2, stocks_a_step=1)
    member = Member(0, replace(MODEL, normalisation="shared"), recipe)
    one, other = (fit_members(rare, VALIDATION, [member], device=CPU)[0] for _ in range(2))
    assert one.epochs == other.epochs
    assert 0 < one.steps < RECIPE.epochs * len(rare.as_of) / 2
    assert np.isfinite([[each.loss, each.validation_loss] for each in one.epochs]).all()
    with pytest.raises(UsageError, match=r'set normalisation = "shared"'):
        Member(0, MODEL, recipe)
