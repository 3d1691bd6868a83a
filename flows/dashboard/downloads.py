"""The answer to SQL as a file: CSV, JSON or Parquet, sent no faster than it is read."""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from tempfile import SpooledTemporaryFile, TemporaryDirectory

from fastapi.responses import Response
from sqlalchemy import Engine
from starlette.types import Receive, Scope, Send

from db.connection.user_sql import Interruption, open_answer
from dtml.errors import UsageError
from flows.answer_files import csv_lines, json_lines, write_parquet
from flows.text_tables import size_in_words

log = logging.getLogger(__name__)

LARGEST = 128 * 2**20  # bytes of an answer
IN_MEMORY = 2**20  # bytes of an answer that is kept in memory; a larger one is kept on disk
CHUNK = 2**16  # bytes sent at once
READER_LIMIT_S = 30  # for a client to take a chunk
FORMS = {"csv": "text/csv", "json": "application/json", "parquet": "application/vnd.apache.parquet"}

File = SpooledTemporaryFile[bytes]


def answer_file(engine: Engine, sql: str, form: str, interruption: Interruption) -> File:
    """Return all rows of an answer as an open file, positioned at its end.

    `form` is one of FORMS. Raises UsageError for another form, and for more than LARGEST bytes.
    """
    if form not in FORMS:
        forms = ", ".join(f"rows.{known_form}" for known_form in FORMS)
        raise UsageError(f"an answer cannot be sent as rows.{form}: choose one of {forms}")
    file = File(IN_MEMORY)
    with open_answer(engine, sql, interruption=interruption) as answer:
        if form == "parquet":
            with TemporaryDirectory() as folder:
                parquet = Path(folder) / "rows.parquet"
                write_parquet(answer, parquet, LARGEST)
                file.write(parquet.read_bytes())
        elif form == "csv":
            _write_lines(csv_lines(answer), file)
        else:
            _write_lines(json_lines(answer), file)
    return file


def _write_lines(lines: Iterable[str], file: File) -> None:
    """Write the lines of an answer into a file; close it and raise UsageError for too many."""
    for line in lines:
        file.write(line.encode())
        if file.tell() > LARGEST:
            file.close()
            raise UsageError(
                f"this answer has more than {size_in_words(LARGEST)}: select fewer rows or "
                "columns, or run the statement with `dtml query --csv` or `dtml query --json`"
            )


class Download(Response):
    """Send a file no faster than its client reads it, and close it in the end, even after an error.

    Sending stops when the client takes longer than READER_LIMIT_S for CHUNK bytes.
    """

    def __init__(self, file: File, media_type: str = "text/csv", form: str = "csv") -> None:
        self.file = file
        headers = {
            "content-disposition": f"attachment; filename=rows.{form}",
            "content-length": str(file.tell()),  # it was just written, so this is its end
        }
        super().__init__(media_type=media_type, headers=headers)

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the head of the answer, then the file in chunks."""
        with self.file as file:
            file.seek(0)
            head = {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
            await send(head)
            try:
                chunk = file.read(CHUNK)
                while chunk:
                    part = {"type": "http.response.body", "body": chunk, "more_body": True}
                    async with asyncio.timeout(READER_LIMIT_S):
                        await send(part)
                    # After the client has left, `send` returns at once. Without this, all other
                    # requests would wait until the whole file was read.
                    await asyncio.sleep(0)
                    chunk = file.read(CHUNK)
            except TimeoutError:
                log.warning(
                    "%s: the download was stopped, because nobody read it for %s s: start it again",
                    scope["path"],
                    READER_LIMIT_S,
                )
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})
