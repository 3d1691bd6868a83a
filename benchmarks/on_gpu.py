"""Measure a GPU at work: correctness, trainings, a night, a translator, and what bounds a step.

`python -m benchmarks.on_gpu [PART ...] [--device cuda] [--folder results/gpu] [--rounds 5]
[--small]`: all parts, or those named, each of which is saved to a file of its own as soon as it is
measured. Ways take turns; figures are medians of rounds. `--small --device cpu` rehearses it on a
machine without a GPU. "alone" is how a GPU trained before: each seed by itself, three at a time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import training_speed
from benchmarks.training_speed import PlainDTML, plain_epoch, random_windows
from dtml import training as fitting
from dtml.checkpoints import Ensemble
from dtml.devices import choose_device, name_of
from dtml.errors import DtmlError
from dtml.inference import member_probabilities
from dtml.model import ModelConfig
from dtml.network import NetworkConfig
from dtml.published import SETS
from dtml.ranking.relative import RelativeConfig
from dtml.self_test import self_test
from dtml.span import Span
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
from translation.data.batches import Batch, batch_indices, batch_of
from translation.data.corpus import Examples, Sentences
from translation.training.distributed import SINGLE_PROCESS
from translation.training.loop import TrainingConfig as LoopConfig
from translation.training.loop import training_step_of
from translation.training.step import TrainingStep
from translation.transformer import TransformerConfig

RECIPE = SETS["acl18"].recipes["dtml"]
THREADS = fitting.THREADS_OF_A_GPU  # of members that train alone
Figures = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What all parts share."""

    device: torch.device
    rounds: int
    small: bool

    def size(self, usual: int, small: int) -> int:
        """Return a size, smaller in a rehearsal."""
        return small if self.small else usual

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the seconds of some work, until the device has ended it."""
        start = time.perf_counter()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def in_turns(self, ways: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
        """Return what each way gives in each round, after one that warms up."""
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(self.rounds + 1):
            for name, way in ways.items():
                found[name].append(way())
        return {name: values[1:] for name, values in found.items()}


def members_of(model: NetworkConfig, recipe: TrainingConfig, seeds: int) -> list[Member]:
    """Return the members of some seeds."""
    return [Member(seed, model, recipe) for seed in range(seeds)]


class Clock:
    """The end of each epoch, of all members, as an `EpochReport`."""

    def __init__(self) -> None:
        self.ends: dict[int, float] = {}

    def __call__(self, _member: Member, epoch: Epoch) -> None:
        """Note the end of an epoch."""
        self.ends[epoch.number] = time.perf_counter()

    @property
    def epoch(self) -> float:
        """Return the median seconds of an epoch of the later half, whose steps are recorded."""
        times = list(self.ends.values())[len(self.ends) // 2 :]
        return statistics.median(after - before for before, after in pairwise(times))


def epoch_seconds(
    train: Windows, validation: Windows, members: Sequence[Member], device: torch.device
) -> float:
    """Return the seconds of an epoch of all members."""
    clock = Clock()
    fit_members(train, validation, members, device=device, on_epoch=clock)
    return clock.epoch


def epoch_seconds_alone(
    train: Windows, validation: Windows, members: Sequence[Member], device: torch.device
) -> float:
    """Return the seconds of an epoch where each member trains by itself, three at a time."""
    clock = Clock()
    trained_alone(train, validation, members, device, clock)
    return clock.epoch


def trained_alone(
    train: Windows,
    validation: Windows,
    members: Sequence[Member],
    device: torch.device,
    on_epoch: EpochReport = no_report,
) -> list[Fit]:
    """Train each member by itself, some at a time, and return them."""
    protocol = members[0].training.protocol
    spans = Span.of(train, protocol, device), Span.of(validation, protocol, device)
    fits = [Fit.start(member, len(train.symbols), device) for member in members]
    runs = [fitting._epochs(fit, *spans, None, on_epoch) for fit in fits]
    fitting._take_turns(runs, THREADS)
    return fits


def correct(run: Run) -> Figures:
    """Compare with the CPU, replay to the last bit, and train seeds beside others and alone."""
    with tempfile.TemporaryDirectory() as folder:
        said = self_test(run.device, Path(folder))
    train = random_windows(run.size(398, 60), 0)
    validation = random_windows(42, 1)
    recipe = replace(RECIPE.training, protocol="all", epochs=8, first_kept_epoch=1)
    # Without dropout, whose random numbers differ between devices.
    model = replace(RECIPE.model, dropout=0.0)
    fit = partial(fit_members, train, validation, device=run.device)
    members = members_of(model, recipe, 3)
    dropping = members_of(RECIPE.model, recipe, 3)
    once, again = fit(members=dropping), fit(members=dropping)
    alone = trained_alone(train, validation, dropping, run.device)
    on_cpu = fit_members(train, validation, members, device=torch.device("cpu"))
    chances = [
        member_probabilities(ensemble_of(fits, train), validation, device)
        for fits, device in ((fit(members=members), run.device), (on_cpu, torch.device("cpu")))
    ]
    return {
        "self-test": said,
        "a training again: largest difference of a weight": apart(once, again),
        "seeds as one network and alone: largest difference of a weight": apart(once, alone),
        "probabilities of the device and the CPU": float((chances[0] - chances[1]).abs().max()),
    }


def ensemble_of(fits: Sequence[Fit], windows: Windows) -> Ensemble:
    """Return the trained members as an ensemble."""
    return Ensemble(
        market="made",
        symbols=windows.symbols,
        seeds=tuple(fit.member.seed for fit in fits),
        model=fits[0].member.model,
        windows=WindowConfig(window=windows.window),
        weights=stack_members(fits),
    )


def apart(fits: Sequence[Fit], others: Sequence[Fit]) -> float:
    """Return the largest difference of any weight of members in their best epochs."""
    return max(
        float((value - other.best[name]).abs().max())
        for fit, other in zip(fits, others, strict=True)
        for name, value in fit.best.items()
    )


def acl18(run: Run) -> Figures:
    """Train ACL18's DTML: stock-days a second of 10 and 50 seeds, seeds alone, a plain loop."""
    days = run.size(training_speed.DAYS, 128)
    stocks = run.size(training_speed.STOCKS, 11)
    train = random_windows(days, 0, stocks)
    validation = random_windows(training_speed.VALIDATION_DAYS, 1, stocks)
    recipe = replace(RECIPE.training, protocol="all", first_kept_epoch=1)
    found: Figures = {}
    for precision in ("highest", "high"):
        for seeds in (run.size(10, 2), run.size(50, 3)):
            ours = members_of(RECIPE.model, replace(recipe, epochs=run.size(20, 6)), seeds)
            few = members_of(RECIPE.model, replace(recipe, epochs=run.size(6, 4)), seeds)
            ways: dict[str, Callable[[], float]] = {
                f"{seeds} seeds as one": partial(
                    epoch_seconds, train, validation, ours, run.device
                ),
            }
            if seeds <= 10 and precision == "highest":
                ways[f"{seeds} seeds alone"] = partial(
                    epoch_seconds_alone, train, validation, few, run.device
                )
                ways["nn.LSTM, one seed"] = plain_way(run, train, validation)
            torch.set_float32_matmul_precision(precision)
            for name, seconds in run.in_turns(ways).items():
                count = 1 if "one seed" in name else seeds
                rates = sorted(count * days * stocks / each for each in seconds)
                found[f"{name}, products {precision}: stock-days a second"] = rates
    torch.set_float32_matmul_precision("highest")
    return found


def plain_way(run: Run, train: Windows, validation: Windows) -> Callable[[], float]:
    """Return an epoch of the plain loop, its data on the device."""
    training_speed.DAYS = len(train)
    training_speed.STOCKS = len(train.symbols)
    model = PlainDTML().to(run.device)
    optimiser = torch.optim.Adam(model.parameters(), fused=True)
    spans = [
        PlainSpan(
            stocks=windows.stocks.to(run.device),
            index=windows.index.to(run.device),
            is_rise=windows.rises().to(run.device),
        )
        for windows in (train, validation)
    ]
    return lambda: run.seconds(lambda: plain_epoch(model, optimiser, *spans, days_a_step=64))  # type: ignore[arg-type]


@dataclass(frozen=True)
class PlainSpan:
    """What the plain loop reads of windows."""

    stocks: torch.Tensor
    index: torch.Tensor
    is_rise: torch.Tensor

    def rises(self) -> torch.Tensor:
        """Return whether each stock-day is a rise."""
        return self.is_rise


def csi300(run: Run) -> Figures:
    """Train 20 seeds each of CSI 300's DTML and ALSTM, as its table does: seconds."""
    config = RelativeConfig()
    stocks = run.size(300, 12)
    train = random_windows(run.size(1700, 40), 0, stocks, len(config.features))
    validation = random_windows(run.size(480, 20), 1, stocks, len(config.features))
    seeds = run.size(20, 2)
    members = [
        Member(seed, RelativeConfig.for_network(network).model, config.training)
        for network in ("dtml", "alstm")
        for seed in range(seeds)
    ]
    fit = partial(fit_members, train, validation, members, device=run.device)
    return {"40 seeds: seconds": [run.seconds(fit) for _ in range(min(3, run.rounds))]}


def night(run: Run) -> Figures:
    """Run the first night of the simulated market in a new store: seconds, by device."""
    seconds: dict[str, list[float]] = {}
    for name in (run.device.type, "auto", "cpu"):
        for _ in range(min(2, run.rounds)):
            with tempfile.TemporaryDirectory() as folder:
                options = ["--epochs", "1"] if run.small else []
                command = [sys.executable, "-c", "from flows.cli import main; main()"]
                work = partial(
                    subprocess.run,
                    [*command, "nightly", "simulated", "--device", name, *options],
                    env=os.environ | {"DTML_DATA": folder, "DTML_REPORTS": folder},
                    check=True,
                    capture_output=True,
                )
                seconds.setdefault(name, []).append(run.seconds(work))
    return {f"--device {name}: seconds": values for name, values in seconds.items()}


def choice(run: Run) -> Figures:
    """Measure the constants of `dtml.devices`: seconds of a start, of a step and of a unit."""
    starts = {
        name: statistics.median(run.seconds(partial(start, name)) for _ in range(3))
        for name in dict.fromkeys((run.device.type, "cpu"))
    }
    found: Figures = {
        "start of the device: seconds": starts[run.device.type] - starts["cpu"],
    }
    units: list[float] = []
    seconds: list[float] = []
    of_core: list[float] = []
    recipe = TrainingConfig("all", epochs=run.size(12, 4), first_kept_epoch=1)
    for stocks in (12, run.size(87, 13), run.size(300, 14)):
        train = random_windows(256, 0, stocks)
        validation = random_windows(16, 1, stocks)
        steps = len(train) // recipe.batch_days
        for hidden, seeds in product((16, 64, run.size(256, 32)), (1, run.size(10, 2))):
            members = members_of(ModelConfig(hidden=hidden, normalisation="shared"), recipe, seeds)
            units.append(seeds * recipe.batch_days * stocks * train.window * hidden)
            seconds.append(epoch_seconds(train, validation, members, run.device) / steps)
            if seeds == 1:
                cpu = torch.device("cpu")
                on_core = epoch_seconds(train, validation, members, cpu) / steps
                of_core.append(on_core / units[-1])
    unit, step = np.polyfit(units, seconds, 1)
    found |= {
        "a step of the device: seconds": step,
        "a unit of the device: seconds": unit,
        "a unit of a core: seconds": of_core,
        "steps: units, seconds": list(zip(units, seconds, strict=True)),
    }
    return found


def start(device: str) -> None:
    """Start a process that computes something on a device."""
    code = f"import torch; x = torch.ones(64, 64, device={device!r}); (x @ x).sum().item()"
    subprocess.run([sys.executable, "-c", code], check=True)


def translator(run: Run) -> Figures:
    """Train a small translator on made sentences: target tokens a second, and whole updates."""
    size = TransformerConfig(
        source_vocabulary=10_000,
        target_vocabulary=10_000,
        d_model=run.size(128, 16),
        heads=4,
        d_ff=256,
        encoder_layers=run.size(4, 1),
        decoder_layers=run.size(4, 1),
    )
    config = LoopConfig(batch_tokens=4096, updates=1)
    draw = np.random.default_rng(0)
    lengths = draw.integers(5, 30, run.size(29_000, 400))
    tokens = draw.integers(4, 10_000, lengths.sum(), dtype=np.int32)
    sentences = Sentences(tokens, np.concatenate([[0], np.cumsum(lengths)]))
    examples = Examples(sentences, sentences)
    random = torch.Generator().manual_seed(0)
    batches = [
        batch_of(examples, each) for each in batch_indices(examples, config.batch_tokens, random)
    ]
    count = sum(batch.tokens for batch in batches)
    found: Figures = {}
    for graphs in ("1", "0"):
        os.environ["DTML_CUDA_GRAPHS"] = graphs
        step = training_step_of(size.build(), config, run.device, SINGLE_PROCESS)
        epoch = partial(train_once, step, batches)
        seconds = [run.seconds(epoch) for _ in range(run.rounds + 1)]  # the first one records
        found[f"DTML_CUDA_GRAPHS={graphs}: target tokens a second"] = [
            count / each for each in seconds
        ]
        found["shapes"] = len(step.gradients.works)
    del os.environ["DTML_CUDA_GRAPHS"]
    return found


def train_once(step: TrainingStep, batches: Sequence[Batch]) -> None:
    """Make an update of each batch."""
    with step.gradients.recorder.stream:
        for batch in batches:
            step([(0, batch)], 1e-4)


class Traffic(TorchDispatchMode):
    """Count the bytes that operations read and write: views, and what a cache holds, too."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count the tensors that it gets and returns, unless it is a view."""
        result = func(*args, **(kwargs or {}))
        if not any(each.alias_info for each in func._schema.returns):
            for each in torch.utils._pytree.tree_leaves((args, result)):
                if isinstance(each, torch.Tensor):
                    self.bytes += each.numel() * each.element_size()
        return result


def bounds(run: Run) -> Figures:
    """Say what share of the chip's arithmetic and bandwidth a recorded step of 50 seeds reaches."""
    from dtml.stacked import Stack

    seeds, days, stocks = run.size(50, 2), 64, run.size(87, 11)
    span = Span.of(random_windows(398, 0, stocks), "all", run.device)
    fits = [
        Fit.start(member, stocks, run.device)
        for member in members_of(RECIPE.model, RECIPE.training, seeds)
    ]
    stack = Stack(
        network=RECIPE.model.build(stocks),
        networks=[fit.network for fit in fits],
        optimisers=[fit.optimiser for fit in fits],
        generators=[fit.random for fit in fits],
        penalty=fits[0].penalty,
        clip=None,
        steps=0,
        train=span,
        validation=span,
        hidden=RECIPE.model.hidden,
    )
    batches = [torch.arange(days, device=run.device).repeat(seeds, 1)]
    with stack.recorder.stream:
        with FlopCounterMode(display=False) as arithmetic, Traffic() as traffic:
            stack.epoch(batches)
        for _ in range(4):
            stack.epoch(batches)
        seconds = [run.seconds(partial(stack.epoch, batches)) for _ in range(run.size(50, 3))]
        activity = torch.profiler.ProfilerActivity
        kinds = [activity.CUDA] if run.device.type == "cuda" else [activity.CPU]
        with torch.profiler.profile(activities=kinds) as profile:
            stack.epoch(batches)
    step = statistics.median(seconds)
    size = run.size(8192, 256)
    x = torch.ones(size, size, device=run.device)
    copied = torch.empty_like(x)
    product = statistics.median(run.seconds(lambda: x @ x) for _ in range(10))
    copy = statistics.median(run.seconds(lambda: copied.copy_(x)) for _ in range(10))
    flops = arithmetic.get_total_flops()
    slowest = sorted(profile.key_averages(), key=lambda each: -each.self_device_time_total)[:12]
    return {
        "is recorded": stack.recorder.is_able,
        "step: seconds": step,
        "of the arithmetic of a large product in float32": flops / step / (2 * size**3 / product),
        "of the bandwidth of a large copy": traffic.bytes / step / (2 * 4 * size**2 / copy),
        "kernels: microseconds, times": {
            each.key[:90]: [each.self_device_time_total, each.count] for each in slowest
        },
    }


PARTS: Mapping[str, Callable[[Run], Figures]] = {
    "correct": correct,
    "acl18": acl18,
    "bounds": bounds,
    "choice": choice,
    "csi300": csi300,
    "translator": translator,
    "night": night,
}


def main() -> None:
    """Measure the parts, and save and print each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--folder", type=Path, default=Path("results/gpu"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(unknown)}")
    try:
        device = choose_device(options.device)
    except DtmlError as error:
        parser.error(str(error))
    run = Run(device, options.rounds, options.small)
    options.folder.mkdir(parents=True, exist_ok=True)
    has_failed = False
    for name in options.parts or PARTS:
        start = time.perf_counter()
        try:
            figures = PARTS[name](run)
        except Exception as error:  # noqa: BLE001 - the other parts are measured
            figures = {"failed": f"{type(error).__name__}: {error}"}
            has_failed = True
        figures |= {"device": name_of(run.device), "took": time.perf_counter() - start}
        text = json.dumps(figures, indent=2)
        (options.folder / f"{name}.json").write_text(text, encoding="utf-8")
        print(name, text, flush=True)
    sys.exit(has_failed)


if __name__ == "__main__":
    main()
