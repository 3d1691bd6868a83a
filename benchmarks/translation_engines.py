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
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks.ctranslate2_export import export_model, open_exported, translate_exported
from flows.translating.models import DEMO, named_test
from translation.data.corpus import Pair
from translation.data.languages import tokenizer_of
from translation.decoding.beam_search import Search, search
from translation.errors import UsageError
from translation.models import Model, load_model
from translation.recipes import read_recipe
from translation.scoring import bleu_metric
from translation.training.distributed import SINGLE_PROCESS
from translation.training.from_recipe import train_model

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}

Rows = list[tuple[int, ...]]  # translations
Engine = Callable[[int], Rows]  # translates the sources with a number of beams


def trained(folder: Path | None, temporary: Path) -> tuple[Model, list[Pair]]:
    """Return a model, and pairs that it was not trained on.

    Without a `folder`, train the demonstration's model.
    """
    if folder is None:
        recipe = read_recipe(DEMO)
        training = train_model(
            recipe,
            temporary / "models",
            work=temporary / "work",
            device=torch.device("cpu"),
            process_group=SINGLE_PROCESS,
        )
        assert training is not None
        return training.model, list(recipe.tests["test"].pairs())
    model = load_model(folder, torch.device("cpu"))
    if not model.card.made.get("tests"):
        raise UsageError(f"the card of {folder} names no test set: train with one")
    first_test = next(iter(model.card.made["tests"]))
    return model, list(named_test(model.card, first_test).pairs())


def ours(model: Model, sources: Sequence[Sequence[int]]) -> Engine:
    """Return a function that translates by our search."""

    def translate(beams: int) -> Rows:
        results = search(model.network, sources, Search(beams=beams, alpha=0.0))
        return [hypotheses[0].tokens for hypotheses in results]

    return translate


def ctranslate2(
    model: Model, sources: Sequence[Sequence[int]], folder: Path, threads: int, kind: str
) -> Engine:
    """Return a function that translates by CTranslate2, with arithmetic of this kind."""
    translator = open_exported(folder, threads=threads, kind=kind)

    def translate(beams: int) -> Rows:
        rows = translate_exported(translator, model, sources, Search(beams=beams, alpha=0.0))
        return [tuple(row) for row in rows]

    return translate


def exported(model: Model, folder: Path, *, int8: bool) -> Path:
    """Export the model for CTranslate2, and return its folder."""
    export_model(model, folder, int8=int8)
    return folder


def compare(
    engines: dict[str, Engine], beams: int, rounds: int, clock: Callable[[], float]
) -> tuple[dict[str, float], dict[str, Rows]]:
    """Return the seconds of each engine, and its translations.

    The engines take turns; the seconds are the median of the rounds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    translations: dict[str, Rows] = {}
    for _ in range(rounds):
        for name, engine in engines.items():
            start = clock()
            translations[name] = engine(beams)
            seconds[name].append(clock() - start)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return medians, translations


def show(
    model: Model,
    pairs: list[Pair],
    beams: int,
    seconds: dict[str, float],
    translations: dict[str, Rows],
) -> None:
    """Print the speed of each engine, our speed relative to it, its agreement with us, and BLEU."""
    references = [target for _, target in pairs]
    metric = bleu_metric(tokenizer_of(references))
    search_name = "greedy" if beams == 1 else f"beam {beams}"
    our_name, our_rows = next(iter(translations.items()))
    for name, rows in translations.items():
        agreements = [row == our_row for row, our_row in zip(rows, our_rows, strict=True)]
        same = sum(agreements) / len(rows)
        bleu = metric.corpus_score([model.target.decode(row) for row in rows], [references]).score
        ratio = seconds[name] / seconds[our_name]
        print(
            f"{search_name:<8}{name:<22}{len(rows) / seconds[name]:>8.1f}"
            f"{ratio:>10.2f}{same:>8.1%}{bleu:>7.2f}",
            flush=True,
        )


def main() -> None:
    """Print a table for each number of threads."""
    from translation.environment import prepare_torch

    prepare_torch()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, os.cpu_count() or 1}))
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    options = parser.parse_args()
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
            clock = CLOCKS[options.clock]
            for beams in options.beams:
                seconds, translations = compare(engines, beams, options.rounds, clock)
                show(model, pairs, beams, seconds, translations)
    torch.set_num_threads(before)


if __name__ == "__main__":
    main()
