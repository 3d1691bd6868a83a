"""A file is there whole or not at all, on a disk without room too."""

import os
import resource
import signal
from pathlib import Path

import pytest
import torch

from flows.settings import write_page
from translation import artifacts
from translation.atomic_files import write_folder_whole, write_whole

WRITERS = {
    "report": lambda file: write_page(file, "half of a page" * 9),
    "checkpoint": lambda file: artifacts.write(file, {"weights": torch.ones(99)}, {}),
    "vocabulary": lambda file: write_whole(file, lambda partial: partial.write_bytes(b"half" * 99)),
}


@pytest.fixture
def little_room():
    """No file may grow beyond 64 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_that_finds_no_room_leaves_the_one_before_as_it_was(kind, tmp_path, request):
    (tmp_path / "whole").write_text("before")
    request.getfixturevalue("little_room")
    with pytest.raises(OSError, match="File too large"):
        WRITERS[kind](tmp_path / "whole")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["before"]


@pytest.mark.parametrize("kind", WRITERS)
def test_what_a_killed_writer_left_is_gone_with_the_next_write(kind, tmp_path, monkeypatch):
    if (child := os.fork()) == 0:
        monkeypatch.setattr(Path, "replace", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        WRITERS[kind](tmp_path / "whole")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    WRITERS[kind](tmp_path / "whole")
    assert [file.name for file in tmp_path.iterdir()] == ["whole"]


def write_at_once(work):
    """Do some work in four processes at once, each with a text of its own; none may fail."""
    children = []
    for mark in "1234":
        if (child := os.fork()) == 0:
            failed = 1
            try:
                work(mark * 1000)
                failed = 0
            finally:
                os._exit(failed)
        children.append(child)
    assert {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children} == {0}


def test_a_file_that_several_write_at_once_is_one_of_theirs(tmp_path):
    """Each of four processes writes it fifty times, and what it finds there then is whole."""
    file = tmp_path / "many"

    def write(text):
        for _ in range(50):
            write_whole(file, lambda partial: partial.write_text(text))
            found = file.read_text()
            assert found == found[0] * 1000

    write_at_once(write)
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_that_somebody_filled_meanwhile_is_left_as_it_is(tmp_path):
    def fill(partial):
        (partial / "mine").write_text("new")
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / "theirs").write_text("old")

    with pytest.raises(OSError, match="not empty"):
        write_folder_whole(tmp_path / "kept", fill)
    assert [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*")] == [
        "kept",
        "kept/theirs",
    ]
