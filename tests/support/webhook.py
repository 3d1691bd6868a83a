"""A webhook on the loopback that takes what it is sent, or misbehaves on request."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "t0ken-0f-the-webh00k"


@dataclass
class Webhook:
    """Where it listens, what it was sent, and how it answers; `hangs` never
    answers until it is set.
    """

    port: int = 0
    answer: int = 200
    taken: list[dict[str, Any]] = field(default_factory=list)
    tried: int = 0
    hangs: threading.Event | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks/{TOKEN}"


@contextmanager
def webhook() -> Iterator[Webhook]:
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hook.tried += 1
            said = self.rfile.read(int(self.headers["Content-Length"]))
            if hook.hangs is not None:
                hook.hangs.wait(60)
                return
            if hook.answer == 200:
                hook.taken.append(json.loads(said))
            self.send_response(hook.answer)
            self.send_header("Location", hook.url)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:  # where a client would end that follows a redirect
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hook.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hook
    finally:
        if hook.hangs is not None:
            hook.hangs.set()
        server.shutdown()
        server.server_close()
