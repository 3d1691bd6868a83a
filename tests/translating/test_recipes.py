"""Laws of recipes: what a file leaves out its size tells, and every mistake is
a line with the file and the key.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.places import ROOT
from translation.errors import UsageError
from translation.models import SIZES, size_for
from translation.recipes import TRAININGS, UNLIMITED, read_recipe

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
TEST = '[test.t]\nsource = "t"\n'
# A table with a mistake, and the words that its line must have.
MISTAKES = [
    ("[training]\nepochs = 3", ["training.epochs", "unknown"]),
    ("[network]\nsource_vocabulary = 3", ["network.source_vocabulary", "unknown"]),
    ('[network]\nkind = "rnn"\nheads = 3', ["network.heads", "unknown"]),
    ("[tokens]\nsize = 3", ["tokens.size", "unknown"]),
    ("[rules]\nshortest = 3", ["rules.shortest", "unknown"]),
    (TEST + "x = 1", ["test.t.x", "unknown"]),
    ('[network]\nsize = "huge"', ["network.size", "huge", "tiny"]),
    ('[network]\nkind = "oracle"', ["network.kind", "oracle", "rnn"]),
    ('[training]\ndecide_by = "luck"', ["training.decide_by", "luck", "bleu"]),
    ('[training]\nupdates = "many"', ["training.updates", "many", "whole number"]),
    ("[training]\nupdates = 0", ["[training]", "updates"]),
    ("[training]\nseeds = 0", ["training.seeds", "1", "got 0"]),
    ("[training]\npeak = nan", ["training.peak"]),
    ("[training]\nlabel_smoothing = 1.0", ["[training]", "label_smoothing"]),
    ("[tokens]\nvocabulary = 200", ["tokens.vocabulary", "300"]),
    ('[tokens]\njoint = "no"', ["tokens.joint", "true or false"]),
    ("[rules]\nlongest = 0", ["rules.longest", "1 or more"]),
    ("[network]\nheads = 3", ["[network]", "heads 3"]),
    ("[network]\nencoder_layers = -1", ["network.encoder_layers"]),
    ("[network]\ndropout = 1.5", ["[network]", "dropout"]),
    ("[network]\nd_model = 15\nheads = 1", ["network.d_model", "even"]),
    ('[network]\nkind = "rnn"\nattention = "x"', ["network.attention", "dot"]),
    (
        '[network]\nkind = "rnn"\nattention = "none"\nstructured = true',
        ["[network]", "structured"],
    ),
    ('[test.t]\ntarget = "t"', ["test.t.source", "missing"]),
    (TEST + "columns = [1]", ["test.t.columns", "2 items"]),
    (TEST + "columns = [1, 1]", ["[test.t]", "columns"]),
]


def read(folder, text):
    (folder / "made.toml").write_text(text)
    return read_recipe(folder / "made.toml")


def refused(folder, text):
    with pytest.raises(UsageError) as told:
        read(folder, text)
    assert "\n" not in str(told.value)
    assert "made.toml" in str(told.value)
    return str(told.value)


@pytest.mark.parametrize(("added", "words"), MISTAKES)
def test_a_mistake_is_a_line_with_the_file_and_the_key(tmp_path, added, words):
    told = refused(tmp_path, WHOLE + added)
    assert all(word in told for word in words), told


@pytest.mark.parametrize("name", ['""', '".."', '".hidden"', '"a/b"', '"a b"', "5"])
def test_a_name_that_no_folder_should_have_is_refused(tmp_path, name):
    assert "name" in refused(tmp_path, WHOLE.replace('"made"', name))


def test_tables_that_are_none_and_files_that_cannot_be_read_are_told(tmp_path):
    assert "tokens" in refused(tmp_path, "tokens = 5\n" + WHOLE)
    assert "nmae" in refused(tmp_path, 'nmae = "x"\n' + WHOLE)
    assert "source_language" in refused(tmp_path, WHOLE.replace('source_language = "xa"', ""))
    assert "not TOML" in refused(tmp_path, "name =")
    (tmp_path / "made.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"not UTF-8 .*byte 0"):
        read_recipe(tmp_path / "made.toml")
    with pytest.raises(UsageError, match="cannot read"):
        read_recipe(tmp_path / "none.toml")


def test_paths_are_relative_to_the_file(tmp_path):
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


def test_the_corpus_chooses_the_size_and_the_file_overrides_what_it_tells(tmp_path):
    sizes = [size_for(pairs) for pairs in (1, 99_999, 100_000, 10**6, 10**7)]
    assert sizes == ["tiny", "tiny", "small", "base", "big"]
    for epochs, size in (((5.0, 9.0, 9.0), "big"), ((4.9, 5.0, 9.0), "base"), ((4.9,) * 3, "tiny")):
        measured = dict(zip(("big", "base", "small"), epochs, strict=True))
        assert size_for(10**7, measured.__getitem__) == size
    recipe = read(
        tmp_path,
        WHOLE
        + "[network]\ndropout = 0\n[training]\npeak = 1\nupdates = 7\n[tokens]\nvocabulary = 400",
    )
    for size in SIZES:
        network, training = recipe.network_for(size), recipe.training_for(size)
        assert network == {**SIZES[size], "dropout": 0, "shared_embeddings": True}
        assert (training.peak, training.updates, recipe.vocabulary_for(size)) == (1, 7, 400)
        assert training.batch_tokens == TRAININGS[size]["batch_tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks" / "recipes").glob("*.toml")), ids=str)
def test_the_recipe_of_every_printed_figure_can_be_read(file):
    assert read_recipe(file).name == file.stem


def test_the_schedule_and_its_checks_follow_the_budget_and_the_optimiser_the_kind(tmp_path):
    recipe = read(tmp_path, WHOLE)
    linear = [recipe.training_for(size) for size in ("tiny", "small", "base")]
    assert [(each.schedule, each.warmup) for each in linear] == [
        ("linear", 0.18),
        ("linear", 0.18),
        ("linear", 0.04),
    ]
    published = replace(recipe, training={"schedule": "inverse_sqrt"}).training_for("tiny")
    assert (published.schedule, published.warmup) == ("inverse_sqrt", 4000)
    timed = replace(recipe, training={"minutes": 5.0})
    assert timed.training_for("tiny").updates == UNLIMITED
    both = replace(recipe, training={"minutes": 5.0, "updates": 9})
    assert both.training_for("tiny").updates == 9
    assert recipe.training_for("tiny").optimiser == "muon"
    assert replace(recipe, kind="rnn").training_for("tiny").optimiser == "adam"


def test_the_key_is_that_of_all_that_decides_but_the_end(tmp_path):
    linear = read(tmp_path, WHOLE)
    recipe = replace(linear, training={"schedule": "inverse_sqrt"})
    ends = {**recipe.training, "updates": 9000, "minutes": 3.0, "check_every": 7}
    assert replace(recipe, training=ends).key("tiny", "hash") == recipe.key("tiny", "hash")
    others = [
        recipe,
        linear,
        replace(linear, training={"updates": 9000}),
        replace(recipe, training={**recipe.training, "seed": 5}),
        replace(recipe, network={"d_ff": 5}),
        replace(recipe, vocabulary=500),
        replace(recipe, kind="rnn"),
        replace(recipe, joint=False),
    ]
    keys = {
        recipe.key("tiny", "other"),
        recipe.key("small", "hash"),
        *(each.key("tiny", "hash") for each in others),
    }
    assert len(keys) == 2 + len(others)
