"""`dtml translate` as its user meets it: models are trained, kept, listed, scored and asked."""

import io
import json
import os
import re
import shutil
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from benchmarks.ctranslate2_export import main
from flows.cli import app
from flows.failures import run_command
from tests.support.places import ROOT
from tests.support.recipe import SOURCES, TEST, ended, refused, started, write_recipe
from tests.support.translations import edit_card
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


def stored(home, sql):
    with closing(sqlite3.connect(home / "data" / "dtml.sqlite")) as store:
        return store.execute(sql).fetchall()


def counts(home):
    tables = ("model", "progress", "score")
    return [stored(home, f"select count(*) from translation_{table}")[0][0] for table in tables]


@pytest.mark.soak
@pytest.mark.usefixtures("served")
def test_a_training_is_stored_and_run_again_trains_nothing_and_adds_no_row(bare, translate):
    write_recipe(bare)
    code, said, complaint = translate("train", "tiny.toml")
    told = complaint.splitlines()  # a training whose output goes into a file shows that it moves
    assert (code, len(told), "400 of 400 pairs" in told[0]) == (0, 4, True), complaint
    assert [line.split(",")[0] for line in told[1:3]] == ["step 80", "step 160"]
    assert re.search("tiny:.*transformer, xa-xb, 160 steps,.*BLEU", said)
    for words in (RECIPE, "made: BLEU", re.escape(SIGNATURE)):
        assert re.search(words, said)
    progress = stored(bare, "select tokens_per_second, at from translation_progress")
    weights = stored(bare, WEIGHTS)
    code, said, complaint = translate("train", "tiny.toml", "--json")
    assert (code, complaint.count("\n")) == (0, 2), complaint
    document = json.loads(said)
    assert translate("score", "made")[0] == 0  # the same test and search
    assert counts(bare) == [1, 2, 1]
    assert stored(bare, "select tokens_per_second, at from translation_progress") == progress
    assert stored(bare, WEIGHTS) == weights
    (listed,) = json.loads(translate("models", "--json")[1])
    assert (listed["receipt"], listed["recipe"]) == (document["receipt"], document["recipe"])
    assert listed["tests"] == f"made {document['scores']['made']['bleu']:.1f} tok:13a"


def write_recipe_to_interrupt(folder):
    """A training with dropout and three checks, which one process or two repeat to the last bit.

    Each of its updates is of two batches, one for each of two processes.
    """
    recipe = write_recipe(folder, updates=30, check_every=10, dropout=0.1)
    recipe.write_text(recipe.read_text().replace("accumulate = 1", "accumulate = 2"))
    return recipe


def member(process, rank):
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
def test_a_training_that_loses_a_process_ends_with_a_line_and_goes_on_to_the_weights_of_one_process(
    bare,
    tmp_path_factory,
    capfd,
    monkeypatch,
):
    undisturbed = tmp_path_factory.mktemp("undisturbed")
    recipe = read_recipe(write_recipe_to_interrupt(undisturbed))
    model = train_model(recipe, undisturbed, undisturbed, torch.device("cpu"), SINGLE_PROCESS)
    assert model is not None
    write_recipe_to_interrupt(bare)
    command = ("train", "tiny.toml", "--processes", "2")
    process = started(*command)
    state = bare / "data" / "training" / "translation" / "tiny" / STATE
    while not state.exists():  # the training has kept its state at a check, and goes on
        assert process.poll() is None, ended(process)
        time.sleep(0.005)
    os.kill(member(process, 1), signal.SIGKILL)
    code, _, complaint = ended(process)
    last_line = complaint.splitlines()[-1]
    assert (code, last_line.startswith("error: ")) == (1, True), complaint
    assert "from the last check" in last_line
    assert not (bare / "data" / "translation" / "tiny").exists()
    monkeypatch.setattr(sys, "argv", ["dtml", "translate", *command])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # to its processes, which are children of this one
    code = run_command(app)
    said = capfd.readouterr()
    assert (code, "made: BLEU" in said.out) == (0, True), said.err
    assert stored(bare, WEIGHTS) == [(model.card.weights_hash,)]
    assert counts(bare) == [1, 3, 1]


@pytest.mark.usefixtures("served")
def test_a_training_that_cannot_be_is_one_line(bare, translate):
    recipe, work = write_recipe(bare), bare / "data" / "training" / "translation" / "tiny"
    work.mkdir(parents=True)
    with FileLock(work / "train.lock"):
        assert "process is training tiny" in refused(translate, "train", "tiny.toml", code=1)
    assert "none.toml" in refused(translate, "train", "none.toml")
    (bare / "train.tsv").unlink()
    assert "train.tsv does not exist" in refused(translate, "train", "tiny.toml")
    recipe.write_text("name = ")
    assert "not TOML" in refused(translate, "train", "tiny.toml")


def test_texts_are_translated_a_line_each_in_their_order(home, translate, monkeypatch):
    code, said, complaint = translate("text", *SOURCES[:5])
    lines = said.split("\n")
    assert (code, len(set(lines)), lines[-1], complaint) == (0, 6, "", "")
    given = ("\ufeff" + "".join(f"{line}\r\n" for line in SOURCES[:5])).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    assert translate("text", "-", "")[1] == f"{said}\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\xff\n")))
    assert "line 2" in refused(translate, "text", "-")


def test_the_best_come_with_their_scores_and_json_says_the_same(home, translate):
    code, said, _ = translate("text", SOURCES[0], "--best", "3")
    rows = [line.split(maxsplit=1) for line in said.splitlines()]
    (document,) = json.loads(translate("text", SOURCES[0], "--best", "3", "--json")[1])
    assert (code, len(rows)) == (0, 3)
    assert rows == [[f"{each['score']:.3f}", each["text"]] for each in document["best"]]
    assert (document["text"], document["translation"]) == (SOURCES[0], rows[0][1])


def test_a_command_names_the_model_that_it_needs_and_the_way_to_one(home, translate):
    models = home / "data" / "translation"
    assert "choose one of tiny" in refused(translate, "text", "a", "--model", "nobody")
    shutil.copytree(models / "tiny", models / "other")
    for command in (("text", "a"), ("file", "a", "--to", "b"), ("score", "made"), ("queue", "a")):
        assert re.search("2 models:.*other, tiny .*--model", refused(translate, *command))
    shutil.rmtree(home / "data")
    assert "there is no model" in refused(translate, "text", "a")
    code, said, complaint = translate("models")
    assert (code, complaint, (home / "data").exists()) == (0, "", False)
    assert re.fullmatch("There is no model.*: `dtml translate demo`.*\n", said)


def test_a_model_is_scored_on_its_tests_by_name_on_files_and_tables_alike(home, translate):
    code, said, complaint = translate("score", "made", "--json")
    assert code == 0, complaint
    score = json.loads(said)["score"]
    assert score["signature"].startswith(SIGNATURE)
    assert score["sentences"] == len(TEST)
    for name, line in (
        ("test.xa", "{0}\n"),
        ("test.xb", "{1}\n"),
        ("table.tsv", "{0}\t{1}\n"),
        ("wide.tsv", "{1}\tmade\t{0}\n"),
    ):
        (home / name).write_text("".join(line.format(*pair) for pair in TEST))
    for test in ("test.xa --references test.xb", "table.tsv", "wide.tsv --columns 2 0"):
        assert json.loads(translate("score", *test.split(), "--json")[1])["score"] == score
    said = translate("score", "made")[1]
    assert f"BLEU {score['bleu']:.1f} [{score['low']:.1f}, {score['high']:.1f}] tok:13a" in said
    assert SIGNATURE in said
    said = translate("score", "made", "--tokenizer", "char", "--json")[1]
    assert json.loads(said)["score"]["tokenizer"] == "char"
    (listed,) = json.loads(translate("models", "--json")[1])
    assert re.search(r"made \d+\.\d tok:char$", listed["tests"])  # the same test and search
    assert len(stored(home, "select 1 from translation_score where test = 'made'")) == 1


def test_a_score_that_cannot_be_is_one_line(home, translate, monkeypatch):
    (home / "test.xa").write_text("bano\n" * 20)
    (home / "test.xb").write_text("one\ntwo\n")
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ko_mecab.MeCab", None)
    for command, words in (
        ("test.xb --references test.xa", "says xb"),
        ("test.xa --references test.xb", r"test\.xa .*20 lines,.*test\.xb .*2:"),
        ("unmade", r"test set of tiny \(made\)"),
        ("made --tokenizer ko-mecab", r"sacrebleu\[ko\]"),
    ):
        assert re.search(words, refused(translate, "score", *command.split()))
    assert translate("score", "made", "--tokenizer", "flores200")[0] == 2  # it would be downloaded


def test_two_models_are_compared_on_the_same_sentences(home, translate):
    other = home / "data" / "translation" / "other"
    shutil.copytree(home / "data" / "translation" / "tiny", other)
    edit_card(other, name="other")
    command = ("score", "made", "--model", "tiny", "--against", "other")
    assert re.search(r"minus other: \+0\.0 \[\+0\.0, \+0\.0\],.*= 1\.000", translate(*command)[1])
    compared = json.loads(translate(*command, "--json")[1])["compared"]
    assert (compared["difference"], compared["p"]) == (0.0, 1.0)
    kept = stored(home, "select model, against, p from translation_score")
    assert kept == [("tiny", "other", 1.0)]


def test_the_page_of_attention_shows_every_text_and_asks_nothing_of_anybody(home, translate):
    texts = (SOURCES[0], '<script>alert(1)</script> & "bano"', "")
    code, _, complaint = translate("text", *texts, "--attention-page", "pages/seen.html")
    assert code == 0, complaint
    page = (home / "pages" / "seen.html").read_text()
    maps = 1 + 3 * 1 * 2  # the mean, and each layer and head of encoder, between and decoder
    assert page.count("<svg") == 3 * maps
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    sources = re.findall(r'\b(?:src|href|srcset|data|action)="([^"]*)"', page)
    assert [each for each in sources if not each.startswith(("#", "data:"))] == []


@pytest.mark.soak
def test_a_model_is_exported_whole_for_another_program(home, capsys, monkeypatch):
    monkeypatch.chdir(home)
    pytest.importorskip("ctranslate2", reason="no CTranslate2: pip install '.[ctranslate2]'")
    main([str(home / "data" / "translation" / "tiny"), "--to", "out"])
    written, compared = capsys.readouterr().out.splitlines()[:2]
    assert re.match("tiny .*out,.*vocabularies", written)
    # Nothing is compared where the tests of the recipe are no more; else both engines say the same.
    equal = f"{len(TEST)} of {len(TEST)} sentences .*as here$"
    assert re.match(f"{equal}|none .*: no translation .*compared$", compared)
    files = {file.name for file in (home / "out").iterdir()}
    assert files >= {"model.bin", "source.model", "target.model"}
    assert not list(home.glob(".out*"))
