"""The command that freezes what the nights of a market predict, and checks what was frozen."""

import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from db.connection.locks import market_lock
from db.engine import open_reader, open_store
from dtml.errors import DtmlError
from dtml.pages.figures import counted
from flows.commands.answers import Answer, answering
from flows.commands.options import day_option, of_a_market, refuse
from flows.console import styled
from flows.freezing import Link, begin, read_chain
from flows.freezing import check as check_chain
from flows.markets.files import read_market
from flows.markets.opened import RunRequest
from flows.settings import chain_file

commands = typer.Typer()

SINCE = "Begin with the night of this session; by default with the last complete night."
CHECK = "Compare every link with the store and the weights, and name what has changed."
FILE = "With --check, a file of the chain that was kept; by default that of the reports."


class NotFrozenError(DtmlError):
    """Say that something has changed since it was frozen."""


@commands.command()
@of_a_market()
@answering("json")
def freeze(
    request: RunRequest,
    file: Annotated[Path | None, typer.Argument(help=FILE, metavar="[FILE]")] = None,
    since: Annotated[date | None, day_option(SINCE)] = None,
    check: Annotated[bool, typer.Option("--check", help=CHECK)] = False,
) -> Answer:
    """Freeze what the nights predict: a chain of SHA-256 that no one can change unnoticed.

    From then on every night adds its own link to a file: its predictions and rankings, code,
    prices, stocks and weights, and the SHA-256 of the link before. Publish the head, the last
    SHA-256: whoever has it can check later that nothing up to that night was changed. The exit code
    of --check is 1 if anything was.

    Example: dtml freeze simulated

    Example: dtml freeze simulated --check
    """
    market = read_market(request.market, request.market_file).name
    if check:
        refuse({"--since": since}, "--check checks the whole chain")
        return _check(market, file)
    refuse({str(file): file}, "only --check reads a file")
    engine = open_store()
    with market_lock(engine, market):
        new_links = begin(engine, market, since)
    file = chain_file(market)
    chain = read_chain(file)
    text = styled("frozen.txt", market=market, chain=chain, new=new_links, file=file)
    return Answer([text], {"market": market, "new": len(new_links), **_summary(chain, file)})


def _check(market: str, file: Path | None) -> Answer:
    begun = time.perf_counter()
    chain, changes = check_chain(open_reader(), market, file)
    seconds = time.perf_counter() - begun
    file = file or chain_file(market)
    replaced = {link.replaces: link.number for link in chain if link.replaces is not None}
    text = styled(
        "frozen_check.txt",
        market=market,
        chain=chain,
        replaced=replaced,
        changes=changes,
        found=counted(len(changes), "change") if changes else "nothing has changed",
        file=file,
        seconds=seconds,
    )
    document = {
        "market": market,
        **_summary(chain, file),
        "replaced": [{"number": number, "by": by} for number, by in replaced.items()],
        "changes": [
            {
                "number": change.link.number,
                "as_of": change.link.as_of,
                "what": change.what,
                "words": change.words,
            }
            for change in changes
        ],
    }
    failure = None
    if changes:
        failure = NotFrozenError(
            f"{market} has {counted(len(changes), 'change')} since the nights were frozen; the "
            f"first is at {changes[0]}; unless this was intended, restore the store or the weights "
            "from a backup, or put a kept copy of the file in its place"
        )
    return Answer([text], document, failure=failure)


def _summary(chain: Sequence[Link], file: Path) -> dict[str, Any]:
    return {
        "links": len(chain),
        "first": chain[0].as_of,
        "last": chain[-1].as_of,
        "head": chain[-1].digest,
        "file": str(file),
    }
