"""A file is there whole or not at all, on a disk without room too."""

import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from flows.settings import write_page
from translation import artifacts
from translation.atomic_files import write_folder_whole, write_whole

pytestmark = pytest.mark.slow

WRITERS: dict[str, Callable[[Path], object]] = {
    "report": lambda file: write_page(file, "half of a page" * 9),
    "checkpoint": lambda file: artifacts.write(file, {"weights": torch.ones(99)}, {}),
    "vocabulary": lambda file: write_whole(file, lambda partial: partial.write_bytes(b"half" * 99)),
}


@pytest.fixture
def little_room() -> Iterator[None]:
    """No file may grow beyond 64 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_that_finds_no_room_leaves_nothing_behind(
    kind: str, tmp_path: Path, little_room: None
) -> None:
    with pytest.raises(OSError, match="File too large"):
        WRITERS[kind](tmp_path / "whole")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_that_finds_no_room_leaves_the_one_before_as_it_was(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "whole").write_text("before")
    request.getfixturevalue("little_room")
    with pytest.raises(OSError, match="File too large"):
        WRITERS[kind](tmp_path / "whole")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["before"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITERS)
def test_what_a_killed_writer_left_is_gone_with_the_next_write(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (child := os.fork()) == 0:
        monkeypatch.setattr(Path, "replace", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        WRITERS[kind](tmp_path / "whole")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    WRITERS[kind](tmp_path / "whole")
    assert [file.name for file in tmp_path.iterdir()] == ["whole"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["checkpoint", "vocabulary"])
def test_a_file_that_several_write_at_once_is_one_of_theirs(kind: str, tmp_path: Path) -> None:
    """Each of four processes writes it fifty times, and what it finds there then is whole."""
    texts = [str(number) * 1000 for number in range(4)]
    writers: dict[str, Callable[[Path, str], object]] = {
        "checkpoint": lambda file, text: artifacts.write(
            file, {"weights": torch.ones(9)}, {"card": text}
        ),
        "vocabulary": lambda file, text: write_whole(
            file, lambda partial: partial.write_text(text)
        ),
    }
    write, whole = writers[kind], set()
    for text in texts:
        write(tmp_path / "one", text)
        whole.add((tmp_path / "one").read_bytes())
    children = []
    for text in texts:
        if (child := os.fork()) == 0:
            failed = 1
            try:
                for _ in range(50):
                    write(tmp_path / "many", text)
                    assert (tmp_path / "many").read_bytes() in whole
                failed = 0
            finally:
                os._exit(failed)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [
        0,
        0,
        0,
        0,
    ]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["many", "one"]


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("begins_new", [False, True])
def test_a_folder_that_several_write_at_once_is_one_of_theirs(
    tmp_path: Path, begins_new: bool
) -> None:
    """Each of four processes writes it thirty times, and none takes from another what it fills."""

    def write(mark: str) -> None:
        def fill(partial: Path) -> None:
            for number in range(9):
                (partial / str(number)).write_text(mark * 99)

        write_folder_whole(tmp_path / "many", fill, replaces=True)

    if not begins_new:
        write("0")
    children = []
    for mark in "1234":
        if (child := os.fork()) == 0:
            failed = 1
            try:
                for _ in range(30):
                    write(mark)
                failed = 0
            finally:
                os._exit(failed)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [
        0,
        0,
        0,
        0,
    ]
    assert [folder.name for folder in tmp_path.iterdir()] == ["many"]
    assert len({file.read_text() for file in (tmp_path / "many").iterdir()}) == 1
    assert len(list((tmp_path / "many").iterdir())) == 9


def test_a_folder_that_somebody_filled_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    def fill(partial: Path) -> None:
        (partial / "mine").write_text("new")
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / "theirs").write_text("old")

    with pytest.raises(OSError, match="not empty"):
        write_folder_whole(tmp_path / "kept", fill)
    assert [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*")] == [
        "kept",
        "kept/theirs",
    ]
