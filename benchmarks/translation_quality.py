"""Train and score translation models on real corpora by the command itself, all networks side by side.

`python -m benchmarks.translation_quality NAME ...` trains and scores the corpora named (by default all) in the folder
`--folder`, where an interrupted training resumes; then it prints a line a test set. The corpora are those of the
shared data: Multi30k (en-de), Tatoeba (fr-en, ko-en). The first has an hour of four cores; the recurrent
networks learn from as many target tokens as the Transformer beside them, "equal", a thread each.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.shared_data import SHARED

DTML = Path(sys.executable).with_name("dtml")
CORPORA = SHARED / "translation"
MULTI30K = {"flickr2016": "test_2016_flickr", "flickr2017": "test_2017_flickr"}
FAST = {"precision": "bfloat16"}
HOUR = FAST | {"batch_tokens": 1024, "accumulate": 4, "minutes": 57}
# A thread each: as many batches of 2,048 positions, some ten million target tokens, for every network.
EQUAL = FAST | {"batch_tokens": 2048, "updates": 5500}
RECURRENT = EQUAL | {"peak": 0.002}
LINE = "A man in a blue shirt is standing on a ladder cleaning a window."


@dataclass(frozen=True)
class PublishedExperiment:
    """A training of this benchmark: a corpus of the shared data, a network, and how long it trains."""

    corpus: str
    source: str
    target: str
    training: Mapping[str, Any]
    network: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: int = 8000
    processes: int = 1
    tests: Mapping[str, str] = field(default_factory=lambda: {"test": "test"})

    def toml(self, name: str) -> str:
        """Return the recipe, as `dtml translate train` reads it."""
        lines = [
            f"name = {json.dumps(name)}",
            f'source_language = "{self.source}"',
            f'target_language = "{self.target}"',
        ]
        parts = {"train": "train", "validation": "val"} | {f"test.{test}": file for test, file in self.tests.items()}
        for table, part in parts.items():
            lines += [
                f"[{table}]",
                *(f"{side} = {json.dumps(str(self.file(part, side)))}" for side in ("source", "target")),
            ]
        lines += ["[tokens]", f"vocabulary = {self.vocabulary}"]
        for table, values in (("network", {"size": "tiny"} | dict(self.network)), ("training", self.training)):
            lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        return "\n".join(lines) + "\n"

    def file(self, part: str, side: str) -> Path:
        """Return the file of one side of a part of the corpus."""
        return CORPORA / self.corpus / f"{part}.{self.source if side == 'source' else self.target}.txt.gz"


def multi30k(training: Mapping[str, Any], *, processes: int = 1, **network: Any) -> PublishedExperiment:
    """Return a training on image captions, 29,000 pairs."""
    return PublishedExperiment("multi30k", "en", "de", training, network, processes=processes, tests=MULTI30K)


EXPERIMENTS = {
    "multi30k-en-de": multi30k(HOUR, processes=4),
    "multi30k-en-de-equal": multi30k(EQUAL),
    "multi30k-en-de-rnn-none": multi30k(RECURRENT, kind="rnn", attention="none"),
    "multi30k-en-de-rnn-additive": multi30k(RECURRENT, kind="rnn", attention="additive"),
    "multi30k-en-de-rnn-dot": multi30k(RECURRENT, kind="rnn", attention="dot"),
    "multi30k-en-de-rnn-dot-structured": multi30k(RECURRENT, kind="rnn", attention="dot", structured=True),
    # Of as many positions an update as the first.
    "multi30k-en-de-rnn": multi30k(
        RECURRENT | {"accumulate": 2, "updates": 8000}, processes=2, kind="rnn", attention="dot"
    ),
    "tatoeba-fr-en": PublishedExperiment("tatoeba_fr_en", "fr", "en", EQUAL),
    "tatoeba-ko-en": PublishedExperiment("tatoeba_ko_en", "ko", "en", EQUAL | {"updates": 2400}, vocabulary=4000),
}


def run(name: str, folder: Path) -> dict[str, Any]:
    """Train and score an experiment; return what the command prints of it, and the minutes it took."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / f"{name}.toml"
    recipe.write_text(EXPERIMENTS[name].toml(name))
    environment = os.environ | {"DTML_DATA": str(folder / "data")}
    if EXPERIMENTS[name].processes == 1:
        environment["OMP_NUM_THREADS"] = "1"
    start = time.monotonic()
    train = [DTML, "translate", "train", recipe, "--processes", str(EXPERIMENTS[name].processes), "--json"]
    said = subprocess.run(train, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    subprocess.run(
        [DTML, "translate", "text", LINE, "--model", name, "--attention-page", folder / f"{name}.html"],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return json.loads(said.stdout) | {"minutes": (time.monotonic() - start) / 60}


def main() -> None:
    """Run the experiments asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--folder", type=Path, default=Path("data/translation-benchmark"))
    asked = parser.parse_args()
    if not CORPORA.is_dir():
        print(f"no shared data at {CORPORA}: nothing to train on")
        return
    print("| model | test | BLEU [95 %] | chrF | minutes | recipe |", flush=True)
    print("| --- | --- | ---: | ---: | ---: | --- |", flush=True)
    for name in asked.names or EXPERIMENTS:
        said = run(name, asked.folder.absolute())
        for test, score in said["scores"].items():
            figures = f"{score['bleu']:.1f} [{score['low']:.1f}, {score['high']:.1f}] | {score['chrf']:.1f}"
            print(f"| {name} | {test} | {figures} | {said['minutes']:.0f} | {said['recipe']} |", flush=True)


if __name__ == "__main__":
    main()
