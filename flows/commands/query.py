"""The commands that read rows of the store: a statement of SQL, a history, models, markets."""

import json
import re
import resource
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial, reduce
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer
from sqlalchemy import Engine

from db.connection.frames import as_given, head
from db.connection.parquet_sql import asked_of_parquet
from db.connection.user_sql import Answer, asked, held
from db.engine import open_reader, reading
from db.errors import StoreError
from db.rows import markets as stored_markets
from db.rows import predictions, runs
from db.rows import scores as stored_scores
from dtml.errors import UsageError
from dtml.markets import Market, market_names
from dtml.pages.figures import figure, records
from dtml.sources.simulated import SimulatedMarket
from flows.commands.options import STORED_MARKET, AsJson, OptionalMarket
from flows.console import plain, print_frame, print_json
from flows.market_files import read_market
from flows.parquet_export import exported
from flows.settings import err, out
from translation.atomic_files import write_whole

commands = typer.Typer()

PURPOSES = 3  # of models: a stock has a score for each
SHOWN = 1000  # rows of an answer as a table
LARGEST = 2 * 2**30  # characters of an answer as CSV or JSON
LARGEST_FILE = 32 * 2**30  # bytes of one as Parquet, which no limit of time ends
GROUP, GROUP_BYTES = 100_000, 2**26  # rows, and their bytes, that are written at once
MEMORY = 2 * 2**30  # bytes that an answer may take

# How SQLite keeps days and moments.
DAY = re.compile(r"\d{4}-\d\d-\d\d")
MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}")


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
        scores = {}
        for name in rows["market"].unique().tolist():
            scores[name] = head(conn, stored_scores.symbol_scores(name, symbol), PURPOSES)
        at_level = predictions.default_directions(conn, symbol)
    if as_json:
        return print_json(rows)
    for name, market_rows in rows.groupby("market"):
        _print_history(f"{symbol}, {name}", _decided(market_rows, at_level))
        _print_symbol_scores(scores[name])
    if rows.empty:
        out.print(f"No night has predicted {symbol} yet.")
    return None


def _print_symbol_scores(scores: pd.DataFrame) -> None:
    """Print how the nights did on a stock, beside the rule that it always rises."""
    nightly = scores[scores["kind"] == "nightly"]
    for score in records(nightly):
        acc = figure(score["acc"])
        mcc = figure(score["mcc"])
        up_acc = figure(score["up_acc"])
        out.print(
            f"all {score['n']} outcomes, by probability above 0.5: ACC {acc}, MCC {mcc}; "
            f"always up: ACC {up_acc}, MCC {figure(0)}"
        )


def _decided(rows: pd.DataFrame, at_level: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the directions that the nights gave.

    Those are at the model's level, where it has a band.
    """
    with_level = rows.merge(
        at_level,
        on=["run_id", "target"],
        how="left",
        suffixes=("", "_at_level"),
    )
    direction = with_level["direction_at_level"].fillna(with_level["direction"])
    correct = with_level["correct"].where(direction != "none")
    return with_level.assign(direction=direction, correct=correct)


def _print_history(title: str, rows: pd.DataFrame) -> None:
    """Print a table that fits 100 columns, and which models predicted it."""
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
    formats = {"probability": ".3f", "calibrated": ".3f", "return": "+.4f"}
    print_frame(rows[columns].rename(columns=short_names), title, formats=formats)
    counts_by_model = rows["run_id"].value_counts(sort=False).items()
    models = ", ".join(f"{count} by {run_id}" for run_id, count in counts_by_model)
    out.print(
        f"on the right are the naive rules' directions; model predictions: {models}",
        soft_wrap=True,
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
    columns = ["id", "kind", "model", "train_first", "train_last", "seeds", "code_version"]
    columns += ["checkpoint_hash", "created_at"]
    shown = rows[columns].assign(
        checkpoint_hash=rows["checkpoint_hash"].str.slice(0, 12),
        created_at=rows["created_at"].dt.strftime("%Y-%m-%d %H:%M UTC"),
    )
    return print_frame(shown)


def require_market(engine: Engine, market: str, how: str = "") -> None:
    """Raise UsageError, naming those that are there, for a market of which the store knows nothing.

    `how` says with what another is named, where that is an option.
    """
    with reading(engine) as conn:
        markets = stored_markets.all_markets(conn)
    if market in markets:
        return
    if not markets:
        raise UsageError(f"the store holds no market {market!r}: run a night first")
    raise UsageError(f"the store holds no market {market!r}: name one of {', '.join(markets)}{how}")


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
        rows.append(
            {
                "market": name,
                "title": market.title,
                "index": market.index.symbol,
                "calendar": market.calendar,
                "source": market.source,
                "constituents": _constituents_in_words(market),
                "retrain": str(market.retrain),
            }
        )
    if as_json:
        return print_json(rows)
    return print_frame(pd.DataFrame(rows))


def _constituents_in_words(market: Market) -> str:
    """Say how many stocks a market has and as of when, or where they come from."""
    if market.source == "simulated":
        return f"{len(SimulatedMarket().symbols)}, simulated"
    if market.constituents:
        return f"{len(market.symbols)} of {market.constituents_as_of}"
    return "from a file"


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
    if sql == "-":
        sql = _typed_in()
    asking: Callable[..., AbstractContextManager[Answer]]
    if on is None:
        asking = partial(asked, open_reader())
    else:
        asking = partial(asked_of_parquet, exported(on))
    with _bounded_memory():
        if as_csv:
            return _print_all(asking(sql), csv_lines)
        if as_json:
            return _print_all(asking(sql), json_lines)
        with asking(sql, ends=parquet is None) as answer:
            if parquet is not None:
                count = write_parquet(answer, parquet)
                return out.print(f"{count} rows written to {parquet}", soft_wrap=True)
            rows = held(answer, SHOWN + 1)
        _require_distinct(rows.columns)
        print_frame(rows.head(SHOWN))
    if len(rows) > SHOWN:
        err.print(
            f"note: these are the first {SHOWN:,} rows; --csv and --json print all of them",
            soft_wrap=True,
        )
    return None


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Let this process have MEMORY more than it has, where Linux says what that is.

    Raises UsageError when it is over. What bounds rows and values cannot see what a library or a
    driver holds of them.
    """
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    new_limit = soft_limit
    used = _data_bytes()
    if used is not None:
        most = used + MEMORY
        if most < soft_limit or soft_limit == resource.RLIM_INFINITY:
            new_limit = most
    resource.setrlimit(resource.RLIMIT_DATA, (new_limit, hard_limit))
    try:
        yield
    except MemoryError as error:
        raise UsageError(
            f"the answer takes more than {MEMORY:,} bytes of memory: select fewer rows or columns"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft_limit, hard_limit))


def _data_bytes() -> int | None:
    """Return the bytes of data that this process has, as Linux counts them; None elsewhere."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    data = re.search(r"VmData:\s+(\d+) kB", status.read_text())
    if data is None:
        return None
    return 1024 * int(data[1])


def _print_all(
    asking: AbstractContextManager[Answer], form: Callable[[Answer], Iterator[str]]
) -> None:
    """Print all rows once the last has come, by way of a file.

    A failure prints nothing, and no reader keeps the store.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as file:
        with asking as answer:
            written = 0
            for text in form(answer):
                written += file.write(text)
                if written > LARGEST:
                    raise UsageError(
                        f"an answer of more than {LARGEST:,} characters is not printed: ask for it "
                        "in parts"
                    )
        file.seek(0)
        shutil.copyfileobj(file, sys.stdout)


def csv_lines(found: Answer) -> Iterator[str]:
    """Yield an answer as CSV, its names first."""
    yield pd.DataFrame(columns=pd.Index(found.names)).to_csv(index=False)
    for rows in found.batches:
        yield as_given(rows, found.names).to_csv(index=False, header=False)


def json_lines(found: Answer) -> Iterator[str]:
    """Yield an answer as `print_json` prints all of its rows at once."""
    _require_distinct(pd.Index(found.names))
    before = "[\n"
    for rows in found.batches:
        for row in plain(as_given(rows, found.names)):
            written = json.dumps(row, ensure_ascii=False, indent=2, allow_nan=False)
            yield before + textwrap.indent(written, "  ")
            before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def _require_distinct(names: "pd.Index[Any]") -> None:
    repeated = names[names.duplicated()]
    if len(repeated):
        raise UsageError(f"two columns are named {repeated[0]!r}: give one another name with `as`")


def _typed_in() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 text: {error}") from error


def write_parquet(found: Answer, file: Path, most: int = LARGEST_FILE) -> int:
    """Write an answer as its rows come, whole or not at all, and return how many: days as days,
    moments in UTC.

    Lists and mappings become JSON text. Raises UsageError for a column that holds values of several
    kinds, and for a file of more than `most` bytes.
    """
    _require_distinct(pd.Index(found.names))
    written = list[int]()
    write_whole(file, lambda partial: written.append(_write_groups(found, partial, most)))
    return written[0]


def _write_groups(found: Answer, file: Path, most: int) -> int:
    """Write an answer into a file.

    Where a group has other types than those so far, it begins another file.
    """
    # They become one at the end: the types of a column are known with its last row.
    with (
        tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as folder,
        ExitStack() as ending,
    ):
        parts, schema, rows = list[Path](), pa.schema([]), 0
        for group in _groups(found):
            if (
                wider := _common(schema, group.schema) if parts else group.schema
            ) != schema or not parts:
                ending.close()
                schema, parts = wider, [*parts, Path(folder, str(len(parts))) if parts else file]
                writer = ending.enter_context(pq.ParquetWriter(parts[-1], schema))
            writer.write_table(_cast(group, schema))
            rows += group.num_rows
            if sum(part.stat().st_size for part in parts) > most:
                raise UsageError(
                    f"an answer of more than {most:,} bytes is not written: ask for it in parts"
                )
        ending.close()
        if len(parts) > 1:
            with pq.ParquetWriter(whole := Path(folder, "whole"), schema) as writer:
                for batch in chain.from_iterable(
                    pq.ParquetFile(part).iter_batches(GROUP) for part in parts
                ):
                    writer.write_table(_cast(pa.Table.from_batches([batch]), schema))
            shutil.copyfile(whole, file)
    return rows


def _groups(found: Answer) -> Iterator[pa.Table]:
    """Yield the rows of an answer, GROUP at a time, or fewer where they are
    large; one table without any, if none.
    """
    held = [_table([], found.names)]
    for batch in found.batches:
        held.append(_table(batch, found.names))
        if (
            sum(each.num_rows for each in held) >= GROUP
            or sum(each.nbytes for each in held) >= GROUP_BYTES
        ):
            yield _concatenated(held)
            held = held[:1]
    yield _concatenated(held)


def _concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    schema = reduce(_common, (each.schema for each in tables))
    return pa.concat_tables([_cast(each, schema) for each in tables])


def _table(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> pa.Table:
    """Return a driver's rows; without pandas, whose frames would be held for a while."""
    columns = []
    for name, values in zip(
        names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True
    ):
        try:
            columns.append(_array(values))
        except (pa.ArrowException, OverflowError) as error:
            raise UsageError(
                f"column {name!r} holds values of several kinds: cast it to one ({error})"
            ) from error
    return pa.table(columns, names=list(names))


def _array(values: Sequence[Any]) -> pa.Array:
    """Return days and moments as such, also those that SQLite keeps as text;
    lists and mappings as JSON text.
    """
    kinds = {type(each) for each in values} - {type(None)}
    if kinds & {dict, list}:
        return pa.array([each if each is None else json.dumps(each) for each in values])
    if (len(kinds) > 1 and kinds <= {Decimal, int, float}) or kinds == {Decimal}:
        return pa.array([each if each is None else float(each) for each in values])
    array = pa.array(values)
    if pa.types.is_timestamp(array.type) and array.type.tz:
        return array.cast(pa.timestamp("us", "UTC"))
    for form, kind in ((DAY, pa.date32()), (MOMENT, pa.timestamp("us"))) if kinds == {str} else ():
        if pc.all(pc.match_substring_regex(array, f"^(?:{form.pattern})$")).as_py():
            with suppress(pa.ArrowInvalid):  # text such as 2024-02-30 stays text
                return array.cast(kind).cast(
                    kind if kind == pa.date32() else pa.timestamp("us", "UTC")
                )
    return array


def _common(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return types that hold the values of both; raise UsageError, naming the
    column, where there is none.
    """
    types = []
    for field, also in zip(one, other, strict=True):
        both = {field.type, also.type} - {pa.null()}
        if len(both) > 1 and both <= {pa.int64(), pa.float64()}:
            both = {pa.float64()}
        elif len(both) > 1 and all(
            pa.types.is_temporal(each) or each == pa.string() for each in both
        ):
            both = {pa.string()}
        elif len(both) > 1:
            said = " and ".join(sorted(map(str, both)))
            raise UsageError(
                f"column {field.name!r} holds values of several kinds: cast it to one ({said})"
            )
        types.append((field.name, both.pop() if both else pa.null()))
    return pa.schema(types)


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table as this schema: days and moments that become text read as they were stored."""
    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        is_told = pa.types.is_timestamp(column.type) and column.type != field.type
        columns.append(
            (column.cast(pa.timestamp("us")) if is_told else column).cast(field.type, safe=False)
        )
    return pa.Table.from_arrays(columns, schema=schema)


def stored_moment(written: str) -> datetime:
    """The moment that SQLite keeps as text of the form `MOMENT`."""
    return datetime.fromisoformat(written).replace(tzinfo=UTC)
