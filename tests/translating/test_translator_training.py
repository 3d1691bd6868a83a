"""Laws of training: the published schedule, updates that add up, interruptions
that change nothing, ends as asked.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

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
from translation.training.checkpoints import read_weights
from translation.training.loop import (
    Check,
    TrainingConfig,
    TrainingContext,
    learning_rate,
    train_network,
    validation_loss,
)
from translation.training.step import (
    POSITIONS_AT_ONCE,
    Muon,
    batch_loss,
    optimisers_of,
    smoothed_loss,
)


@pytest.mark.parametrize(
    "positions", [1, 3, POSITIONS_AT_ONCE - 1, POSITIONS_AT_ONCE, 2 * POSITIONS_AT_ONCE + 1]
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_and_its_gradients_are_those_of_torch(positions, smoothing):
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
    (3 * loss).backward()
    (3 * wanted).backward()
    assert_close_in_float64(loss, wanted)
    for mine, other in zip(ours, theirs, strict=True):
        assert_close_in_float64(mine.grad, other.grad)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_padding_to_few_shapes_changes_no_loss_and_no_gradient(norm, smoothing):
    batch = batch_of(examples(), np.arange(17))
    padded = batch.padded()
    rows, positions = batch.source.shape
    assert padded.shape[1] > rows
    assert padded.shape[2] > positions
    losses, gradients = [], []
    for sides in (batch.sides, padded):
        network = drawn(norm=norm, dropout=0.0).double()
        losses.append(batch_loss(network, sides, smoothing))
        losses[-1].backward()
        gradients.append(torch.cat([each.grad.flatten() for each in network.parameters()]))
    assert abs(losses[0] - losses[1]) <= 1e-10
    assert (gradients[0] - gradients[1]).abs().max() <= 1e-10


def test_the_rate_of_inverse_sqrt_is_equation_3_and_peak_moves_it():
    config = TrainingConfig(schedule="inverse_sqrt", warmup=4000)
    for step in (1, 17, 4000, 4001, 100_000):
        published = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert math.isclose(learning_rate(step, 0.5, 512, config), published)
        moved = learning_rate(step, 0.5, 512, replace(config, peak=0.005))
        assert math.isclose(moved, published * 0.005 / learning_rate(4000, 0.5, 512, config))


def test_the_linear_rate_falls_to_0_at_the_end_of_the_budget():
    config = TrainingConfig(warmup=0.25, peak=0.008)
    rates = [learning_rate(1, done, 512, config) for done in (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)]
    assert rates == in_float64([0.0, 0.004, 0.008, 0.008 * 2 / 3, 0.008 / 3, 0.0])
    assert learning_rate(1, 0.25, 512, replace(config, peak=None)) == in_float64(
        (512 * 4000) ** -0.5
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        *(
            ({name: 0}, name)
            for name in ("updates", "batch_tokens", "check_every", "minutes", "peak")
        ),
        ({"schedule": "linear", "warmup": 1}, "warmup must be"),
        ({"schedule": "linear", "warmup": 0}, "warmup must be"),
        ({"schedule": "inverse_sqrt", "warmup": 0.5}, "warmup must be"),
    ],
    ids=str,
)
def test_a_training_that_cannot_be_is_refused(wrong, words):
    with pytest.raises(UsageError, match=words):
        replace(CONFIG, **wrong)


@pytest.fixture
def gradients(monkeypatch):
    """What Adam was given: weights cannot tell, as it makes as much of the
    noise of a float as of a gradient.
    """
    seen = []

    def looked(optimiser):
        seen.append(
            torch.cat([each.grad.flatten() for each in optimiser.param_groups[0]["params"]])
        )

    monkeypatch.setattr(torch.optim.Adam, "step", looked)
    return seen


# So large a batch holds all pairs.
WHOLE = replace(
    CONFIG, updates=1, check_every=1, batch_tokens=100_000, clip=0.0, label_smoothing=0.0
)


def test_gradients_are_per_real_target_token_in_however_many_batches_and_clipped(
    tmp_path, gradients
):
    parts = len(batch_indices(examples(), 512, None))
    assert parts > 1
    ways = (WHOLE, replace(WHOLE, batch_tokens=512, accumulate=parts), replace(WHOLE, clip=0.01))
    for number, config in enumerate(ways):
        trained(tmp_path / str(number), config, dropout=0.0)
    network = drawn(dropout=0.0)
    batch = batch_of(examples(), batch_indices(examples(), 100_000, None)[0])
    decoded, _ = network(batch.source, batch.target_input)
    scores = network.logits(decoded).flatten(0, 1)
    nn.functional.cross_entropy(scores, batch.target_output.flatten(), ignore_index=0).backward()
    wanted = torch.cat(
        [each.grad.flatten() for each in network.parameters() if each.grad is not None]
    )
    assert_gradients_close_in_float32(gradients[0], wanted)
    assert_gradients_close_in_float32(gradients[1], wanted)
    assert_gradients_close_in_float32(gradients[2], wanted * 0.01 / wanted.norm())


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("what", ["keep_weights", "save_state", "drop_older_weights"])
def test_a_training_that_ends_within_the_keeping_of_a_check_goes_on_as_if_it_had_not(
    tmp_path, monkeypatch, what
):
    config = replace(CONFIG, accumulate=2)
    whole, told = list[Check](), list[Check]()
    undisturbed, end = trained(tmp_path / "whole", config, on_check=whole.append)
    after, calls = getattr(checkpoints, what), list[int]()

    def ended(*arguments):
        calls.append(1)
        after(*arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, what, ended)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "broken", config, on_check=told.append)
    (tmp_path / "broken" / "training.safetensors.partial").write_bytes(b"cut short")
    resumed, last = trained(tmp_path / "broken", config, on_check=told.append)
    assert list(dict.fromkeys(map(figures, told))) == list(map(figures, whole))
    assert same(resumed, undisturbed)
    assert replace(last, seconds=0.0) == replace(end, seconds=0.0)
    assert len([*(tmp_path / "broken").glob("step-*")]) == CONFIG.average


def judged_as(monkeypatch, *losses):
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
    tmp_path, monkeypatch, losses, saved
):
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
def test_a_finished_training_trains_nothing_more_and_a_longer_one_goes_on(tmp_path):
    first, end = trained(tmp_path)
    told = []
    again, still = trained(tmp_path, on_check=told.append)
    assert (told, still) == ([], end)
    assert same(again, first)
    _, longer = trained(tmp_path, replace(CONFIG, updates=18), on_check=told.append)
    assert ([each.step for each in told], longer.step) == ([15, 18], 18)


@pytest.mark.slow
def test_a_training_of_minutes_is_checked_and_ends_by_the_clock_and_says_how_it_goes(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(loop, "MESSAGE_INTERVAL_S", 0.0)
    told, words = list[Check](), list[str]()
    timed = replace(
        CONFIG, minutes=0.02, updates=10**6, check_every=None, schedule="linear", warmup=0.2
    )
    context = TrainingContext(
        folder=tmp_path, key="made", on_check=told.append, on_message=words.append
    )
    progress = train_network(drawn(), WIDTH, examples(), examples(2, 24), timed, context)
    # a slow machine has fewer: checking takes a tenth of the time at most
    assert 2 <= len(told) <= loop.CHECKS + 1
    assert progress.step == told[-1].step
    assert told[-1].learning_rate < 0.15 * CONFIG.peak
    # a line an update here, the check's own where there is one
    assert len(words) == progress.step - len(told)
    assert all(" tokens a second" in line and line.startswith("step ") for line in words)


@pytest.mark.slow
def test_validation_depends_on_no_batches_and_leaves_the_mode():
    network = drawn(dropout=0.5)
    for mode in (True, False):
        network.train(mode)
        few = examples(2, 24)
        losses = [validation_loss(network, few, tokens, CPU) for tokens in (1, 100, 100_000)]
        assert max(losses) - min(losses) < 1e-5
        assert network.training is mode


def test_a_loss_that_is_no_number_is_told_in_a_line(tmp_path):
    network, context = drawn(), TrainingContext(folder=tmp_path, key="made")
    next(network.parameters()).data.fill_(math.nan)
    with pytest.raises(TranslationError, match=r"^the loss is nan .*training\.peak"):
        train_network(network, WIDTH, examples(), examples(2, 24), CONFIG, context)


def test_a_batch_without_memory_for_it_is_told_in_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "batch_of", lambda *_: torch.empty(2**55))
    with pytest.raises(TranslationError, match=r"^out of memory .*batch_tokens .*\[network\]"):
        trained(tmp_path)


def test_muon_updates_as_torch_does():
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


def test_muon_moves_matrices_and_leaves_the_rest_to_adam():
    network = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 16))
    adam, muon = optimisers_of(network, "muon")
    assert [each.shape for each in adam.param_groups[0]["params"]] == [(9, 8), (16,)]
    assert [each.shape for each in muon.param_groups[0]["params"]] == [(16, 8)]
    assert len(optimisers_of(network, "adam")) == 1
