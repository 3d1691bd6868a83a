"""Train a small DTML on a device and on the CPU, to test that this machine computes correctly."""

from contextlib import suppress
from pathlib import Path

import pandas as pd
import torch

from dtml.checkpoints import Ensemble
from dtml.errors import DtmlError
from dtml.inference import member_probabilities
from dtml.model import ModelConfig
from dtml.training import (
    Epoch,
    EpochReport,
    Fit,
    Member,
    TrainingConfig,
    fit_members,
    no_report,
    stack_members,
)
from dtml.windows import WindowConfig, Windows

DAYS = 96
TRAIN_DAYS = 64  # the others are the validation span
STOCKS = 13
WINDOW = 5
FEATURES = 11
# The difference of probabilities that is allowed on a device other than the CPU: its sums round
# differently in every epoch.
TOLERANCE = 1e-3


def self_test(device: torch.device, folder: Path) -> str:
    """Train, interrupt, resume and predict on `device`; say how far that is from the CPU.

    Raises DtmlError when the resumed training ends differently, or the probabilities differ from
    the CPU's: by a bit on the CPU, by `TOLERANCE` elsewhere.
    """
    cpu = torch.device("cpu")
    allowed = 0.0 if device == cpu else TOLERANCE
    undisturbed = _probabilities(_trained(device, dropout=0.1), device)
    with suppress(_Interrupted):
        _trained(device, folder, _interrupt, dropout=0.1)
    resumed = _probabilities(_trained(device, folder, dropout=0.1), device)
    distance = float((resumed - undisturbed).abs().max())
    if not distance <= allowed:  # also where the distance is NaN
        raise DtmlError(
            f"on {device}, a training that was interrupted and resumed gives probabilities that "
            f"differ by {distance:.1e} from those of an uninterrupted one (allowed: {allowed:g}): "
            "train without interruption or on another device"
        )
    # Without dropout, for which a GPU and a CPU would draw different random numbers.
    on_device = _probabilities(_trained(device), device)
    distance = float((on_device - _probabilities(_trained(cpu), cpu)).abs().max())
    if not distance <= allowed:
        raise DtmlError(
            f"a training on {device} gives probabilities that differ by {distance:.1e} from those "
            f"of an equal one on the CPU (allowed: {allowed:g}): "
            + (
                "test this machine's memory and processor, or use another machine"
                if device == cpu
                else "use --device cpu"
            )
        )
    if distance == 0:
        return "trained, resumed and predicted, equal to the last bit"
    return f"trained, resumed and predicted, within {distance:.0e} of the CPU"


def _windows() -> Windows:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(DAYS + WINDOW - 1, STOCKS + 1, FEATURES, generator=generator)
    noise = torch.randn(DAYS, STOCKS, generator=generator)
    first_feature = rows[WINDOW - 1 :, :-1, 0]  # of each stock in the last session of a window
    sessions = pd.bdate_range("2024-01-01", periods=DAYS + 1)
    return Windows(
        rows=rows,
        window=WINDOW,
        observed=torch.ones(DAYS, STOCKS, dtype=torch.bool),
        movement=(first_feature + noise) / 100,
        as_of=sessions[:-1],
        target=sessions[1:],
        symbols=tuple(f"S{number:02d}" for number in range(STOCKS)),
    )


def _trained(
    device: torch.device,
    folder: Path | None = None,
    on_epoch: EpochReport = no_report,
    *,
    dropout: float = 0.0,
) -> list[Fit]:
    """Train small members of seeds 1 and 2 on random days, resuming from a `folder`.

    The steps of an epoch have 12 days, but for the last, which has 4.
    """
    model = ModelConfig(features=FEATURES, hidden=8, heads=2, dropout=dropout)
    training = TrainingConfig(
        protocol="all", epochs=5, batch_days=12, first_kept_epoch=1, penalty=0.0
    )
    windows = _windows()
    return fit_members(
        train=windows.days(slice(0, TRAIN_DAYS)),
        validation=windows.days(slice(TRAIN_DAYS, DAYS)),
        members=[Member(seed, model, training) for seed in (1, 2)],
        device=device,
        state_folder=folder,
        on_epoch=on_epoch,
    )


class _Interrupted(Exception):  # noqa: N818 - it is no error
    """The training was interrupted on purpose."""


def _interrupt(_member: Member, epoch: Epoch) -> None:
    if epoch.number == 2:
        raise _Interrupted


def _probabilities(fits: list[Fit], device: torch.device) -> torch.Tensor:
    windows = _windows()
    ensemble = Ensemble(
        market="self-test",
        symbols=windows.symbols,
        seeds=tuple(fit.member.seed for fit in fits),
        model=fits[0].member.model,
        windows=WindowConfig(window=WINDOW),
        weights=stack_members(fits),
    )
    return member_probabilities(ensemble, windows, device)
