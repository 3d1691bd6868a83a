"""Freeze nights in a market's chain and its file, and check both against the store.

A link is JSON: the night, the code that made the link, the weights of the night, the SHA-256 of
each of its parts, and that of the link before. Its own SHA-256 goes into the next link, so that no
link can be changed without changing all after it. A line of the file has the link, its digest, and
what the night predicted and how it ranked the stocks, so that the file alone shows what was
forecast and when. Lines are only ever added."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection, Engine

from db.engine import reading, transaction
from db.errors import StoreError, StoreUsageError
from db.rows import markets, nights, predictions, prices, rankings, runs
from db.rows.predictions import VALUES
from db.tables import BAR_VALUES
from dtml.checkpoints import sha256
from dtml.errors import DtmlError, UsageError
from flows.settings import reports_folder, weights_file

Table = dict[str, list[Any]]  # `columns` and `rows`, as JSON has them


def canonical(content: object) -> str:
    """Return the JSON of a content: keys sorted, no blanks between its parts, ASCII alone.

    A float has the fewest digits that give it back to the last bit, as Python writes it. Raises
    ValueError for a number that is not finite: missing is None.
    """
    return json.dumps(
        content,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
        allow_nan=False,
    )


def sha256_of(content: object) -> str:
    """Return the SHA-256 of the canonical JSON of a content, in hexadecimal."""
    return sha256_of_text(canonical(content))


def sha256_of_text(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def table_of(frame: pd.DataFrame, columns: Sequence[str]) -> Table:
    """Return the named columns of a frame as plain values, row by row; a missing value is None."""
    values_by_column = []
    for name in columns:
        column = frame[name]
        values = column.to_numpy(dtype=object, copy=True)
        values[column.isna()] = None
        values_by_column.append(values.tolist())
    rows = [list(row) for row in zip(*values_by_column, strict=True)]
    return {"columns": list(columns), "rows": rows}


def sha256_of_bars(versions: pd.DataFrame, withdrawals: pd.DataFrame) -> str:
    """Return the SHA-256 of versions of bars and of what was withdrawn.

    It covers, one after the other: the canonical JSON of the names of the columns, of the number of
    versions of each symbol, and of what was withdrawn (symbol, session, check), with a line feed;
    the sessions as days since 1970-01-01, in 64 bits; and the values of each version, in doubles,
    NaN for a missing one. Numbers are little-endian. The moments at which bars became known are not
    covered: they decide which night a version belongs to. Both frames must be sorted, as
    `versions_known` and `withdrawals_known` of `db.rows.prices` return them.
    """
    counts = versions.groupby("symbol", sort=False).size()
    withdrawn_sessions = withdrawals["session"].dt.strftime("%Y-%m-%d")
    header = {
        "columns": list(BAR_VALUES),
        "versions": [[str(symbol), int(count)] for symbol, count in counts.items()],
        "withdrawn": table_of(
            withdrawals.assign(session=withdrawn_sessions), ["symbol", "session", "withdrawn"]
        )["rows"],
    }
    days = versions["session"].to_numpy().astype("datetime64[D]").astype("<i8")
    values = versions[list(BAR_VALUES)].to_numpy(dtype="<f8", copy=True)
    values[np.isnan(values)] = np.nan  # NaN has many bit patterns: always the same one
    digest = hashlib.sha256((canonical(header) + "\n").encode())
    digest.update(days.tobytes())
    digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


PREDICTED = ("symbol", *VALUES)
RANKED = ("predictor", "symbol", "score", "place", "probability", "chosen")
STAYS = ("symbol", "spell", "valid_from", "valid_to")
# What a link has a SHA-256 of, and what a change of it is called.
PARTS = {
    "predictions": "a prediction",
    "rankings": "a ranking",
    "prices": "a price",
    "list": "the list of stocks",
}


@dataclass(frozen=True)
class NightOfLink:
    """Name what a link covers: a night, its models, and the bars that became known since.

    The bars are the versions that became known after `known_after` (None: ever) up to
    `known_until`. `ranker_id` is None for a night that ranked no stocks.
    """

    number: int
    as_of: date
    run_id: str
    ranker_id: str | None
    known_after: datetime | None
    known_until: datetime


@dataclass(frozen=True)
class Parts:
    """Hold what the store has of a link: its tables, and the SHA-256 of each of `PARTS`."""

    predictions: Table
    rankings: Table
    digests: dict[str, str]


def read_parts(conn: Connection, market: str, of_links: Sequence[NightOfLink]) -> dict[int, Parts]:
    """Return the parts of links, by their numbers.

    Predictions, rankings and bars are read at once for all links. There must be at least one link.
    Raises StoreUsageError where the store lacks the run of one.
    """
    first = min(link.as_of for link in of_links)
    last = max(link.as_of for link in of_links)
    predicted = _by_night(predictions.night_predictions(conn, market, first, last), "run_id")
    ranked = _by_night(rankings.ranks_of_nights(conn, market, first, last), "ranker_id")
    bounds = [link.known_after for link in of_links]
    # None in a link is no bound, so then all links together have none either.
    after = None if None in bounds else min(bound for bound in bounds if bound is not None)
    until = max(link.known_until for link in of_links)
    versions = _ByMoment(prices.versions_known(conn, market, after, until))
    withdrawals = _ByMoment(prices.withdrawals_known(conn, market, after, until))
    price_digests = {
        link.number: sha256_of_bars(versions.of_link(link), withdrawals.of_link(link))
        for link in of_links
    }
    rows = {row["as_of"]: row for row in nights.complete_nights(conn, market)}
    universes: dict[str, Any] = {}
    list_digests = {}
    for link in of_links:
        if link.run_id not in universes:
            universes[link.run_id] = runs.run(conn, link.run_id)["universe"]
        gaps = rows[link.as_of]["gaps"] if link.as_of in rows else None
        list_digests[link.number] = sha256_of(
            {"left_out": gaps, "universe": universes[link.run_id]}
        )
    parts = {}
    for link in of_links:
        prediction_table = _table_of_night(predicted, (link.as_of, link.run_id), PREDICTED)
        ranking_table = _table_of_night(ranked, (link.as_of, link.ranker_id), RANKED)
        parts[link.number] = Parts(
            predictions=prediction_table,
            rankings=ranking_table,
            digests={
                "predictions": sha256_of(prediction_table),
                "rankings": sha256_of(ranking_table),
                "prices": price_digests[link.number],
                "list": list_digests[link.number],
            },
        )
    return parts


def constituents_digest(conn: Connection, market: str) -> str:
    """Return the SHA-256 of the stored list of a market's constituents: symbols and dates."""
    stays = markets.constituents(conn, market)
    for name in ("valid_from", "valid_to"):
        stays[name] = stays[name].dt.strftime("%Y-%m-%d")
    return sha256_of(table_of(stays, STAYS))


def _by_night(rows: pd.DataFrame, model_column: str) -> dict[tuple[date, str], pd.DataFrame]:
    """Return the rows of each night and model, by the night's `as_of` and the model's name.

    `model_column` is the column of these names. The nights in the keys are dates, as those of links
    are; those in the rows are timestamps.
    """
    return {
        (date.fromisoformat(str(as_of)[:10]), str(name)): of_night
        for (as_of, name), of_night in rows.groupby(["as_of", model_column])
    }


def _table_of_night(
    by_night: dict[tuple[date, str], pd.DataFrame],
    key: tuple[date, str | None],
    columns: Sequence[str],
) -> Table:
    as_of, model = key
    if model is None or (as_of, model) not in by_night:
        return {"columns": list(columns), "rows": []}
    return table_of(by_night[as_of, model], columns)


class _ByMoment:
    """Find the rows that became known in the span of a link.

    `order` has the places of the rows by moment, and `moments` the moments in that order, in
    nanoseconds.
    """

    def __init__(self, rows: pd.DataFrame) -> None:
        self.rows = rows
        moments = pd.DatetimeIndex(rows["known_at"]).as_unit("ns").asi8
        self.order = np.argsort(moments, kind="stable")
        self.moments = moments[self.order]

    def of_link(self, link: NightOfLink) -> pd.DataFrame:
        """Return the rows that became known in the span of a link, in the order of all rows."""
        start = 0
        if link.known_after is not None:
            start = self._count_up_to(link.known_after)
        places = np.sort(self.order[start : self._count_up_to(link.known_until)])
        return self.rows.take(places)

    def _count_up_to(self, moment: datetime) -> int:
        nanoseconds = pd.Timestamp(moment).as_unit("ns").value
        return int(np.searchsorted(self.moments, nanoseconds, side="right"))


Link = Mapping[str, Any]  # a row of frozen_night
Night = Mapping[str, Any]  # a row of night
ROOT = Path(__file__).parents[2]
PACKAGES = ("db", "dtml", "flows", "translation")


def begin(engine: Engine, market: str, since: date | None) -> list[Link]:
    """Begin a market's chain at a complete night, by default the last; return the new links.

    Nights after it that are complete already are linked too. A chain that has begun is extended, if
    `since` is None or its first night. Raises UsageError where the first night is not complete, and
    for another `since` than the first night of the chain.
    """
    with reading(engine) as conn:
        chain = nights.links(conn, market)
        complete = nights.complete_nights(conn, market)
    days = [night["as_of"] for night in complete]
    if not days:
        raise UsageError(
            f"no night of {market} is complete: check this name, or run `dtml nightly {market}` "
            "first, or `dtml nightly --market-file FILE` for a market of your own"
        )
    if chain and since not in (None, chain[0]["as_of"]):
        raise UsageError(
            f"the chain of {market} begins with the night of {chain[0]['as_of']} and never changes "
            "its beginning: leave out --since"
        )
    first = since or days[-1]
    if chain:
        first = chain[0]["as_of"]
    if chain and first not in days:
        raise UsageError(
            f"the night of {first}, with which the chain of {market} begins, is no longer "
            f"complete: complete it with `dtml nightly {market} --as-of {first}`, or restore a "
            "backup"
        )
    if first not in days:
        raise UsageError(
            f"no night of {market} as of {first} is complete: give --since the day of one that is, "
            f"such as {_nearest(days, first)}; there are {len(days)}, from {days[0]} to {days[-1]}"
        )
    return extend(engine, market, first)


def _nearest(days: Sequence[date], day: date) -> date:
    """Return the one of `days` that is nearest to a day."""
    return min(days, key=lambda other: abs(other - day))


def extend(engine: Engine, market: str, first: date | None = None) -> list[Link]:
    """Add a link for each complete night that has none or was run again since; return these links.

    They are in the order in which the nights ended. Nights before that of the first link get none.
    A market without a chain gets one of the nights from `first` on, or none if `first` is None. A
    chain that exists keeps its beginning, whatever `first` is. No other process may work on the
    market meanwhile.
    """
    with transaction(engine) as conn:
        chain: list[Link] = [*nights.links(conn, market)]
        if not chain and first is None:
            return []
        begins = chain[0]["as_of"] if chain else first
        # By night, of its last link: a later link of a night replaces the earlier one.
        linked = {link["as_of"]: json.loads(link["link"])["finished_at"] for link in chain}
        due = []
        for night in nights.complete_nights(conn, market):
            is_linked = linked.get(night["as_of"]) == night["finished_at"].isoformat()
            if night["as_of"] >= begins and not is_linked:
                due.append(night)
        due.sort(key=lambda night: (night["finished_at"], night["as_of"]))
        if not due:
            return []
        covered = _nights_of_new_links(conn, market, due, chain)
        parts = read_parts(conn, market, covered)
        constituents = constituents_digest(conn, market)
        for night, of_link in zip(due, covered, strict=True):
            numbers = [link["number"] for link in chain if link["as_of"] == of_link.as_of]
            content = {
                "number": of_link.number,
                "as_of": of_link.as_of.isoformat(),
                "target": night["target"].isoformat(),
                "finished_at": night["finished_at"].isoformat(),
                "known_at": night["known_at"].isoformat(),
                "inputs": night["inputs_hash"],
                "code": {
                    "version": version("dtml-nightshift"),
                    "source": source_digest(),
                    "computed_by": night["computed_by"],
                },
                "weights": weights_of(conn, of_link.run_id, of_link.ranker_id),
                "previous": chain[-1]["digest"] if chain else None,
                "replaces": numbers[-1] if numbers else None,
                "market": market,
                "parts": parts[of_link.number].digests,
                "constituents": constituents,
            }
            text = canonical(content)
            link = {
                "market": content["market"],
                "number": content["number"],
                "as_of": night["as_of"],
                "target": night["target"],
                "known_at": night["known_at"],
                "link": text,
                "digest": sha256_of_text(text),
                "previous": content["previous"],
                "replaces": content["replaces"],
                "created_at": datetime.now(UTC),
            }
            nights.save_link(conn, link)
            chain.append(link)
    return chain[-len(due) :]


def _nights_of_new_links(
    conn: Connection, market: str, due: Sequence[Night], chain: Sequence[Link]
) -> list[NightOfLink]:
    known_after = max((link["known_at"] for link in chain), default=None)
    covered = []
    for number, night in enumerate(due, start=len(chain) + 1):
        known_until = night["known_at"]  # never before that of the link before, as in `nights_of`
        if known_after is not None:
            known_until = max(known_until, known_after)
        covered.append(
            NightOfLink(
                number=number,
                as_of=night["as_of"],
                run_id=night["run_id"],
                ranker_id=rankings.ranker_of_night(
                    conn, market, night["target"], night["finished_at"]
                ),
                known_after=known_after,
                known_until=known_until,
            )
        )
        known_after = known_until
    return covered


def is_frozen(engine: Engine, market: str) -> bool:
    """Return whether a market has a chain."""
    with reading(engine) as conn:
        return nights.head_of_chain(conn, market) is not None


def nights_of(chain: Sequence[Link], left_out: Collection[int] = ()) -> list[NightOfLink]:
    """Return what each link of a whole chain covers, but for those of the numbers `left_out`.

    The text of a link that is left out is not read, because it may be no JSON.
    """
    covered: list[NightOfLink] = []
    known_after: datetime | None = None
    for link in chain:
        # A night that was run late may have used no price as new as the link before did. The spans
        # of links never go back, so that each version of a bar is in one link alone.
        known_until = link["known_at"]
        if known_after is not None:
            known_until = max(known_until, known_after)
        if link["number"] not in left_out:
            weights = json.loads(link["link"])["weights"]
            covered.append(
                NightOfLink(
                    number=link["number"],
                    as_of=link["as_of"],
                    run_id=weights["run"],
                    ranker_id=weights["rankers"],
                    known_after=known_after,
                    known_until=known_until,
                )
            )
        known_after = known_until
    return covered


def weights_of(conn: Connection, run_id: str, ranker_id: str | None) -> dict[str, str | None]:
    """Return the models of a night, and the SHA-256 of their checkpoints and of their settings.

    Those of rankers are None for a night that ranked no stocks.
    """
    run = runs.run(conn, run_id)
    ranker = (rankings.ranker(conn, ranker_id) if ranker_id else None) or {}
    return {
        "run": run_id,
        "run_sha256": run["checkpoint_hash"],
        "rankers": ranker_id,
        "rankers_sha256": ranker.get("checkpoint_hash"),
        "settings": sha256_of([run["config"], ranker.get("config")]),
    }


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Return the SHA-256 of the source of this program: each file's path and content, by path.

    It covers the Python, TOML and SQL files of the four packages.
    """
    digest = hashlib.sha256()
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*")):
            if file.suffix in (".py", ".toml", ".sql"):
                digest.update(file.relative_to(ROOT).as_posix().encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()


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
    frozen = json.loads(head["link"])["constituents"]
    stored = constituents_digest(conn, market)
    if stored != frozen:
        words = (
            f"the constituents stored now have SHA-256 {stored[:12]}..., frozen {frozen[:12]}...: "
            "if the market's file has changed, the next night freezes the new list"
        )
        yield Change(number=head["number"], as_of=head["as_of"], what=LIST, words=words)


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
