"""The commands that list what the store holds: a stock's history, models, markets."""

from functools import partial
from typing import Annotated, get_args

import pandas as pd
import typer
from sqlalchemy import Engine

from db import where
from db.engine import open_reader, reading
from db.errors import StoreError, did_you_mean
from db.read import read
from db.rows import markets as stored_markets
from db.rows import predictions
from dtml.errors import UsageError
from dtml.markets import Market, market_names
from dtml.markets.definition import SourceName
from dtml.pages.figures import counted, figure, fmt, named, percent, quoted, records
from dtml.sources.simulated import SimulatedMarket
from flows.commands.options import STORED_MARKET, AsJson, OptionalMarket
from flows.console import print_frame, print_json
from flows.markets.files import market_of_store, read_market
from flows.settings import out

commands = typer.Typer()

KINDS = 3  # of models, such as nightly and backtest: a stock has a row of scores for each


@commands.command()
def history(
    symbol: Annotated[str, typer.Argument(help="A stock, by its symbol in the market.")],
    market: Annotated[str | None, STORED_MARKET] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of rows to show, the newest.")] = 30,
    as_json: AsJson = False,
) -> None:
    """Show the predictions for a stock and their outcomes.

    Example: dtml history L01
    """
    with reading(open_reader()) as conn:
        rows = predictions.prediction_history(conn, market=market, symbol=symbol, newest=limit)
        scores = {}
        for name in rows["market"].unique().tolist():
            scores[name] = read(conn, "symbol_score", market=name, symbol=symbol, order="kind")
        at_level = read(
            conn, "band_direction", columns="run_id, target, direction", symbol=symbol, is_default=1
        )
    if as_json:
        return print_json(rows)
    for stored_name, market_rows in rows.groupby("market"):
        name = str(stored_name)
        _print_history(f"{symbol}, {name}", _decided(market_rows, at_level))
        _print_symbol_scores(scores[name])
    if rows.empty:
        out.print(f"No night has predicted {symbol} yet.")
    return None


def _print_symbol_scores(scores: pd.DataFrame) -> None:
    nightly = scores[scores["kind"] == "nightly"]
    for score in records(nightly):
        acc = percent(score["acc"])
        mcc = figure(score["mcc"])
        up_acc = percent(score["up_acc"])
        out.print(
            f"in all {counted(score['n'], 'outcome')} (a rise above 50 %): ACC {acc}, MCC {mcc}; "
            # MCC is 0 where one class is never predicted.
            f"{quoted('always_up')}: ACC {up_acc}, MCC {figure(0)}",
            soft_wrap=True,
        )


def _decided(rows: pd.DataFrame, at_level: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the directions that the nights printed, and whether these were correct.

    `rows` are those of the view prediction_history, whose directions are 'rise' above one half and
    'fall' otherwise. `at_level` has the directions of models with an abstention band, at their
    market's level: 'none' inside the band. Where it has a direction, that takes the place of the
    one in `rows`. For 'none', `correct` is missing. A calibrated probability may lie on the other
    side of one half than the model's own: then the direction changes, and so does `correct`.
    """
    with_level = rows.merge(
        at_level,
        on=["run_id", "target"],
        how="left",
        suffixes=("", "_at_level"),
    )
    direction = with_level["direction_at_level"].fillna(with_level["direction"])
    is_turned = (direction != with_level["direction"]) & (direction != "none")
    correct = with_level["correct"].where(direction != "none")
    correct = correct.mask(is_turned, 1 - correct)
    return with_level.assign(direction=direction, correct=correct)


def _print_history(title: str, rows: pd.DataFrame) -> None:
    columns = ["as_of", "target", "probability", "calibrated", "direction"]
    if rows["place"].notna().any():
        columns.append("place")
    columns += ["realised_return", "correct", "always_up", "index_reversal", "index_below_mean20"]
    short_names = {
        "realised_return": "return",
        "always_up": "up",
        "index_reversal": "reversal",
        "index_below_mean20": "mean20",
    }
    print_frame(
        rows[columns].rename(columns=short_names),
        title,
        importance=(
            "target",
            "direction",
            "calibrated",
            "return",
            "correct",
            "probability",
            "place",
            "as_of",
            "up",
            "reversal",
            "mean20",
        ),
        formats={
            "probability": percent,
            "calibrated": percent,
            "return": partial(fmt, kind="small_percent"),
        },
    )
    counts_by_model = rows["run_id"].value_counts(sort=False).items()
    models = ", ".join(f"{count} by {run_id}" for run_id, count in counts_by_model)
    rules = (
        f"up: {named('always_up')}; reversal: {named('index_reversal')}; "
        f"mean20: {named('index_below_mean20')}"
    )
    out.print(f"naive rules: {rules}\npredictions: {models}", soft_wrap=True)


@commands.command("runs")
def list_runs(market: OptionalMarket = None, as_json: AsJson = False) -> None:
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
    if as_json:
        return print_json(rows)
    columns = ["id", "kind", "model", "train_first", "train_last", "seeds", "code_version"]
    columns += ["checkpoint_hash", "created_at"]
    shown = rows[columns].assign(
        checkpoint_hash=rows["checkpoint_hash"].str.slice(0, 12),
        created_at=rows["created_at"].dt.strftime("%Y-%m-%d %H:%M UTC"),
    )
    importance = ("id", "kind", "train_last", "seeds", "model", "train_first", "created_at")
    return print_frame(shown, importance=importance)


def require_market(engine: Engine, market: str | None, option: str = "") -> str:
    """Return the name of a stored market; None stands for the only one.

    Raises UsageError, which lists the stored markets, for a market that the store lacks, and for
    None where it has several. `option` names the option that chooses a market, as in " with
    --market", if there is one.
    """
    with reading(engine) as conn:
        markets = stored_markets.all_markets(conn)
    if market is None and markets:
        if len(markets) > 1:
            raise UsageError(
                f"the store has several markets: choose one of {', '.join(markets)}{option}"
            )
        return markets[0]
    if market in markets:
        return market
    market = market or "simulated"
    meant = did_you_mean(market, markets)
    is_of_package = market in market_names()
    if not markets:
        example = market if is_of_package else "simulated"
        raise UsageError(
            f"the store has no market {market!r}: run a night first, as in `dtml nightly "
            f"{example}`, or `dtml nightly --market-file FILE` for a market of your own"
        )
    known = ", ".join(markets)
    first = "; for a market of your own, run `dtml nightly --market-file FILE` first"
    if is_of_package:
        first = f", or run `dtml nightly {market}` first"
    raise UsageError(
        f"the store has no market {market!r}: {meant}choose one of {known}{option}{first}"
    )


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
def list_markets(as_json: AsJson = False) -> None:
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
    if as_json:
        return print_json(rows)
    return print_frame(
        pd.DataFrame(rows),
        importance=("market", "title", "constituents", "source", "retrain", "calendar", "index"),
        prose=("title", "constituents"),
    )


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
