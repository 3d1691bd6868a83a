"""Save the state from which a training resumes, and the weights of its last checks.

The weights of several checks can be averaged.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.optim import Optimizer

from translation.atomic_files import write_whole
from translation.errors import TranslationError, unreadable

STATE = "training.safetensors"
WEIGHTS_DO_NOT_FIT = "the weights do not fit the network that the model's configuration describes"


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
    """Save the state on which the next step depends, atomically.

    `key` identifies the training: its corpus and its settings.
    """
    tensors = {f"weight.{name}": value for name, value in network.state_dict().items()}
    for optimiser in optimisers:
        kind = _kind(optimiser)
        for index, moments in optimiser.state_dict()["state"].items():
            for name, value in moments.items():
                tensors[f"{kind}.{index}.{name}"] = value
    notes = {"progress": json.dumps(asdict(progress)), "key": key}
    _write(folder / STATE, tensors, notes)


def restore_state(
    folder: Path, network: nn.Module, optimisers: Sequence[Optimizer], key: str
) -> Progress:
    """Restore what `save_state` saved into the network and the optimisers.

    Returns its progress; without a saved state, changes nothing and returns a new progress. Raises
    TranslationError for a damaged file or one with another key.
    """
    file = folder / STATE
    if not file.exists():
        return Progress()
    tensors, notes = read_tensors(file)
    if notes.get("key") != key:
        raise TranslationError(
            f"{file} was saved by another version, or with other settings or another corpus: use "
            f"the earlier ones to resume, or delete {folder} to train from the start"
        )
    try:
        weights = {
            name.removeprefix("weight."): value
            for name, value in tensors.items()
            if name.startswith("weight.")
        }
        network.load_state_dict(weights)
        for optimiser in optimisers:
            state: dict[int, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                if name.startswith(f"{_kind(optimiser)}."):  # such as adam.3.exp_avg
                    _, index, moment = name.split(".", 2)
                    state.setdefault(int(index), {})[moment] = value
            # The settings are those of the recipe; only the moments were saved.
            param_groups = optimiser.state_dict()["param_groups"]
            optimiser.load_state_dict({"state": state, "param_groups": param_groups})
        return Progress(**json.loads(notes["progress"]))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())  # torch lists the parameters line by line
        raise TranslationError(
            f"{file} is damaged ({reason}): delete {folder} to train from the start"
        ) from error


def _kind(optimiser: Optimizer) -> str:
    return type(optimiser).__name__.lower()


def keep_weights(folder: Path, network: nn.Module, progress: Progress, count: int) -> None:
    """Save this step's weights beside earlier ones; list the last `count` in `progress.kept`."""
    save_weights(folder / _name(progress.step), network.state_dict())
    steps = [*progress.kept, progress.step]
    progress.kept = steps[-count:]


def drop_older_weights(folder: Path, steps: Sequence[int]) -> None:
    """Delete the weights of all steps but these.

    Call it only after the state that names the steps was saved: a training that is killed before
    resumes from the state before, which needs the older weights.
    """
    all_files = set(folder.glob("step-*.safetensors"))
    needed_files = {folder / _name(step) for step in steps}
    for file in all_files - needed_files:
        file.unlink(missing_ok=True)


def average_weights(folder: Path, steps: Sequence[int]) -> dict[str, Tensor]:
    """Return the mean of the weights saved at these steps (section 6.1 of Vaswani et al.)."""
    total: dict[str, Tensor] = {}
    for step in steps:
        weights, _ = read_tensors(folder / _name(step))
        for name, value in weights.items():
            addend = value.double()  # a sum in float32 would add rounding errors
            total[name] = total[name] + addend if name in total else addend
    return {name: (value / len(steps)).float() for name, value in total.items()}


def save_weights(file: Path, weights: Mapping[str, Tensor]) -> None:
    """Write weights; tensors that share memory, such as tied embeddings, are written once.

    They are written under the first of their names.
    """
    distinct: dict[str, Tensor] = {}
    addresses: set[int] = set()
    for name, value in weights.items():
        if value.data_ptr() not in addresses:
            addresses.add(value.data_ptr())
            distinct[name] = value
    _write(file, distinct, {})


def load_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights into a network; raises TranslationError if they do not fit it."""
    # A tied tensor is stored, and so loaded, only under the first of its names: its memory shows
    # that the other names are loaded too.
    parameters = dict(network.state_dict())
    loaded_addresses = {parameters[name].data_ptr() for name in weights if name in parameters}
    try:
        missing, unexpected = network.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # sizes that differ
        last_difference = str(error).splitlines()[-1].strip()  # a line for each parameter
        raise TranslationError(
            f"{WEIGHTS_DO_NOT_FIT} ({last_difference}): train the model again"
        ) from error
    not_loaded = [name for name in missing if parameters[name].data_ptr() not in loaded_addresses]
    if unexpected or not_loaded:
        lacking, names = ("network", unexpected) if unexpected else ("file", not_loaded)
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise TranslationError(
            f"{WEIGHTS_DO_NOT_FIT} (the {lacking} lacks {names[0]}{others}): train the model again"
        )


def require_finite(weights: Mapping[str, Tensor], consequence: str) -> None:
    """Raise TranslationError, naming the parameter, if a weight is NaN or infinite.

    The message begins with the `consequence`, such as "tiny is not saved".
    """
    for name, value in weights.items():
        is_bad = ~value.isfinite()
        count = int(is_bad.sum())
        if count > 0:
            raise TranslationError(
                f"{consequence}: {count} of {value.numel()} weights of {name} are NaN or infinite; "
                "train the model again with a lower training.peak (the highest learning rate), "
                "and delete the folder of the saved training state if the next run names it"
            )


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a safetensors file by name, and its notes (metadata).

    Raises TranslationError if the file is missing or damaged.
    """
    restore = f"restore it, or delete {file.parent} and train from the start"
    try:
        file.open("rb").close()  # safetensors calls every file that it cannot open missing
        with safe_open(file, "pt") as opened:
            notes = dict(opened.metadata() or {})
        return load_file(file), notes
    except OSError as error:
        raise unreadable(file, error, restore) from error
    except SafetensorError as error:
        raise TranslationError(f"{file} is damaged ({error}): {restore}") from error


def _write(file: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    copies: dict[str, Tensor] = {}
    for name, value in tensors.items():
        on_cpu = value.detach().cpu()
        copies[name] = on_cpu.contiguous().clone()  # safetensors refuses tensors that share memory
    data = save(copies, dict(notes))
    write_whole(file, lambda partial: partial.write_bytes(data))


def _name(step: int) -> str:
    return f"step-{step:07d}.safetensors"
