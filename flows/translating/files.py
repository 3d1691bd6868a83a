"""Translate files line by line, resuming; the file of translations appears when it is complete."""

import hashlib
import logging
import os
from itertools import islice
from pathlib import Path

from filelock import FileLock, Timeout

from flows.settings import err
from translation.atomic_files import write_whole
from translation.data.corpus import lines_of
from translation.decoding.beam_search import Search
from translation.errors import TranslationError, UsageError
from translation.models import Model
from translation.translate import translate

log = logging.getLogger(__name__)

LINES_AT_ONCE = 1000


def translate_lines(model: Model, source: Path, to: Path, how: Search, receipt: str) -> int:
    """Write a translation of each line of `source` to `to`, and return the number of lines.

    Lines so far lie in `to`.unfinished, for the same text, model (`receipt`) and search. Raises
    TranslationError, as UsageError for no text, or a place not to be written to.
    """
    total, text_hash = _line_count_and_hash(source)
    if not to.parent.is_dir() or not os.access(to.parent, os.W_OK):
        raise UsageError(
            f"{to.parent} is no folder that you may write to: create it, or choose another place "
            f"for {to.name}"
        )
    if to.is_dir():
        raise UsageError(f"{to} is a folder: name a file")
    if to.exists() and to.samefile(source):
        raise UsageError(f"{to} is the file to translate: write its translation to another file")
    key = hashlib.sha256(repr([text_hash, receipt, how]).encode()).hexdigest()
    lock = FileLock(to.with_name(f"{to.name}.unfinished.lock"), timeout=0)
    try:
        with lock:
            try:
                _translate_in_parts(model, source, to, how, key)
            finally:
                # While the lock is held: afterwards another process may already hold this file.
                Path(lock.lock_file).unlink(missing_ok=True)
    except Timeout:
        raise TranslationError(
            f"another process is writing {to}: wait until it ends, or choose another file"
        ) from None  # the lock's own error would add nothing
    except OSError as error:  # that of a write names no file
        raise OSError(error.errno, error.strerror, error.filename or str(to)) from error
    return total


def _translate_in_parts(model: Model, source: Path, to: Path, how: Search, key: str) -> None:
    """Write the translation in parts, after an earlier run's lines with the same `key`."""
    partial = to.with_name(f"{to.name}.unfinished")  # its first line is the key
    count = _keep_finished_lines(partial, key)
    if count:
        log.info("%d lines are translated already", count)
    remaining_lines = islice(lines_of(source), count, None)
    for part in iter(lambda: list(islice(remaining_lines, LINES_AT_ONCE)), []):
        translations = translate(model, part, how)
        with partial.open("a", encoding="utf-8", newline="\n") as stream:
            # Without line breaks inside, as each line of the source has one line.
            stream.writelines(f"{' '.join(each.text.splitlines())}\n" for each in translations)
        count += len(part)
        if err.is_terminal:  # elsewhere nobody watches: a JSON log would get a line for each part
            log.info("%d lines", count)
    _, _, finished = partial.read_bytes().partition(b"\n")
    write_whole(to, lambda file: file.write_bytes(finished))
    partial.unlink()


def _line_count_and_hash(source: Path) -> tuple[int, str]:
    """Return the number of lines of a text and their hash; UsageError for an empty one."""
    total = 0
    digest = hashlib.sha256()
    for line in lines_of(source):
        total += 1
        digest.update(f"{line}\n".encode())
    if not total:
        raise UsageError(f"{source} is empty: name a file that has sentences")
    return total, digest.hexdigest()


def _keep_finished_lines(partial: Path, key: str) -> int:
    """Return how many whole lines an earlier run with this key has left; begin it otherwise."""
    content = partial.read_bytes() if partial.exists() else b""
    finished = content[: content.rfind(b"\n") + 1]
    begin = f"{key}\n".encode()
    if not finished.startswith(begin):
        finished = begin
    partial.write_bytes(finished)
    return finished.count(b"\n") - 1
