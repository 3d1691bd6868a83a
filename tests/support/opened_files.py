"""Which files of a folder any process opens, also from C: what a test left
there for nobody to read.
"""

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

IN_OPEN, IN_Q_OVERFLOW = 0x20, 0x4000
EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name
MOST = 2**24  # bytes of events: more than the system's queue holds

needs_inotify = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the system tells who opens a file"
)


@contextmanager
def opened_files(*folders: Path) -> Iterator[set[Path]]:
    """Fill the set, at the end, with what was opened directly in these folders."""
    system = ctypes.CDLL(None, use_errno=True)
    events = system.inotify_init1(os.O_NONBLOCK)
    watched = {
        system.inotify_add_watch(events, os.fsencode(folder), IN_OPEN): folder for folder in folders
    }
    assert min(events, *watched) >= 0, os.strerror(ctypes.get_errno())
    opened: set[Path] = set()
    try:
        yield opened
        opened.update(_read(os.read(events, MOST), watched))
    except BlockingIOError:  # nothing was
        pass
    finally:
        os.close(events)


def _read(events: bytes, watched: dict[int, Path]) -> Iterator[Path]:
    at = 0
    while at < len(events):
        watch, mask, _, length = EVENT.unpack_from(events, at)
        assert not mask & IN_Q_OVERFLOW
        at += EVENT.size + length
        yield watched[watch] / os.fsdecode(events[at - length : at].rstrip(b"\0"))
