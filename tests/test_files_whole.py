"""A file is there whole or not at all, on a disk without room too."""

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dtml.checkpoints import write_tensors
from flows.settings import write_page
from translation.files import write_alone

WRITERS: dict[str, Callable[[Path], object]] = {
    "report": lambda file: write_page(file, "half of a page" * 9),
    "checkpoint": lambda file: write_tensors(file, {"weights": torch.ones(99)}, {}),
    "vocabulary": lambda file: write_alone(file, lambda partial: partial.write_bytes(b"half" * 99)),
}


@pytest.fixture
def little_room() -> Iterator[None]:
    """No file may grow beyond 64 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_that_finds_no_room_leaves_nothing_behind(kind: str, tmp_path: Path, little_room: None) -> None:
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
