"""Training: reproducible, resumable, and able to find what only the data axis shows."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import sleep
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.data_axis import BASE, reach
from dtml import training as fitting
from dtml.checkpoints import Ensemble, load_ensemble, save_ensemble
from dtml.errors import DtmlError, UsageError
from dtml.experiments import Experiment, nightly_of, vary
from dtml.inference import attention, choose_device, member_probabilities, name_of, predict
from dtml.model import DTML
from dtml.network import cross_entropy
from dtml.training import (
    Epoch,
    EpochReport,
    Fit,
    Member,
    ResumedEpoch,
    Span,
    TrainingConfig,
    _take_turns,
    fit_members,
    no_report,
    stack_members,
)
from dtml.windows import WindowConfig
from tests.support.bounds import as_drawn, assert_close_in_float32, in_float32
from tests.support.windows import CPU, MODEL, RECIPE, STOCKS, TRAIN, VALIDATION, WINDOW


def fit(
    seed: int = 0,
    config: TrainingConfig = RECIPE,
    device: torch.device = CPU,
    state_folder: Path | None = None,
    on_epoch: EpochReport = no_report,
) -> Fit:
    members = [Member(seed, MODEL, config)]
    return fit_members(
        TRAIN, VALIDATION, members, device=device, state_folder=state_folder, on_epoch=on_epoch
    )[0]


def assert_same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.slow
def test_same_seed_same_weights_whatever_the_global_generator_does() -> None:
    torch.manual_seed(1)
    first = fit()
    torch.manual_seed(2)
    second = fit()
    assert_same_weights(first.best, second.best)
    assert first.epochs == second.epochs
    assert not torch.equal(first.best["predict.weight"], fit(seed=1).best["predict.weight"])


@pytest.mark.slow
def test_an_interrupted_training_resumes_to_the_weights_of_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    def interrupt(_member: Member, epoch: Epoch) -> None:
        if epoch.number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(state_folder=tmp_path, on_epoch=interrupt)
    assert (tmp_path / f"{Member(0, MODEL, RECIPE).name}-cpu.safetensors").exists()
    seen: list[Epoch] = []
    resumed = fit(state_folder=tmp_path, on_epoch=lambda _, epoch: seen.append(epoch))
    undisturbed = fit()
    # The last one done is told once more, so that progress can count it, and told apart.
    assert [epoch.number for epoch in seen] == [3, 4, 5]
    assert [isinstance(epoch, ResumedEpoch) for epoch in seen] == [True, False, False]
    assert_same_weights(resumed.best, undisturbed.best)
    assert resumed.epochs == undisturbed.epochs
    assert resumed.best_epoch == undisturbed.best_epoch


@pytest.mark.slow
def test_the_epoch_with_the_best_validation_accuracy_is_kept_and_no_early_one() -> None:
    found = fit(config=replace(RECIPE, epochs=11))
    eligible = [epoch.validation_acc for epoch in found.epochs[RECIPE.first_kept_epoch - 1 :]]
    assert found.best_acc == max(eligible)
    assert found.best_epoch == RECIPE.first_kept_epoch + eligible.index(max(eligible))


@pytest.mark.slow
def test_patience_ends_a_fit_that_no_longer_improves() -> None:
    found = fit(config=replace(RECIPE, epochs=500, patience=3, learning_rate=1e-9))
    assert len(found.epochs) == RECIPE.first_kept_epoch + 3


def test_the_loss_counts_labelled_stock_days_alone() -> None:
    logits = torch.tensor([[2.0, -1.0, 40.0]])
    rises, counted = torch.tensor([[True, True, False]]), torch.tensor([[True, True, False]])
    expected = -(torch.tensor(2.0).sigmoid().log() + torch.tensor(-1.0).sigmoid().log()) / 2
    assert_close_in_float32(cross_entropy(logits, rises, counted), expected)


@pytest.mark.slow
def test_the_penalty_shrinks_the_last_layer_and_no_other() -> None:
    free, held = (
        fit(config=replace(RECIPE, penalty=0.0)),
        fit(config=replace(RECIPE, penalty=100.0)),
    )
    norms = [
        {
            layer: found.network.state_dict()[f"{layer}.weight"].norm().item()
            for layer in ("predict", "transform")
        }
        for found in (free, held)
    ]
    assert norms[1]["predict"] < 0.95 * norms[0]["predict"]  # .85 over six seeds, deviation .02
    # at most .0004 apart, over six seeds
    assert norms[1]["transform"] == as_drawn(norms[0]["transform"], share=0.01)


def test_the_penalty_is_the_squared_norm_of_the_last_layer_and_its_bias() -> None:
    model = DTML(MODEL, STOCKS).eval()
    weight, bias = (parameter.detach().numpy() for parameter in model.predict.parameters())
    span = Span.of(TRAIN, "all", CPU)
    batch = span.batch(span.days[:17])
    free, held = (model.objective(batch, torch.tensor(penalty)).item() for penalty in (0.0, 3.0))
    assert held - free == in_float32(3 * float((weight**2).sum() + (bias**2).sum()))


def test_an_interrupt_stops_every_member_after_its_epoch() -> None:
    done: list[int] = []

    def interrupt(member: Member, _epoch: Epoch) -> None:
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


def test_a_failure_stops_the_others_after_their_epoch() -> None:
    begun, epochs = Event(), []

    def lasting() -> Iterator[int]:
        begun.wait(10)
        for number in range(2000):
            sleep(0.001)
            epochs.append(number)
            yield number

    def failing() -> Iterator[int]:
        begun.set()
        yield from ()
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        _take_turns([lasting(), failing()], 2)
    assert len(epochs) < 1000


def test_a_loss_that_is_no_number_stops_the_training_with_advice() -> None:
    with pytest.raises(DtmlError, match=r"seed 0.*nan.*learning_rate"):
        fit(config=replace(RECIPE, learning_rate=1e30))


@pytest.fixture
def ensemble() -> Ensemble:
    fits = fit_members(
        TRAIN, VALIDATION, [Member(seed, MODEL, RECIPE) for seed in (4, 9)], device=CPU
    )
    return Ensemble(
        "made", TRAIN.symbols, (4, 9), MODEL, WindowConfig(window=WINDOW), stack_members(fits)
    )


@pytest.mark.slow
def test_a_checkpoint_comes_back_as_it_was_and_predicts_the_same_bytes(
    ensemble: Ensemble, tmp_path: Path
) -> None:
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
def test_a_checkpoint_that_is_missing_changed_or_foreign_is_refused(
    ensemble: Ensemble, tmp_path: Path
) -> None:
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


@pytest.mark.slow
def test_probability_is_the_mean_of_the_members_and_masked_stocks_get_none(
    ensemble: Ensemble,
) -> None:
    found = predict(ensemble, VALIDATION, CPU)
    members = member_probabilities(ensemble, VALIDATION, CPU)
    assert len(found) == int(VALIDATION.observed.sum())
    assert members[:, ~VALIDATION.observed].isnan().all()
    one = found[(found["symbol"] == "C") & (found["target"] == VALIDATION.target[7])].iloc[0]
    assert one["as_of"] == VALIDATION.as_of[7]
    assert one["probability"] == in_float32(members[:, 7, 2].mean().item())
    assert one["probability_std"] == in_float32(np.std(members[:, 7, 2].numpy()))


@pytest.mark.slow
def test_a_member_predicts_what_its_model_says(ensemble: Ensemble) -> None:
    model = DTML(MODEL, STOCKS)
    model.load_state_dict(ensemble.member(1))
    day = slice(5, 6)
    with torch.no_grad():
        logits = model.eval().logits(
            VALIDATION.days(day).rows, torch.arange(WINDOW)[None], VALIDATION.observed[day]
        )
    found = member_probabilities(ensemble, VALIDATION.days(day), CPU)[1]
    seen = VALIDATION.observed[day]
    assert_close_in_float32(found[seen], logits.sigmoid()[seen])


@pytest.mark.slow
def test_attention_says_who_moves_whom_each_day(ensemble: Ensemble) -> None:
    days = VALIDATION.days(slice(4, 9))
    found = attention(ensemble, days, CPU)
    assert found.shape == (5, STOCKS, STOCKS)
    assert_close_in_float32(found.sum(-1), torch.ones(5, STOCKS))
    assert not torch.equal(found[0], found[1])


def test_overrides_reach_the_part_they_name() -> None:
    changed = vary(Experiment(), {"window": 7, "hidden": 32, "epochs": 3, "seeds": 5})
    assert (
        changed.windows.window,
        changed.model.hidden,
        changed.training.epochs,
        changed.seeds,
    ) == (7, 32, 3, 5)
    assert json.loads(json.dumps({"config": changed.windows.max_return})) == {"config": None}
    night = nightly_of({"beta": 0.5}, z_close="raw", returns="close", max_return=0.35)
    assert (night.model.beta, night.windows.z_close, night.windows.returns) == (0.5, "raw", "close")


@pytest.mark.parametrize(
    "overrides",
    [{"hidden": 30}, {"window": 0}, {"dropout": 1.0}, {"epochs": 0}, {"learning_rate": 0.0}],
)
def test_an_impossible_configuration_is_the_users_mistake(overrides: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        vary(Experiment(), overrides)


def test_a_device_that_is_not_there_is_an_error() -> None:
    if torch.cuda.is_available():
        assert choose_device("auto").type == "cuda"
    else:
        assert choose_device("auto") == CPU
        with pytest.raises(DtmlError, match="no CUDA device"):
            choose_device("cuda")


def test_attention_on_cuda_adds_up_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only torch's plain products do; cuDNN's kernel is slow for batches of many shapes too."""
    kernels = ("cudnn", "flash", "mem_efficient")
    states = {name: getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in kernels}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    try:
        assert choose_device("cuda").type == "cuda"
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cuda.math_sdp_enabled()
        for name in kernels:
            assert not getattr(torch.backends.cuda, f"{name}_sdp_enabled")(), name
    finally:
        torch.use_deterministic_algorithms(False)
        for name, is_enabled in states.items():
            getattr(torch.backends.cuda, f"enable_{name}_sdp")(is_enabled)


@pytest.mark.slow
@pytest.mark.soak
def test_the_data_axis_finds_the_leaders_and_one_stock_at_a_time_does_not() -> None:
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
def test_members_spread_over_devices_equal_members_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [Member(seed, MODEL, RECIPE) for seed in (1, 2, 3)]
    alone = fit_members(TRAIN, VALIDATION, members, device=CPU)
    monkeypatch.setattr(fitting, "devices_of", lambda device: [device, device])
    spread = fit_members(TRAIN, VALIDATION, members, device=CPU)
    for one, other in zip(alone, spread, strict=True):
        assert one.member == other.member
        assert_same_weights(one.best, other.best)


def test_a_device_of_a_number_is_used_alone_and_cuda_is_every_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert fitting.devices_of(torch.device("cuda")) == [
        torch.device("cuda", number) for number in range(3)
    ]
    assert fitting.devices_of(torch.device("cuda:1")) == [torch.device("cuda:1")]
    assert fitting.devices_of(CPU) == [CPU]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_seeds_side_by_side_on_cuda_have_the_weights_of_seeds_alone() -> None:
    cuda = choose_device("cuda")
    members = [Member(seed, MODEL, RECIPE) for seed in (1, 2, 3)]
    together = fit_members(TRAIN, VALIDATION, members, device=cuda)
    for member, found in zip(members, together, strict=True):
        (alone,) = fit_members(TRAIN, VALIDATION, [member], device=cuda)
        assert_same_weights(found.best, alone.best)


def test_a_gpu_is_named_with_what_tells_it_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="NVIDIA H100", uuid="e4bb2f")
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: properties)
    assert name_of(torch.device("cuda", 1)) == "cuda:1, NVIDIA H100, e4bb2f"
    assert name_of(CPU) == "cpu"
