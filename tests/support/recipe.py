"""A training of seconds on made sentences, and processes of `dtml translate` to run it in."""

import os
import random
import subprocess
import sys
from pathlib import Path

from tests.support.commands import Command
from tests.support.places import ROOT

XA = [
    "bano",
    "lume",
    "sarto",
    "tiko",
    "meral",
    "poska",
    "veno",
    "gulda",
    "nirra",
    "fanto",
    "ruvel",
    "kesto",
]
XB = [
    "dorsk",
    "velt",
    "prin",
    "gram",
    "hust",
    "lind",
    "tarm",
    "skir",
    "blef",
    "morg",
    "snit",
    "jarl",
]


def made_pairs(count: int) -> list[tuple[str, str]]:
    """Sentences of two to seven words that are translated word by word: a
    hundred steps learn most of it.
    """
    draw, pairs = random.Random(1), dict[str, str]()
    while len(pairs) < count:
        words = [draw.randrange(len(XA)) for _ in range(draw.randint(2, 7))]
        pairs[" ".join(XA[each] for each in words)] = " ".join(XB[each] for each in words)
    return list(pairs.items())


PAIRS = made_pairs(500)
TRAIN, VALIDATION, TEST = PAIRS[:400], PAIRS[400:420], PAIRS[420:440]
SOURCES = [source for source, _ in PAIRS[440:]]
RECIPE = """
name = "{name}"
source_language = "xa"
target_language = "xb"
[train]
source = "train.tsv"
[validation]
source = "validation.tsv"
[test.made]
source = "test.tsv"
[tokens]
vocabulary = 400
[network]
size = "tiny"
d_model = 32
d_ff = 64
heads = 2
encoder_layers = 1
decoder_layers = 1
dropout = {dropout}
[training]
batch_tokens = 256
accumulate = 1
updates = {updates}
warmup = 0.2
peak = 0.01
check_every = {check_every}
average = 2
"""


def write_recipe(
    folder: Path,
    name: str = "tiny",
    *,
    updates: int = 160,
    check_every: int = 80,
    dropout: float = 0.0,
) -> Path:
    """A corpus of made sentences and the file of a training of seconds."""
    for file, pairs in (("train", TRAIN), ("validation", VALIDATION), ("test", TEST)):
        (folder / f"{file}.tsv").write_text(
            "".join(f"{source}\t{target}\n" for source, target in pairs)
        )
    recipe = RECIPE.format(name=name, updates=updates, check_every=check_every, dropout=dropout)
    (file := folder / f"{name}.toml").write_text(recipe)
    return file


def started(*arguments: str, limit: int | None = None) -> "subprocess.Popen[str]":
    """A process of `dtml translate` in the current folder; no file of its own
    may grow beyond `limit` bytes.
    """
    small = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); "
        if limit
        else ""
    )
    code = f"{small}from flows.cli import main; main()"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code, "translate", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a process that ends by itself."""
    out, err = process.communicate(timeout=550)
    return process.returncode, out, err


def is_one_line(complaint: str) -> bool:
    return (
        complaint.startswith("error: ")
        and complaint.count("\n") == 1
        and "Traceback" not in complaint
    )


def refused(translate: Command, *arguments: str, code: int = 2) -> str:
    """The line with which a command ends, with this code and nothing on standard output."""
    found, said, complaint = translate(*arguments)
    assert (found, said, is_one_line(complaint)) == (code, "", True), complaint
    return complaint
