"""Laws of training: the published schedule, updates that add up, interruptions
that change nothing, ends as asked.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.bounds import (
    assert_close_in_float32,
    assert_close_in_float64,
    assert_gradients_close_in_float32,
    in_float64,
)
from tests.support.translations import (
    CONFIG,
    CPU,
    WIDTH,
    drawn,
    examples,
    figures,
    same,
    trained,
)
from translation.data.batches import batch_indices, batch_of
from translation.errors import TranslationError, UsageError
from translation.training import checkpoints, loop
from translation.training.checkpoints import Progress, read_weights
from translation.training.loop import (
    Check,
    TrainingConfig,
    TrainingContext,
    learning_rate,
    train_network,
    validation_loss,
)
from translation.training.step import POSITIONS_AT_ONCE, Muon, optimisers_of, smoothed_loss


@pytest.mark.parametrize(
    "positions", [1, 3, POSITIONS_AT_ONCE - 1, POSITIONS_AT_ONCE, 2 * POSITIONS_AT_ONCE + 1]
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_and_its_gradients_are_those_of_torch(positions: int, smoothing: float) -> None:
    torch.manual_seed(0)
    expected = torch.randint(0, 11, (positions,))
    ours = [
        torch.randn(shape, 5, dtype=torch.double, requires_grad=True) for shape in (positions, 11)
    ]
    theirs = [each.detach().clone().requires_grad_() for each in ours]
    loss = smoothed_loss(*ours, expected, smoothing)
    scores = theirs[0] @ theirs[1].T
    wanted = nn.functional.cross_entropy(
        scores, expected, label_smoothing=smoothing, reduction="sum"
    )
    (3 * loss).backward()  # type: ignore[no-untyped-call]
    (3 * wanted).backward()  # type: ignore[no-untyped-call]
    assert_close_in_float64(loss, wanted)
    for mine, other in zip(ours, theirs, strict=True):
        assert_close_in_float64(mine.grad, other.grad)


def test_the_gradients_of_the_loss_are_its_slopes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("translation.training.step.POSITIONS_AT_ONCE", 3)
    torch.manual_seed(0)
    decoded, weight = (
        torch.randn(rows, 4, dtype=torch.double, requires_grad=True) for rows in (7, 6)
    )
    expected = torch.randint(0, 6, (7,))
    assert torch.autograd.gradcheck(
        lambda x, w: smoothed_loss(x, w, expected, 0.1), (decoded, weight)
    )


def test_the_rate_of_inverse_sqrt_is_equation_3_and_peak_moves_it() -> None:
    config = TrainingConfig(schedule="inverse_sqrt", warmup=4000)
    for step in (1, 17, 4000, 4001, 100_000):
        published = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert math.isclose(learning_rate(step, 0.5, 512, config), published)
        moved = learning_rate(step, 0.5, 512, replace(config, peak=0.005))
        assert math.isclose(moved, published * 0.005 / learning_rate(4000, 0.5, 512, config))


def test_the_linear_rate_falls_to_0_at_the_end_of_the_budget() -> None:
    config = TrainingConfig(warmup=0.25, peak=0.008)
    rates = [learning_rate(1, done, 512, config) for done in (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)]
    assert rates == in_float64([0.0, 0.004, 0.008, 0.008 * 2 / 3, 0.008 / 3, 0.0])
    assert learning_rate(1, 0.25, 512, replace(config, peak=None)) == in_float64(
        (512 * 4000) ** -0.5
    )


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(
    "budget", [{"updates": 12}, {"updates": 10**6, "minutes": 0.02}], ids=["updates", "minutes"]
)
def test_a_training_ends_with_a_rate_near_0(tmp_path: Path, budget: dict[str, Any]) -> None:
    told: list[Check] = []
    linear = replace(CONFIG, schedule="linear", warmup=0.2, check_every=None, average=1, **budget)
    trained(tmp_path, linear, on_check=told.append)
    assert told[-1].learning_rate < 0.15 * CONFIG.peak
    assert len(told) == 12 if "minutes" not in budget else told


@pytest.mark.parametrize(
    ("schedule", "warmup"),
    [("linear", 1), ("linear", 0), ("inverse_sqrt", 0.5), ("inverse_sqrt", 0), ("cosine", 0.5)],
)
def test_a_warm_up_of_another_schedule_is_refused(schedule: str, warmup: float) -> None:
    with pytest.raises(
        UsageError, match=r"warmup must be|schedule .*linear, inverse_sqrt,.*cosine"
    ):
        TrainingConfig(schedule=schedule, warmup=warmup)


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What Adam was given: weights cannot tell, as it makes as much of the
    noise of a float as of a gradient.
    """
    seen: list[Tensor] = []

    def looked(optimiser: torch.optim.Adam) -> None:
        seen.append(
            torch.cat([each.grad.flatten() for each in optimiser.param_groups[0]["params"]])
        )

    monkeypatch.setattr(torch.optim.Adam, "step", looked)
    return seen


# So large a batch holds all pairs.
WHOLE = replace(
    CONFIG, updates=1, check_every=1, batch_tokens=100_000, clip=0.0, label_smoothing=0.0
)


def test_an_update_of_many_batches_is_that_of_their_pairs_together(
    tmp_path: Path, gradients: list[Tensor]
) -> None:
    count = len(batch_indices(examples(), 512, None))
    assert count > 1
    trained(tmp_path / "whole", WHOLE, dropout=0.0)
    trained(tmp_path / "parts", replace(WHOLE, batch_tokens=512, accumulate=count), dropout=0.0)
    assert_gradients_close_in_float32(gradients[1], gradients[0])


def test_gradients_are_per_real_target_token_and_clipped(
    tmp_path: Path, gradients: list[Tensor]
) -> None:
    for clip in (0.0, 0.01):
        trained(tmp_path / str(clip), replace(WHOLE, clip=clip), dropout=0.0)
    network = drawn(dropout=0.0)
    batch = batch_of(examples(), batch_indices(examples(), 100_000, None)[0])
    decoded, _ = network(batch.source, batch.target_input)
    scores = network.logits(decoded).flatten(0, 1)  # type: ignore[operator]
    nn.functional.cross_entropy(scores, batch.target_output.flatten(), ignore_index=0).backward()
    wanted = torch.cat(
        [each.grad.flatten() for each in network.parameters() if each.grad is not None]
    )
    assert_gradients_close_in_float32(gradients[0], wanted)
    assert_gradients_close_in_float32(gradients[1], wanted * 0.01 / wanted.norm())


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_interrupted_training_ends_as_if_it_had_not_been(
    tmp_path: Path, accumulate: int
) -> None:
    config = replace(CONFIG, accumulate=accumulate)
    whole: list[Check] = []
    undisturbed, end = trained(tmp_path / "whole", config, on_check=whole.append)
    told: list[Check] = []

    def interrupted(check: Check) -> None:
        told.append(check)
        if len(told) % 2 == 0:  # told and not yet kept: the next context tells it again
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "broken", config, on_check=interrupted)
    (tmp_path / "broken" / "training.safetensors.partial").write_bytes(b"cut short")
    resumed, last = trained(tmp_path / "broken", config, on_check=told.append)
    assert [each.step for each in told] == [3, 6, 6, 9, 9, 12]
    assert list(dict.fromkeys(map(figures, told))) == list(map(figures, whole))
    assert same(resumed, undisturbed)
    assert replace(last, seconds=0.0) == replace(end, seconds=0.0)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("what", ["keep_weights", "save_state", "drop_older_weights"])
def test_an_end_within_the_keeping_of_a_check_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    undisturbed, _ = trained(tmp_path / "whole")
    with monkeypatch.context() as broken:
        after = getattr(checkpoints, what)
        calls: list[int] = []

        def ended(*arguments: object) -> None:
            calls.append(1)
            after(*arguments)
            if len(calls) == 2:
                raise KeyboardInterrupt

        broken.setattr(checkpoints, what, ended)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "broken")
    resumed, _ = trained(tmp_path / "broken")
    assert same(resumed, undisturbed)
    assert len([*(tmp_path / "broken").glob("step-*")]) == CONFIG.average


def judged_as(monkeypatch: pytest.MonkeyPatch, *losses: float) -> None:
    """Let these be the losses of validation: of each check, then of the weights
    that may be saved.
    """
    told = iter(losses)
    monkeypatch.setattr(loop, "validation_loss", lambda *_: next(told))


# Of the checks at 3, 6, 9 and 12 the first is of the warm-up; then the means of 9 and 12, and the
# last alone.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("losses", "saved"),
    [
        ((9.0, 8.0, 7.0, 6.0, 4.0, 5.0, 6.0), [6, 9, 12]),
        ((9.0, 8.0, 7.0, 6.0, 7.0, 5.0, 6.0), [9, 12]),
        ((9.0, 8.0, 7.0, 6.0, 7.0, 7.0, 6.0), [12]),
        ((9.0, 5.0, 7.0, 6.0, 7.0, 7.0, 6.0, 5.0), [6]),
    ],
    ids=str,
)
def test_of_the_last_their_means_and_the_best_check_the_best_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: tuple[float, ...], saved: list[int]
) -> None:
    judged_as(monkeypatch, *losses)
    monkeypatch.setattr(loop, "SHORT_AVERAGE", 2)
    network, progress = trained(tmp_path, replace(CONFIG, warmup=5, average=4))
    assert (progress.kept, progress.saved) == ([3, 6, 9, 12], saved)
    kept = [read_weights(tmp_path / f"step-{step:07}.safetensors") for step in saved]
    for name, value in kept[0].items():
        mean = torch.stack([each[name].double() for each in kept]).mean(0).float()
        assert_close_in_float32(network.state_dict()[name], mean)
        assert len(kept) == 1 or not torch.equal(value, kept[-1][name])
    assert not network.training


@pytest.mark.slow
def test_a_finished_training_trains_nothing_more_and_a_longer_one_goes_on(tmp_path: Path) -> None:
    first, end = trained(tmp_path)
    told: list[Check] = []
    again, still = trained(tmp_path, on_check=told.append)
    assert (told, still) == ([], end)
    assert same(again, first)
    _, longer = trained(tmp_path, replace(CONFIG, updates=18), on_check=told.append)
    assert ([each.step for each in told], longer.step) == ([15, 18], 18)


@pytest.mark.slow
def test_it_ends_without_time(tmp_path: Path) -> None:
    _, progress = trained(
        tmp_path / "time", replace(CONFIG, minutes=0.02, updates=10**6, check_every=10**6, warmup=1)
    )
    assert progress.step > 2
    assert progress.kept == [progress.step]  # however far the next check would have been


@pytest.mark.soak
@pytest.mark.slow
def test_a_training_of_minutes_is_checked_by_minutes_and_says_how_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MESSAGE_INTERVAL_S", 0.0)
    told, words = list[Check](), list[str]()
    timed = replace(CONFIG, minutes=0.1, updates=10**6, check_every=None, warmup=1, average=2)
    network = drawn()
    context = TrainingContext(
        folder=tmp_path, key="made", on_check=told.append, on_message=words.append
    )
    progress = train_network(network, WIDTH, examples(), examples(2, 24), timed, context)
    # a slow machine has fewer: checking takes a tenth of the time at most
    assert 2 <= len(told) <= loop.CHECKS + 1
    assert progress.step == told[-1].step
    # a line an update here, the check's own where there is one
    assert len(words) == progress.step - len(told)
    assert all(" tokens a second" in line and line.startswith("step ") for line in words)


@pytest.mark.slow
def test_what_is_saved_is_no_worse_on_validation_than_any_check(tmp_path: Path) -> None:
    told: list[Check] = []
    slow = replace(CONFIG, warmup=4, peak=0.03, average=10, updates=12, check_every=1)
    network, progress = trained(tmp_path, slow, on_check=told.append)
    best = min(each.validation_loss for each in told)
    assert validation_loss(network, examples(2, 24), slow.batch_tokens, CPU) <= best * (1 + 1e-6)
    assert len(progress.saved) == 1 or min(progress.saved) > slow.warmup


@pytest.mark.slow
def test_validation_depends_on_no_batches_and_leaves_the_mode() -> None:
    network = drawn(dropout=0.5)
    for mode in (True, False):
        network.train(mode)
        losses = [validation_loss(network, examples(), tokens, CPU) for tokens in (1, 100, 100_000)]
        assert max(losses) - min(losses) < 1e-5
        assert network.training is mode


def test_a_loss_that_is_no_number_is_told_in_a_line(tmp_path: Path) -> None:
    network = drawn()
    next(network.parameters()).data.fill_(math.nan)
    with pytest.raises(TranslationError, match=r"^the loss is nan .*training\.peak"):
        train_network(
            network,
            WIDTH,
            examples(),
            examples(2, 24),
            CONFIG,
            TrainingContext(folder=tmp_path, key="made"),
        )


def test_a_batch_without_memory_for_it_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "batch_of", lambda *_: torch.empty(2**55))
    with pytest.raises(TranslationError, match=r"^out of memory .*batch_tokens .*\[network\]"):
        trained(tmp_path)


@pytest.mark.parametrize(
    "name", ["updates", "batch_tokens", "warmup", "check_every", "minutes", "peak"]
)
def test_a_training_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        replace(CONFIG, **{name: 0})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_it_trains_on_a_gpu(tmp_path: Path) -> None:
    network, told = drawn(), list[Check]()
    context = TrainingContext(
        folder=tmp_path, key="made", device=torch.device("cuda"), on_check=told.append
    )
    progress: Progress = train_network(network, WIDTH, examples(), examples(2, 24), CONFIG, context)
    assert progress.step == CONFIG.updates
    assert told[-1].validation_loss < told[0].validation_loss


def test_muon_updates_as_torch_does() -> None:
    torch.manual_seed(0)
    shapes = ((8, 5), (8, 5), (5, 8), (6, 6))
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [nn.Parameter(each.detach().clone()) for each in ours]
    optimisers = (
        Muon(ours),
        torch.optim.Muon(theirs, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
    )
    for rate in (0.01, 0.02, 0.03):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimiser in optimisers:
            optimiser.param_groups[0]["lr"] = rate
            optimiser.step()
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() < 0.002  # torch multiplies in bfloat16


def test_muon_moves_matrices_along_all_their_directions_and_leaves_the_rest_to_adam() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 16))
    adam, muon = optimisers_of(network, "muon")
    assert [each.shape for each in adam.param_groups[0]["params"]] == [(9, 8), (16,)]
    (matrix,) = muon.param_groups[0]["params"]
    # nearly of one direction
    matrix.grad = torch.outer(torch.randn(16), torch.randn(8)) + 0.01 * torch.randn(16, 8)
    before = matrix.detach().clone()
    muon.param_groups[0]["lr"] = 0.1
    muon.step()
    moved = torch.linalg.svdvals((before - matrix.detach()).double())
    # Newton-Schulz brings singular values to between .5 and 1.5; 0.2 sqrt(16) gives the size of an
    # update of Adam.
    assert (moved > 0.1 * 0.2 * 4 * 0.5).all()
    assert (moved < 0.1 * 0.2 * 4 * 1.5).all()
    assert len(optimisers_of(network, "adam")) == 1
