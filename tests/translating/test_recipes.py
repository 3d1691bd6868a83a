"""Laws of recipes: what a file leaves out its size tells, and every mistake is
a line with the file and the key.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.places import ROOT
from translation.errors import UsageError
from translation.models import SIZES, size_for
from translation.recipes import TRAININGS, UNLIMITED, Recipe, read_recipe

WHOLE = """
name = "made"
source_language = "xa"
target_language = "xb"
[train]
source = "train.xa.txt"
target = "train.xb.txt"
[validation]
source = "validation.tsv"
columns = [1, 0]
"""
# What is added, and the words that the line must have.
MISTAKES = {
    "unknown table": ("[corpus]\nx = 1", ["corpus", "unknown"]),
    "unknown word": ('nmae = "x"\n', ["nmae", "unknown"]),
    "unknown key of a training": ("[training]\nepochs = 3", ["training.epochs", "unknown"]),
    "unknown key of a network": ("[network]\nwidth = 3", ["network.width", "unknown"]),
    "vocabularies are of tokens": (
        "[network]\nsource_vocabulary = 3",
        ["network.source_vocabulary", "unknown"],
    ),
    "key of another kind": ('[network]\nkind = "rnn"\nheads = 3', ["network.heads", "unknown"]),
    "unknown key of tokens": ("[tokens]\nsize = 3", ["tokens.size", "unknown"]),
    "unknown key of rules": ("[rules]\nshortest = 3", ["rules.shortest", "unknown"]),
    "unknown key of a test": ('[test.t]\nsource = "t"\nx = 1', ["test.t.x", "unknown"]),
    "size": ('[network]\nsize = "huge"', ["network.size", "huge", "tiny"]),
    "size of another type": ("[network]\nsize = [1]", ["network.size"]),
    "kind": ('[network]\nkind = "oracle"', ["network.kind", "oracle", "rnn"]),
    "kind of another type": ("[network]\nkind = [1]", ["network.kind"]),
    "decide_by": ('[training]\ndecide_by = "luck"', ["training.decide_by", "luck", "bleu"]),
    "updates in words": (
        '[training]\nupdates = "many"',
        ["training.updates", "many", "whole number"],
    ),
    "updates by halves": ("[training]\nupdates = 1.5", ["training.updates", "whole number"]),
    "updates true": ("[training]\nupdates = true", ["training.updates"]),
    "no updates": ("[training]\nupdates = 0", ["[training]", "updates"]),
    "no warm-up": ("[training]\nwarmup = 0", ["[training]", "warmup"]),
    "peak in words": ('[training]\npeak = "high"', ["training.peak", "number"]),
    "peak nan": ("[training]\npeak = nan", ["training.peak"]),
    "smoothing": ("[training]\nlabel_smoothing = 1.0", ["[training]", "label_smoothing"]),
    "vocabulary in words": ('[tokens]\nvocabulary = "x"', ["tokens.vocabulary", "whole number"]),
    "vocabulary too small": ("[tokens]\nvocabulary = 200", ["tokens.vocabulary", "300"]),
    "joint in words": ('[tokens]\njoint = "no"', ["tokens.joint", "true or false"]),
    "rules in words": ('[rules]\nlongest = "x"', ["rules.longest"]),
    "rules of nothing": ("[rules]\nlongest = 0", ["[rules]", "longest"]),
    "heads": ("[network]\nheads = 3", ["[network]", "heads 3"]),
    "no heads": ("[network]\nheads = 0", ["network.heads"]),
    "no layers": ("[network]\nencoder_layers = -1", ["network.encoder_layers"]),
    "dropout": ("[network]\ndropout = 1.5", ["[network]", "dropout"]),
    "dropout in words": ('[network]\ndropout = "x"', ["network.dropout"]),
    "norm": ('[network]\nnorm = "past"', ["network.norm", "post"]),
    "odd width": ("[network]\nd_model = 15\nheads = 1", ["network.d_model", "even"]),
    "attention": ('[network]\nkind = "rnn"\nattention = "x"', ["network.attention", "dot"]),
    "structured": (
        '[network]\nkind = "rnn"\nattention = "none"\nstructured = true',
        ["[network]", "structured"],
    ),
    "test is no table": ('[test]\nt = "t.tsv"', ["test.t", "a table"]),
    "test without source": ('[test.t]\ntarget = "t"', ["test.t.source", "missing"]),
    "source is a number": ("[test.t]\nsource = 5", ["test.t.source"]),
    "one column": ('[test.t]\nsource = "t"\ncolumns = [1]', ["test.t.columns", "2 items"]),
    "columns in words": ('[test.t]\nsource = "t"\ncolumns = "ab"', ["test.t.columns"]),
    "columns true": ('[test.t]\nsource = "t"\ncolumns = [true, false]', ["test.t.columns[1]"]),
    "same columns": ('[test.t]\nsource = "t"\ncolumns = [1, 1]', ["[test.t]", "columns"]),
}


def read(folder: Path, text: str) -> Recipe:
    (folder / "made.toml").write_text(text)
    return read_recipe(folder / "made.toml")


def refused(folder: Path, text: str) -> str:
    with pytest.raises(UsageError) as told:
        read(folder, text)
    assert "\n" not in str(told.value)
    assert "made.toml" in str(told.value)
    return str(told.value)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_a_line_with_the_file_and_the_key(tmp_path: Path, name: str) -> None:
    added, words = MISTAKES[name]
    told = refused(tmp_path, added + WHOLE if name == "unknown word" else WHOLE + added)
    assert all(word in told for word in words), told


@pytest.mark.parametrize("name", ['""', '".."', '".hidden"', '"a/b"', '"a b"', "5"])
def test_a_name_that_no_folder_should_have_is_refused(tmp_path: Path, name: str) -> None:
    assert "name" in refused(tmp_path, WHOLE.replace('"made"', name))


@pytest.mark.parametrize(
    "line", ['name = "made"', 'source_language = "xa"', 'source = "train.xa.txt"']
)
def test_what_is_not_said_is_named(tmp_path: Path, line: str) -> None:
    assert line.split(maxsplit=1)[0] in refused(tmp_path, WHOLE.replace(line, "", 1))


def test_tables_that_are_none_and_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    assert "tokens" in refused(tmp_path, "tokens = 5\n" + WHOLE)
    assert "not TOML" in refused(tmp_path, "name =")
    (tmp_path / "made.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"not UTF-8 .*byte 0"):
        read_recipe(tmp_path / "made.toml")
    with pytest.raises(UsageError, match="cannot read"):
        read_recipe(tmp_path / "none.toml")


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    recipe = read(tmp_path, WHOLE)
    assert (recipe.train.source, recipe.train.target) == (
        tmp_path / "train.xa.txt",
        tmp_path / "train.xb.txt",
    )
    assert (recipe.validation.target, recipe.validation.columns) == (None, (1, 0))
    absolute = read(tmp_path, WHOLE.replace("train.xa.txt", "/elsewhere/x"))
    assert absolute.train.source == Path("/elsewhere/x")
    # The name of a link tells the language, that of what it leads to may not.
    (tmp_path / "train.xa.txt").symlink_to("aaa.xb.txt")
    assert read(tmp_path, WHOLE).train.source == tmp_path / "train.xa.txt"


def test_no_dropout_is_a_whole_number_too(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE + "[network]\ndropout = 0").network == {"dropout": 0}


def test_the_corpus_chooses_the_size_and_the_file_overrides_what_it_tells(tmp_path: Path) -> None:
    assert [size_for(pairs) for pairs in (1, 99_999, 100_000, 10**6, 10**7)] == [
        "tiny",
        "tiny",
        "small",
        "base",
        "big",
    ]
    assert size_for(10**7, {"big": 5.0}.__getitem__) == "big"
    assert size_for(10**7, {"big": 4.9, "base": 5.0}.__getitem__) == "base"
    assert size_for(10**7, {"big": 4.9, "base": 4.9, "small": 4.9}.__getitem__) == "tiny"
    recipe = read(
        tmp_path,
        WHOLE
        + "[network]\nd_ff = 100\n[training]\npeak = 1\nupdates = 7\n[tokens]\nvocabulary = 400",
    )
    for size in SIZES:
        network, training = recipe.network_for(size), recipe.training_for(size)
        assert network == {**SIZES[size], "d_ff": 100, "shared_embeddings": True}
        assert (training.peak, training.updates, recipe.vocabulary_for(size)) == (1, 7, 400)
        assert training.batch_tokens == TRAININGS[size]["batch_tokens"]


def test_a_first_recipe_needs_five_lines(tmp_path: Path) -> None:
    parts = [
        f'{part} = {{ source = "{part}.en.txt", target = "{part}.de.txt" }}'
        for part in ("train", "validation")
    ]
    recipe = read(
        tmp_path,
        "\n".join(['name = "first"', 'source_language = "en"', 'target_language = "de"', *parts]),
    )
    assert recipe.validation.target == tmp_path / "validation.de.txt"
    assert recipe.training_for("tiny").optimiser == "muon"
    assert replace(recipe, kind="rnn").training_for("tiny").optimiser == "adam"


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks" / "recipes").glob("*.toml")), ids=str)
def test_the_recipe_of_every_printed_figure_can_be_read(file: Path) -> None:
    assert read_recipe(file).name == file.stem


def test_the_schedule_and_its_checks_follow_the_budget(tmp_path: Path) -> None:
    recipe = read(tmp_path, WHOLE)
    assert [recipe.training_for(size).warmup for size in ("tiny", "small", "base")] == [
        0.18,
        0.18,
        0.04,
    ]
    assert {recipe.training_for(size).schedule for size in SIZES} == {"linear"}
    published = replace(recipe, training={"schedule": "inverse_sqrt"}).training_for("tiny")
    assert (published.schedule, published.warmup) == ("inverse_sqrt", 4000)
    timed = replace(recipe, training={"minutes": 5.0}).training_for("tiny")
    assert (timed.updates, timed.check_every) == (UNLIMITED, None)
    assert (
        replace(recipe, training={"minutes": 5.0, "updates": 9}).training_for("tiny").updates == 9
    )


def test_the_key_is_that_of_all_that_decides_but_the_end(tmp_path: Path) -> None:
    recipe = replace(read(tmp_path, WHOLE), training={"schedule": "inverse_sqrt"})
    key = recipe.key("tiny", "hash")
    ends = replace(
        recipe, training={**recipe.training, "updates": 9000, "minutes": 3.0, "check_every": 7}
    )
    assert ends.key("tiny", "hash") == key
    linear, longer = (
        replace(recipe, training=each).key("tiny", "hash") for each in ({}, {"updates": 9000})
    )
    assert len({key, linear, longer}) == 3
    others = [
        replace(recipe, training={**recipe.training, "seed": 5}),
        replace(recipe, network={"d_ff": 5}),
        replace(recipe, vocabulary=500),
        replace(recipe, kind="rnn"),
        replace(recipe, joint=False),
    ]
    keys = {
        key,
        recipe.key("tiny", "other"),
        recipe.key("small", "hash"),
        *(each.key("tiny", "hash") for each in others),
    }
    assert len(keys) == 3 + len(others)
