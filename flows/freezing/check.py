"""Check a market's chain against the store, and the file of the chain against both."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from sqlalchemy import Connection, Engine

from db.engine import reading
from db.errors import StoreError, StoreUsageError
from db.rows import nights, rankings, runs
from dtml.checkpoints import sha256
from dtml.errors import DtmlError, UsageError
from flows.freezing.canonical import sha256_of_text
from flows.freezing.chain import Link, nights_of, weights_of
from flows.freezing.parts import PARTS, Parts, constituents_digest, read_parts
from flows.settings import weights_file

LINK = "the link itself"
WEIGHT = "a weight"
LIST = PARTS["list"]


@dataclass(frozen=True)
class Change:
    """Hold what differs from what was frozen: the link's number, its night, what, and how.

    `what` is a value of `PARTS`, `WEIGHT` or `LINK`. `as_of` is None where no night is known.
    """

    number: int
    as_of: date | None
    what: str
    words: str

    def __str__(self) -> str:
        night = self.as_of or "unknown"
        return f"link {self.number}, night {night}: {self.what} has changed: {self.words}"


@dataclass(frozen=True)
class Checked:
    """Hold what a check found: the chain's links, and every change.

    `replaced` maps the number of a link whose night was run again to the link that replaced it; the
    store holds what the later one covers, so that of the earlier only the link is checked.
    """

    market: str
    links: Sequence[Link]
    changes: Sequence[Change]
    replaced: Mapping[int, int]

    @property
    def head(self) -> Link:
        """Return the last link."""
        return self.links[-1]

    def of_night(self, as_of: date) -> list[Change]:
        """Return the changes of a night."""
        return [change for change in self.changes if change.as_of == as_of]


def check_chain(engine: Engine, market: str, *, first: date | None = None) -> Checked:
    """Check each link of a market's chain, compute its parts again, and return what differs.

    The parts are what the store and the files of weights have of the link's night. For a link that
    was replaced, a link that is altered itself, and nights before `first`, they are not compared.
    The stored list of constituents is compared with the last link, unless that is altered. Raises
    UsageError for a market without a chain.
    """
    with reading(engine) as conn:
        chain = nights.links(conn, market)
        if not chain:
            raise UsageError(f"{market} is not frozen: run `dtml freeze {market}` first")
        replaced = {
            link["replaces"]: link["number"] for link in chain if link["replaces"] is not None
        }
        changes = list(_changed_links(chain))
        # What the text of a link says is believed only if its SHA-256 is its digest.
        altered = {change.number for change in changes if change.words in (UNREADABLE, ALTERED)}
        left_out = altered | set(replaced)
        changes += _changed_parts(conn, market, chain, left_out, first)
        if chain[-1]["number"] not in altered:
            changes += _changed_list(conn, market, chain[-1])
    changes.sort(key=lambda change: change.number)
    return Checked(market=market, links=chain, changes=changes, replaced=replaced)


UNREADABLE = "its text is not that of a link, so that nothing else of it can be checked"
ALTERED = "its SHA-256 is not its digest, so that nothing else of it can be checked"


def _changed_links(chain: Sequence[Link]) -> Iterator[Change]:
    """Yield the links whose text, digest, order or columns do not fit."""
    previous = None
    for place, link in enumerate(chain, start=1):
        words = _flaw(link, place, previous)
        if words is not None:
            yield Change(
                number=link["number"],
                as_of=link["as_of"],
                what=LINK,
                words=words,
            )
        previous = link["digest"]


def _flaw(link: Link, place: int, previous: str | None) -> str | None:
    """Say what is wrong with a link; None where nothing is.

    `place` is its place in the chain, from 1, and `previous` the digest of the link before, None
    for the first. Where the text cannot be read or believed, the words are UNREADABLE or ALTERED.
    """
    try:
        content = json.loads(link["link"])
        columns = {
            "market": content["market"],
            "number": content["number"],
            "as_of": date.fromisoformat(content["as_of"]),
            "target": date.fromisoformat(content["target"]),
            "previous": content["previous"],
            "replaces": content["replaces"],
        }
        missing = {*PARTS} - set(content["parts"])
        missing |= {"weights", "constituents"} - set(content)
    except (ValueError, KeyError, TypeError):
        return UNREADABLE
    if missing:
        return UNREADABLE
    if sha256_of_text(link["link"]) != link["digest"]:
        return ALTERED
    if link["number"] != place:
        return f"link {place} is missing before it"
    if content["previous"] != previous:
        return "it does not follow the link before it"
    differing = [name for name, value in columns.items() if link[name] != value]
    return f"its columns differ from its text: {', '.join(differing)}" if differing else None


def _changed_parts(
    conn: Connection,
    market: str,
    chain: Sequence[Link],
    left_out: Collection[int],
    first: date | None,
) -> Iterator[Change]:
    """Yield the parts of nights, and the weights, that are no longer as they were frozen.

    Links of the numbers `left_out` and nights before `first` are not compared. If the store lacks
    the run of any other link, nothing is compared, and the one change yielded names that run; it
    counts as a change of the chain's last link.
    """
    covered = [link for link in nights_of(chain, left_out) if first is None or link.as_of >= first]
    if not covered:
        return
    texts = {link["number"]: link["link"] for link in chain}
    try:
        parts_by_number = read_parts(conn, market, covered)
    except StoreUsageError as error:  # a model is no longer there
        last = chain[-1]
        yield Change(number=last["number"], as_of=last["as_of"], what=WEIGHT, words=str(error))
        return
    weights = _Weights(conn)
    for link in covered:
        content = json.loads(texts[link.number])
        for what, words in _differences(content, parts_by_number[link.number], weights):
            yield Change(number=link.number, as_of=link.as_of, what=what, words=words)


def _differences(
    content: Mapping[str, Any], parts: Parts, weights: "_Weights"
) -> Iterator[tuple[str, str]]:
    """Yield what of a link, whose text has the `content`, differs from the store, and how."""
    for part, what in PARTS.items():
        frozen = content["parts"][part]
        stored = parts.digests[part]
        if stored != frozen:
            yield what, f"SHA-256 {stored[:12]}... of its {part}, frozen {frozen[:12]}..."
    for words in weights.differences(content["weights"]):
        yield WEIGHT, words


class _Weights:
    """Compare the weights of links with the store and the files, each model once."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        # The results of `weights_of`, by run and rankers.
        self.stored: dict[tuple[str, str | None], dict[str, str | None]] = {}
        # What is wrong with a file of weights, by model and SHA-256; None where nothing is.
        self.files: dict[str, str | None] = {}

    def differences(self, frozen: Mapping[str, Any]) -> Iterator[str]:
        """Yield what of the store and of the files differs from the weights that a link names."""
        key = (frozen["run"], frozen["rankers"])
        if key not in self.stored:
            self.stored[key] = weights_of(self.conn, *key)
        for name, value in self.stored[key].items():
            if frozen[name] != value:
                yield f"{name} is {value}, frozen {frozen[name]}"
        for model, sha in (
            (frozen["run"], frozen["run_sha256"]),
            (frozen["rankers"], frozen["rankers_sha256"]),
        ):
            flaw = None if model is None else self._flaw_of_file(model, sha)
            if flaw is not None:
                yield flaw

    def _flaw_of_file(self, model: str, sha: str) -> str | None:
        """Say what is wrong with the file of a model's weights; None where nothing is.

        Many links name the same file, which is read only once.
        """
        name = f"{model} {sha}"
        if name not in self.files:
            self.files[name] = self._compare_file(model, sha)
        return self.files[name]

    def _compare_file(self, model: str, sha: str) -> str | None:
        """Say that a file of weights has not the SHA-256 `sha`, or cannot be read; None if it has.

        `model` is the name of rankers or of a run, which may be the same: the SHA-256 decides. The
        path of the file is in the row of the one or the other.
        """
        ranker = rankings.ranker(self.conn, model)
        is_of_rankers = ranker is not None and ranker["checkpoint_hash"] == sha
        try:
            row = ranker if is_of_rankers else runs.run(self.conn, model)
            assert row is not None
            file = weights_file(row["checkpoint_path"])
            actual = sha256(file)
        except (DtmlError, StoreError, OSError) as error:
            return f"the file of {model} cannot be read ({error})"
        if actual == sha:
            return None
        return f"the file {file.name} has SHA-256 {actual[:12]}..., frozen {sha[:12]}..."


def _changed_list(conn: Connection, market: str, head: Link) -> Iterator[Change]:
    """Yield a change if the stored list of constituents is not the one of the last link."""
    frozen = json.loads(head["link"])["constituents"]
    stored = constituents_digest(conn, market)
    if stored != frozen:
        words = (
            f"the constituents stored now have SHA-256 {stored[:12]}..., frozen {frozen[:12]}...: "
            "if the market's file has changed, the next night freezes the new list"
        )
        yield Change(number=head["number"], as_of=head["as_of"], what=LIST, words=words)
