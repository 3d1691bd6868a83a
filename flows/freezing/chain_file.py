"""Write the file of a market's chain, and check it: a line of JSON for each link.

A line has the link, its digest, and what the night predicted and how it ranked the stocks, so that
the file alone shows what was forecast and when. Lines are only ever added.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from db.engine import reading
from db.rows import nights
from dtml.errors import DtmlError
from flows.freezing.canonical import canonical, sha256_of, sha256_of_text
from flows.freezing.chain import Link, nights_of
from flows.freezing.check import LINK, Change
from flows.freezing.parts import PARTS, read_parts
from flows.settings import reports_folder

TABLES = ("predictions", "rankings")  # the parts that a line has in full


class ChainFileError(DtmlError):
    """Say that the file of a chain does not fit the store, so that no line is added."""


def chain_file(market: str) -> Path:
    """Return the path of the file of a market's chain, below the folder of reports."""
    return reports_folder() / market / "frozen.jsonl"


def add_lines(engine: Engine, market: str) -> Path:
    """Add the lines that the file of a market's chain lacks, and return its path.

    What the file has stays as it is. A last line that a kill cut off is completed. Raises
    ChainFileError where the last whole line is not that of its link in the store, or where a line
    that was cut off does not begin the next one, StoreUsageError where the store lacks the run of a
    link to be added, and OSError where the file cannot be written.
    """
    file = chain_file(market)
    file.parent.mkdir(parents=True, exist_ok=True)
    written = file.read_bytes() if file.exists() else b""
    # `rest` is a last line that a kill cut off, without its line feed; it is empty otherwise.
    whole, _, rest = written.rpartition(b"\n")
    last_line = whole.rpartition(b"\n")[2]
    with reading(engine) as conn:
        chain = nights.links(conn, market)
    count = _number_of_last_link(last_line, chain, file)
    if count == len(chain) and not rest:
        return file
    added = "".join(f"{line}\n" for line in _lines(engine, market, chain, count)).encode()
    if not added.startswith(rest):
        raise ChainFileError(_misfit(file, count + 1))
    with file.open("ab") as stream:
        stream.write(added[len(rest) :])
    return file


def _number_of_last_link(last_line: bytes, chain: Sequence[Link], file: Path) -> int:
    """Return the number of the link in the last whole line of a file; 0 for a file without one.

    Links are numbered from 1, so it is the number of whole lines too. Raises ChainFileError for a
    line that is not that of a link of the chain.
    """
    if not last_line:
        return 0
    try:
        line = json.loads(last_line)
        number = int(line["link"]["number"])
        digest = line["digest"]
    except (ValueError, KeyError, TypeError) as error:
        raise ChainFileError(_misfit(file, None)) from error
    is_stored = 0 < number <= len(chain) and chain[number - 1]["digest"] == digest
    if not is_stored:
        raise ChainFileError(_misfit(file, number))
    return number


def _misfit(file: Path, number: int | None) -> str:
    """Say that a file does not continue the chain: at the line of a link, or (None) at its last."""
    where = "its last line" if number is None else f"its line of link {number}"
    return (
        f"{file} does not continue the store's chain at {where}, so nothing was added to it: check "
        f"it with `dtml freeze {file.parent.name} --check`, and move it to another folder, so that "
        "a new one is written in its place"
    )


def _lines(engine: Engine, market: str, chain: Sequence[Link], after: int) -> Iterator[str]:
    """Yield the lines of the links after the number `after`.

    A table that is no longer as it was frozen is null in a line: it was replaced or changed.
    """
    covered = nights_of(chain)[after:]
    if not covered:
        return
    with reading(engine) as conn:
        parts_by_number = read_parts(conn, market, covered)
    for link in chain[after:]:
        content = json.loads(link["link"])
        parts = parts_by_number[link["number"]]
        line = {"link": content, "digest": link["digest"]}
        for name in TABLES:
            is_frozen = parts.digests[name] == content["parts"][name]
            line[name] = getattr(parts, name) if is_frozen else None
        yield canonical(line)


def check_file(file: Path, chain: Sequence[Link]) -> list[Change]:
    """Return what of a file of a chain differs from the stored links, or contradicts itself.

    A file may end before the chain does, as a copy does that was kept from earlier, but not before
    its first link. Raises ChainFileError for a file that cannot be read.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ChainFileError(
            f"cannot read {file}: {error.strerror or error}; check its path and permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise ChainFileError(
            f"{file} is not the file of a chain ({error}): give a file that `dtml freeze` wrote "
            "or, if you gave none, move this one to another folder and write it anew with "
            f"`dtml freeze {chain[0]['market']}`"
        ) from error
    stored = {link["number"]: link for link in chain}
    changes: list[Change] = []
    if not lines:
        words = f"{file} has no link"
        changes.append(Change(number=1, as_of=chain[0]["as_of"], what=LINK, words=words))
    previous = None
    for number, text in enumerate(lines, start=1):
        as_of = stored[number]["as_of"] if number in stored else None
        try:
            line = json.loads(text)
            found = list(_flaws(line, number, previous, stored))
            # A line that cannot be read leaves `previous` as it was: the next line has a flaw too.
            previous = line["digest"]
        except (ValueError, KeyError, TypeError):
            found = [(LINK, "it is not the line of a link")]
        changes += [
            Change(
                number=number,
                as_of=as_of or _night_of_line(text),
                what=what,
                words=f"line {number} of {file}: {words}",
            )
            for what, words in found
        ]
    return changes


def _night_of_line(text: str) -> date | None:
    """Return the night that a line names; None where it names none."""
    try:
        return date.fromisoformat(json.loads(text)["link"]["as_of"])
    except (ValueError, KeyError, TypeError):
        return None


def _flaws(
    line: Mapping[str, Any],
    number: int,
    previous: str | None,
    stored: Mapping[int, Link],
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a line of a file, and how.

    `number` is its place, from 1, and `previous` the digest of the line before, None for the first.
    `stored` has the links of the store by number.
    """
    link = line["link"]
    if sha256_of_text(canonical(link)) != line["digest"]:
        yield LINK, "the SHA-256 of the link is not its digest"
    if link["number"] != number:
        yield LINK, f"it has link {link['number']}: lines are missing, repeated or out of order"
    elif link["previous"] != previous:
        yield LINK, "its link names another SHA-256 than that of the line before"
    if number not in stored:
        yield LINK, "the store has no such link"
    elif stored[number]["digest"] != line["digest"]:
        yield LINK, f"the store's link has another SHA-256, {stored[number]['digest'][:12]}..."
    for name in TABLES:
        if line[name] is not None and sha256_of(line[name]) != link["parts"][name]:
            yield PARTS[name], f"its {name} are not those of its link"
