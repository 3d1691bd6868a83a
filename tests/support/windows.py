"""Random windows of five stocks, a small model to train on them, and bars to make windows of."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from dtml.model import ModelConfig
from dtml.training import TrainingConfig
from dtml.windows import Windows

DAYS, STOCKS, WINDOW, FEATURES = 41, 5, 3, 11
MODEL = ModelConfig(hidden=14, heads=2)
RECIPE = TrainingConfig(protocol="all", epochs=5, batch_days=7, first_kept_epoch=2)
CPU = torch.device("cpu")


def random_windows(days: int = DAYS, seed: int = 0) -> Windows:
    generator = torch.Generator().manual_seed(seed)
    sessions = pd.bdate_range("2021-01-01", periods=days + 1).as_unit("ns")
    observed = torch.rand(days, STOCKS, generator=generator) < 0.9
    observed[3] = False  # a day on which nothing can be seen
    rows = torch.randn(days + WINDOW - 1, STOCKS + 1, FEATURES, generator=generator)
    return Windows(
        rows=rows,
        window=WINDOW,
        observed=observed,
        movement=0.02 * torch.randn(days, STOCKS, generator=generator),
        as_of=sessions[:-1],
        target=sessions[1:],
        symbols=tuple("ABCDE"),
    )


def in_double(windows: Windows) -> Windows:
    """The same windows in float64, for a training of which every digit is compared."""
    return replace(windows, rows=windows.rows.double(), movement=windows.movement.double())


TRAIN, VALIDATION = random_windows(), random_windows(13, seed=1)


def random_bars(symbols: Iterable[str], sessions: pd.DatetimeIndex, seed: int = 0) -> pd.DataFrame:
    """Bars of a random walk for every symbol on all sessions."""
    generator = np.random.default_rng(seed)
    parts = []
    for symbol in symbols:
        close = 50 * np.exp(np.cumsum(0.02 * generator.standard_normal(len(sessions))))
        parts.append(pd.DataFrame({"symbol": symbol, "session": sessions, "close": close}))
    bars = pd.concat(parts, ignore_index=True)
    close = bars["close"]
    bars = bars.assign(open=close * 1.002, high=close * 1.01, low=close * 0.98)
    return bars.assign(adj_close=close * 0.9, volume=np.nan)
