"""How an answer is sent as a file: it is written whole first, from one moment of the store.

Sending it afterwards, however slowly it is read, holds no connection and no thread.
"""

import asyncio
import logging
from tempfile import SpooledTemporaryFile

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

log = logging.getLogger(__name__)

LARGEST = 128 * 2**20  # bytes of an answer
IN_MEMORY = 2**20  # bytes of one that stays in memory
CHUNK = 2**16  # bytes sent at once
READER_LIMIT_S = 30  # for a reader to take a chunk

File = SpooledTemporaryFile[bytes]


class Download(Response):
    """Send a file no faster than it is read, and close it however that ends.

    It is left unfinished when its reader takes longer than READER_LIMIT_S for CHUNK bytes.
    """

    def __init__(self, file: File, media_type: str = "text/csv", form: str = "csv") -> None:
        self.file, size = file, file.tell()
        said = {"content-disposition": f"attachment; filename=rows.{form}", "content-length": str(size)}
        super().__init__(media_type=media_type, headers=said)

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer a request."""
        with self.file as file:
            file.seek(0)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                while chunk := file.read(CHUNK):
                    async with asyncio.timeout(READER_LIMIT_S):
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    await asyncio.sleep(0)  # after a hang-up, send returns at once
            except TimeoutError:
                log.warning("%s: left unfinished, nobody read it for %s s", scope["path"], READER_LIMIT_S)
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})
