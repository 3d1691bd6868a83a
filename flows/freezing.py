"""Freeze the nights of a market in a file, its chain, and compare the chain with the store.

A link is a line of JSON: the night, what made it, what it predicted and ranked, and the SHA-256 of
the line before: no line can change without all after it. Lines are only added.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache
from importlib.metadata import version
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection, Engine

from db.engine import reading
from db.read import query, read, read_row
from db.rows import nights, prices, rankings, runs
from db.rows.predictions import VALUES
from db.tables import BAR_VALUES
from dtml.errors import DtmlError, UsageError
from flows.settings import chain_file, weights_file
from translation.atomic_files import sha256

ROOT = Path(__file__).parents[1]
PACKAGES = ("db", "dtml", "flows", "translation")
Night = Mapping[str, Any]  # a row of night

BEGINNING = '{"night":'  # of each line
OF_A_NIGHT = (
    "market",
    "as_of",
    "target",
    "finished_at",
    "known_at",
    "computed_by",
    "inputs_hash",
    "gaps",
)
OF_A_MODEL = ("id", "checkpoint_path", "checkpoint_hash", "config")
MODELS = ("run", "ranker")
FILE = ("checkpoint_path", "checkpoint_hash")
PREDICTED = ("symbol", *VALUES)
RANKED = ("predictor", "symbol", "score", "place", "probability", "chosen")
# What a change of a part of a link is called; that of any other part is LINK.
LINK, WEIGHT, LIST = "the link itself", "a weight", "the list of stocks"
WHAT = {"prices": "a price", "gaps": LIST, "universe": LIST, "constituents": LIST}
WHAT |= {f"{model}_{name}": WEIGHT for model in MODELS for name in OF_A_MODEL}
REMEDY = (
    "put a kept copy of the file in its place, or move it to another folder, so that a new chain "
    "begins"
)


class ChainFileError(DtmlError):
    """Say that the file of a chain cannot be read, or does not fit the store."""


@dataclass(frozen=True)
class Link:
    """Hold a line of a chain, with its line feed, and what the line says first."""

    text: bytes
    number: int  # from 1
    previous: str | None
    replaces: int | None  # number of the earlier link of a night that was run again
    as_of: date
    known_at: datetime
    finished_at: datetime

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the line."""
        return hashlib.sha256(self.text).hexdigest()


@dataclass(frozen=True)
class Change:
    """Hold what differs from what was frozen: the link and its night, what, and how."""

    link: Link
    what: str
    words: str

    def __str__(self) -> str:
        place = f"link {self.link.number}, night {self.link.as_of}"
        return f"{place}: {self.what} has changed: {self.words}"


def is_frozen(market: str) -> bool:
    """Return whether a market has a chain."""
    return chain_file(market).exists()


def read_chain(file: Path) -> list[Link]:
    """Return the links of a file, without a last line that was cut off; raises ChainFileError."""
    try:
        *lines, _ = file.read_bytes().split(b"\n")
        return [link_of(line + b"\n") for line in lines]
    except OSError as error:
        raise ChainFileError(
            f"cannot read {file}: {error.strerror}; check its path and permissions"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ChainFileError(
            f"{file} has a line that `dtml freeze` did not write: {REMEDY}"
        ) from error


def link_of(line: bytes) -> Link:
    """Return the link of a line; raises ValueError, KeyError or TypeError for another line."""
    # The rest stays unread: the predictions and rankings of a year take seconds.
    night, _ = json.JSONDecoder().raw_decode(line.decode(), len(BEGINNING))
    return Link(
        line,
        number=night["number"],
        previous=night["previous"],
        replaces=night["replaces"],
        as_of=date.fromisoformat(night["as_of"]),
        known_at=datetime.fromisoformat(night["known_at"]),
        finished_at=datetime.fromisoformat(night["finished_at"]),
    )


def link_of_night(market: str, as_of: date) -> Link | None:
    """Return the last link of a night; None without one, and where the chain cannot be read."""
    try:
        links = read_chain(chain_file(market))
    except ChainFileError:
        return None
    return {link.as_of: link for link in links}.get(as_of)


def begin(engine: Engine, market: str, since: date | None) -> list[Link]:
    """Begin or extend a market's chain at a complete night, by default the last.

    Returns the new links. Raises UsageError where that night is not complete or, given in `since`,
    not the first of an existing chain; and the errors of `extend`.
    """
    with reading(engine) as conn:
        days = [night["as_of"] for night in nights.complete_nights(conn, market)]
    if not days:
        raise UsageError(
            f"no night of {market} is complete: check this name, or run `dtml nightly {market}` "
            "first, or `dtml nightly --market-file FILE` for a market of your own"
        )
    chain = read_chain(chain_file(market)) if is_frozen(market) else []
    if chain and since not in (None, chain[0].as_of):
        raise UsageError(
            f"the chain of {market} begins with the night of {chain[0].as_of} and never changes "
            "its beginning: leave out --since"
        )
    first = since or days[-1]
    if not chain and first not in days:
        raise UsageError(
            f"no night of {market} as of {first} is complete: give --since the day of one that "
            f"is; there are {len(days)}, from {days[0]} to {days[-1]}"
        )
    return extend(engine, market, first)


def extend(engine: Engine, market: str, first: date = date.max) -> list[Link]:
    """Add a link for each complete night that is new or was run again, and return the new links.

    They are in the order in which the nights ended. A market without a chain gets one from `first`
    on. No other process may work on the market. Raises ChainFileError for a file that cannot be
    read or does not fit the store, and OSError for one that cannot be written.
    """
    file = chain_file(market)
    chain = read_chain(file) if is_frozen(market) else []
    with reading(engine) as conn:
        complete = {night["as_of"]: night for night in nights.complete_nights(conn, market)}
        flaws = [str(change) for change in _out_of_order(chain)]
        if chain and chain[-1].as_of not in complete:
            flaws = [f"the store does not have the night of its last line, {chain[-1].as_of}"]
        if flaws:
            raise ChainFileError(
                f"{file} does not fit the store, so nothing was added to it ({flaws[0]}): {REMEDY}"
            )
        begins = chain[0].as_of if chain else first
        frozen = {(link.as_of, link.finished_at) for link in chain}
        due = [
            night
            for as_of, night in complete.items()
            if as_of >= begins and (as_of, night["finished_at"]) not in frozen
        ]
        due.sort(key=lambda night: (night["finished_at"], night["as_of"]))
        known_at = [each.known_at for each in chain] + [night["known_at"] for night in due]
        digests = _digests_of_prices(conn, market, known_at, first=len(chain))
        replaced = {link.as_of: link.number for link in chain}
        links = list(chain)
        for content in _contents(conn, market, due, digests):
            content["night"] |= {
                "number": len(links) + 1,
                "previous": links[-1].digest if links else None,
                "replaces": replaced.get(content["night"]["as_of"]),
                "code": {"version": version("dtml-nightshift"), "source": source_digest()},
            }
            links.append(link_of(f"{json_of(content)}\n".encode()))
    new = links[len(chain) :]
    if new:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as stream:
            stream.truncate(sum(len(link.text) for link in chain))  # a kill may cut a line off
            stream.write(b"".join(link.text for link in new))
    return new


def check(
    engine: Engine, market: str, file: Path | None = None, first: date = date.min
) -> tuple[list[Link], list[Change]]:
    """Compare a chain, by default the market's own, with the store and the files of weights.

    Returns the chain's links and the changes found. Only the last link of a night counts, and none
    before `first`. Another file is compared with the market's own too. Raises UsageError without a
    chain, ChainFileError for an unreadable or empty one.
    """
    own = chain_file(market)
    if file is None and not is_frozen(market):
        raise UsageError(f"{market} is not frozen: run `dtml freeze {market}` first")
    links = read_chain(file or own)
    if not links:
        raise ChainFileError(f"{file or own} has no link: {REMEDY}")
    changes = list(_out_of_order(links))
    if file is not None and is_frozen(market):
        own_lines = {link.text for link in read_chain(own)}
        changes += [
            Change(link, LINK, f"{own} has another line in its place, or none")
            for link in links
            if link.text not in own_lines
        ]
    start = next((place for place, link in enumerate(links) if link.as_of >= first), len(links))
    last_links = {link.as_of: link for link in links}
    compared = []
    with reading(engine) as conn:
        complete = {night["as_of"]: night for night in nights.complete_nights(conn, market)}
        digests = _digests_of_prices(conn, market, [link.known_at for link in links], start)
        for link, digest in zip(links[start:], digests, strict=True):
            night = complete.get(link.as_of)
            if link is not last_links[link.as_of]:
                continue
            if night is None or night["finished_at"] != link.finished_at:
                changes.append(Change(link, LINK, "the store does not have its night as it was"))
            else:
                compared.append((link, night, digest))
        contents = _contents(
            conn,
            market,
            [night for _, night, _ in compared],
            [digest for _, _, digest in compared],
        )
        flaw_of_file = cache(_flaw_of_file)  # many links name the same file
        for (link, _, _), content in zip(compared, contents, strict=True):
            if link is not links[-1]:
                del content["night"]["constituents"]  # the list of today
            changes += _differences(link, content, flaw_of_file)
    return links, sorted(changes, key=lambda change: change.link.number)


def _out_of_order(links: Sequence[Link]) -> Iterator[Change]:
    previous = None
    for number, link in enumerate(links, start=1):
        if link.number != number:
            yield Change(link, LINK, f"it is line {number}: lines are missing or out of order")
        elif link.previous != previous:
            yield Change(link, LINK, "it does not name the SHA-256 of the line before")
        previous = link.digest


def _differences(
    link: Link, content: Mapping[str, Any], flaw_of_file: Callable[..., str | None]
) -> Iterator[Change]:
    """Yield what of a link's JSON differs from what the store and the files have."""
    frozen = json.loads(link.text)
    for name, what in (("predictions", "a prediction"), ("rankings", "a ranking")):
        rows = zip_longest(frozen[name]["rows"], content[name]["rows"])
        differing = [then or now for then, now in rows if then != now]
        if differing:
            words = f"{len(differing)} of its {name}, the first {json_of(differing[0])}"
            yield Change(link, what, words)
    for name, now in json.loads(json_of(content["night"])).items():
        then = frozen["night"].get(name)
        if now != then:
            words = f"{name} is {json_of(now):.80}, frozen {json_of(then):.80}"
            yield Change(link, WHAT.get(name, LINK), words)
    for model in MODELS:
        flaw = flaw_of_file(*(frozen["night"].get(f"{model}_{name}") for name in FILE))
        if flaw is not None:
            yield Change(link, WEIGHT, flaw)


def _flaw_of_file(path: str | None, sha: str | None) -> str | None:
    if path is None:
        return None
    try:
        actual = sha256(weights_file(path))
    except (DtmlError, OSError) as error:
        return f"the file {path} cannot be read ({error})"
    return None if actual == sha else f"the file {path} has SHA-256 {actual}, frozen {sha}"


def _contents(
    conn: Connection, market: str, their_nights: Sequence[Night], digests: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield what the store has of nights, whose prices have these digests."""
    if not their_nights:
        return
    days = [night["as_of"] for night in their_nights]
    predicted = query(conn, "night_predictions", market=market, first=min(days), last=max(days))
    ranked = rankings.ranks_of_nights(conn, market, min(days), max(days))
    predicted_by_day = dict(list(predicted.groupby("as_of")))
    ranked_by_ranker = dict(list(ranked.groupby(["as_of", "ranker_id"])))
    stays = read(conn, "constituent", market=market).drop(columns="source")
    constituents = hashlib.sha256(stays.to_csv(index=False).encode()).hexdigest()
    for night, digest in zip(their_nights, digests, strict=True):
        ranker_id = rankings.ranker_of_night(conn, market, night["target"], night["finished_at"])
        ranker = None if ranker_id is None else read_row(conn, "ranker", id=ranker_id)
        run = runs.run(conn, night["run_id"])
        content = {name: night[name] for name in OF_A_NIGHT}
        for model, row in zip(MODELS, (run, ranker), strict=True):
            if row is not None:
                content |= {f"{model}_{name}": row[name] for name in OF_A_MODEL}
        content["prices"] = digest
        content["universe"] = hashlib.sha256(json_of(run["universe"]).encode()).hexdigest()
        content["constituents"] = constituents
        day = pd.Timestamp(night["as_of"])
        yield {
            "night": content,
            "predictions": table_of(predicted_by_day.get(day, predicted[:0]), PREDICTED),
            "rankings": table_of(ranked_by_ranker.get((day, ranker_id), ranked[:0]), RANKED),
        }


def _digests_of_prices(
    conn: Connection, market: str, known_at: Sequence[datetime], first: int
) -> list[str]:
    """Return for each link from place `first` on a SHA-256 of the prices that are new with it.

    Of the versions known after the link before: symbols, separated by spaces; sessions as days
    since 1970-01-01 in 64 bits; values as doubles, NaN missing; little-endian; and the JSON of
    withdrawals.
    """
    # A night that was run late may have used older prices than the link before.
    bounds = list(accumulate(known_at, max))
    if first == len(bounds):
        return []
    span = (bounds[first - 1] if first else None, bounds[-1])
    edges = pd.DatetimeIndex(bounds[first:])
    versions = prices.versions_known(conn, market, *span)
    withdrawals = prices.withdrawals_known(conn, market, *span)
    withdrawals["session"] = withdrawals["session"].dt.strftime("%Y-%m-%d")
    of_links: list[dict[Any, pd.DataFrame]] = [
        dict(list(frame.groupby(edges.searchsorted(frame["known_at"]))))
        for frame in (versions, withdrawals)
    ]
    digests = []
    for number in range(len(edges)):
        bars = of_links[0].get(number, versions[:0])
        values = bars[list(BAR_VALUES)].to_numpy(dtype="<f8", copy=True)
        values[np.isnan(values)] = np.nan  # NaN has many bit patterns: always the same one
        digest = hashlib.sha256(" ".join(bars["symbol"]).encode())
        digest.update(bars["session"].to_numpy().astype("datetime64[D]").astype("<i8").tobytes())
        digest.update(values.tobytes())
        withdrawn = of_links[1].get(number, withdrawals[:0])
        digest.update(json_of(table_of(withdrawn, ("symbol", "session", "withdrawn"))).encode())
        digests.append(digest.hexdigest())
    return digests


def json_of(content: object) -> str:
    """Return the JSON of a content, its keys sorted; no number in it may be NaN or infinite."""
    return json.dumps(
        content,
        sort_keys=True,
        separators=(",", ":"),
        allow_nan=False,
        default=lambda day: day.isoformat(),
    )


def table_of(frame: pd.DataFrame, columns: Sequence[str]) -> dict[str, Any]:
    """Return columns of a frame as their names and plain rows; a missing value is None."""
    plain = frame[list(columns)].astype(object)
    return {"columns": columns, "rows": plain.where(plain.notna(), None).to_numpy().tolist()}


@cache
def source_digest() -> str:
    """Return the SHA-256 of the Python, TOML and SQL files of this program, path and content."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*")):
            if file.suffix in (".py", ".toml", ".sql"):
                digest.update(file.relative_to(ROOT).as_posix().encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()
