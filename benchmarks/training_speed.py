"""Time the training of 10 seeds of ACL18's DTML: against a day at a time with torch's own layers, and a seed at a time.

Random days of ACL18's shape (398 days, 87 stocks, windows of 10). Medians of three, in stock-days a second; the share
of the machine's peak counts the matrix products that the network needs, forward and twice that backward.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from dtml.inference import choose_device
from dtml.published import ACL18
from dtml.training.fit import Span, _fit_stack, fit_members, no_report
from dtml.training.recipe import Member
from dtml.training.state import start
from dtml.windows import Windows

DAYS, STOCKS, FEATURES, SEEDS, REPEATS, EPOCHS = 398, 87, 11, 10, 3, 4
RECIPE = ACL18.recipes["dtml"]
HIDDEN, WINDOW, BATCH = 64, RECIPE.window, RECIPE.training.batch_days
PLAIN_DAYS = 60  # of the day-at-a-time loop that are timed


class PlainDTML(nn.Module):
    """DTML for one day, of the layers that torch has, as public code writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = nn.Linear(FEATURES, HIDDEN)
        self.lstm = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.gain = nn.Parameter(torch.ones(STOCKS, HIDDEN))
        self.offset = nn.Parameter(torch.zeros(STOCKS, HIDDEN))
        self.attention = nn.MultiheadAttention(HIDDEN, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(HIDDEN, 4 * HIDDEN), nn.ReLU(), nn.Dropout(0.15), nn.Linear(4 * HIDDEN, HIDDEN)
        )
        self.predict = nn.Linear(HIDDEN, 1)

    def forward(self, stocks: Tensor, index: Tensor) -> Tensor:
        """Return the logits of the stocks of one day."""
        states, _ = self.lstm(self.transform(torch.cat([stocks, index.unsqueeze(0)])).tanh())
        weights = (states @ states[:, -1:].mT).softmax(dim=1)
        contexts = (weights * states).sum(dim=1)
        own = contexts[:-1]
        h = self.gain * (own - own.mean()) / own.std() + self.offset + 0.1 * contexts[-1]
        mixed = h + self.attention(h, h, h, need_weights=False)[0]
        return self.predict((mixed + self.mlp(mixed)).tanh()).squeeze(-1)


def random_windows(days: int, seed: int) -> Windows:
    """Return windows without meaning, every stock observed and every return labelled."""
    generator = torch.Generator().manual_seed(seed)
    sessions = pd.bdate_range("2014-01-02", periods=days + 1).as_unit("ns")
    views = torch.randn(days + WINDOW - 1, STOCKS + 1, FEATURES, generator=generator)
    views = views.unfold(0, WINDOW, 1).permute(0, 1, 3, 2)
    change = 0.02 * torch.randn(days, STOCKS, generator=generator).sign()
    observed = torch.ones(days, STOCKS, dtype=torch.bool)
    names = tuple(f"S{number:02}" for number in range(STOCKS))
    return Windows(views[:, :-1], views[:, -1], observed, change, sessions[:-1], sessions[1:], names)


def day_at_a_time(windows: Windows) -> float:
    """Return the stock-days a second of one model that takes a step a day, on all cores."""
    model = PlainDTML()
    optimiser = torch.optim.Adam(model.parameters())
    rises = windows.rises().float()
    begun = time.perf_counter()
    for day in range(PLAIN_DAYS):
        logits = model(windows.stocks[day], windows.index[day])
        loss = nn.functional.binary_cross_entropy_with_logits(logits, rises[day])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return PLAIN_DAYS * STOCKS / (time.perf_counter() - begun)


def stack(windows: Windows, validation: Windows, device: torch.device, *, together: bool) -> float:
    """Return the stock-days a second of epochs of all seeds: together, or one seed after the other on all cores."""
    training = RECIPE.training
    members = [Member(seed, RECIPE.model, replace(training, epochs=EPOCHS)) for seed in range(SEEDS)]
    begun = time.perf_counter()
    if together:
        fit_members(windows, validation, members, device=device)
    else:
        for member in members:
            one_at_a_time(windows, validation, member, device)
    return EPOCHS * SEEDS * DAYS * STOCKS / (time.perf_counter() - begun)


def one_at_a_time(windows: Windows, validation: Windows, member: Member, device: torch.device) -> None:
    """Train one seed at a time, each operation on all cores."""
    fit = start(member, STOCKS, device)
    spans = Span.of(windows, "paper", device), Span.of(validation, "paper", device)
    deque(_fit_stack([fit], *spans, None, no_report), maxlen=0)


def needed_products(windows: Windows) -> float:
    """Count the floating-point operations of a seed's epoch: twice the multiplications, thrice for both passes."""
    span = Span.of(windows, "paper", torch.device("cpu"))
    total = 0
    for days in span.days.split(BATCH):
        sessions = span.batch(days.unsqueeze(0), [0]).rows.shape[1]
        rows, symbols = len(days) * STOCKS, STOCKS + 1
        total += sessions * symbols * (FEATURES * HIDDEN + 4 * HIDDEN**2)  # features and gates, once a session
        total += len(days) * symbols * (WINDOW - 1) * 4 * HIDDEN**2  # the recurrence
        total += rows * (3 + 8) * HIDDEN**2 + 2 * rows * STOCKS * HIDDEN  # attention and feed-forward
    return 6.0 * total


def peak(threads: int) -> float:
    """Return the floating-point operations a second of square products, one a thread."""
    size, times = 1024, 20

    def work(_: int) -> None:
        a, b = torch.randn(size, size), torch.randn(size, size)
        for _ in range(times):
            a @ b

    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(work, range(threads)))
        begun = time.perf_counter()
        list(pool.map(work, range(threads)))
    return threads * times * 2 * size**3 / (time.perf_counter() - begun)


def median(work: Callable[[], float]) -> float:
    """Return the median of `REPEATS` runs."""
    return statistics.median(work() for _ in range(REPEATS))


def main() -> None:
    """Print the paces, their ratios and the share of the peak."""
    from flows.settings import prepare_torch

    prepare_torch()
    device = choose_device("auto")
    threads = torch.get_num_threads()
    windows, validation = random_windows(DAYS, 0), random_windows(42, 1)
    plain = median(partial(day_at_a_time, windows))
    single = median(partial(stack, windows, validation, device, together=False))
    together = median(partial(stack, windows, validation, device, together=True))
    print(f"a day at a time, nn.LSTM and nn.MultiheadAttention, {threads} cores: {plain:,.0f} stock-days/s")
    print(f"64 days a step, a seed at a time, {threads} cores: {single:,.0f}")
    print(f"64 days a step, 10 seeds as one stack on {device}: {together:,.0f}")
    print(f"ratios: {together / plain:.1f} and {together / single:.2f}")
    if device.type == "cpu":
        share = together / (DAYS * STOCKS) * needed_products(windows) / median(lambda: peak(threads))
        print(
            f"share of the {threads}-thread matrix-product peak: {share:.2f} (validation's time counted, not its work)"
        )


if __name__ == "__main__":
    main()
