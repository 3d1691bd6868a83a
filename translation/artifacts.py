"""Keep tensors and a JSON card in one safetensors file, which runs no code when it is read."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.optim import Optimizer

from translation.atomic_files import sha256, write_whole

Tensors = dict[str, Tensor]
Card = dict[str, Any]  # of what JSON can hold
Part = TypeVar("Part")


class ArtifactError(Exception):
    """A file cannot be read or is no artifact; the message is the reason alone, on one line."""


def write(file: Path, tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> str:
    """Write tensors and card, whole or not at all, and return the SHA-256 of the file."""
    data = _as_bytes(tensors, card)
    write_whole(file, lambda partial: partial.write_bytes(data))
    return hashlib.sha256(data).hexdigest()


def read(file: Path, sha: str | None = None) -> tuple[Tensors, Card]:
    """Return the tensors and the card of a file, whose SHA-256 must be `sha`, if given.

    Tensors stay on the disk until they are used.
    """
    try:
        if sha is not None and (actual := sha256(file)) != sha:
            raise ArtifactError(
                f"its SHA-256 is {actual[:12]}..., not {sha[:12]}...: it was changed or damaged"
            )
        file.open("rb").close()  # safetensors calls every file that it cannot open missing
        with safe_open(file, framework="pt") as stream:
            card = json.loads(stream.metadata()["card"])
            return {name: stream.get_tensor(name) for name in stream.keys()}, card  # noqa: SIM118
    except OSError as error:
        raise ArtifactError(error.strerror) from error
    # JSON that is nested too deeply raises RecursionError.
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ArtifactError(f"damaged: {error}") from error


def hash_of(tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> str:
    """Return the SHA-256 that the file would have."""
    return hashlib.sha256(_as_bytes(tensors, card)).hexdigest()


def not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Say which tensor has values that are NaN or infinite, and how many; None if none has."""
    for name, value in tensors.items():
        wrong = int((~value.isfinite()).sum())
        if wrong:
            return f"{wrong} of {value.numel()} weights of {name} are NaN or infinite"
    return None


def under(prefix: str, parts: Mapping[str, Part]) -> dict[str, Part]:
    """Return the parts whose names begin with a prefix, named without it."""
    return {
        name.removeprefix(prefix): value for name, value in parts.items() if name.startswith(prefix)
    }


def prefixed(prefix: str, parts: Mapping[str, Part]) -> dict[str, Part]:
    """Return the parts with a prefix before each name."""
    return {f"{prefix}{name}": value for name, value in parts.items()}


def moments_of(optimiser: Optimizer) -> Tensors:
    """Return what an optimiser remembers of each parameter, by names such as `3.exp_avg`."""
    moments: Tensors = {}
    for parameter, values in optimiser.state_dict()["state"].items():
        moments |= prefixed(f"{parameter}.", values)
    return moments


def restore_moments(optimiser: Optimizer, moments: Mapping[str, Tensor]) -> None:
    """Let an optimiser go on from what `moments_of` returned; its settings stay."""
    state: dict[int, Tensors] = {}
    for name, value in moments.items():
        parameter, moment = name.split(".")
        state.setdefault(int(parameter), {})[moment] = value
    optimiser.load_state_dict(
        {"state": state, "param_groups": optimiser.state_dict()["param_groups"]}
    )


def _as_bytes(tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> bytes:
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    return save(contiguous, metadata={"card": json.dumps(card, sort_keys=True)})
