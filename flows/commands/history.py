"""The commands that list what the store holds: a stock's history, models, markets."""

from functools import partial
from typing import Annotated, get_args

import pandas as pd
import typer
from sqlalchemy import Engine

from db import where
from db.engine import open_reader, reading
from db.errors import StoreError
from db.read import read
from db.rows import markets as stored_markets
from db.rows import predictions
from dtml.errors import UsageError
from dtml.markets import Market, market_names
from dtml.markets.definition import SourceName
from dtml.pages.figures import fmt, percent, records
from dtml.sources.simulated import SimulatedMarket
from flows.commands.answers import Answer, answering
from flows.commands.options import STORED_MARKET, OptionalMarket
from flows.console import ConsoleTable, Formats, Part, rendered
from flows.markets.files import market_of_store, no_such_market, read_market

commands = typer.Typer()

# The columns of a stock's history, at the default level of the nights.
SHORT_NAMES = {
    "as_of": "as_of",
    "target": "target",
    "probability": "probability",
    "calibrated": "calibrated",
    "decision": "direction",
    "place": "place",
    "realised_return": "return",
    "decision_correct": "correct",
    "always_up": "up",
    "index_reversal": "reversal",
    "index_below_mean20": "mean20",
}
FORMATS: Formats = {
    "probability": percent,
    "calibrated": percent,
    "return": partial(fmt, kind="small_percent"),
}


@commands.command()
@answering("json")
def history(
    symbol: Annotated[str, typer.Argument(help="A stock, by its symbol in the market.")],
    market: Annotated[str | None, STORED_MARKET] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of rows to show, the newest.")] = 30,
) -> Answer:
    """Show the predictions for a stock and their outcomes.

    Example: dtml history L01
    """
    with reading(open_reader()) as conn:
        rows = predictions.prediction_history(conn, market=market, symbol=symbol, newest=limit)
        parts: list[Part] = []
        for name, of_market in rows.groupby("market"):
            short_names = dict(SHORT_NAMES)
            if of_market["place"].isna().all():
                del short_names["place"]
            shown = of_market[list(short_names)].rename(columns=short_names)
            parts.append(ConsoleTable(shown, f"{symbol}, {name}", FORMATS))
            models = of_market["run_id"].value_counts(sort=False).items()
            parts.append(rendered("history.txt", models=models))
            scores = read(conn, "symbol_score", market=name, symbol=symbol, kind="nightly")
            parts.append(rendered("symbol_scores.txt", scores=records(scores)) or None)
    return Answer(parts or [f"No night has predicted {symbol} yet."], rows)


@commands.command("runs")
@answering("json")
def list_runs(market: OptionalMarket = None) -> Answer:
    """List the trained models and their training data.

    Example: dtml runs simulated
    """
    engine = open_reader()
    if market is not None:
        require_market(engine, market)
    with reading(engine) as conn:
        rows = read(
            conn,
            "run",
            columns="-losses, -universe",
            market=where.given(market),
            order="created_at, id",
        )
    columns = ["id", "kind", "model", "train_first", "train_last", "seeds", "code_version"]
    shown = rows[columns].assign(
        checkpoint_hash=rows["checkpoint_hash"].str.slice(0, 12),
        created_at=rows["created_at"].dt.strftime("%Y-%m-%d %H:%M UTC"),
    )
    return Answer([ConsoleTable(shown)], rows)


def require_market(engine: Engine, market: str | None, option: str = "") -> str:
    """Return the name of a stored market; None stands for the only one.

    Raises UsageError, which lists the stored markets, for a market that is not stored, and for
    None where several are stored.
    """
    with reading(engine) as conn:
        stored = stored_markets.all_markets(conn)
    if market is None and len(stored) > 1:
        raise UsageError(
            f"the store has several markets: choose one of {', '.join(stored)}{option}"
        )
    market = market or next(iter(stored), "simulated")
    if market not in stored:
        raise UsageError(no_such_market(market, stored))
    return market


def _own_markets() -> list[Market]:
    try:
        engine = open_reader()
        with reading(engine) as conn:
            names = read(conn, "market_file", columns="market")["market"].tolist()
    except StoreError:
        return []
    known = [market_of_store(engine, name) for name in names]
    return [market for market in known if market is not None]


@commands.command("markets")
@answering("json")
def list_markets() -> Answer:
    """List the markets that commands accept.

    Example: dtml markets
    """
    rows = [
        {
            "market": market.name,
            "title": market.title,
            "index": market.index.symbol,
            "calendar": str(market.calendar),
            "source": market.source,
            "constituents": _constituents_in_words(market),
            "retrain": str(market.retrain),
        }
        for market in [*map(read_market, market_names()), *_own_markets()]
    ]
    return Answer([ConsoleTable(pd.DataFrame(rows), prose=("title", "constituents"))], rows)


def _constituents_in_words(market: Market) -> str:
    if market.source == "simulated":
        return f"{len(SimulatedMarket().symbols)}, simulated"
    if market.members is not None and market.constituents_as_of is not None:
        listed = len(market.constituents_on(market.constituents_as_of))
        return f"{listed} of {market.constituents_as_of}, {len(market.symbols)} at any time"
    if market.constituents:
        return f"{len(market.symbols)} of {market.constituents_as_of}"
    if market.source not in get_args(SourceName):
        return f"from {market.source}"
    return "from a file"
