"""One stack of many members: each is what it would be alone, whatever differs between them."""

from dataclasses import replace

import pytest
import torch
from made_windows import CPU, STOCKS, WINDOW, random_windows

from dtml.baselines.recurrent import RecurrentConfig
from dtml.baselines.stocknet import StockNetConfig
from dtml.layers.network import Batch, NetworkConfig
from dtml.model import ModelConfig
from dtml.training.fit import Span, fit_members
from dtml.training.recipe import Member, TrainingConfig
from dtml.training.state import Fit, start

TRAIN, VALIDATION = random_windows(71), random_windows(29, seed=1)
RECIPE = TrainingConfig(protocol="all", epochs=4, batch_days=13, first_kept_epoch=1)  # 6 steps an epoch, 24 in all
MODEL = ModelConfig(hidden=14, heads=2)
VARIED = [
    Member(0, MODEL, RECIPE),
    Member(1, replace(MODEL, beta=0.9), RECIPE),
    Member(2, MODEL, replace(RECIPE, learning_rate=3e-3, penalty=0.01)),
    Member(0, replace(MODEL, beta=0.0), replace(RECIPE, epochs=2)),
    Member(3, MODEL, replace(RECIPE, patience=1)),
]


def assert_parity(stacked: list[Fit], alone: list[Fit]) -> None:
    for one, other in zip(stacked, alone, strict=True):
        assert one.member == other.member
        assert one.steps == other.steps
        assert [e.loss for e in one.epochs] == pytest.approx([e.loss for e in other.epochs], rel=1e-5)
        assert [e.validation_acc for e in one.epochs] == [e.validation_acc for e in other.epochs]
        assert one.best_epoch == other.best_epoch
        for name, value in one.best.items():
            torch.testing.assert_close(value, other.best[name], rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_member_of_a_stack_equals_the_member_alone_whatever_differs_beside_it() -> None:
    """Seeds, beta, lambda, learning rate, epochs and patience differ; dropout is on; more than 20 steps."""
    stacked = fit_members(TRAIN, VALIDATION, VARIED, device=CPU, stack=len(VARIED))
    alone = [fit_members(TRAIN, VALIDATION, [member], device=CPU)[0] for member in VARIED]
    assert stacked[0].steps == 24
    assert len(stacked[3].epochs) == 2
    assert_parity(stacked, alone)


@pytest.mark.parametrize(
    "config",
    [replace(MODEL, dropout=0.0), RecurrentConfig(hidden=5, epsilon=0.01, adversarial=0.01)],
    ids=["dtml", "adv_alstm"],
)
def test_a_program_takes_the_steps_of_a_plain_loop_of_torch(config: NetworkConfig) -> None:
    """Backward and Adam as torch has them, day batches cut from whole windows; no random numbers, 24 steps."""
    found = fit_members(TRAIN, VALIDATION, [Member(0, config, RECIPE)], device=CPU)[0]
    begun = start(Member(0, config, RECIPE), STOCKS, CPU)
    network = config.build(STOCKS)
    network.load_state_dict(begun.weights)
    optimiser = torch.optim.Adam(network.parameters(), lr=RECIPE.learning_rate)
    span, rows = Span.of(TRAIN, "all", CPU), TRAIN.rows()
    for epoch in found.epochs:
        losses = []
        for days in span.days[torch.randperm(len(span.days), generator=begun.order)].split(RECIPE.batch_days):
            windows = days.unsqueeze(1) + torch.arange(WINDOW)
            labels = span.rises[days], span.counted[days], torch.tensor(0.0), span.movement[days]
            batch = Batch(rows, windows, span.observed[days], *labels)
            loss = network.objective(batch, torch.tensor(RECIPE.penalty))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        assert epoch.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)


@pytest.mark.slow
def test_stacks_of_any_size_give_the_same_members() -> None:
    members = [Member(seed, MODEL, RECIPE) for seed in range(5)]
    for stack in (2, 3):
        assert_parity(
            fit_members(TRAIN, VALIDATION, members, device=CPU, stack=stack),
            fit_members(TRAIN, VALIDATION, members, device=CPU),
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        RecurrentConfig(hidden=5, attention=False),
        RecurrentConfig(hidden=5, epsilon=0.1, adversarial=0.5),
        StockNetConfig(hidden=7),
    ],
    ids=["lstm", "adv_alstm", "stocknet"],
)
def test_every_network_can_be_stacked(config: NetworkConfig) -> None:
    members = [Member(seed, config, RECIPE) for seed in range(3)]
    stacked = fit_members(TRAIN, VALIDATION, members, device=CPU, stack=3)
    assert_parity(stacked, fit_members(TRAIN, VALIDATION, members, device=CPU))


@pytest.mark.soak
@pytest.mark.slow
def test_networks_that_cannot_be_stacked_are_trained_one_by_one() -> None:
    members = [
        Member(0, MODEL, RECIPE),
        Member(0, replace(MODEL, hidden=6), RECIPE),
        Member(0, replace(MODEL, dropout=0.0), RECIPE),
        Member(0, MODEL, replace(RECIPE, batch_days=7)),
    ]
    found = fit_members(TRAIN, VALIDATION, members, device=CPU, stack=4)
    assert [fit.member for fit in found] == members
    assert_parity(found, [fit_members(TRAIN, VALIDATION, [member], device=CPU)[0] for member in members])


def test_a_batch_projects_each_session_once_and_its_windows_are_the_days_windows() -> None:
    span = Span.of(TRAIN, "all", CPU)
    days = torch.tensor([[5, 6, 8, 40]])
    batch = span.batch(days, [3])
    assert batch.rows.shape == (1, 5 + 1 + WINDOW, STOCKS + 1, 11)  # days 5, 6 and 8 share sessions, 40 stands alone
    seen = batch.rows[0][batch.windows[0]]  # [days window symbols features]
    torch.testing.assert_close(seen[:, :, :-1].movedim(1, 2), TRAIN.stocks[days[0]])
    torch.testing.assert_close(seen[:, :, -1], TRAIN.index[days[0]])
    assert batch.step.tolist() == [3]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_a_training_on_cuda_gives_the_losses_of_the_cpu() -> None:
    still = replace(MODEL, dropout=0.0)  # masks of two devices differ
    members = [Member(seed, still, RECIPE) for seed in range(3)]
    on_cpu = fit_members(TRAIN, VALIDATION, members, device=CPU)
    on_cuda = fit_members(TRAIN, VALIDATION, members, device=torch.device("cuda"))
    for one, other in zip(on_cuda, on_cpu, strict=True):
        assert [e.loss for e in one.epochs] == pytest.approx([e.loss for e in other.epochs], rel=0.02)
