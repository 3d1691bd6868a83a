"""Training: reproducible, resumable, and able to find what only the data axis shows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.data_axis import BASE, reach
from dtml import training as fitting
from dtml.checkpoints import Ensemble, load_ensemble, save_ensemble
from dtml.devices import choose_device
from dtml.errors import DtmlError, UsageError
from dtml.experiments import Experiment, nightly_of, vary
from dtml.inference import predict
from dtml.model import DTML
from dtml.self_test import TOLERANCE
from dtml.training import (
    Member,
    ResumedEpoch,
    Span,
    fit_members,
    no_report,
    stack_members,
)
from dtml.windows import WindowConfig
from tests.support.bounds import as_drawn, assert_close_in_float32, in_float32
from tests.support.windows import CPU, MODEL, RECIPE, STOCKS, TRAIN, VALIDATION, WINDOW


def fit(seed=0, config=RECIPE, device=CPU, state_folder=None, on_epoch=no_report):
    members = [Member(seed, MODEL, config)]
    return fit_members(
        TRAIN, VALIDATION, members, device=device, state_folder=state_folder, on_epoch=on_epoch
    )[0]


def assert_same_weights(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.slow
def test_same_seed_same_weights_whatever_the_global_generator_does():
    torch.manual_seed(1)
    first = fit()
    torch.manual_seed(2)
    second = fit()
    assert_same_weights(first.best, second.best)
    assert first.epochs == second.epochs
    assert not torch.equal(first.best["predict.weight"], fit(seed=1).best["predict.weight"])


@pytest.mark.slow
def test_an_interrupted_training_resumes_to_the_weights_of_an_undisturbed_one(tmp_path):
    def interrupt(_member, epoch):
        if epoch.number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(state_folder=tmp_path, on_epoch=interrupt)
    assert (tmp_path / f"{Member(0, MODEL, RECIPE).name}-cpu.safetensors").exists()
    seen = []
    resumed = fit(state_folder=tmp_path, on_epoch=lambda _, epoch: seen.append(epoch))
    undisturbed = fit()
    # The last one done is told once more, so that progress can count it, and told apart.
    assert [epoch.number for epoch in seen] == [3, 4, 5]
    assert [isinstance(epoch, ResumedEpoch) for epoch in seen] == [True, False, False]
    assert_same_weights(resumed.best, undisturbed.best)
    assert resumed.epochs == undisturbed.epochs
    assert resumed.best_epoch == undisturbed.best_epoch


@pytest.mark.slow
def test_the_epoch_with_the_best_validation_accuracy_is_kept_and_no_early_one():
    found = fit(config=replace(RECIPE, epochs=11))
    eligible = [epoch.validation_acc for epoch in found.epochs[RECIPE.first_kept_epoch - 1 :]]
    assert found.best_acc == max(eligible)
    assert found.best_epoch == RECIPE.first_kept_epoch + eligible.index(max(eligible))


@pytest.mark.slow
def test_patience_ends_a_fit_that_no_longer_improves():
    found = fit(config=replace(RECIPE, epochs=500, patience=3, learning_rate=1e-9))
    assert len(found.epochs) == RECIPE.first_kept_epoch + 3


def test_an_interrupt_stops_every_member_after_its_epoch():
    done = []

    def interrupt(member, _epoch):
        done.append(member.seed)
        if member.seed == 0:
            raise KeyboardInterrupt

    long = replace(RECIPE, epochs=10_000)
    with pytest.raises(KeyboardInterrupt):
        fit_members(
            TRAIN,
            VALIDATION,
            [Member(seed, MODEL, long) for seed in (0, 1)],
            device=CPU,
            on_epoch=interrupt,
        )
    assert done.count(1) < 100


def test_a_loss_that_is_no_number_stops_the_training_with_advice():
    with pytest.raises(DtmlError, match=r"seed 0.*nan.*learning_rate"):
        fit(config=replace(RECIPE, learning_rate=1e30))


@pytest.fixture(scope="module")
def ensemble():
    fits = fit_members(
        TRAIN, VALIDATION, [Member(seed, MODEL, RECIPE) for seed in (4, 9)], device=CPU
    )
    return Ensemble(
        "made", TRAIN.symbols, (4, 9), MODEL, WindowConfig(window=WINDOW), stack_members(fits)
    )


@pytest.mark.slow
def test_a_checkpoint_comes_back_as_it_was_and_predicts_the_same_bytes(ensemble, tmp_path):
    file = tmp_path / "model.safetensors"
    sha = save_ensemble(ensemble, file)
    again = load_ensemble(file, market="made", sha=sha)
    assert replace(again, weights={}) == replace(ensemble, weights={})
    assert_same_weights(again.weights, ensemble.weights)
    pd.testing.assert_frame_equal(
        predict(again, VALIDATION, CPU), predict(ensemble, VALIDATION, CPU), check_exact=True
    )
    assert save_ensemble(again, tmp_path / "copy.safetensors") == sha


@pytest.mark.slow
def test_a_checkpoint_that_is_missing_changed_or_foreign_is_refused(ensemble, tmp_path):
    file = tmp_path / "model.safetensors"
    sha = save_ensemble(ensemble, file)
    with pytest.raises(DtmlError, match="market made, not other"):
        load_ensemble(file, market="other", sha=sha)
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(DtmlError, match=r"SHA-256 .*damaged.*`dtml train made"):
        load_ensemble(file, market="made", sha=sha)
    with pytest.raises(DtmlError, match="No such file"):
        load_ensemble(tmp_path / "none.safetensors", market="made", sha=sha)


@pytest.mark.parametrize(
    "overrides",
    [{"hidden": 30}, {"window": 0}, {"dropout": 1.0}, {"epochs": 0}, {"learning_rate": 0.0}],
)
def test_an_impossible_configuration_is_the_users_mistake(overrides):
    with pytest.raises(UsageError):
        vary(Experiment(), overrides)


def test_a_night_s_network_reads_bars_as_the_market_s_file_says():
    experiment = nightly_of({"epochs": 3}, z_close="raw", returns="close", max_return=0.2)
    windows = experiment.windows
    assert (windows.z_close, windows.returns, windows.max_return) == ("raw", "close", 0.2)
    assert experiment.training.epochs == 3


@pytest.mark.slow
@pytest.mark.soak
def test_the_data_axis_finds_the_leaders_and_one_stock_at_a_time_does_not():
    """A smaller run of `benchmarks.data_axis`, on the simulated market whose
    best accuracy is known.
    """
    small = BASE | {"train_sessions": 1750, "epochs": 14}
    across = reach(vary(Experiment(), small), seeds=(0,))
    alone = reach(vary(Experiment(), small | {"data_axis": False, "epochs": 3}), seeds=(0,))
    assert across.best == as_drawn(0.7048, within=0.01)
    assert across.share(across.ensemble) > 0.5
    assert abs(alone.share(alone.ensemble)) < 0.15


@pytest.mark.soak
@pytest.mark.slow
def test_members_spread_over_devices_equal_members_of_one(monkeypatch):
    members = [Member(seed, MODEL, RECIPE) for seed in (1, 2, 3)]
    alone = fit_members(TRAIN, VALIDATION, members, device=CPU)
    monkeypatch.setattr(fitting, "devices_of", lambda device: [device, device])
    spread = fit_members(TRAIN, VALIDATION, members, device=CPU)
    for one, other in zip(alone, spread, strict=True):
        assert one.member == other.member
        assert_same_weights(one.best, other.best)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_seeds_as_one_network_on_cuda_have_the_weights_of_seeds_alone():
    """To the bound that `dtml doctor` allows: products of more members may add in other orders."""
    cuda = choose_device("cuda")
    members = [Member(seed, MODEL, RECIPE) for seed in (1, 2, 3)]
    together = fit_members(TRAIN, VALIDATION, members, device=cuda)
    again = fit_members(TRAIN, VALIDATION, members, device=cuda)
    for member, found, same in zip(members, together, again, strict=True):
        assert_same_weights(found.best, same.best)
        (alone,) = fit_members(TRAIN, VALIDATION, [member], device=cuda)
        for name, value in found.best.items():
            assert (value - alone.best[name]).abs().max() <= TOLERANCE, name


@pytest.mark.slow
def test_probability_is_the_mean_of_what_the_members_say_and_masked_stocks_get_none(ensemble):
    found = predict(ensemble, VALIDATION, CPU)
    assert len(found) == int(VALIDATION.observed.sum())
    day, seen = slice(5, 6), VALIDATION.observed[5]
    said = []
    for number in range(2):
        model = DTML(MODEL, STOCKS).eval()
        model.load_state_dict(ensemble.member(number))
        rows, window = VALIDATION.days(day).rows, torch.arange(WINDOW)[None]
        logits = model.logits(rows, window, VALIDATION.observed[day]).detach()
        said.append(logits[0, seen].sigmoid().numpy())
    mine = found[found["target"] == VALIDATION.target[5]]
    assert set(mine["as_of"]) == {VALIDATION.as_of[5]}
    assert mine["probability"].tolist() == in_float32(np.mean(said, axis=0).tolist())
    assert mine["probability_std"].tolist() == in_float32(np.std(said, axis=0).tolist())


def test_the_loss_counts_labelled_stock_days_and_the_squared_norm_of_the_last_layer():
    model = DTML(MODEL, STOCKS).eval()
    span = Span.of(TRAIN, "all", CPU)
    batch = span.batch(span.days[:17])
    logits = model.logits(batch.rows, batch.windows, batch.observed)[batch.counted]
    rises = batch.rises[batch.counted].float()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, rises)
    for parameter in model.predict.parameters():
        expected = expected + 3 * parameter.square().sum()
    assert_close_in_float32(model.objective(batch, torch.tensor(3.0)), expected)
