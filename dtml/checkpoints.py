"""Trained weights on disk: tensors with a JSON card, which can run no code."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dtml.errors import DtmlError, one_line
from dtml.network import Network, NetworkConfig
from dtml.networks import CONFIGS
from dtml.windows import WindowConfig
from translation import artifacts
from translation.artifacts import ArtifactError, Card, Tensors

FORMAT = 1  # of the card; a checkpoint of another one is refused


@dataclass(frozen=True)
class Ensemble:
    """A trained model: the weights of each seed, and what they were trained for.

    Each parameter has a leading axis of members, in the order of `seeds`.
    """

    market: str
    symbols: tuple[str, ...]
    seeds: tuple[int, ...]
    model: NetworkConfig
    windows: WindowConfig
    weights: Tensors

    def member(self, position: int) -> Tensors:
        """Return the weights of one member."""
        return {name: value[position] for name, value in self.weights.items()}

    def network(self, position: int) -> Network:
        """Return the network of one member; raises DtmlError where the weights do not fit."""
        network = self.model.build(len(self.symbols))
        try:
            network.load_state_dict(self.member(position))
        except (RuntimeError, IndexError) as error:
            reason = one_line(error)
            raise DtmlError(
                f"the weights of {self.market} do not fit its model ({reason}): train a new model "
                f"with `dtml train {self.market}`"
            ) from error
        return network.eval()


def save_ensemble(ensemble: Ensemble, file: Path) -> str:
    """Write the checkpoint; return its SHA-256. Raises DtmlError for an infinite weight."""
    _require_finite(ensemble.weights, f"the model of {ensemble.market} is not saved")
    return artifacts.write(file, ensemble.weights, _card(ensemble))


def checkpoint_hash(ensemble: Ensemble) -> str:
    """Return the SHA-256 that the checkpoint would have; nothing is written."""
    return artifacts.hash_of(ensemble.weights, _card(ensemble))


def _card(ensemble: Ensemble) -> Card:
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

    Raises DtmlError as `read_checkpoint`, and for a weight that is not finite.
    """
    weights, card = read_checkpoint(
        file,
        market=market,
        sha=sha,
        remedy="restore it from a backup, recreate it from the receipt of one of its predictions "
        f"with `dtml replay RECEIPT --retrain`, or train a new model with `dtml train {market}` "
        "(if [model] of the market's file sets warm_start, delete that first)",
    )
    _require_finite(weights, f"checkpoint {file} cannot be used")
    try:
        if card["format"] != FORMAT:
            raise KeyError(f"format {card['format']}")
        model_config: Any = CONFIGS[card["network"]]
        return Ensemble(
            market=market,
            symbols=tuple(card["symbols"]),
            seeds=tuple(card["seeds"]),
            model=model_config(**card["model"]),
            windows=WindowConfig(**card["windows"]),
            weights=weights,
        )
    except (KeyError, TypeError) as error:  # an entry of the card is missing, or is unknown here
        reason = one_line(error)
        raise DtmlError(
            f"checkpoint {file} cannot be used: an entry of its metadata is missing or unknown "
            f"({reason}); use the version of dtml that wrote it, or train a new model with "
            f"`dtml train {market}`"
        ) from error


def read_checkpoint(file: Path, *, market: str, sha: str, remedy: str) -> tuple[Tensors, Card]:
    """Read the tensors and the card of a checkpoint of this market, whose SHA-256 is `sha`.

    Raises DtmlError, with the `remedy`, where it is missing, changed, damaged or another market's.
    """
    try:
        tensors, card = artifacts.read(file, sha)
        trained_for = card["market"]
    except (ArtifactError, KeyError, TypeError) as error:
        raise DtmlError(f"checkpoint {file} cannot be used: {error}; {remedy}") from error
    if trained_for != market:
        raise DtmlError(
            f"checkpoint {file} was trained for market {trained_for}, not {market}: train anew "
            f"with `dtml train {market}`"
        )
    return tensors, card


def _require_finite(weights: Tensors, consequence: str) -> None:
    """Raise DtmlError for a weight that is NaN or infinite; `consequence` begins its message."""
    fault = artifacts.not_finite(weights)
    if fault is not None:
        raise DtmlError(
            f"{consequence}: {fault}: train again with a lower learning_rate in [model] of the "
            "market's file or, in a benchmark, whose rate is fixed, look for extreme prices"
        )
