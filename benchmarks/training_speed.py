"""Time the training of 10 seeds of ACL18's DTML against the strongest plain way.

That is a process for each seed and 64 days a step, on random days of ACL18's shape (398 days, 87
stocks, windows of 10), in stock-days a second. The plain network has torch's own `nn.LSTM` and
`nn.MultiheadAttention`; as many processes run as there are cores, with a thread each. Beside it:
the same network a day at a time on all cores, as public code trains. Every way but that validates
after each epoch. The ways take turns; medians of three rounds. The share of the machine's peak
counts the matrix products that the network needs if each session is projected once a step, forward
and twice that backward.

First, and with `--one-thread` only, one seed on one thread by processor time: other work on the
machine disturbs that least, and it is what each core does in the ways above.

`--device cuda` compares on a GPU instead: the plain network with its windows on the GPU, a seed
after the other, in float32 and with bfloat16 products, against our seeds side by side. Both run
with the product's deterministic kernels.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context

import pandas as pd
import torch
from torch import Tensor, nn

from dtml.inference import choose_device
from dtml.published import SETS
from dtml.training import Member, Span, fit_members
from dtml.windows import Windows

DAYS = 398
VALIDATION_DAYS = 42
STOCKS = 87
FEATURES = 11
SEEDS = 10
REPEATS = 3
EPOCHS = 4
RECIPE = SETS["acl18"].recipes["dtml"]
HIDDEN = 64
WINDOW = RECIPE.window
BATCH = RECIPE.training.batch_days
PLAIN_DAYS = 60  # that the day-at-a-time loop is timed on


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


def random_windows(days: int, seed: int) -> Windows:
    """Return random windows, every stock observed and every return labelled."""
    generator = torch.Generator().manual_seed(seed)
    sessions = pd.bdate_range("2014-01-02", periods=days + 1).as_unit("ns")
    rows = torch.randn(days + WINDOW - 1, STOCKS + 1, FEATURES, generator=generator)
    change = 0.02 * torch.randn(days, STOCKS, generator=generator).sign()
    observed = torch.ones(days, STOCKS, dtype=torch.bool)
    names = tuple(f"S{number:02}" for number in range(STOCKS))
    return Windows(rows, WINDOW, observed, change, sessions[:-1], sessions[1:], names)


def day_at_a_time(windows: Windows) -> float:
    """Return the stock-days a second of one model that takes a step a day, on all cores."""
    start = time.perf_counter()
    model = PlainDTML()
    plain_epoch(model, adam(model), windows, torch.arange(PLAIN_DAYS).split(1))
    return PLAIN_DAYS * STOCKS / (time.perf_counter() - start)


def seed_after_seed(windows: Windows, validation: Windows, *, bfloat16: bool) -> float:
    """Return the stock-days a second of the plain network on a GPU that holds the windows."""
    device = windows.rows.device
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        model = PlainDTML().to(device)
        optimiser = adam(model)
        for _ in range(EPOCHS):
            batches = torch.randperm(DAYS, device=device).split(BATCH)
            with torch.autocast("cuda", torch.bfloat16, enabled=bfloat16):
                plain_epoch(model, optimiser, windows, batches)
                plain_validation(model, validation)
    torch.cuda.synchronize(device)
    return EPOCHS * SEEDS * DAYS * STOCKS / (time.perf_counter() - start)


def on_device(windows: Windows, device: torch.device) -> Windows:
    """Return the windows with their tensors on a device."""
    return replace(
        windows,
        rows=windows.rows.to(device),
        observed=windows.observed.to(device),
        movement=windows.movement.to(device),
    )


def adam(model: PlainDTML) -> torch.optim.Adam:
    """Return the optimiser of a plain network."""
    return torch.optim.Adam(model.parameters(), fused=True)


def plain_epoch(
    model: PlainDTML, optimiser: torch.optim.Adam, windows: Windows, batches: Sequence[Tensor]
) -> None:
    """Take a step for each batch of days."""
    rises = windows.rises().float()
    model.train()
    for days in batches:
        logits = model(windows.stocks[days], windows.index[days])
        loss = nn.functional.binary_cross_entropy_with_logits(logits, rises[days])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@torch.no_grad()
def plain_validation(model: PlainDTML, windows: Windows) -> float:
    """Return the accuracy on a span."""
    model.eval()
    predicted_rises = model(windows.stocks, windows.index) > 0
    return float((predicted_rises == windows.rises()).float().mean())


def prepare_process() -> None:
    """Set a process of the strongest plain way up: one thread, and the memory settings of ours."""
    from translation.environment import prepare_torch

    prepare_torch()
    torch.set_num_threads(1)


def plain_seed(seed: int) -> tuple[float, float]:
    """Train a seed in this process; return when its first epoch began and its last ended."""
    windows = random_windows(DAYS, 0)
    validation = random_windows(VALIDATION_DAYS, 1)
    torch.manual_seed(seed)
    model = PlainDTML()
    optimiser = adam(model)
    start = time.monotonic()  # one clock for all processes of a machine
    for _ in range(EPOCHS):
        plain_epoch(model, optimiser, windows, torch.randperm(DAYS).split(BATCH))
        plain_validation(model, validation)
    return start, time.monotonic()


def process_a_seed(pool: ProcessPoolExecutor) -> float:
    """Return the stock-days a second of a process a seed, 64 days a step.

    The time runs from the first epoch of any seed, so that making the data does not count.
    """
    spans = list(pool.map(plain_seed, range(SEEDS)))
    first_start = min(start for start, _ in spans)
    last_end = max(end for _, end in spans)
    return EPOCHS * SEEDS * DAYS * STOCKS / (last_end - first_start)


def members() -> list[Member]:
    """Return the seeds to train."""
    training = replace(RECIPE.training, epochs=EPOCHS)
    return [Member(seed, RECIPE.model, training) for seed in range(SEEDS)]


def side_by_side(windows: Windows, validation: Windows, device: torch.device) -> float:
    """Return the stock-days a second of epochs of all seeds."""
    start = time.perf_counter()
    fit_members(windows, validation, members(), device=device)
    return EPOCHS * SEEDS * DAYS * STOCKS / (time.perf_counter() - start)


def one_thread(windows: Windows, validation: Windows) -> None:
    """Print the processor time of a seed's epoch on one thread, plain and ours, with ratios."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = PlainDTML()
    optimiser = adam(model)
    member = replace(members()[0], training=replace(RECIPE.training, epochs=1))

    def plain(batch: int) -> None:
        plain_epoch(model, optimiser, windows, torch.randperm(DAYS).split(batch))
        plain_validation(model, validation)

    ways: dict[str, Callable[[], object]] = {
        f"nn.LSTM, {BATCH} days a step": partial(plain, BATCH),
        "nn.LSTM, a day a step": partial(plain, 1),
        f"ours, {BATCH} days a step": partial(
            fit_members, windows, validation, [member], device=torch.device("cpu")
        ),
    }
    all_rounds = [
        {name: processor_seconds(way) for name, way in ways.items()} for _ in range(REPEATS + 1)
    ]
    rounds = all_rounds[1:]
    torch.set_num_threads(threads)
    ours = list(ways)[-1]
    print(f"a seed's epoch on one thread, processor time, medians of {REPEATS}")
    for name in ways:
        median_seconds = statistics.median(round_[name] for round_ in rounds)
        ratio = statistics.median(round_[name] / round_[ours] for round_ in rounds)
        comparison = "" if name == ours else f"; ours is {ratio:.2f} times as fast"
        print(f"{name}: {median_seconds:.2f} s{comparison}", flush=True)


def processor_seconds(work: Callable[[], object]) -> float:
    """Return the processor time that a run takes, in seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


def needed_products(windows: Windows) -> float:
    """Return the number of floating-point operations of a seed's epoch.

    That is two for each multiplication, and three times as many for both passes as forward.
    """
    span = Span.of(windows, "published", torch.device("cpu"))
    total = 0
    for days in span.days.split(BATCH):
        sessions = len(span.batch(days).rows)
        rows = len(days) * STOCKS
        symbols = STOCKS + 1
        # features and gates, once a session
        total += sessions * symbols * (FEATURES * HIDDEN + 4 * HIDDEN**2)
        total += len(days) * symbols * (WINDOW - 1) * 4 * HIDDEN**2  # the recurrence
        # attention and feed-forward
        total += rows * (3 + 8) * HIDDEN**2 + 2 * rows * STOCKS * HIDDEN
    return 6.0 * total


def peak(threads: int) -> float:
    """Return the floating-point operations a second of square products, one a thread."""
    size = 1024
    times = 20

    def work(_: int) -> None:
        a = torch.randn(size, size)
        b = torch.randn(size, size)
        for _ in range(times):
            a @ b

    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(work, range(threads)))
        start = time.perf_counter()
        list(pool.map(work, range(threads)))
    return threads * times * 2 * size**3 / (time.perf_counter() - start)


def compare_on_gpu(windows: Windows, validation: Windows, device: torch.device) -> None:
    """Print the paces of the plain network and of ours on a GPU, and their ratios."""
    there = on_device(windows, device)
    validation_there = on_device(validation, device)
    plain = partial(seed_after_seed, there, validation_there)
    ours = f"ours, {BATCH} days a step, {SEEDS} seeds side by side on {device}"
    print_paces(
        {
            f"nn.LSTM, {BATCH} days a step, float32": partial(plain, bfloat16=False),
            f"nn.LSTM, {BATCH} days a step, bfloat16": partial(plain, bfloat16=True),
            ours: partial(side_by_side, windows, validation, device),
        },
        warm_up=True,
    )


def compare_on_cores(windows: Windows, validation: Windows) -> None:
    """Print the paces of the plain ways and of ours on all cores, and the share of their peak."""
    threads = torch.get_num_threads()
    device = torch.device("cpu")
    ours = f"ours, {BATCH} days a step, {SEEDS} seeds side by side on {device}"
    with ProcessPoolExecutor(threads, get_context("spawn"), prepare_process) as pool:
        pace = print_paces(
            {
                f"nn.LSTM, {BATCH} days a step, a process a seed, {threads} at a time": partial(
                    process_a_seed, pool
                ),
                f"nn.LSTM, a day a step, one seed on {threads} cores": partial(
                    day_at_a_time, windows
                ),
                ours: partial(side_by_side, windows, validation, device),
            }
        )
    peak_rate = statistics.median(peak(threads) for _ in range(REPEATS))
    share = pace / (DAYS * STOCKS) * needed_products(windows) / peak_rate
    print(
        f"share of the {threads}-thread matrix-product peak: {share:.2f} (validation's time "
        "counted, not its work)"
    )


def print_paces(ways: dict[str, Callable[[], float]], *, warm_up: bool = False) -> float:
    """Print the median stock-days a second of each way; return that of the last one, ours."""
    all_rounds = [{name: way() for name, way in ways.items()} for _ in range(REPEATS + warm_up)]
    rounds = all_rounds[warm_up:]
    ours = list(ways)[-1]
    paces = {name: statistics.median(round_[name] for round_ in rounds) for name in ways}
    for name, pace in paces.items():
        ratio = statistics.median(round_[ours] / round_[name] for round_ in rounds)
        comparison = "" if name == ours else f"; ours is {ratio:.2f} times as fast"
        print(f"{name}: {pace:,.0f} stock-days/s{comparison}", flush=True)
    return paces[ours]


def main() -> None:
    """Print the paces, their ratios and the share of the peak."""
    from translation.environment import prepare_torch

    prepare_torch()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--one-thread", action="store_true", help="compare only on one thread")
    options = parser.parse_args()
    device = choose_device(options.device)
    windows = random_windows(DAYS, 0)
    validation = random_windows(VALIDATION_DAYS, 1)
    if device.type == "cuda":
        compare_on_gpu(windows, validation, device)
        return
    one_thread(windows, validation)
    if not options.one_thread:
        compare_on_cores(windows, validation)


if __name__ == "__main__":
    main()
