"""Time an epoch of ACL18's DTML, one seed on one thread, against plain programs.

`python -m benchmarks.training_speed`: random days of ACL18's shape (398 days, 87 stocks, windows of
10). The plain network has torch's own `nn.LSTM` and `nn.MultiheadAttention`, and updates its
weights per 64 days as ours does, or after every day as public code does. Each way validates after
its epoch. The ways take turns; medians of three rounds of processor time, which other work on the
machine disturbs least.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from dtml.published import SETS
from dtml.training import Member, fit_members
from dtml.windows import Windows

DAYS = 398
VALIDATION_DAYS = 42
STOCKS = 87
FEATURES = 11
ROUNDS = 3
RECIPE = SETS["acl18"].recipes["dtml"]
HIDDEN = 64
WINDOW = RECIPE.window
BATCH = RECIPE.training.batch_days


class PlainDTML(nn.Module):
    """DTML of the layers that torch has, as public code writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = nn.Linear(FEATURES, HIDDEN)
        self.lstm = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.gain = nn.Parameter(torch.ones(STOCKS, HIDDEN))
        self.offset = nn.Parameter(torch.zeros(STOCKS, HIDDEN))
        self.attention = nn.MultiheadAttention(HIDDEN, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(HIDDEN, 4 * HIDDEN),
            nn.ReLU(),
            nn.Dropout(0.15),
            nn.Linear(4 * HIDDEN, HIDDEN),
        )
        self.predict = nn.Linear(HIDDEN, 1)

    def forward(self, stocks: Tensor, index: Tensor) -> Tensor:
        """Return logits `[days, stocks]` from `[days, stocks, window, features]` and the index."""
        rows = torch.cat([stocks, index.unsqueeze(1)], dim=1)
        states, _ = self.lstm(self.transform(rows.flatten(0, 1)).tanh())
        weights = (states @ states[:, -1:].mT).softmax(dim=1)
        contexts = (weights * states).sum(dim=1).unflatten(0, rows.shape[:2])
        own = contexts[:, :-1]
        market = contexts[:, -1:]
        mean = own.mean(dim=(1, 2), keepdim=True)
        deviation = own.std(dim=(1, 2), keepdim=True)
        normalised = self.gain * (own - mean) / deviation + self.offset
        h = normalised + 0.1 * market
        attended, _ = self.attention(h, h, h, need_weights=False)
        mixed = h + attended
        return self.predict((mixed + self.mlp(mixed)).tanh()).squeeze(-1)


def random_windows(days: int, seed: int, stocks: int = STOCKS, features: int = FEATURES) -> Windows:
    """Return random windows, every stock observed and every return labelled."""
    generator = torch.Generator().manual_seed(seed)
    sessions = pd.bdate_range("2014-01-02", periods=days + 1).as_unit("ns")
    rows = torch.randn(days + WINDOW - 1, stocks + 1, features, generator=generator)
    change = 0.02 * torch.randn(days, stocks, generator=generator).sign()
    observed = torch.ones(days, stocks, dtype=torch.bool)
    names = tuple(f"S{number:02}" for number in range(stocks))
    return Windows(rows, WINDOW, observed, change, sessions[:-1], sessions[1:], names)


def plain_epoch(
    model: PlainDTML,
    optimiser: torch.optim.Adam,
    windows: Windows,
    validation: Windows,
    days_a_step: int,
) -> float:
    """Train on each day once; return the accuracy on the validation days."""
    rises = windows.rises().float()
    model.train()
    for days in torch.randperm(DAYS, device=rises.device).split(days_a_step):
        logits = model(windows.stocks[days], windows.index[days])
        loss = nn.functional.binary_cross_entropy_with_logits(logits, rises[days])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        predicted_rises = model(validation.stocks, validation.index) > 0
    return float((predicted_rises == validation.rises()).float().mean())


def processor_seconds(work: Callable[[], object]) -> float:
    """Return the processor time that a run takes, in seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Print the seconds of each way, and how many times as fast ours is."""
    from translation.environment import prepare_torch

    prepare_torch()
    torch.set_num_threads(1)
    windows = random_windows(DAYS, 0)
    validation = random_windows(VALIDATION_DAYS, 1)
    model = PlainDTML()
    optimiser = torch.optim.Adam(model.parameters(), fused=True)
    plain = partial(plain_epoch, model, optimiser, windows, validation)
    member = Member(0, RECIPE.model, replace(RECIPE.training, epochs=1))
    ways: dict[str, Callable[[], object]] = {
        f"nn.LSTM, {BATCH} days a step": partial(plain, BATCH),
        "nn.LSTM, a day a step": partial(plain, 1),
        "ours": partial(fit_members, windows, validation, [member], device=torch.device("cpu")),
    }
    rounds = [
        {name: processor_seconds(way) for name, way in ways.items()} for _ in range(ROUNDS + 1)
    ]
    del rounds[0]  # it warms up
    for name in ways:
        seconds = statistics.median(each[name] for each in rounds)
        ratio = statistics.median(each[name] / each["ours"] for each in rounds)
        print(f"{name}: {seconds:.2f} s; ours is {ratio:.2f} times as fast")


if __name__ == "__main__":
    main()
