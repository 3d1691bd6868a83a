"""Any view as a table to sort and filter, and SQL that a visitor types: one kind of answer, read as
`dtml query` does.

An answer is a page, with a chart where it has a date, or a file: CSV, JSON, Parquet.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import SpooledTemporaryFile, TemporaryDirectory
from typing import Any
from urllib.parse import urlencode

import pandas as pd
from fastapi.responses import Response
from sqlalchemy import Engine
from starlette.types import Receive, Scope, Send

from db.connection.user_sql import Interruption, asked, select
from db.errors import StoreUsageError
from db.questions import literal, questions
from db.views import View, views
from dtml.errors import UsageError
from dtml.pages.charts import Chart, Panel, over_sessions
from flows.commands.query import DAY, csv_lines, json_lines, write_parquet
from flows.console import plain
from flows.dashboard.market import NotThereError

log = logging.getLogger(__name__)

LARGEST = 128 * 2**20  # bytes of an answer
IN_MEMORY = 2**20  # bytes of one that stays in memory
CHUNK = 2**16  # bytes sent at once
READER_LIMIT_S = 30  # for a reader to take a chunk

File = SpooledTemporaryFile[bytes]
SHOWN = 500  # rows of an answer on a page
LINES, PANELS = 12, 4  # of its chart, at most
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "like")
FORMS = {"csv": "text/csv", "json": "application/json", "parquet": "application/vnd.apache.parquet"}
TOPICS = {
    "What was predicted": (
        "latest_prediction",
        "latest_ranking",
        "band_direction",
        "prediction_history",
    ),
    "How good it was": (
        "daily_score",
        "symbol_score",
        "ranking_history",
        "calibration",
        "coverage",
    ),
    "Models": ("run_log", "disagreement", "explanation_log", "attention"),
    "Studies": ("backtest_summary", "run_score", "benchmark_configuration"),
    "Nights, alerts and prices": (
        "night_log",
        "alert_log",
        "rejected",
        "price_warning",
        "price_restatement",
    ),
}


@dataclass(frozen=True)
class Asked:
    """What a visitor asks of a view: comparisons `column, operator, value` that
    all hold, and a column to sort by.
    """

    view: View
    where: Sequence[tuple[str, str, str]]
    sort: str

    def __post_init__(self) -> None:
        names = {each.name for each in self.view.columns}
        for name in (
            *(column for column, _, _ in self.where),
            *([self.sort.removeprefix("-")] if self.sort else []),
        ):
            if name not in names:
                raise UsageError(
                    f"{self.view.name} has no column {name!r}: it has {', '.join(sorted(names))}"
                )
        for _, comparison, _ in self.where:
            if comparison not in COMPARISONS:
                raise UsageError(f"{comparison!r} is none of {', '.join(COMPARISONS)}")

    @property
    def sql(self) -> str:
        """Return the statement, which can be copied into the box for SQL."""
        types = {each.name: each.type for each in self.view.columns}
        said = [f"{name} {how} {_literal(types[name], value)}" for name, how, value in self.where]
        lines = [f"select {', '.join(types)}", f"from {self.view.name}"]
        lines += [f"where {' and '.join(said)}"] if said else []
        way = " desc" if self.sort.startswith("-") else ""
        return "\n".join(
            [*lines, *([f"order by {self.sort.removeprefix('-')}{way}"] if self.sort else [])]
        )


def _literal(kind: str, value: str) -> str:
    if kind not in ("number", "integer"):
        return literal(value)
    try:
        return repr(float(value))
    except ValueError as error:
        raise UsageError(f"{value!r} is not a number") from error


def topics() -> dict[str, Any]:
    """Return every documented view with what it means, by topic; those of no topic last."""
    named = {topic: [views()[name] for name in names] for topic, names in TOPICS.items()}
    rest = [
        each
        for name, each in views().items()
        if name not in set(chain.from_iterable(TOPICS.values()))
    ]
    return {"topics": named | {"Prices, translations and the rest": rest}}


def table_page(
    engine: Engine,
    name: str,
    where: Sequence[tuple[str, str, str]],
    sort: str,
    interruption: Interruption,
) -> dict[str, Any]:
    """Return a view's rows that a visitor asked for; raise NotThereError for a
    view that is not documented.
    """
    if name not in views():
        raise NotThereError(f"no view {name!r}: /tables lists them")
    wanted = Asked(views()[name], where, sort)
    filled = [
        (part, each[place])
        for each in where
        for place, part in enumerate(("column", "is", "value"))
    ]

    def address(by: str) -> str:
        return f"/table/{name}?{urlencode([*filled, ('sort', by)])}"

    page = {
        "view": wanted.view,
        "where": where,
        "sort": sort,
        "comparisons": COMPARISONS,
        "address": address,
    }
    return page | {"meanings": wanted.view.meanings()} | answer(engine, wanted.sql, interruption)


def sql_page(
    engine: Engine, sql: str, market: str | None, interruption: Interruption
) -> dict[str, Any]:
    """Return the box, the twenty questions about a market to begin with, and
    the answer to what was typed, if any.
    """
    about = market or "simulated"
    starts = [(each.title, each.note, each.about(about)) for each in questions()]
    found = answer(engine, sql, interruption) if sql.strip() else {"rows": None}
    return {"sql": sql, "starts": starts, "about": about} | found


def answer(engine: Engine, sql: str, interruption: Interruption) -> dict[str, Any]:
    """Return the first rows of an answer, its columns, its chart, and what is
    wrong with the SQL, if anything is.
    """
    try:
        found = select(engine, sql, SHOWN + 1, interruption=interruption)
    except StoreUsageError as error:
        return {"sql": sql, "rows": None, "wrong": str(error)}
    rows = found.head(SHOWN)
    numeric = [pd.api.types.is_numeric_dtype(rows.iloc[:, place]) for place in range(rows.shape[1])]
    values = [tuple(map(plain, row)) for row in rows.itertuples(index=False, name=None)]
    told = {"sql": sql, "names": list(rows.columns), "numeric": numeric, "rows": values}
    return told | {"is_cut": len(found) > SHOWN, "shown": SHOWN, "chart": answer_chart(rows)}


def answer_chart(rows: pd.DataFrame) -> Chart | None:
    """Return a chart of an answer that has a date and a number: a line a
    column, or a line a name; else None.
    """
    if rows.columns.duplicated().any():
        return None
    dated = next((name for name in rows if _is_dated(rows[name])), None)
    numbers = [str(name) for name in rows if pd.api.types.is_float_dtype(rows[name])]
    if dated is None or not numbers:
        return None
    days = pd.to_datetime(rows[dated].astype(str).str.slice(0, 10))
    if days.is_unique:
        lines = {name: rows[name].set_axis(days) for name in numbers[:PANELS]}
        return over_sessions(
            "The answer", [Panel(name, {name: line}, height=120) for name, line in lines.items()]
        )
    for name in rows:
        by = rows[name]
        few = name != dated and not pd.api.types.is_numeric_dtype(by) and by.nunique() <= LINES
        if few and not pd.concat([days, by], axis=1).duplicated().any():
            named = {
                str(value): found.set_axis(days[found.index])
                for value, found in rows[numbers[0]].groupby(by)
            }
            return over_sessions("The answer", [Panel(numbers[0], named)])
    return None


def _is_dated(values: "pd.Series[Any]") -> bool:
    known = values.dropna()
    return bool(len(known)) and all(DAY.match(str(each)) for each in known)


def answer_file(engine: Engine, sql: str, form: str, interruption: Interruption) -> File:
    """Return all rows of an answer as a file; raise UsageError for another
    form, and for more than LARGEST bytes.
    """
    if form not in FORMS:
        raise UsageError(f"form={form!r} is none of {', '.join(FORMS)}")
    file = File(IN_MEMORY)
    if form == "parquet":
        with TemporaryDirectory() as folder, asked(engine, sql, interruption=interruption) as found:
            write_parquet(found, whole := Path(folder) / "rows.parquet", LARGEST)
            file.write(whole.read_bytes())
        return file
    with asked(engine, sql, interruption=interruption) as found:
        for text in csv_lines(found) if form == "csv" else json_lines(found):
            file.write(text.encode())
            if file.tell() > LARGEST:
                file.close()
                raise UsageError(
                    f"this answer has more than {LARGEST:,} bytes: ask for less, or with dtml query"
                )
    return file


class Download(Response):
    """Send a file no faster than it is read, and close it however that ends.

    It is left unfinished when its reader takes longer than READER_LIMIT_S for CHUNK bytes.
    """

    def __init__(self, file: File, media_type: str = "text/csv", form: str = "csv") -> None:
        self.file, size = file, file.tell()
        said = {
            "content-disposition": f"attachment; filename=rows.{form}",
            "content-length": str(size),
        }
        super().__init__(media_type=media_type, headers=said)

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer a request."""
        with self.file as file:
            file.seek(0)
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            try:
                while chunk := file.read(CHUNK):
                    async with asyncio.timeout(READER_LIMIT_S):
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    await asyncio.sleep(0)  # after a hang-up, send returns at once
            except TimeoutError:
                log.warning(
                    "%s: left unfinished, nobody read it for %s s", scope["path"], READER_LIMIT_S
                )
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})
