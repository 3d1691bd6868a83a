"""Train and score translation models on real corpora, by the recipes of the printed figures.

`python -m benchmarks.translation_quality NAME ...` trains and scores the named recipes of
`benchmarks/recipes` (by default all) by the command itself, in the folder `--folder`, where an
interrupted training resumes; then it prints a line for each test set, or that of the validation set
by greedy search where a recipe names no test. The corpora are those of the shared data: Multi30k
(en-de), Tatoeba (fr-en, ko-en). A recipe has one thread, except those with more processes.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.shared_data import SHARED

DTML = Path(sys.executable).with_name("dtml")
RECIPES = Path(__file__).with_name("recipes")
NAMES = sorted(file.stem for file in RECIPES.glob("*.toml"))
PROCESSES = {
    "multi30k-en-de-half-hour": 2,
    "multi30k-en-de-published-hour": 4,
    "multi30k-en-de-rnn": 2,
    "multi30k-en-de-seeds": 2,
    "multi30k-en-de-seeds-hour": 2,
    "tatoeba-fr-en": 2,
}
LINE = "A man in a blue shirt is standing on a ladder cleaning a window."


def run(name: str, folder: Path) -> dict[str, Any]:
    """Train and score a recipe; return what the command prints of it, and its minutes.

    Translate a line too, with a page of its attention.
    """
    folder.mkdir(parents=True, exist_ok=True)
    processes = PROCESSES.get(name, 1)
    environment = os.environ | {"DTML_DATA": str(folder / "data")}
    if processes == 1:
        environment["OMP_NUM_THREADS"] = "1"
    recipe = RECIPES / f"{name}.toml"
    page = folder / f"{name}.html"
    train = [DTML, "translate", "train", recipe, "--processes", str(processes), "--json"]
    translate = [DTML, "translate", "text", LINE, "--model", name, "--attention-page", page]
    start = time.monotonic()
    training = subprocess.run(train, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    subprocess.run(translate, env=environment, check=True, stdout=subprocess.DEVNULL)
    minutes = (time.monotonic() - start) / 60
    return json.loads(training.stdout) | {"minutes": minutes}


def main() -> None:
    """Run the experiments asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--folder", type=Path, default=Path("data/translation-benchmark"))
    options = parser.parse_args()
    if not SHARED.is_dir():
        print(f"no shared data at {SHARED}: nothing to train on")
        return
    print("| model | test | BLEU [95 %] | chrF | minutes | recipe |", flush=True)
    print("| --- | --- | ---: | ---: | ---: | --- |", flush=True)
    for name in options.names or NAMES:
        result = run(name, options.folder.absolute())
        figures = {
            test: f"{score['bleu']:.1f} [{score['low']:.1f}, {score['high']:.1f}] | "
            f"{score['chrf']:.1f}"
            for test, score in result["scores"].items()
        }
        if not figures:
            figures["validation"] = f"{result['validation_bleu']:.1f} |"
        for test, cells in figures.items():
            print(
                f"| {name} | {test} | {cells} | {result['minutes']:.0f} | {result['recipe']} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
