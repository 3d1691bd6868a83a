"""Trained weights on disk, as safetensors with a JSON card.

These formats hold data and can run no code.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dtml.baselines.recurrent import RecurrentConfig
from dtml.baselines.stocknet import StockNetConfig
from dtml.errors import DtmlError
from dtml.layers.network import NetworkConfig
from dtml.model import ModelConfig
from dtml.windows import WindowConfig

Weights = dict[str, Tensor]
Part = TypeVar("Part")
# A function that calls another one to fill a file, and after which the file is either complete or
# unchanged: `translation.atomic_files.write_whole`. `flows` passes it in, because this package may
# import only the Transformer from `translation`.
WriteWhole = Callable[[Path, Callable[[Path], object]], None]

FORMAT = 1  # of the card; a checkpoint of another format is refused
CONFIGS: dict[str, Any] = {
    config.__name__: config for config in (ModelConfig, RecurrentConfig, StockNetConfig)
}


@dataclass(frozen=True)
class Ensemble:
    """A trained model: the weights of each seed, and what they were trained for.

    `weights` maps each parameter to a tensor with a leading axis of members, in the order of
    `seeds`.
    """

    market: str
    symbols: tuple[str, ...]
    seeds: tuple[int, ...]
    model: NetworkConfig
    windows: WindowConfig
    weights: Weights

    @property
    def is_tied(self) -> bool:
        """Return whether the model has gains for each of its stocks, and so serves no others."""
        if not isinstance(self.model, ModelConfig):
            return False
        return self.model.normalisation == "per_stock"

    def member(self, position: int) -> Weights:
        """Return the weights of one member."""
        return {name: value[position] for name, value in self.weights.items()}


def save_ensemble(ensemble: Ensemble, file: Path, write: WriteWhole) -> str:
    """Write the checkpoint and return its SHA-256, which its run records.

    Raises DtmlError, naming the parameter, for a weight that is NaN or infinite.
    """
    _require_finite(ensemble.weights, f"the model of {ensemble.market} is not saved")
    write_tensors(file, ensemble.weights, _card(ensemble), write)
    return sha256(file)


def checkpoint_hash(ensemble: Ensemble) -> str:
    """Return the SHA-256 that the checkpoint would have; nothing is written."""
    return hash_of(ensemble.weights, _card(ensemble))


def hash_of(tensors: Weights, card: dict[str, Any]) -> str:
    """Return the SHA-256 that a file of these tensors and card would have; nothing is written."""
    return hashlib.sha256(_as_bytes(tensors, card)).hexdigest()


def _card(ensemble: Ensemble) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "market": ensemble.market,
        "symbols": list(ensemble.symbols),
        "seeds": list(ensemble.seeds),
        "network": type(ensemble.model).__name__,
        "model": asdict(ensemble.model),
        "windows": asdict(ensemble.windows),
    }


def load_ensemble(file: Path, *, market: str, sha: str) -> Ensemble:
    """Read the checkpoint whose SHA-256 is `sha`, trained for this market.

    Raises DtmlError, which says what to do, where the file is missing, changed or damaged, where it
    is of another market or format, and where a weight is NaN or infinite.
    """
    if not file.exists():
        raise DtmlError(f"checkpoint {file} does not exist: {_way_out(market)}")
    actual_sha = sha256(file)
    if actual_sha != sha:
        raise DtmlError(
            f"checkpoint {file} has SHA-256 {actual_sha[:12]}..., but its run recorded "
            f"{sha[:12]}...: it was changed or damaged; {_way_out(market)}"
        )
    weights, card = read_tensors(file)
    _require_finite(weights, f"checkpoint {file} cannot be used")
    try:
        if card["format"] != FORMAT:
            raise DtmlError(
                f"checkpoint {file} has format {card['format']}, but this version reads {FORMAT}: "
                "use the version of dtml that wrote it, or train a new model with "
                f"`dtml train {market}`"
            )
        if card["market"] != market:
            raise DtmlError(
                f"checkpoint {file} was trained for market {card['market']}, not {market}: "
                f"train a new model with `dtml train {market}`"
            )
        model_config = CONFIGS[card["network"]]
        return Ensemble(
            market=market,
            symbols=tuple(card["symbols"]),
            seeds=tuple(card["seeds"]),
            model=model_config(**card["model"]),
            windows=WindowConfig(**card["windows"]),
            weights=weights,
        )
    except (KeyError, TypeError) as error:  # an entry of the card is missing, or is unknown here
        reason = " ".join(str(error).split())  # on one line
        raise DtmlError(
            f"checkpoint {file} cannot be used: an entry of its metadata is missing or unknown "
            f"({reason}); use the version of dtml that wrote it, or train a new model with "
            f"`dtml train {market}`"
        ) from error


def _require_finite(weights: Weights, consequence: str) -> None:
    """Raise DtmlError for a weight that is NaN or infinite; `consequence` begins its message."""
    for name, value in weights.items():
        wrong = int((~value.isfinite()).sum())
        if wrong > 0:
            raise DtmlError(
                f"{consequence}: {wrong} of {value.numel()} weights of {name} are NaN or infinite: "
                "train again with a lower learning_rate in [model] of the market's file or, in a "
                "benchmark, whose rate is fixed, look for extreme prices"
            )


def _way_out(market: str) -> str:
    return (
        "restore it from a backup, recreate it from the receipt of one of its predictions with "
        f"`dtml replay RECEIPT --retrain`, or train a new model with `dtml train {market}` (if "
        "[model] of the market's file sets warm_start, delete that first)"
    )


def sha256(file: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_tensors(file: Path, tensors: Weights, card: dict[str, Any], write: WriteWhole) -> None:
    """Write tensors and a JSON card into one safetensors file, whole or not at all."""
    write(file, lambda partial: partial.write_bytes(_as_bytes(tensors, card)))


def _as_bytes(tensors: Weights, card: dict[str, Any]) -> bytes:
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    return save(contiguous, metadata={"card": json.dumps(card, sort_keys=True)})


def read_tensors(file: Path) -> tuple[Weights, dict[str, Any]]:
    """Read the tensors and the card that `write_tensors` wrote; DtmlError for any other file."""
    try:
        with safe_open(file, framework="pt") as stream:
            card = json.loads((stream.metadata() or {})["card"])
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
            return tensors, card
    # JSON that is nested too deeply raises RecursionError.
    except (SafetensorError, KeyError, TypeError, json.JSONDecodeError, RecursionError) as error:
        raise DtmlError(
            f"{file} is not a dtml checkpoint, or is damaged ({error}): restore it from a backup, "
            "or delete it and train again"
        ) from error


def under(prefix: str, parts: Mapping[str, Part]) -> dict[str, Part]:
    """Return the parts whose names begin with a prefix, named without it."""
    return {
        name.removeprefix(prefix): value for name, value in parts.items() if name.startswith(prefix)
    }
