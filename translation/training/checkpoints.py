"""Save a training's state, from which it resumes however it ended, and its last
weights, to be averaged.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.optim import Optimizer

from translation.atomic_files import write_whole
from translation.errors import TranslationError

STATE = "training.safetensors"
NOT_ITS_WEIGHTS = (
    "the weights do not fit the network that the model's configuration describes: "
    "train the model again"
)


@dataclass
class Progress:
    """How far a training is."""

    step: int = 0
    epoch: int = 0
    place: int = 0  # batches of this epoch already used
    batches: int = 1  # of this epoch
    tokens: int = 0  # target tokens used
    seconds: float = 0.0  # of training, interruptions left out
    best: float | None = None  # validation figure; larger is better
    best_step: int = 0
    checks_since: int = 0  # the best
    kept: list[int] = field(default_factory=list)  # steps whose weights are on disk, oldest first
    # steps whose mean weights the model has, once it has ended
    saved: list[int] = field(default_factory=list)


def save_state(
    folder: Path, network: nn.Module, optimisers: Sequence[Optimizer], progress: Progress, key: str
) -> None:
    """Save atomically all that the next step depends on; `key` identifies the training."""
    tensors = {f"weight.{name}": value for name, value in network.state_dict().items()}
    for each in optimisers:
        moments = each.state_dict()["state"].items()
        kind = _kind(each)
        tensors |= {
            f"{kind}.{index}.{name}": value
            for index, state in moments
            for name, value in state.items()
        }
    _write(folder / STATE, tensors, {"progress": json.dumps(asdict(progress)), "key": key})


def restore_state(
    folder: Path, network: nn.Module, optimisers: Sequence[Optimizer], key: str
) -> Progress:
    """Restore what `save_state` saved; return its progress or a new one.

    TranslationError for damage or another key.
    """
    file = folder / STATE
    if not file.exists():
        return Progress()
    tensors, notes = read_tensors(file)
    if notes.get("key") != key:
        raise TranslationError(
            f"{file} belongs to another configuration or corpus: delete {folder} to train from "
            "the start"
        )
    try:
        _put_back(tensors, network, optimisers)
        return Progress(**json.loads(notes["progress"]))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise TranslationError(
            f"{file} is damaged ({error}): delete {folder} to train from the start"
        ) from error


def _put_back(
    tensors: Mapping[str, Tensor], network: nn.Module, optimisers: Sequence[Optimizer]
) -> None:
    weights = {
        name.removeprefix("weight."): each
        for name, each in tensors.items()
        if name.startswith("weight.")
    }
    network.load_state_dict(weights)
    for optimiser in optimisers:
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith(f"{_kind(optimiser)}."):
                _, index, kind = name.split(".", 2)
                state.setdefault(int(index), {})[kind] = value
        optimiser.load_state_dict(
            {"state": state, "param_groups": optimiser.state_dict()["param_groups"]}
        )


def _kind(optimiser: Optimizer) -> str:
    return type(optimiser).__name__.lower()


def keep_weights(folder: Path, network: nn.Module, progress: Progress, count: int) -> None:
    """Save this step's weights beside earlier ones, and note the last `count` steps in
    `progress.kept`.
    """
    save_weights(folder / _name(progress.step), network.state_dict())
    progress.kept = [*progress.kept, progress.step][-count:]


def drop_older_weights(folder: Path, kept: Sequence[int]) -> None:
    """Delete all weights but those of the steps `kept`; call it after the state
    that names these was saved.
    """
    for file in set(folder.glob("step-*.safetensors")) - {folder / _name(step) for step in kept}:
        file.unlink(missing_ok=True)


def average_weights(folder: Path, steps: Sequence[int]) -> dict[str, Tensor]:
    """Return the mean of the weights saved at these steps (section 6.1 of Vaswani et al.)."""
    total: dict[str, Tensor] = {}
    for step in steps:
        for name, value in read_tensors(folder / _name(step))[0].items():
            total[name] = total[name] + value.double() if name in total else value.double()
    return {name: (value / len(steps)).float() for name, value in total.items()}


def save_weights(file: Path, weights: Mapping[str, Tensor]) -> None:
    """Write weights; tensors that share memory, such as tied embeddings, are written once."""
    once = OrderedDict[int, str]()
    for name, value in weights.items():
        once.setdefault(value.data_ptr(), name)
    _write(file, {name: weights[name] for name in once.values()}, {})


def load_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights into a network; raises TranslationError if they are another network's."""
    own = dict(network.state_dict())
    given = {own[name].data_ptr() for name in weights if name in own}
    try:
        missing, unexpected = network.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # sizes that differ
        raise TranslationError(NOT_ITS_WEIGHTS) from error
    if unexpected or any(own[name].data_ptr() not in given for name in missing):
        raise TranslationError(NOT_ITS_WEIGHTS)


def require_finite(weights: Mapping[str, Tensor], what: str) -> None:
    """Raise TranslationError, naming the parameter, if a weight is NaN or infinite."""
    for name, value in weights.items():
        if (wrong := int((~value.isfinite()).sum())) > 0:
            said = f"{wrong} of {value.numel()} weights of {name} are NaN or infinite"
            raise TranslationError(
                f"{what}: {said}: train the model again with a lower training.peak"
            )


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors of a file and its notes; raises TranslationError if it
    is missing or damaged.
    """
    try:
        with safe_open(file, "pt") as opened:
            notes = dict(opened.metadata() or {})
        return load_file(file), notes
    except (OSError, SafetensorError) as error:
        raise TranslationError(f"cannot read {file}: {error}") from error


def _write(file: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    data = save(copies, dict(notes))
    write_whole(file, lambda partial: partial.write_bytes(data))


def _name(step: int) -> str:
    return f"step-{step:07d}.safetensors"
