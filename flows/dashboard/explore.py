"""The page of SQL: a statement that a visitor types, or that of a view's rows.

The answer has a chart where it has a date, and can be downloaded as CSV, JSON or Parquet.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import SpooledTemporaryFile, TemporaryDirectory
from typing import Any
from urllib.parse import urlencode

import pandas as pd
from fastapi.responses import Response
from sqlalchemy import Engine
from starlette.types import Receive, Scope, Send

from db.connection.user_sql import Interruption, open_answer, select
from db.engine import reading
from db.errors import StoreUsageError
from db.questions import literal, questions
from db.rows.markets import all_markets
from db.views import View, views
from dtml.errors import UsageError
from dtml.pages.charts import Chart, Panel, over_sessions
from dtml.pages.figures import Page, are_whole
from flows.answer_files import DAY, write_lines, write_parquet
from flows.console import as_json_values
from flows.dashboard.markets import NotThereError

log = logging.getLogger(__name__)

SHOWN = 500  # rows of an answer on a page, at most
LINES = 12  # of the chart of an answer, at most
PANELS = 4  # of the chart of an answer, at most
NEWEST_FIRST = {"run_log": "created_at"}  # views, and the column that they are sorted by
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
    "Models": ("run_log", "disagreement", "attention"),
    "Studies": ("backtest_summary", "run_score", "benchmark_configuration"),
    "Nights, alerts and prices": (
        "night_log",
        "stage_log",
        "alert_log",
        "rejected",
        "price_warning",
        "price_restatement",
        "price_disagreement",
        "comparison_log",
    ),
}


def rows_of(view: View, where: Mapping[str, object]) -> str:
    """Return the statement of a view's rows in which these columns have these values.

    Raises UsageError for a column that the view lacks.
    """
    types = {column.name: column.type for column in view.columns}
    missing = [name for name in where if name not in types]
    if missing:
        listed = ", ".join(sorted(types))
        raise UsageError(f"{view.name} has no column {missing[0]!r}: choose one of {listed}")
    newest = NEWEST_FIRST.get(view.name)
    names = list(types)
    if newest:  # comes first, and JSON, which fills a page, last
        names.sort(key=lambda name: (name != newest, types[name] == "json"))
    lines = [f"select {', '.join(names)}", f"from {view.name}"]
    conditions = []
    for name, value in where.items():
        written = literal(str(value))
        if types[name] in ("number", "integer"):
            with suppress(ValueError):
                written = repr(float(str(value)))
        conditions.append(f"{name} = {written}")
    if conditions:
        lines.append(f"where {' and '.join(conditions)}")
    if newest:
        lines.append(f"order by {newest} desc")
    return "\n".join(lines)


def topics() -> Page:
    """Return every documented view by topic; those that TOPICS does not name come last."""
    others = dict(views())
    by_topic: dict[str, list[View]] = {}
    for topic, names in TOPICS.items():
        by_topic[topic] = [others.pop(name) for name in names]
    by_topic["Prices, translations and the rest"] = list(others.values())
    return {"topics": by_topic}


def table_page(
    engine: Engine, name: str, where: Mapping[str, str], interruption: Interruption
) -> Page:
    """Return the page of SQL with a view's rows in which these columns have these values.

    Raises NotThereError for a view that is not documented.
    """
    if name not in views():
        raise NotThereError(f"there is no view {name!r}: /tables lists all views")
    view = views()[name]
    return {"view": view, **answer(engine, rows_of(view, where), interruption)}


def sql_page(engine: Engine, sql: str, market: str | None, interruption: Interruption) -> Page:
    """Return the page with the box for SQL, and the answer to `sql` unless it is empty.

    `starts` are the twenty questions about the market `about`. Without an answer, `rows` is None.
    """
    if market is None:
        with reading(engine) as conn:
            market = next(iter(all_markets(conn)), "simulated")
    starts = [(question.title, question.note, question.about(market)) for question in questions()]
    page = {"view": None, "sql": sql, "starts": starts, "about": market}
    if not sql.strip():
        return {**page, "rows": None}
    return {**page, **answer(engine, sql, interruption)}


def answer(engine: Engine, sql: str, interruption: Interruption) -> Page:
    """Return the first rows of an answer, at most SHOWN, and its chart, or the error in its SQL.

    For each column, `numeric` says whether it has numbers, and `whole` whether all are whole. After
    an error `rows` is None and `wrong` is the message.
    """
    try:
        # One row more than is shown tells whether there are more.
        rows = select(engine, sql, SHOWN + 1, interruption=interruption)
    except StoreUsageError as error:
        return {"sql": sql, "rows": None, "wrong": str(error)}
    first_rows = rows.head(SHOWN)
    # Columns are taken by position: two columns of an answer may have the same name.
    columns = [first_rows.iloc[:, position] for position in range(first_rows.shape[1])]
    return {
        "sql": sql,
        "names": list(first_rows.columns),
        "numeric": [pd.api.types.is_numeric_dtype(column) for column in columns],
        "whole": [are_whole(column) for column in columns],
        "rows": as_json_values(list(first_rows.itertuples(index=False, name=None))),
        "is_cut": len(rows) > SHOWN,
        "shown": SHOWN,
        "chart": answer_chart(first_rows),
    }


def answer_chart(rows: pd.DataFrame) -> Chart | None:
    """Return a chart of an answer with a column of dates and one of fractions; None for others.

    With one row a date, a panel for each of the first PANELS columns of fractions. Else one panel,
    with a line for each value of the first column of at most LINES, the one that ends highest
    first. None with equal names, and for fewer than two days.
    """
    if rows.columns.duplicated().any():  # a column could not be chosen by its name
        return None
    dated = next((name for name in rows if _is_dated(rows[name])), None)
    numbers = [str(name) for name in rows if pd.api.types.is_float_dtype(rows[name])]
    if dated is None or not numbers:
        return None
    # Of a moment too, its day; an answer may also have missing and impossible ones.
    words = rows[dated].astype(str).str.slice(0, 10)
    days = pd.to_datetime(words, format="%Y-%m-%d", errors="coerce").dropna()
    rows = rows.loc[days.index]
    if days.is_unique:
        panels = [
            Panel(title=name, lines={name: rows[name].set_axis(days)}, height=120)
            for name in numbers[:PANELS]
        ]
        return over_sessions("The answer", panels)
    for column in rows:
        if column != dated and _names_lines(rows[column], days):
            values = {"day": days, "line": rows[column], "value": rows[numbers[0]]}
            of_lines = pd.DataFrame(values).dropna(subset="line")
            wide = of_lines.pivot(index="day", columns="line", values="value")
            ends = wide.ffill().iloc[-1].sort_values(ascending=False, kind="stable")
            lines = {str(name): wide[name] for name in ends.index}
            return over_sessions("The answer", [Panel(title=numbers[0], lines=lines)])
    return None


def _names_lines(values: "pd.Series[Any]", days: "pd.Series[Any]") -> bool:
    """Return whether a column can name lines: at most `LINES`, no numbers, one row a day."""
    if pd.api.types.is_numeric_dtype(values) or not values.map(pd.api.types.is_hashable).all():
        return False
    return values.nunique() <= LINES and not pd.concat([days, values], axis=1).duplicated().any()


def _is_dated(values: "pd.Series[Any]") -> bool:
    present = values.dropna()
    return len(present) > 0 and all(DAY.match(str(value)) for value in present)


def rows_link(view: str, where: Mapping[str, object]) -> str:
    """Return the address of the rows of a view in which each of these columns has its value."""
    return f"/table/{view}?{urlencode(where)}" if where else f"/table/{view}"


LARGEST = 128 * 2**20  # bytes of an answer
IN_MEMORY = 2**20  # bytes of an answer that is kept in memory; a larger one is kept on disk
CHUNK = 2**16  # bytes sent at once
READER_LIMIT_S = 30  # for a client to take a chunk
FORMS = {"csv": "text/csv", "json": "application/json", "parquet": "application/vnd.apache.parquet"}

File = SpooledTemporaryFile[bytes]


def answer_file(engine: Engine, sql: str, form: str, interruption: Interruption) -> File:
    """Return all rows of an answer as an open file, positioned at its end.

    Raises UsageError for a form that is none of FORMS, and for more than LARGEST bytes.
    """
    if form not in FORMS:
        forms = ", ".join(f"rows.{known_form}" for known_form in FORMS)
        raise UsageError(f"an answer cannot be sent as rows.{form}: choose one of {forms}")
    file = File(IN_MEMORY)
    with open_answer(engine, sql, interruption=interruption) as answer:
        if form != "parquet":
            write_lines(answer, form, file, LARGEST)
            return file
        with TemporaryDirectory() as folder:
            parquet = Path(folder) / "rows.parquet"
            write_parquet(answer, parquet, LARGEST)
            file.write(parquet.read_bytes())
    return file


class Download(Response):
    """Send a file no faster than its client reads, READER_LIMIT_S for CHUNK; close it."""

    def __init__(self, file: File, form: str) -> None:
        self.file = file
        headers = {
            "content-disposition": f"attachment; filename=rows.{form}",
            "content-length": str(file.tell()),  # it was just written, so this is its end
        }
        super().__init__(media_type=FORMS[form], headers=headers)

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the head of the answer, then the file in chunks."""
        head = {"status": self.status_code, "headers": self.raw_headers}
        with self.file as file:
            file.seek(0)
            await send({"type": "http.response.start", **head})
            try:
                for chunk in iter(partial(file.read, CHUNK), b""):
                    async with asyncio.timeout(READER_LIMIT_S):
                        part = {"type": "http.response.body", "body": chunk, "more_body": True}
                        await send(part)
                    # After the client has left, `send` returns at once. Without this, all other
                    # requests would wait until the whole file was read.
                    await asyncio.sleep(0)
            except TimeoutError:
                log.warning(
                    "%s: the download was stopped, because nobody read it for %s s: start it again",
                    scope["path"],
                    READER_LIMIT_S,
                )
            else:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
