"""Compare what was tuned on one processor with the plain way, on two kinds and beside other work.

`python -m benchmarks.tuned_places [--turns 11] [PLACE ...]`: each place is timed as the product
does it and in the plain way, each in a process of its own: as this processor is, and with the
instructions of AVX2 alone; on a quiet machine, and beside two endless loops. Both processes do a
piece of work of about half a second by turns, so that what else slows the machine for seconds slows
both. Printed is the time of the product's way as a share of the plain one's, from the medians of
the turns: where it is below 1, the product's way is faster.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from unittest.mock import patch

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
NEIGHBOURS = 2  # endless loops beside the work
# Until the process that started it has ended, however it ended.
ENDLESS = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
TURNS = 11
FIRST_TURNS = 2  # not counted: memory is taken and caches are filled
SENTENCES = 52  # of 20 pieces: a batch of the preset `tiny`
PIECES = 20
DAYS = 64  # of a training of DTML
WIDE_STOCKS = 480  # a market as large as the S&P 500
VOCABULARY = 10_000  # of a search
SEARCHES = 50


Turn = Callable[[], float]


@dataclass(frozen=True)
class Way:
    """One way to do the work of a place, and its environment, which is set before torch is loaded.

    `prepare` returns the function that does one piece of the work.
    """

    prepare: Callable[[], Callable[[], object]]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """A place of the product that was tuned: what is timed, its way and the plain one."""

    work: str
    product: Way
    plain: Way


def translator_update(fast_dropout: bool = True) -> Callable[[], object]:
    """Prepare an update of a translator of the preset `tiny`."""
    import torch

    from translation.data.batches import Batch
    from translation.data.tokenizer import SMALLEST
    from translation.models import SIZES, build_network
    from translation.recipes import TRAININGS, VOCABULARY
    from translation.training import loop
    from translation.training.distributed import SINGLE_PROCESS

    sizes = {
        **SIZES["tiny"],
        "source_vocabulary": VOCABULARY["tiny"],
        "target_vocabulary": VOCABULARY["tiny"],
    }
    config = loop.TrainingConfig(**TRAININGS["tiny"])
    network = build_network("transformer", sizes)
    with ExitStack() as changes:
        if not fast_dropout:
            changes.enter_context(patch.object(loop, "use_fast_dropout", lambda _network: None))
        step = loop.training_step_of(network, config, torch.device("cpu"), SINGLE_PROCESS)
    pieces = torch.randint(SMALLEST, VOCABULARY["tiny"], (2, SENTENCES, PIECES))
    batch = Batch(source=pieces[0], target_output=pieces[1])
    return lambda: step([(0, batch)], 1e-4)


def dtml_epoch(stocks: int, stock_days: int | None = None) -> Callable[[], object]:
    """Prepare an epoch of DTML, with so many stock-days at once."""
    from dataclasses import replace

    import torch

    from benchmarks import training_speed
    from dtml import network
    from dtml.training import fit_members

    if stock_days is not None:
        network.STOCK_DAYS = stock_days
    training_speed.STOCKS = stocks
    windows = training_speed.random_windows(DAYS, seed=0)
    member = training_speed.members()[0]
    member = replace(member, training=replace(member.training, epochs=1))
    cpu = torch.device("cpu")
    return lambda: fit_members(windows, windows, [member], device=cpu)


def search_steps(blocks: bool) -> Callable[[], object]:
    """Prepare the choice of the best tokens of 32 sentences of 5 beams, `SEARCHES` times."""
    import torch

    from translation.decoding.beam_search import best_tokens

    scores = torch.randn(32, 5, VOCABULARY).log_softmax(-1)
    so_far = torch.randn(32, 5)

    def over_all() -> object:
        return (scores + so_far.unsqueeze(-1)).flatten(1).topk(5)

    choose = partial(best_tokens, scores, so_far) if blocks else over_all

    def search() -> None:
        for _ in range(SEARCHES):
            choose()

    return search


def imports_of_a_run(thresholds: tuple[int, int, int] | None) -> Callable[[], object]:
    """Prepare a process that imports a scheduled run, with thresholds of the collector."""
    set_thresholds = f"import gc; gc.set_threshold(*{thresholds}); " if thresholds else ""
    command = [sys.executable, "-c", f"{set_thresholds}import flows.service.flows"]
    return partial(subprocess.run, command, check=True)


def waiting_variables() -> dict[str, str]:
    """Return the variables that say how threads of torch wait."""
    from translation.environment import VARIABLES

    return {name: value for name, value in VARIABLES.items() if not name.startswith("THP")}


WAITING = waiting_variables()
PLACES = {
    "waiting": Place(
        "threads spin for microseconds and then sleep, and not without end: a translator's updates",
        product=Way(translator_update, WAITING),
        plain=Way(translator_update),
    ),
    "huge-pages": Place(
        "memory of tensors in pages of 2 MB: a translator's updates",
        product=Way(translator_update, {**WAITING, "THP_MEM_ALLOC_ENABLE": "1"}),
        plain=Way(translator_update, WAITING),
    ),
    "dropout": Place(
        "dropout from fewer random bits, and not torch's: a translator's updates",
        product=Way(translator_update, WAITING),
        plain=Way(partial(translator_update, fast_dropout=False), WAITING),
    ),
    "stock-days": Place(
        "960 stock-days at once, and not a whole batch: DTML's training, 87 stocks",
        product=Way(partial(dtml_epoch, 87), WAITING),
        plain=Way(partial(dtml_epoch, 87, stock_days=10**9), WAITING),
    ),
    "stock-days-wide": Place(
        "960 stock-days at once, and not a whole batch: DTML's training, 480 stocks",
        product=Way(partial(dtml_epoch, WIDE_STOCKS), WAITING),
        plain=Way(partial(dtml_epoch, WIDE_STOCKS, stock_days=10**9), WAITING),
    ),
    "search": Place(
        "the best tokens by blocks of 128, and not among all: a search's steps",
        product=Way(partial(search_steps, True), WAITING),
        plain=Way(partial(search_steps, False), WAITING),
    ),
    "collector": Place(
        "garbage collected less often while a scheduled run is imported",
        product=Way(partial(imports_of_a_run, (20_000, 20, 20))),
        plain=Way(partial(imports_of_a_run, None)),
    ),
}


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Let so many endless loops run beside what is timed."""
    loops = [subprocess.Popen([sys.executable, "-c", ENDLESS]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextmanager
def process_of(place: str, way: str, environment: Mapping[str, str]) -> Iterator[Turn]:
    """Start a process that has prepared one way of a place; yield what lets it do a piece."""
    variables = {**environment, **getattr(PLACES[place], way).environment}
    others = {name: value for name, value in os.environ.items() if name not in WAITING}
    command = [sys.executable, "-m", "benchmarks.tuned_places", "--child", way, place]
    with subprocess.Popen(
        command,
        env={**others, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def seconds_of_a_turn() -> float:
            assert process.stdin
            assert process.stdout
            print(file=process.stdin, flush=True)
            return float(process.stdout.readline())

        yield seconds_of_a_turn


def answer_turns(prepare: Callable[[], Callable[[], object]]) -> None:
    """Do a piece of the work for each line of standard input; print the seconds that it took."""
    work = prepare()
    for _ in sys.stdin:
        begun = time.perf_counter()
        work()
        print(time.perf_counter() - begun, flush=True)


def share_of_plain(place: str, environment: Mapping[str, str], turns: int) -> float:
    """Return the median time of the product's way as a share of the plain one's."""
    with (
        process_of(place, "product", environment) as product_turn,
        process_of(place, "plain", environment) as plain_turn,
    ):
        pairs = [(product_turn(), plain_turn()) for _ in range(FIRST_TURNS + turns)]
    product_seconds, plain_seconds = zip(*pairs[FIRST_TURNS:], strict=True)
    return statistics.median(product_seconds) / statistics.median(plain_seconds)


def print_table(places: list[str], turns: int) -> None:
    """Print a row for each place: its shares on both processors, quiet and busy."""
    print("| place | native | AVX2 | native, busy | AVX2, busy |\n|---|---|---|---|---|")
    for place in places:
        shares = []
        for loops, environment in product((0, NEIGHBOURS), ({}, AVX2)):
            with neighbours(loops):
                shares.append(f"{share_of_plain(place, environment, turns):.2f}")
        print(f"| {PLACES[place].work} | {' | '.join(shares)} |", flush=True)


def main() -> None:
    """Print the table, or with `--child` do pieces of one way of one place, by turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("places", nargs="*", metavar="PLACE", help=", ".join(PLACES))
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--child", choices=("product", "plain"))
    options = parser.parse_args()
    unknown = [place for place in options.places if place not in PLACES]
    if unknown:
        parser.error(f"no such place: {', '.join(unknown)}")
    if options.child is None:
        print_table(options.places or list(PLACES), options.turns)
        return
    way: Way = getattr(PLACES[options.places[0]], options.child)
    answer_turns(way.prepare)


if __name__ == "__main__":
    main()
