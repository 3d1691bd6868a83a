"""Members that a GPU trains as one network are those that are trained one by one."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dtml import training as fitting
from dtml.baselines.recurrent import RecurrentConfig
from dtml.baselines.stocknet import StockNetConfig
from dtml.model import ModelConfig
from dtml.ranking.relative import RelativeModelConfig
from dtml.self_test import FEATURES, _windows
from dtml.training import Fit, Member, Span, TrainingConfig, no_report
from tests.support.bounds import float64_by_default  # noqa: F401 - a fixture
from tests.support.windows import CPU
from translation.recorded import WARM_UP, Recorded, Recorder

pytestmark = pytest.mark.usefixtures("float64_by_default")

DTML = ModelConfig(features=FEATURES, hidden=8, heads=2)
NETWORKS = {
    "DTML": DTML,
    "DTML with shared gains": replace(DTML, normalisation="shared", identity=0.1),
    "DTML without its data axis": replace(DTML, data_axis=False),
    "LSTM": RecurrentConfig(features=FEATURES, attention=False),
    "Adv-ALSTM": RecurrentConfig(features=FEATURES, epsilon=0.01, adversarial=0.01),
    "StockNet": StockNetConfig(features=FEATURES, hidden=8, latent=8, movement=6),
    "DTML that ranks": RelativeModelConfig(hidden=8, features=FEATURES),
}
# Three steps an epoch, of which the last has fewer days.
RECIPE = TrainingConfig(protocol="all", epochs=3, batch_days=12, first_kept_epoch=1)
# Sums in another order, and the dropout and the annealing of a training, whose steps are float32.
BOUND = 1e-8


def span(first: int, stop: int) -> Span:
    of_days = Span.of(_windows().days(slice(first, stop)), "all", CPU)
    return replace(of_days, rows=of_days.rows.double(), movement=of_days.movement.double())


def fits_of(model=DTML, recipe=RECIPE, seeds=(1, 2, 3), folder=None) -> list[Fit]:
    stocks = len(_windows().symbols)
    fits = [Fit.start(Member(seed, model, recipe), stocks, CPU) for seed in seeds]
    for fit in fits:
        fit.days_at_once = recipe.batch_days  # a step draws the same random numbers in one piece
        if folder is not None:
            fit.restore(folder)
    return fits


def trained_alone(fits: list[Fit]) -> list[Fit]:
    for fit in fits:
        list(fitting._epochs(fit, span(0, 32), span(64, 80), None, no_report))
    return fits


def trained_as_one(fits: list[Fit], folder=None, on_epoch=no_report, devices=(CPU,)) -> list[Fit]:
    """As GPUs train them."""
    spans = {("all", CPU): (span(0, 32), span(64, 80))}
    windows = _windows().days(slice(0, 32))
    fitting._train_on_gpus(fits, devices, windows, spans, folder, on_epoch)
    return fits


def assert_alike(found: list[Fit], wanted: list[Fit]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.best_epoch == other.best_epoch
        assert one.steps == other.steps
        for name, value in one.best.items():
            assert (value - other.best[name]).abs().max() <= BOUND, name
        for epoch, its in zip(one.epochs, other.epochs, strict=True):
            for figure in ("loss", "validation_loss", "validation_acc"):
                assert abs(getattr(epoch, figure) - getattr(its, figure)) <= BOUND


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("clip", [None, 0.1])
def test_members_as_one_network_are_those_trained_alone(name, clip):
    recipe = replace(RECIPE, clip=clip)
    found = trained_as_one(fits_of(NETWORKS[name], recipe))
    wanted = trained_alone(fits_of(NETWORKS[name], recipe))
    assert_alike(found, wanted)
    for fit, other in zip(found, wanted, strict=True):
        assert torch.equal(fit.random.get_state(), other.random.get_state())
        assert torch.equal(fit.order.get_state(), other.order.get_state())


@pytest.mark.parametrize("days", [24, 3])
def test_members_that_do_not_fit_into_memory_train_in_parts_or_alone(days, monkeypatch):
    monkeypatch.setattr(fitting, "member_days", lambda *_: days)
    assert_alike(trained_as_one(fits_of()), trained_alone(fits_of()))


def test_members_are_dealt_out_to_devices_that_work_at_once():
    found = trained_as_one(fits_of(), devices=(CPU, CPU))
    assert_alike(found, trained_alone(fits_of()))


def test_members_whose_steps_draw_stocks_train_alone():
    recipe = replace(RECIPE, stocks_a_step=5)
    shared = NETWORKS["DTML with shared gains"]
    assert_alike(trained_as_one(fits_of(shared, recipe)), trained_alone(fits_of(shared, recipe)))


def test_a_member_whose_patience_runs_out_keeps_what_it_has_beside_the_others():
    recipe = replace(RECIPE, epochs=12, patience=2)
    reported = []
    found = trained_as_one(
        fits_of(recipe=recipe), on_epoch=lambda member, epoch: reported.append((member, epoch))
    )
    wanted = trained_alone(fits_of(recipe=recipe))
    assert len({len(fit.epochs) for fit in wanted}) > 1
    assert_alike(found, wanted)
    assert len(reported) == sum(len(fit.epochs) for fit in wanted)


def test_members_that_were_killed_between_their_states_end_as_undisturbed(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "SAVE_INTERVAL_S", 0.0)
    save: Callable[..., None] = Fit.save

    def killed(fit: Fit, folder) -> None:
        if fit.member.seed == 2 and len(fit.epochs) == 2:
            raise KeyboardInterrupt
        save(fit, folder)

    monkeypatch.setattr(Fit, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        trained_as_one(fits_of(), tmp_path)
    monkeypatch.setattr(Fit, "save", save)
    again = fits_of(folder=tmp_path)
    assert [len(fit.epochs) for fit in again] == [2, 1, 1]
    assert_alike(trained_as_one(again, tmp_path), trained_alone(fits_of()))
    # Those that have ended are not trained again.
    ended = fits_of(folder=tmp_path)
    assert_alike(trained_as_one(ended, tmp_path), trained_alone(fits_of()))


class NeverWaits(TorchDispatchMode):
    """Refuse what a GPU cannot record: a number for Python, a shape that depends on numbers."""

    WAITS = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "_unique2",
        "unique_dim",
        "lift_fresh",  # of `torch.tensor`, which is a copy from the CPU
    )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        masks = [each for each in args[1] if each is not None] if name == "index" else []
        assert name not in self.WAITS, name
        assert not any(each.dtype == torch.bool for each in masks), "an index by a mask"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_and_a_validation_can_be_recorded(name, monkeypatch):
    runs = []

    def strictly(recorded: Recorded) -> None:
        with NeverWaits():
            recorded.work()
        runs.append(recorded)

    monkeypatch.setattr(Recorded, "__call__", strictly)
    recipe = replace(RECIPE, epochs=1, clip=0.1)
    assert_alike(
        trained_as_one(fits_of(NETWORKS[name], recipe)),
        trained_alone(fits_of(NETWORKS[name], recipe)),
    )
    # Two whole steps, one of fewer days, a validation.
    assert (len(runs), len(set(runs))) == (4, 3)


def test_what_counts_cannot_be_told_to_python_in_recorded_work():
    for wrong in (
        lambda: torch.ones(2).sum().item(),
        lambda: torch.ones(2)[torch.ones(2) > 0],
        lambda: torch.ones(2).unique(),
    ):
        with pytest.raises(AssertionError), NeverWaits():
            wrong()


class Replays:
    """A recording that counts how often it was replayed."""

    def __init__(self) -> None:
        self.count = 0

    def replay(self) -> None:
        self.count += 1


@pytest.mark.parametrize("is_able", [True, False])
def test_work_is_recorded_after_its_warm_up_and_then_replayed(is_able, monkeypatch):
    recorder, graph, runs = Recorder(CPU), Replays(), []
    recorder.is_able = is_able
    monkeypatch.setattr(Recorder, "record", lambda _recorder, _work: graph)
    repeated = Recorded(recorder, lambda: runs.append(1))
    for _ in range(WARM_UP + 4):
        repeated()
    assert (len(runs), graph.count) == ((WARM_UP, 4) if is_able else (WARM_UP + 4, 0))
