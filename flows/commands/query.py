"""The commands that read rows of the store: a statement of SQL, a history, models, markets."""

import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from sqlalchemy import Engine

from db.connection.frames import head
from db.connection.parquet_sql import asked_of_parquet
from db.connection.user_sql import Answer, asked, held
from db.engine import open_reader, reading
from db.errors import StoreError
from db.rows import markets as stored_markets
from db.rows import predictions, runs
from db.rows import scores as stored_scores
from dtml.errors import UsageError
from dtml.markets import market_names
from dtml.pages.figures import figure, records
from dtml.sources.simulated import SimulatedMarket
from flows.answer_files import csv_lines, json_lines, require_distinct, write_parquet
from flows.commands.options import STORED_MARKET, AsJson, OptionalMarket
from flows.console import print_frame, print_json
from flows.market_files import read_market
from flows.settings import err, out
from flows.upkeep.parquet_export import exported

commands = typer.Typer()

PURPOSES = 3  # of models: a stock has a score for each
SHOWN = 1000  # rows of an answer as a table
LARGEST = 2 * 2**30  # characters of an answer as CSV or JSON
MEMORY = 2 * 2**30  # bytes that an answer may take


@commands.command()
def history(
    symbol: Annotated[str, typer.Argument(help="A stock, as the market spells it.")],
    market: Annotated[str | None, STORED_MARKET] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show this many rows, the newest.")] = 30,
    as_json: AsJson = False,
) -> None:
    """Show the predictions of a stock and their outcomes.

    Example: dtml history L01
    """
    with reading(open_reader()) as conn:
        rows = predictions.prediction_history(conn, market=market, symbol=symbol, newest=limit)
        names = rows["market"].unique().tolist()
        scores = {
            name: head(conn, stored_scores.symbol_scores(name, symbol), PURPOSES) for name in names
        }
        at_level = predictions.default_directions(conn, symbol)
    if as_json:
        return print_json(rows)
    for name, shown in rows.groupby("market"):
        _print_history(f"{symbol}, {name}", _decided(shown, at_level))
        nightly = scores[name][scores[name]["kind"] == "nightly"]
        for score in records(nightly):
            called = (
                f"by probability above 0.5: ACC {figure(score['acc'])}, MCC {figure(score['mcc'])}"
            )
            rising = f"always up: ACC {figure(score['up_acc'])}, MCC {figure(0)}"
            out.print(f"all {score['n']} outcomes, {called}; {rising}")
    if rows.empty:
        out.print(f"No night has predicted {symbol} yet.")
    return None


def _decided(rows: pd.DataFrame, at_level: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the directions that the nights gave: those at the
    model's level, where it has a band.
    """
    both = rows.merge(at_level, on=["run_id", "target"], how="left", suffixes=("", "_at_level"))
    direction = both["direction_at_level"].fillna(both["direction"])
    return both.assign(direction=direction, correct=both["correct"].where(direction != "none"))


def _print_history(title: str, rows: pd.DataFrame) -> None:
    """Print a table that fits 100 columns, and which models predicted it."""
    names = {"index_reversal": "reversal", "index_below_mean20": "mean20"}
    short = names | {"realised_return": "return", "always_up": "up"}
    placed = ["place"] if rows["place"].notna().any() else []
    figures = ("probability", "calibrated")
    told = [
        "as_of",
        "target",
        *figures,
        "direction",
        *placed,
        "realised_return",
        "correct",
        "always_up",
        *names,
    ]
    formats = dict.fromkeys(figures, ".3f") | {"return": "+.4f"}
    print_frame(rows[told].rename(columns=short), title, formats=formats)
    by = ", ".join(
        f"{count} by {run}" for run, count in rows["run_id"].value_counts(sort=False).items()
    )
    out.print(
        f"on the right are the naive rules' directions; model predictions: {by}", soft_wrap=True
    )


@commands.command("runs")
def list_runs(market: OptionalMarket = None, as_json: AsJson = False) -> None:
    """List the trained models and what they were trained on.

    Example: dtml runs simulated
    """
    engine = open_reader()
    if market is not None:
        require_market(engine, market)
    with reading(engine) as conn:
        rows = runs.runs(conn, market)
    if as_json:
        return print_json(rows)
    told = ["id", "kind", "model", "train_first", "train_last", "seeds"]
    shown = rows[[*told, "code_version", "checkpoint_hash", "created_at"]]
    hashes, created = (
        shown["checkpoint_hash"].str.slice(0, 12),
        shown["created_at"].dt.strftime("%Y-%m-%d %H:%M UTC"),
    )
    return print_frame(shown.assign(checkpoint_hash=hashes, created_at=created))


def require_market(engine: Engine, market: str, how: str = "") -> None:
    """Raise UsageError, naming those that are there, for a market of which the store knows nothing.

    `how` says with what another is named, where that is an option.
    """
    with reading(engine) as conn:
        markets = stored_markets.all_markets(conn)
    if market not in markets:
        there = f"name one of {', '.join(markets)}{how}" if markets else "run a night first"
        raise UsageError(f"the store holds no market {market!r}: {there}")


def _own_markets() -> list[str]:
    """Return the markets of which the store keeps a user's file; none without a store."""
    try:
        with reading(open_reader()) as conn:
            return stored_markets.own_markets(conn)
    except StoreError:
        return []


@commands.command("markets")
def list_markets(as_json: AsJson = False) -> None:
    """List the markets that commands accept.

    Example: dtml markets
    """
    rows = []
    for name in [*market_names(), *_own_markets()]:
        market = read_market(name)
        listed = (
            f"{len(market.symbols)} of {market.constituents_as_of}"
            if market.constituents
            else "from a file"
        )
        if market.source == "simulated":
            listed = f"{len(SimulatedMarket().symbols)}, simulated"
        told = {
            "market": name,
            "title": market.title,
            "index": market.index.symbol,
            "calendar": market.calendar,
        }
        rows.append(
            told | {"source": market.source, "constituents": listed, "retrain": str(market.retrain)}
        )
    return print_json(rows) if as_json else print_frame(pd.DataFrame(rows))


@commands.command()
def query(
    sql: Annotated[str, typer.Argument(help="The statement, or - to read it from standard input.")],
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    parquet: Annotated[
        Path | None, typer.Option(help="Write the rows to this file, without a time limit.")
    ] = None,
    on: Annotated[
        Path | None,
        typer.Option(
            help="Query the files that `dtml db export` wrote to this folder, with DuckDB."
        ),
    ] = None,
) -> None:
    """Run one SQL statement on the database, read-only.

    A table shows the first 1,000 rows; CSV, JSON and Parquet hold all. `dtml questions` has twenty
    examples.

    Example: dtml query "select * from latest_prediction order by probability desc limit 5"
    """
    if as_json + as_csv + (parquet is not None) > 1:
        raise UsageError("--json, --csv and --parquet cannot be combined: choose one")
    if parquet is not None and parquet.is_dir():
        raise UsageError(f"{parquet} is a folder: --parquet takes a file")
    sql, ends = _typed_in() if sql == "-" else sql, parquet is None
    asking = (
        partial(asked, open_reader()) if on is None else partial(asked_of_parquet, exported(on))
    )
    with _bounded_memory():
        if as_csv or as_json:
            return _print_all(asking(sql), csv_lines if as_csv else json_lines)
        with asking(sql, ends=ends) as found:
            if parquet is not None:
                count = write_parquet(found, parquet)
                return out.print(f"{count} rows written to {parquet}", soft_wrap=True)
            rows = held(found, SHOWN + 1)
        require_distinct(rows.columns)
        print_frame(rows.head(SHOWN))
    if len(rows) > SHOWN:
        err.print(
            f"note: these are the first {SHOWN:,} rows; --csv and --json print all of them",
            soft_wrap=True,
        )
    return None


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Let this process have MEMORY more than it has, where Linux says what that is, and say in a
    line that it is over.

    What bounds rows and values cannot see what a library or a driver holds of them.
    """
    kind, status = resource.RLIMIT_DATA, Path("/proc/self/status")
    before = resource.getrlimit(kind)
    has = re.search(r"VmData:\s+(\d+) kB", status.read_text()) if status.exists() else None
    most = 1024 * int(has[1]) + MEMORY if has else before[0]
    is_lower = most < before[0] or before[0] == resource.RLIM_INFINITY
    resource.setrlimit(kind, (most if is_lower else before[0], before[1]))
    try:
        yield
    except MemoryError as error:
        raise UsageError(
            f"the answer takes more than {MEMORY:,} bytes of memory: select fewer rows or columns"
        ) from error
    finally:
        resource.setrlimit(kind, before)


def _print_all(
    asking: AbstractContextManager[Answer], form: Callable[[Answer], Iterator[str]]
) -> None:
    """Print all rows once the last has come, from a file: a failure prints
    nothing, and no reader keeps the store.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as file:
        with asking as found:
            written = 0
            for text in form(found):
                written += file.write(text)
                if written > LARGEST:
                    raise UsageError(
                        f"an answer of more than {LARGEST:,} characters is not printed: ask for it "
                        "in parts"
                    )
        file.seek(0)
        shutil.copyfileobj(file, sys.stdout)


def _typed_in() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 text: {error}") from error
