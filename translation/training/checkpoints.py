"""Save the state from which a training resumes, and weights of checks, to be averaged."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torch import Tensor, nn
from torch.optim import Optimizer

from translation import artifacts
from translation.artifacts import ArtifactError, moments_of, prefixed, restore_moments, under
from translation.errors import TranslationError

STATE = "training.safetensors"


@dataclass
class Progress:
    """Hold how far a training has come; a step is an update of the weights."""

    step: int = 0
    epoch: int = 0
    place: int = 0  # batches of this epoch already used
    batches: int = 1  # of this epoch
    tokens: int = 0  # target tokens used
    seconds: float = 0.0  # of training, interruptions left out
    best: float | None = None  # validation figure; larger is better
    best_step: int = 0
    checks_since: int = 0  # checks after that of `best_step`
    # Steps whose weights are on disk, oldest first.
    kept: list[int] = field(default_factory=list)
    # Steps of whose weights the model has the mean, once the training has ended.
    saved: list[int] = field(default_factory=list)


def save_state(
    folder: Path, network: nn.Module, optimisers: Sequence[Optimizer], progress: Progress, key: str
) -> None:
    """Save the state on which the next step depends; `key` is of corpus and settings."""
    # Copies, because a file holds no tensors that share memory, as tied embeddings do.
    tensors = {f"weight.{name}": value.clone() for name, value in network.state_dict().items()}
    for optimiser in optimisers:
        tensors |= prefixed(f"{_kind(optimiser)}.", moments_of(optimiser))
    artifacts.write(folder / STATE, tensors, {"progress": asdict(progress), "key": key})


def restore_state(
    folder: Path, network: nn.Module, optimisers: Sequence[Optimizer], key: str
) -> Progress:
    """Restore what `save_state` saved, and return its progress, or a new one without any.

    Raises TranslationError for a damaged file or another key.
    """
    file = folder / STATE
    if not file.exists():
        return Progress()
    try:
        tensors, card = artifacts.read(file)
        if card["key"] != key:
            raise TranslationError(
                f"{file} was saved by another version, or with other settings or another corpus: "
                f"use the earlier ones to resume, or delete {folder} to train from the start"
            )
        network.load_state_dict(under("weight.", tensors))
        for optimiser in optimisers:
            restore_moments(optimiser, under(f"{_kind(optimiser)}.", tensors))
        return Progress(**card["progress"])
    except (ArtifactError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())  # torch lists the parameters line by line
        raise TranslationError(
            f"{file} is damaged ({reason}): delete {folder} to train from the start"
        ) from error


def _kind(optimiser: Optimizer) -> str:
    return type(optimiser).__name__.lower()


def keep_weights(folder: Path, network: nn.Module, progress: Progress, count: int) -> None:
    """Save this step's weights beside earlier ones; list the last `count` in `progress.kept`."""
    save_weights(folder / _name(progress.step), network)
    steps = [*progress.kept, progress.step]
    progress.kept = steps[-count:]


def drop_older_weights(folder: Path, steps: Sequence[int]) -> None:
    """Delete the weights of all steps but these, once the state that names them was saved."""
    all_files = set(folder.glob("step-*.safetensors"))
    needed_files = {folder / _name(step) for step in steps}
    for file in all_files - needed_files:
        file.unlink(missing_ok=True)


def average_weights(folder: Path, steps: Sequence[int]) -> dict[str, Tensor]:
    """Return the mean of the weights saved at these steps (section 6.1 of Vaswani et al.)."""
    total: dict[str, Tensor] = {}
    for step in steps:
        weights = read_weights(folder / _name(step))
        for name, value in weights.items():
            addend = value.double()  # a sum in float32 would add rounding errors
            total[name] = total[name] + addend if name in total else addend
    return {name: (value / len(steps)).float() for name, value in total.items()}


def save_weights(file: Path, network: nn.Module) -> None:
    """Write the weights; one of several names, such as a tied embedding, under the first alone."""
    artifacts.write(file, dict(network.named_parameters()), {})


def load_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights into a network; raises TranslationError if they do not fit it."""
    # Of the names of a tied parameter only the first is in `weights`, and `named_parameters`.
    parameters = [name for name, _ in network.named_parameters()]
    try:
        if sorted(parameters) != sorted(weights):
            network.load_state_dict(weights)  # raises the error that names the difference
        network.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        last_difference = str(error).splitlines()[-1].strip()  # a line for each parameter
        raise TranslationError(
            "the weights do not fit the network that the model's configuration describes "
            f"({last_difference}): train the model again"
        ) from error


def read_weights(file: Path) -> dict[str, Tensor]:
    """Return the weights that `save_weights` wrote."""
    try:
        return artifacts.read(file)[0]
    except ArtifactError as error:
        raise TranslationError(
            f"{file} cannot be used ({error}): restore it, or delete {file.parent} and train from "
            "the start"
        ) from error


def _name(step: int) -> str:
    return f"step-{step:07d}.safetensors"
