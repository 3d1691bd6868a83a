"""`dtml translate` as its user meets it: models are trained, kept, listed,
scored and asked, mistakes are one line.
"""

import io
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from benchmarks.ctranslate2_export import main
from flows.cli import app
from flows.failures import run_command
from tests.support.commands import Command
from tests.support.places import ROOT
from tests.support.recipe import SOURCES, TEST, ended, is_one_line, started, write_recipe
from translation.recipes import read_recipe
from translation.training.checkpoints import STATE
from translation.training.distributed import SINGLE_PROCESS
from translation.training.from_recipe import train_model

pytestmark = pytest.mark.slow

WEIGHTS = "select checkpoint_hash from translation_model where name = 'tiny'"
RECIPE = (
    r"160 updates .*1 x 256 positions, muon, linear .*20% .*0\.01, dropout 0, 400 "
    "subwords .*NFC.*, seed 0;.*bleu: "
)
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp"


def stored(home: Path, sql: str) -> list[Any]:
    with closing(
        sqlite3.connect(home / "data" / "dtml.sqlite")
    ) as store:  # whose end removes files beside it
        return store.execute(sql).fetchall()


def counts(home: Path) -> list[int]:
    tables = ("model", "progress", "score")
    return [stored(home, f"select count(*) from translation_{table}")[0][0] for table in tables]


@pytest.mark.soak
@pytest.mark.usefixtures("served")
def test_a_training_is_stored_and_run_again_trains_nothing_and_adds_no_row(
    bare: Path, translate: Command
) -> None:
    write_recipe(bare)
    code, said, complaint = translate("train", "tiny.toml")
    told = complaint.splitlines()  # a training whose output goes into a file shows that it moves
    assert (code, len(told), "400 of 400 pairs" in told[0]) == (0, 4, True), complaint
    assert [line.split(",")[0] for line in told[1:3]] == ["step 80", "step 160"]
    assert re.search("trained .*tiny", told[3])
    assert re.search("tiny:.*transformer, xa-xb, 160 steps,.*BLEU", said)
    assert "made: BLEU" in said
    assert re.search(RECIPE, said)
    assert SIGNATURE in said
    assert counts(bare) == [1, 2, 1]
    weights = (bare / "data" / "translation" / "tiny" / "weights.safetensors").read_bytes()
    seconds = stored(bare, "select tokens_per_second, at from translation_progress")
    code, said, complaint = translate("train", "tiny.toml", "--json")
    assert (code, complaint.count("\n")) == (0, 2), complaint
    document = json.loads(said)
    assert counts(bare) == [1, 2, 1]
    assert stored(bare, "select tokens_per_second, at from translation_progress") == seconds
    assert (bare / "data" / "translation" / "tiny" / "weights.safetensors").read_bytes() == weights
    (listed,) = json.loads(translate("models", "--json")[1])
    assert listed["receipt"] == document["receipt"]
    assert listed["recipe"] == document["recipe"]
    assert re.match(RECIPE, document["recipe"])
    assert listed["tests"] == f"made {document['scores']['made']['bleu']:.1f} tok:13a"
    assert translate("score", "made")[0] == 0
    assert counts(bare) == [1, 2, 1]  # the same test and search


def write_recipe_to_interrupt(folder: Path) -> Path:
    """A training with dropout and three checks, which one process or two repeat to the last bit.

    Each of its updates is of two batches, one for each of two processes.
    """
    recipe = write_recipe(folder, updates=30, check_every=10, dropout=0.1)
    recipe.write_text(recipe.read_text().replace("accumulate = 1", "accumulate = 2"))
    return recipe


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the weights that this training ends with where nothing interrupts it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    model = train_model(
        read_recipe(write_recipe_to_interrupt(folder)),
        models=folder / "models",
        work=folder / "work",
        device=torch.device("cpu"),
        process_group=SINGLE_PROCESS,
    )
    assert model is not None
    return model.card.weights_hash


def wait_for_a_check(home: Path, process: "subprocess.Popen[str]") -> None:
    """Wait until the training in this process has kept its state at a check, and goes on."""
    state = home / "data" / "training" / "translation" / "tiny" / STATE
    deadline = time.monotonic() + 550
    while not state.exists():
        assert process.poll() is None, ended(process)
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.usefixtures("served")
@pytest.mark.soak
def test_a_training_that_is_killed_goes_on_to_the_weights_of_an_undisturbed_one(
    bare: Path, translate: Command, undisturbed: str
) -> None:
    write_recipe_to_interrupt(bare)
    process = started("train", "tiny.toml")
    wait_for_a_check(bare, process)
    process.send_signal(signal.SIGKILL)
    assert ended(process)[0] == -signal.SIGKILL
    assert not (bare / "data" / "translation" / "tiny" / "model.json").exists()
    code, _, complaint = translate("train", "tiny.toml")
    assert code == 0, complaint
    assert stored(bare, WEIGHTS) == [(undisturbed,)]
    assert counts(bare) == [1, 3, 1]


def member(process: Any, rank: int) -> int:
    """The number of the process with this rank in a group that `process` runs."""
    for number in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{number}/environ").read_bytes().split(b"\0"):
            return int(number)
    raise LookupError(rank)


@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="processes are found by Linux's /proc"
)
@pytest.mark.usefixtures("served")
@pytest.mark.soak
def test_a_training_that_loses_a_process_ends_with_a_line_and_goes_on_to_the_same_weights(
    bare: Path,
    undisturbed: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_recipe_to_interrupt(bare)
    command = ("train", "tiny.toml", "--processes", "2")
    process = started(*command)
    wait_for_a_check(bare, process)
    os.kill(member(process, 1), signal.SIGKILL)
    code, _, complaint = ended(process)
    assert (code, is_one_line(complaint.splitlines(keepends=True)[-1])) == (1, True), complaint
    assert "from the last check" in complaint
    monkeypatch.setattr(sys, "argv", ["dtml", "translate", *command])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # to its processes, which are children of this one
    code = run_command(app)
    said = capfd.readouterr()
    assert (code, "made: BLEU" in said.out) == (0, True), said.err
    assert stored(bare, WEIGHTS) == [(undisturbed,)]
    assert counts(bare) == [1, 3, 1]


@pytest.mark.usefixtures("served")
def test_a_model_that_another_process_trains_is_left_alone(bare: Path, translate: Command) -> None:
    work = bare / "data" / "training" / "translation" / "tiny"
    work.mkdir(parents=True)
    write_recipe(bare)
    with FileLock(work / "train.lock"):
        code, _, complaint = translate("train", "tiny.toml")
    assert (code, is_one_line(complaint), "process is training tiny" in complaint) == (
        1,
        True,
        True,
    ), complaint


def test_texts_are_translated_a_line_each_in_their_order(
    home: Path, translate: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said, complaint = translate("text", *SOURCES[:5])
    lines = said.split("\n")
    assert (code, len(lines), lines[-1], complaint) == (0, 6, "", "")
    assert len(set(lines)) == 6
    assert translate("text", *SOURCES[4::-1])[1].split("\n")[:-1] == lines[4::-1]
    given = ("\ufeff" + "".join(f"{line}\r\n" for line in SOURCES[:5])).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    assert translate("text", "-", "")[1] == f"{said}\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\xff\n")))
    code, _, complaint = translate("text", "-")
    assert (code, is_one_line(complaint), "line 2" in complaint) == (2, True, True)


def test_the_best_come_with_their_scores_and_json_says_the_same(
    home: Path, translate: Command
) -> None:
    code, said, _ = translate("text", SOURCES[0], "--best", "3")
    rows = [line.split(maxsplit=1) for line in said.splitlines()]
    assert code == 0
    assert len(rows) == 3
    assert sorted((float(score) for score, _ in rows), reverse=True) == [
        float(score) for score, _ in rows
    ]
    (document,) = json.loads(translate("text", SOURCES[0], "--best", "3", "--json")[1])
    assert [each["text"] for each in document["best"]] == [text for _, text in rows]
    assert [f"{each['score']:.3f}" for each in document["best"]] == [score for score, _ in rows]
    assert (document["text"], document["translation"]) == (SOURCES[0], rows[0][1])


def test_without_a_model_that_is_meant_it_is_one_line(home: Path, translate: Command) -> None:
    code, _, complaint = translate("text", "a", "--model", "nobody")
    assert (code, is_one_line(complaint), "choose one of tiny" in complaint) == (2, True, True)
    shutil.copytree(home / "data" / "translation" / "tiny", home / "data" / "translation" / "other")
    for command in (("text", "a"), ("file", "a", "--to", "b"), ("score", "made"), ("queue", "a")):
        code, said, complaint = translate(*command)
        assert (code, said, is_one_line(complaint)) == (2, "", True), complaint
        assert re.search("2 models:.*other, tiny .*--model", complaint)
    shutil.rmtree(home / "data")
    code, _, complaint = translate("text", "a")
    assert (code, is_one_line(complaint), "there is no model" in complaint) == (2, True, True)
    code, said, complaint = translate("models")
    assert (code, complaint) == (0, "")
    assert re.fullmatch("There is no model.*: `dtml translate demo`.*\n", said)


def test_a_damaged_model_is_one_line(home: Path, translate: Command) -> None:
    weights = home / "data" / "translation" / "tiny" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    code, _, complaint = translate("text", "a")
    assert (code, is_one_line(complaint), "damaged since" in complaint) == (
        1,
        True,
        True,
    )


def test_a_model_is_scored_on_its_tests_by_name_on_files_and_tables_alike(
    home: Path, translate: Command
) -> None:
    code, said, complaint = translate("score", "made", "--json")
    assert code == 0, complaint
    score = json.loads(said)["score"]
    assert score["signature"].startswith(SIGNATURE)
    assert score["sentences"] == len(TEST)
    (home / "test.xa").write_text("".join(f"{source}\n" for source, _ in TEST))
    (home / "test.xb").write_text("".join(f"{target}\n" for _, target in TEST))
    (home / "table.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in TEST))
    (home / "wide.tsv").write_text(
        "".join(f"{target}\tmade\t{source}\n" for source, target in TEST)
    )
    for test in (
        ("test.xa", "--references", "test.xb"),
        ("table.tsv",),
        ("wide.tsv", "--columns", "2", "0"),
    ):
        assert json.loads(translate("score", *test, "--json")[1])["score"] == score
    rows = stored(home, "select count(*) from translation_score")
    said = translate("score", "made")[1]
    assert f"BLEU {score['bleu']:.1f} [{score['low']:.1f}, {score['high']:.1f}]" in said
    assert SIGNATURE in said
    assert stored(home, "select count(*) from translation_score") == rows
    code, _, complaint = translate("score", "test.xb", "--references", "test.xa")
    assert (code, is_one_line(complaint), "says xb" in complaint) == (2, True, True), complaint
    (home / "test.xb").write_text("one\ntwo\n")
    code, _, complaint = translate("score", "test.xa", "--references", "test.xb")
    assert (code, is_one_line(complaint)) == (2, True)
    assert re.search(r"test\.xa .*20 lines,.*test\.xb .*2:", complaint)
    code, _, complaint = translate("score", "unmade")
    assert (code, is_one_line(complaint), "test set of tiny (made)" in complaint) == (2, True, True)


def test_two_models_are_compared_on_the_same_sentences(home: Path, translate: Command) -> None:
    other = home / "data" / "translation" / "other"
    shutil.copytree(home / "data" / "translation" / "tiny", other)
    card = json.loads((other / "model.json").read_text())
    (other / "model.json").write_text(json.dumps(card | {"name": "other"}))
    command = ("score", "made", "--model", "tiny", "--against", "other")
    assert re.search(r"minus other: \+0\.0 \[\+0\.0, \+0\.0\],.*= 1\.000", translate(*command)[1])
    compared = json.loads(translate(*command, "--json")[1])["compared"]
    assert (compared["difference"], compared["p"]) == (0.0, 1.0)
    assert stored(home, "select model, against, p from translation_score") == [
        ("tiny", "other", 1.0)
    ]


class Tags(HTMLParser):
    """Whatever a page could fetch, run, or draw."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.sources: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.sources += [
            str(value)
            for name, value in attrs
            if name in {"src", "href", "srcset", "data", "action"}
        ]


def test_the_page_of_attention_shows_every_text_and_asks_nothing_of_anybody(
    home: Path, translate: Command
) -> None:
    evil = '<script>alert(1)</script> & "bano"'
    code, _, complaint = translate(
        "text", SOURCES[0], evil, "", "--attention-page", "pages/seen.html"
    )
    assert code == 0, complaint
    page = (home / "pages" / "seen.html").read_text()
    tags = Tags(page)
    maps = 1 + 3 * 1 * 2  # the mean, and each layer and head of encoder, between and decoder
    assert tags.found.count("svg") == 3 * maps
    assert "script" not in tags.found
    assert "&lt;script&gt;" in page
    assert [each for each in tags.sources if not each.startswith(("#", "data:"))] == []


def test_a_model_is_exported_whole_for_another_program(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    pytest.importorskip("ctranslate2", reason="no CTranslate2: pip install '.[ctranslate2]'")
    folder = home / "data" / "translation" / "tiny"
    main([str(folder), "--to", "out"])
    said = capsys.readouterr().out
    assert re.match("tiny .*out,.*vocabularies", said.splitlines()[0])
    # Nothing is compared where the tests of the recipe are no more; else both engines say the same.
    compared = (
        f"{len(TEST)} of {len(TEST)} sentences .*as here$|none .*: no translation .*compared$"
    )
    assert re.match(compared, said.splitlines()[1])
    assert {file.name for file in (home / "out").iterdir()} >= {
        "model.bin",
        "source.model",
        "target.model",
    }
    assert not list(home.glob(".out*"))


def test_a_database_that_cannot_be_reached_is_one_line_without_its_password(
    home: Path, translate: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTML_DATABASE_URL", "postgresql://quant:s3cret-w0rd@127.0.0.1:9/texts")
    for command in (("models",), ("jobs",), ("queue", "a"), ("score", "made")):
        code, _, complaint = translate(*command)
        assert (code, is_one_line(complaint), "s3cret" in complaint) == (1, True, False), complaint
        assert "127.0.0.1" in complaint


@pytest.mark.usefixtures("served")
def test_a_recipe_that_cannot_be_meant_is_one_line(bare: Path, translate: Command) -> None:
    recipe = write_recipe(bare)
    (bare / "train.tsv").unlink()
    for file, words in (("none.toml", "none.toml"), ("tiny.toml", "train.tsv does not exist")):
        code, _, complaint = translate("train", file)
        assert (code, is_one_line(complaint), words in complaint) == (2, True, True), complaint
    recipe.write_text("name = ")
    code, _, complaint = translate("train", "tiny.toml")
    assert (code, is_one_line(complaint), "not TOML" in complaint) == (2, True, True)
