"""Make the links of a market's chain, and add one for each night that has none.

A link is JSON: the night, the code that made the link, the weights of the night, the SHA-256 of
each of its parts, and that of the link before. Its own SHA-256 goes into the next link, so that no
link can be changed without changing all after it.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine

from db.engine import reading, transaction
from db.rows import nights, rankings, runs
from dtml.errors import UsageError
from flows.freezing.canonical import canonical, sha256_of, sha256_of_text
from flows.freezing.parts import NightOfLink, constituents_digest, read_parts

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
        complete = nights.complete_nights(conn, market)
        # By night, of its last link: a later link of a night replaces the earlier one.
        linked = {link["as_of"]: json.loads(link["link"])["finished_at"] for link in chain}
        due = []
        for night in complete:
            is_linked = linked.get(night["as_of"]) == night["finished_at"].isoformat()
            if night["as_of"] >= begins and not is_linked:
                due.append(night)
        due = sorted(due, key=lambda night: (night["finished_at"], night["as_of"]))
        if not due:
            return []
        known_after = max((link["known_at"] for link in chain), default=None)
        covered = []
        for number, night in enumerate(due, start=len(chain) + 1):
            known_until = night[
                "known_at"
            ]  # never before that of the link before, as in `nights_of`
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
    digest = sha256()
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*")):
            if file.suffix in (".py", ".toml", ".sql"):
                digest.update(file.relative_to(ROOT).as_posix().encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()
