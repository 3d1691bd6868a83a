"""A file that is translated has a line for each line, is there whole or not at
all, and goes on where it was killed.
"""

import gzip
import os
import re
import resource
import shutil

import pytest
from filelock import FileLock

from flows.translating import files as translate_files
from tests.support.recipe import SOURCES, refused
from tests.support.translations import edit_card

pytestmark = pytest.mark.slow

translated = translate_files.translate


@pytest.fixture
def text(home):
    """60 lines, an empty one among them."""
    (file := home / "text").write_text("\n".join([*SOURCES[:30], "", *SOURCES[30:59]]) + "\n")
    return file


@pytest.fixture
def in_small_parts(monkeypatch):
    monkeypatch.setattr(translate_files, "LINES_AT_ONCE", 10)


def beside(home):
    return {file.name for file in home.iterdir()} - {"data", "text"}


def test_a_line_goes_out_for_each_line_in_plain_or_gzip(translate, text, home):
    code, said, complaint = translate("file", "text", "--to", "out")
    assert code == 0, complaint
    assert re.fullmatch("60 lines .*out\n", said)
    lines = (home / "out").read_text().split("\n")
    assert len(lines) == 61
    assert lines[30] == lines[60] == ""
    assert len(set(lines)) > 40
    alone = translate("text", SOURCES[3], SOURCES[40])[1].splitlines()
    assert alone == [lines[3], lines[41]]
    (home / "packed").write_bytes(gzip.compress(text.read_bytes().replace(b"\n", b"\r\n")))
    assert translate("file", "packed", "--to", "again")[0] == 0
    assert (home / "again").read_bytes() == (home / "out").read_bytes()
    assert beside(home) == {"packed", "out", "again"}


@pytest.mark.usefixtures("in_small_parts")
@pytest.mark.parametrize("cut", ["", "half of a line that was never en"])
def test_what_was_done_is_kept_and_the_rest_is_added(translate, text, home, cut, monkeypatch):
    assert translate("file", "text", "--to", "whole")[0] == 0
    interrupted_after(monkeypatch, 3)
    assert translate("file", "text", "--to", "out")[0] == 1
    assert not (home / "out").exists()
    with (home / "out.unfinished").open("a") as partial:
        partial.write(cut)
    left = interrupted_after(monkeypatch, 3)
    assert translate("file", "text", "--to", "out")[0] == 0
    assert left == [10, 10, 10]  # lines that were translated now
    assert (home / "out").read_bytes() == (home / "whole").read_bytes()
    assert beside(home) == {"whole", "out"}


def interrupted_after(monkeypatch, parts):
    """Let no more than these parts be translated; the lines of each are noted."""
    noted = list[int]()

    def some(model, lines, how, **options):
        if len(noted) == parts:
            raise OSError("pulled the plug")
        noted.append(len(lines))
        return translated(model, lines, how, **options)

    monkeypatch.setattr(translate_files, "translate", some)
    return noted


@pytest.mark.usefixtures("in_small_parts")
@pytest.mark.parametrize("changed", ["text", "search", "model"])
def test_another_text_search_or_model_starts_anew(translate, text, home, changed, monkeypatch):
    models = home / "data" / "translation"
    shutil.copytree(models / "tiny", models / "other")
    edit_card(models / "other", name="other")
    interrupted_after(monkeypatch, 2)
    assert translate("file", "text", "--to", "out", "--model", "tiny")[0] == 1
    if changed == "text":  # of as many lines
        text.write_text(text.read_text().replace(SOURCES[0], SOURCES[1]))
    model = "other" if changed == "model" else "tiny"
    beams = "2" if changed == "search" else "5"
    noted = interrupted_after(monkeypatch, 9)
    again = ("file", "text", "--to", "out", "--model", model, "--beams", beams)
    assert translate(*again)[0] == 0
    assert sum(noted) == 60


MISTAKES = {
    "not UTF-8": (b"one\ntwo\n\xff\n", "out", "at line 3"),
    "empty": (b"", "out", "is empty"),
    "no folder": (b"one\n", "none/out", "none is no folder"),
    "a folder": (b"one\n", "data", "data is a folder"),
    "itself": (b"one\n", "text", "is the file to"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_written(mistake, translate, home):
    given, to, words = MISTAKES[mistake]
    (home / "text").write_bytes(given)
    assert words in refused(translate, "file", "text", "--to", to)
    assert beside(home) == set()
    assert (home / "text").read_bytes() == given


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to_is_one_line(translate, text, home):
    (home / "closed").mkdir(mode=0o500)
    assert "is no folder that" in refused(translate, "file", "text", "--to", "closed/out")


def test_a_file_that_another_process_writes_is_left_alone(translate, text, home):
    with FileLock(home / "out.unfinished.lock"):
        told = refused(translate, "file", "text", "--to", "out", code=1)
    assert "process is writing out" in told


@pytest.mark.usefixtures("in_small_parts")
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(translate, text, home):
    assert translate("file", "text", "--to", "whole")[0] == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (800, hard))
    try:
        told = refused(translate, "file", "text", "--to", "out", code=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "the same command again" in told
    assert not (home / "out").exists()
    assert translate("file", "text", "--to", "out")[0] == 0
    assert (home / "out").read_bytes() == (home / "whole").read_bytes()
