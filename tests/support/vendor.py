"""A stand-in for a vendor's API on this machine: a key and pages of bars.

with vendor(bars) as api:
    monkeypatch.setenv("VENDOR_URL", api.url)
    monkeypatch.setenv("VENDOR_KEY", KEY)
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pandas as pd

KEY = "v3ndor/k3y+of=ours"
PAGE = 500  # bars of an answer, at most


@dataclass
class Vendor:
    """What it holds, and what it was asked.

    `asked` has the symbol, the place and the moment of each request.
    """

    bars: pd.DataFrame
    page: int = PAGE
    url: str = ""
    asked: list[tuple[str, int, float]] = field(default_factory=list)

    def answer(self, query: dict[str, str]) -> dict[str, object]:
        rows = self.bars[self.bars["symbol"] == query["symbol"]]
        session = rows["session"].dt.strftime("%Y-%m-%d")
        rows = rows.assign(session=session)[session.between(query["from"], query["to"])]
        begin = int(query["place"])
        page = rows.drop(columns="symbol").iloc[begin : begin + self.page]
        end = begin + self.page
        records = page.astype(object).where(page.notna(), None).to_dict("records")
        return {"bars": records, "next": end if end < len(rows) else None}


@contextmanager
def vendor(bars: pd.DataFrame) -> Iterator[Vendor]:
    api = Vendor(bars)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = {
                name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()
            }
            if self.headers.get("Authorization") != f"Bearer {KEY}":
                return self.give(401, {"error": "no such key"})
            api.asked.append((query["symbol"], int(query["place"]), time.monotonic()))
            return self.give(200, api.answer(query))

        def give(self, status: int, document: object) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
