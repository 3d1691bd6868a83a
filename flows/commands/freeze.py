"""The command that freezes what the nights of a market predict, and checks what was frozen."""

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from db.connection.locks import market_lock
from db.engine import open_reader, open_store, reading
from db.rows import nights
from dtml.errors import DtmlError, UsageError
from dtml.pages.figures import counted
from flows.commands.options import DAY, AsJson, MarketFile, day_of, known_markets
from flows.console import print_json, rendered
from flows.freezing import add_lines, begin, chain_file, check_chain, check_file
from flows.markets.files import read_market
from flows.settings import out

commands = typer.Typer()

SINCE = "Begin with the night of this session; by default with the last complete night."
CHECK = "Compute every link again from the store and the weights, and name what has changed."
FILE = "With --check, a file of the chain that was kept; by default that of the reports."


class NotFrozenError(DtmlError):
    """Say that something has changed since it was frozen."""


@commands.command()
def freeze(
    name: Annotated[
        str,
        typer.Argument(
            help="A market that `dtml markets` lists.",
            metavar="MARKET",
            autocompletion=known_markets,
        ),
    ],
    file: Annotated[Path | None, typer.Argument(help=FILE, metavar="[FILE]")] = None,
    market_file: MarketFile = None,
    since: Annotated[datetime | None, typer.Option(formats=DAY, help=SINCE)] = None,
    check: Annotated[bool, typer.Option("--check", help=CHECK)] = False,
    as_json: AsJson = False,
) -> None:
    """Freeze what the nights predict: a chain of SHA-256 that no one can change unnoticed.

    From then on every night adds its own link: its predictions and rankings, code, prices, stocks
    and weights, and the link before. Publish the head, the last SHA-256: whoever has it can check
    later that nothing up to that night was changed. The exit code of --check is 1 if anything was.

    Example: dtml freeze simulated

    Example: dtml freeze simulated --check
    """
    market = read_market(name, market_file).name
    if check:
        if since is not None:
            raise UsageError(
                "--since has no effect with --check, which checks the whole chain: leave it out"
            )
        return _check(market, file, as_json=as_json)
    if file is not None:
        raise UsageError(
            f"{file} is given, but only --check reads a file: add --check, or leave the file out"
        )
    engine = open_store()
    with market_lock(engine, market):
        new_links = begin(engine, market, day_of(since))
        written_file = add_lines(engine, market)
    with reading(engine) as conn:
        chain = nights.links(conn, market)
    if as_json:
        return print_json(
            {"market": market, "new": len(new_links), **_chain_summary(chain, written_file)}
        )
    text = rendered("frozen.txt", market=market, chain=chain, new=new_links, file=written_file)
    out.print(text, end="", soft_wrap=True)
    return None


def _check(market: str, file: Path | None, *, as_json: bool) -> None:
    """Check a chain and its file, and print what was found; raise NotFrozenError for a change.

    The file is by default that of the reports, and none is checked where that is missing.
    """
    begun = time.perf_counter()
    checked = check_chain(open_reader(), market)
    if file is None and chain_file(market).exists():
        file = chain_file(market)
    changes = [*checked.changes]
    if file is not None:
        changes += check_file(file, checked.links)
    seconds = time.perf_counter() - begun
    if as_json:
        print_json(
            {
                "market": checked.market,
                **_chain_summary(checked.links, file),
                "replaced": [
                    {"number": number, "by": by} for number, by in sorted(checked.replaced.items())
                ],
                "changes": [
                    {
                        "number": change.number,
                        "as_of": change.as_of,
                        "what": change.what,
                        "words": change.words,
                    }
                    for change in changes
                ],
            }
        )
    else:
        text = rendered(
            "frozen_check.txt",
            market=market,
            checked=checked,
            changes=changes,
            found=counted(len(changes), "change") if changes else "nothing has changed",
            file=file,
            seconds=seconds,
        )
        out.print(text, end="", soft_wrap=True)
    if changes:
        raise NotFrozenError(
            f"{market} has {counted(len(changes), 'change')} since the nights were frozen; the "
            f"first is at {changes[0]}; unless this was intended, restore the store or the weights "
            "from a backup; if only the file of the chain is damaged, move it to another folder: "
            f"`dtml freeze {market}` then writes a new one from the store"
        )


def _chain_summary(chain: Any, file: Path | None) -> dict[str, Any]:
    return {
        "links": len(chain),
        "first": chain[0]["as_of"],
        "last": chain[-1]["as_of"],
        "head": chain[-1]["digest"],
        "file": None if file is None else str(file),
    }
