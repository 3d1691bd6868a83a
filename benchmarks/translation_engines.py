"""Time our search against CTranslate2 with the same weights and sentences.

`python -m benchmarks.translation_engines [--model FOLDER] [--sentences 1000] [--rounds 3]
[--threads 1 4]`: a model that `dtml translate train` has made, and the first test set that its card
names; without one the demonstration's, which is trained first. Greedy and 5 beams, no length
penalty, as many threads for both; CTranslate2 gets all sentences at once, sorts them and cuts
batches of as many tokens. It need not tell scores, as ours does, and stops as it does of
itself: when as many translations have ended as there are beams. Needs the extra ctranslate2. The
engines take turns; medians of rounds, in sentences a second. On a machine that has other work, one
thread and `--clock processor` tell the ratio by processor time.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from sacrebleu.metrics.bleu import BLEU

from benchmarks.ctranslate2_export import export_model, open_exported, translate_exported
from benchmarks.translation_search_speed import stops_of
from benchmarks.translation_training_speed import CLOCKS
from flows.translating.models import DEMO, named_test
from translation.data.corpus import Pair
from translation.decoding.beam_search import Search, search
from translation.errors import UsageError
from translation.models import Model, load_model
from translation.recipes import read_recipe
from translation.scoring import tokenizer_of
from translation.training.distributed import SINGLE_PROCESS
from translation.training.from_recipe import train_model

Rows = list[tuple[int, ...]]  # translations
Engine = Callable[[int], Rows]  # by a number of beams


def trained(folder: Path | None, temporary: Path) -> tuple[Model, list[Pair]]:
    """Return the model and pairs that it has not seen."""
    if folder is None:
        recipe = read_recipe(DEMO)
        cpu = torch.device("cpu")
        done = train_model(
            recipe,
            temporary / "models",
            work=temporary / "work",
            device=cpu,
            process_group=SINGLE_PROCESS,
        )
        assert done is not None
        return done.model, list(recipe.tests["test"].pairs())
    model = load_model(folder, torch.device("cpu"))
    if not model.card.made.get("tests"):
        raise UsageError(f"the card of {folder} names no test set: train with one")
    return model, list(named_test(model.card, next(iter(model.card.made["tests"]))).pairs())


def ours(model: Model, sources: Sequence[Sequence[int]]) -> Engine:
    """Return a function that translates by our search."""
    return lambda beams: [
        found[0].tokens for found in search(model.decoder, sources, Search(beams=beams, alpha=0.0))
    ]


def ctranslate2(
    model: Model, sources: Sequence[Sequence[int]], folder: Path, threads: int, kind: str
) -> Engine:
    """Return a function that translates by CTranslate2 with weights of that kind."""
    translator = open_exported(folder, threads=threads, kind=kind)
    return lambda beams: [
        tuple(row)
        for row in translate_exported(translator, model, sources, Search(beams=beams, alpha=0.0))
    ]


def exported(model: Model, folder: Path, *, int8: bool) -> Path:
    """Export the model for CTranslate2."""
    export_model(model, folder, int8=int8)
    return folder


def compare(
    engines: dict[str, Engine], beams: int, rounds: int, clock: Callable[[], float]
) -> tuple[dict[str, float], dict[str, Rows]]:
    """Return the seconds of each engine, the median of rounds in which they
    take turns, and what each says.
    """
    took: dict[str, list[float]] = {name: [] for name in engines}
    said: dict[str, Rows] = {}
    for _ in range(rounds):
        for name, engine in engines.items():
            begun = clock()
            said[name] = engine(beams)
            took[name].append(clock() - begun)
    return {name: statistics.median(each) for name, each in took.items()}, said


def show(
    model: Model, pairs: list[Pair], beams: int, seconds: dict[str, float], said: dict[str, Rows]
) -> None:
    """Print a line for each engine: its speed, our speed relative to it, how
    often it agrees with us, and BLEU.
    """
    metric, first = BLEU(tokenize=tokenizer_of(model.card.target_language)), next(iter(said))
    for name, rows in said.items():
        same = sum(one == other for one, other in zip(rows, said[first], strict=True)) / len(rows)
        bleu = metric.corpus_score(
            [model.target.decode(row) for row in rows], [[right for _, right in pairs]]
        ).score
        print(
            f"{'greedy' if beams == 1 else f'beam {beams}':<8}{name:<22}"
            f"{len(rows) / seconds[name]:>8.1f}",
            end="",
        )
        print(f"{seconds[name] / seconds[first]:>10.2f}{same:>8.1%}{bleu:>7.2f}", flush=True)


def show_stops(model: Model, sources: Sequence[Sequence[int]]) -> None:
    """Print the cost of searching on until nothing better can follow, without
    and with a length penalty.
    """
    for how in (Search(alpha=0.0), Search()):
        stops = stops_of(model.decoder, sources, how)
        print(
            f"beam {how.beams}, alpha {how.alpha}: {stops.exact:.1f} steps a sentence until none "
            "can be better, "
            f"{stops.hasty:.1f} until {how.beams} have ended, which says the same of "
            f"{stops.same:.1%}",
            flush=True,
        )


def main() -> None:
    """Print a table for each number of threads."""
    from translation.environment import prepare_torch

    prepare_torch()
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--model", type=Path)
    asked.add_argument("--sentences", type=int, default=1000)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--threads", type=int, nargs="+", default=sorted({1, os.cpu_count() or 1}))
    asked.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    asked.add_argument("--clock", choices=list(CLOCKS), default="wall")
    options = asked.parse_args()
    if find_spec("ctranslate2") is None:
        print("the extra ctranslate2 is not installed: pip install -e '.[ctranslate2]'")
        return
    before = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as temporary:
        model, pairs = trained(options.model, Path(temporary) / "demo")
        pairs = pairs[: options.sentences]
        sources = model.source.encode_all([source for source, _ in pairs])
        folders = {"float32": exported(model, Path(temporary) / "float32", int8=False)}
        folders["int8_float32"] = exported(model, Path(temporary) / "int8", int8=True)
        for threads in options.threads:
            torch.set_num_threads(threads)
            engines = {"ours": ours(model, sources)}
            for kind, folder in folders.items():
                engines[f"CTranslate2 {kind.split('_')[0]}"] = ctranslate2(
                    model, sources, folder, threads, kind
                )
            print(
                f"{len(pairs)} sentences, {threads} threads, medians of {options.rounds} rounds, "
                f"{options.clock} time"
            )
            print("search  engine                    each/s   ours x    same   BLEU")
            for beams in options.beams:
                show(
                    model,
                    pairs,
                    beams,
                    *compare(engines, beams, options.rounds, CLOCKS[options.clock]),
                )
        show_stops(model, sources)
    torch.set_num_threads(before)


if __name__ == "__main__":
    main()
