"""Train and run translation models alone, without Prefect and without a database.

`python -m translation train recipe.toml` writes the model to `models/NAME`, or below `--to`, and
scores it; it resumes. `python -m translation translate MODEL_FOLDER` prints a translation of each
line of standard input.
"""

import sys

if not sys.flags.safe_path and not __file__.startswith(f"{sys.path[0]}/translation/"):
    # `python -m` looks for modules in the working folder first, where another user may have left a
    # torch.py.
    del sys.path[0]

import argparse
import os
from pathlib import Path

from translation.environment import exit_on_windows, prepare_output, prepare_torch

exit_on_windows()
prepare_torch()

import torch

from translation.cards import recipe_of
from translation.data.corpus import lines_in
from translation.decoding.beam_search import Search
from translation.errors import TranslationError, UsageError
from translation.models import load_model
from translation.recipes import read_recipe
from translation.scoring import score
from translation.training.distributed import (
    join_process_group,
    launch_processes,
    require_device,
)
from translation.training.from_recipe import train_model
from translation.translate import translate


def train(options: argparse.Namespace) -> None:
    """Train the model of a recipe, score it on the recipe's test sets, and print scores and folder.

    With several `--processes`, the command is run again in each, rank 0 alone scores, and this
    process exits with the code of one that failed, or 0.
    """
    recipe = read_recipe(options.recipe)
    # RANK is set in a process that this command has launched itself, or that torchrun has.
    if options.processes > 1 and "RANK" not in os.environ:
        command = [sys.executable, "-m", "translation", *sys.argv[1:]]
        sys.exit(launch_processes(command, options.processes))
    process_group, device = join_process_group(options.device)
    work = options.to / f".{recipe.name}"  # the folder of the state that a training resumes from
    work.mkdir(parents=True, exist_ok=True)
    is_first = process_group.rank == 0
    model = train_model(
        recipe,
        models=options.to,
        work=work,
        device=device,
        process_group=process_group,
        on_check=_say,
        # Every process would say the same.
        on_message=_say if is_first else lambda _: None,
    )
    if model is None:  # in every process but rank 0, which prints the results
        return
    _say(recipe_of(model.card))
    for name, test in recipe.tests.items():
        sources, references = zip(*test.pairs(), strict=True)
        translations = translate(model, sources, Search())
        hypotheses = [translation.text for translation in translations]
        result = score(hypotheses, references)
        interval = f"[{result.low:.1f}, {result.high:.1f}]"
        bleu = f"BLEU {result.bleu:.1f} {interval} tok:{result.tokenizer}"
        figures = f"{bleu}, chrF {result.chrf:.1f}"
        print(f"{name}: {figures}, {result.signature}")
    print(options.to / recipe.name)


def translate_lines(options: argparse.Namespace) -> None:
    """Print a translation of each line of standard input."""
    settings = Search(beams=options.beams, alpha=options.alpha)
    require_device(options.device)
    model = load_model(options.model, torch.device(options.device))
    lines = list(lines_in(sys.stdin.buffer, "standard input"))

    for translation in translate(model, lines, settings):
        # A translation may have line separators, but each input line gets one output line.
        one_line = " ".join(translation.text.splitlines())
        sys.stdout.write(f"{one_line}\n")


def _say(line: object) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Run the command line and return its exit code: 0, 2 for a user's mistake, 1 for the rest.

    A TranslationError or an OSError is one line on standard error, other errors a traceback.
    """
    prepare_output()
    parser = argparse.ArgumentParser(
        "python -m translation", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cuda" if torch.cuda.is_available() else "cpu",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser(
        "train", help="train the model of a recipe, and score it on its test sets"
    )
    training.add_argument("recipe", type=Path)
    training.add_argument("--to", type=Path, default=Path("models"), help="the folder of models")
    training.add_argument(
        "--processes", type=int, default=1, help="number of processes that share each update"
    )
    translating = commands.add_parser("translate", help="translate the lines of standard input")
    translating.add_argument("model", type=Path, help="the folder of a model")
    translating.add_argument("--beams", type=int, default=Search.beams)
    translating.add_argument(
        "--alpha", type=float, default=Search.alpha, help="alpha of the length penalty"
    )
    options = parser.parse_args()
    try:
        if options.command == "train":
            train(options)
        else:
            translate_lines(options)
    except (TranslationError, OSError) as error:
        _say(f"translation: {error}")
        return 2 if isinstance(error, UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
