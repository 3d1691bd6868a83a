"""Whatever runs on an accelerator runs on a stand-in that refuses what one
refuses, with the numbers of the CPU.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.on_gpu import PARTS, Run
from dtml.baselines.recurrent import RecurrentConfig
from dtml.baselines.stocknet import StockNetConfig
from dtml.checkpoints import Ensemble
from dtml.errors import DtmlError
from dtml.inference import attention, member_probabilities
from dtml.model import DTML as DTML_NETWORK
from dtml.model import ModelConfig
from dtml.network import NetworkConfig
from dtml.self_test import FEATURES, WINDOW, _windows, self_test
from dtml.training import Fit, Member, TrainingConfig, fit_members, stack_members
from dtml.windows import WindowConfig, Windows
from tests.support.accelerator.stand_in import NAME, StandIn, on_stand_in
from tests.support.translations import CONFIG, WIDTH, drawn, examples
from translation.data.batches import batch_indices, batch_of
from translation.decoding.beam_search import Search, search
from translation.seq2seq import RecurrentClassifier
from translation.seq2seq import RecurrentConfig as TranslatorConfig
from translation.training.loop import Check, TrainingContext, train_network
from translation.training.loop import TrainingConfig as TranslatorTraining
from translation.training.step import Gradients

CPU = torch.device("cpu")
# of weights and probabilities after two epochs: sums are rounded alike, and grouped otherwise
TOLERANCE = 2e-5
DTML = ModelConfig(features=FEATURES, hidden=8, heads=2)
TRAINING = TrainingConfig(protocol="all", epochs=2, batch_days=16, first_kept_epoch=1)
NETWORKS: dict[str, NetworkConfig] = {
    "DTML": DTML,
    "DTML with shared gains": replace(DTML, normalisation="shared", identity=0.1),
    "DTML without its data axis": replace(DTML, data_axis=False),
    "LSTM": RecurrentConfig(features=FEATURES, attention=False),
    "ALSTM": RecurrentConfig(features=FEATURES),
    "Adv-ALSTM": RecurrentConfig(features=FEATURES, epsilon=0.01, adversarial=0.01),
    "StockNet": StockNetConfig(features=FEATURES, hidden=8, latent=8, movement=6),
}
BRIEF = replace(CONFIG, check_every=2)
Work = Callable[[torch.device, Path], Tensor]


@pytest.fixture(scope="module", autouse=True)
def _device() -> Iterator[None]:
    with on_stand_in():
        yield


def spans() -> tuple[Windows, Windows]:
    """Two steps an epoch: the first one after a start, and one after another."""
    days = _windows()
    return days.days(slice(0, 2 * TRAINING.batch_days)), days.days(slice(64, 80))


def fitted(
    device: torch.device, model: NetworkConfig = DTML, folder: Path | None = None, **changes: Any
) -> list[Fit]:
    members = [Member(seed, model, replace(TRAINING, **changes)) for seed in (1, 2)]
    return fit_members(
        *spans(),
        members,
        device=device,
        state_folder=folder,
    )


def flat(tensors: Any) -> Tensor:
    return torch.cat([each.detach().cpu().double().flatten() for each in tensors])


def losses(fits: list[Fit]) -> Tensor:
    return torch.tensor(
        [[each.loss, each.validation_loss] for fit in fits for each in fit.epochs],
        dtype=torch.float64,
    )


def train(device: torch.device, _: Path, model: NetworkConfig = DTML, **changes: Any) -> Tensor:
    """The losses of two members, of which those of validation depend on all that was learned."""
    return losses(fitted(device, model, **changes))


def train_some(device: torch.device, folder: Path) -> Tensor:
    shared = replace(DTML, normalisation="shared")
    return train(device, folder, shared, stocks_a_step=7, clip=0.1)


def resume(device: torch.device, folder: Path) -> Tensor:
    """A training of one epoch that is then of two."""
    state = folder / device.type
    fitted(device, folder=state, epochs=1)
    for file in state.iterdir():  # a longer training is another one, and has another name
        (longer,) = {Member(int(file.name[0]), DTML, TRAINING).name}
        file.rename(state / f"{longer}-{device.type}.safetensors")
    return losses(fitted(device, folder=state))


def across(device: torch.device, folder: Path) -> Tensor:
    """A training that began on the CPU, begun anew."""
    fitted(CPU, folder=folder)
    return losses(fitted(device, folder=folder))


def ensemble() -> Ensemble:
    windows, fits = _windows(), fitted(CPU)
    return Ensemble(
        "made", windows.symbols, (1, 2), DTML, WindowConfig(WINDOW), stack_members(fits)
    )


def predict(device: torch.device, _: Path) -> Tensor:
    return member_probabilities(ensemble(), _windows(), device)


def look(device: torch.device, _: Path) -> Tensor:
    return torch.from_numpy(attention(ensemble(), _windows(), device).numpy())


def train_translator(
    device: torch.device,
    folder: Path,
    kind: str = "transformer",
    config: TranslatorTraining = BRIEF,
    **told: Any,
) -> Tensor:
    """The losses at each check of a training that ends and goes on."""
    checks: list[Check] = []
    context = TrainingContext(
        folder=folder / device.type, key="made", device=device, on_check=checks.append
    )
    for updates in (2, 4):
        network = drawn(0, kind, **(told | {"dropout": 0.0}))
        train_network(
            network, WIDTH, examples(), examples(2, 20), replace(config, updates=updates), context
        )
    return torch.tensor(
        [[each.train_loss, each.validation_loss] for each in checks], dtype=torch.float64
    )


def sum_gradients(device: torch.device, _: Path, norm: str, smoothing: float) -> Tensor:
    """The loss and the gradients of batches of several shapes, the first ones twice, in float64."""
    network = drawn(2, norm=norm, dropout=0.0).double().to(device)
    gradients = Gradients(network, smoothing, device)
    order = torch.Generator().manual_seed(0)
    batches = [batch_of(examples(), each) for each in batch_indices(examples(), 512, order)]
    found: list[Tensor] = []
    for update in (batches, batches[:2]):
        gradients.clear()
        for batch in update:
            gradients.add(batch)
        of_weights = [each.grad for each in network.parameters() if each.grad is not None]
        found.append(flat([gradients.loss, *of_weights]))
    assert device == CPU or 1 < len(gradients.works) <= len(batches)
    return torch.cat(found)


def translate(
    device: torch.device, _: Path, kind: str = "transformer", beams: int = 3, **told: Any
) -> Tensor:
    network: Any = drawn(1, kind, **told).to(device).eval()
    how = Search(beams=beams, with_attention=True, extra=5)
    found = search(network, [[5, 6, 7, 8], [9, 4], [11, 12, 13]], how, device=device)
    best = [each[0] for each in found]
    shown = [each.attention for each in best if each.attention is not None]
    return flat([*shown, *(torch.tensor([each.score, *each.tokens]) for each in best)])


def classify(device: torch.device, _: Path, *, masked: bool) -> Tensor:
    """The losses of a classifier, whose texts are padded before and after."""
    torch.manual_seed(2)
    config = TranslatorConfig(13, 13, 8, layers=2, dropout=0.0)
    network = RecurrentClassifier(config, 3, masked=masked).to(device)
    optimiser, losses = torch.optim.Adam(network.parameters()), []
    tokens = torch.tensor([[0, 0, 5, 6], [7, 0, 0, 0], [8, 9, 10, 11]], device=device)
    labels = torch.tensor([0, 1, 2], device=device)
    for _step in range(4):
        optimiser.zero_grad()
        losses.append(torch.nn.functional.cross_entropy(network(tokens), labels))
        losses[-1].backward()
        optimiser.step()
    return flat(losses)


def rehearse(work: Work, folder: Path) -> float:
    """How far the stand-in is from the CPU."""
    return float((work(torch.device(NAME), folder) - work(CPU, folder)).abs().max())


def trains(model: NetworkConfig) -> Work:
    return lambda device, folder: train(device, folder, model)


def translates(kind: str, **told: Any) -> Work:
    return lambda device, folder: translate(device, folder, kind, **told)


def learns(kind: str, **told: Any) -> Work:
    return lambda device, folder: train_translator(device, folder, kind, **told)


WORKS: dict[str, Work] = {
    **{f"train {name}": trains(model) for name, model in NETWORKS.items()},
    "train on some of the stocks": train_some,
    "resume": resume,
    "predict": predict,
    "attention": look,
    "train a translator": learns("transformer"),
    "train a translator, pre-norm": learns("transformer", norm="pre"),
    "train a translator by Muon, two batches an update": learns(
        "transformer", config=replace(BRIEF, optimiser="muon", accumulate=2)
    ),
    "translate with beams": translates("transformer"),
    "translate greedily": translates("transformer", beams=1),
    "train an RNN, structured": learns("rnn", attention="dot", structured=True),
    "classify, masked": partial(classify, masked=True),
    "classify": partial(classify, masked=False),
}
for kind in ("none", "additive", "dot"):
    WORKS[f"train an RNN, attention {kind}"] = learns("rnn", attention=kind)
    WORKS[f"translate by an RNN, attention {kind}"] = translates("rnn", attention=kind)


@pytest.mark.parametrize("name", WORKS)
def test_a_device_gives_what_the_cpu_gives(name: str, tmp_path: Path, record_property: Any) -> None:
    apart = rehearse(WORKS[name], tmp_path)
    record_property("apart", apart)
    assert apart <= TOLERANCE


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_padded_batches_have_the_loss_and_the_gradients_of_the_cpu(
    norm: str, smoothing: float, tmp_path: Path
) -> None:
    work = partial(sum_gradients, norm=norm, smoothing=smoothing)
    assert rehearse(work, tmp_path) <= 1e-10


@pytest.mark.parametrize("part", ["bounds", "translator"])
def test_the_program_that_measures_a_gpu_runs_on_a_device(part: str) -> None:
    """Of its parts, those that place tensors themselves; the others call what is tested above."""
    assert PARTS[part](Run(torch.device(NAME), rounds=1, small=True))


def test_a_training_begun_on_one_device_begins_anew_on_another(tmp_path: Path) -> None:
    assert rehearse(across, tmp_path) <= TOLERANCE
    assert {file.stem.rpartition("-")[2] for file in tmp_path.iterdir()} == {"cpu", NAME}


def test_a_gpu_with_too_little_memory_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    made, device = ensemble(), torch.device(NAME)

    def refuse(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("no memory is left")

    monkeypatch.setattr(DTML_NETWORK, "forward", refuse)
    for work in (
        lambda: fitted(device),
        lambda: member_probabilities(made, _windows(), device),
        lambda: attention(made, _windows(), device),
    ):
        with pytest.raises(DtmlError, match=r"--device cpu .*stocks_a_step"):
            work()


def test_the_self_test_of_the_doctor_passes(tmp_path: Path) -> None:
    said = self_test(torch.device(NAME), tmp_path)
    assert said.startswith("trained, resumed and predicted")


def test_the_stand_in_refuses_what_an_accelerator_refuses() -> None:
    here, there = torch.ones(3, device=NAME), torch.ones(3)
    assert isinstance(here, StandIn)
    # a number of the CPU passes there, too
    assert (here * torch.tensor(2.0)).cpu().tolist() == [2.0] * 3
    refused: dict[str, Callable[[], Any]] = {
        "another's tensor": lambda: here + there,
        "a list with another's": lambda: torch.cat([here, there]),
        "an index of the CPU": lambda: here[torch.tensor([0])],
        "a sum on the CPU": lambda: torch.zeros(()).add_(here.sum()),
        "NumPy": here.numpy,
        "a generator of the CPU": lambda: here.normal_(generator=torch.Generator()),
        "its state": lambda: torch.Generator(NAME).set_state(torch.Generator().get_state()),
    }
    for name, wrong in refused.items():
        with pytest.raises((RuntimeError, TypeError)):
            pytest.fail(f"{name}: {wrong()}")
