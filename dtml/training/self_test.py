"""Train a small DTML on a device and on the CPU, and compare: does this machine
compute what it should?
"""

import pandas as pd
import torch

from dtml.checkpoints import Ensemble
from dtml.errors import DtmlError
from dtml.inference import member_probabilities
from dtml.model import ModelConfig
from dtml.training.fit import EpochReport, fit_members, no_report, stack_members
from dtml.training.recipe import Epoch, Member, TrainingConfig
from dtml.training.state import Fit, StateFolder
from dtml.windows import WindowConfig, Windows

DAYS, STOCKS, WINDOW, FEATURES = 96, 13, 5, 11
# of probabilities, on another device than the CPU: its sums round otherwise, epoch after epoch
TOLERANCE = 1e-3


def self_test(device: torch.device, folder: StateFolder) -> str:
    """Train, interrupt, resume and predict on `device`; return in words how far that is from the
    CPU.

    `folder` keeps the state of the interrupted training. Raises DtmlError when a resumed training
    ends otherwise than an undisturbed one, or the probabilities are not those of the CPU.
    """
    cpu = torch.device("cpu")
    allowed = 0.0 if device == cpu else TOLERANCE
    whole = _probabilities(_trained(device, None), device)
    apart = _apart(_probabilities(_interrupted(device, folder), device), whole)
    if not apart <= allowed:
        raise DtmlError(
            f"a training that was resumed ends {apart:.1e} from one that was not interrupted"
        )
    apart = _apart(whole, _probabilities(_trained(cpu, None), cpu))
    if not apart <= allowed:
        raise DtmlError(
            f"the probabilities of a training are {apart:.1e} from those of another on the CPU"
        )
    said = "equal to the last bit" if apart == 0 else f"within {apart:.0e} of the CPU"
    return f"trained, resumed and predicted, {said}"


def _windows() -> Windows:
    """Return random days whose outcome is the first feature of the last session, with noise."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(DAYS + WINDOW - 1, STOCKS + 1, FEATURES, generator=generator)
    windows = rows.unfold(0, WINDOW, 1).movedim(-1, -2)  # days, symbols, window, features
    noise = torch.randn(DAYS, STOCKS, generator=generator)
    sessions = pd.bdate_range("2024-01-01", periods=DAYS + 1)
    observed, movement = (
        torch.ones(DAYS, STOCKS, dtype=torch.bool),
        (windows[:, :-1, -1, 0] + noise) / 100,
    )
    symbols = tuple(f"S{number:02d}" for number in range(STOCKS))
    return Windows(
        windows[:, :-1], windows[:, -1], observed, movement, sessions[:-1], sessions[1:], symbols
    )


def _trained(
    device: torch.device, folder: StateFolder | None, on_epoch: EpochReport = no_report
) -> list[Fit]:
    model = ModelConfig(features=FEATURES, hidden=8, heads=2, dropout=0.0)
    training = TrainingConfig(
        protocol="all", epochs=4, batch_days=16, first_kept_epoch=1, penalty=0.0
    )
    members, days = [Member(seed, model, training) for seed in (1, 2)], _windows()
    train, validation = days.days(slice(0, 64)), days.days(slice(64, DAYS))
    return fit_members(
        train, validation, members, device=device, state_folder=folder, on_epoch=on_epoch
    )


class _Interrupted(Exception):  # noqa: N818 - it is no error
    """The training was interrupted on purpose."""


def _interrupted(device: torch.device, folder: StateFolder) -> list[Fit]:
    def interrupt(_member: Member, epoch: Epoch) -> None:
        if epoch.number == 2:
            raise _Interrupted

    try:
        _trained(device, folder, interrupt)
    except _Interrupted:
        return _trained(device, folder)
    raise DtmlError("a training could not be interrupted")


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


def _probabilities(fits: list[Fit], device: torch.device) -> torch.Tensor:
    windows = _windows()
    seeds, weights = tuple(fit.member.seed for fit in fits), stack_members(fits)
    ensemble = Ensemble(
        "self-test", windows.symbols, seeds, fits[0].member.model, WindowConfig(WINDOW), weights
    )
    return member_probabilities(ensemble, windows, device).cpu()
