"""A site to visit, served on a free port as `dtml dashboard` serves it, and a
real browser to look at it.
"""

import contextlib
import http.client
import re
import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import uvicorn
from sqlalchemy import Engine
from starlette.types import ASGIApp

WIDTHS, THEMES = (1280, 390), ("light", "dark")
SERIOUS = ("serious", "critical")
RULES_OF_COLOURS = ["color-contrast", "link-in-text-block"]
LOOKS = [(width, theme) for width in WIDTHS for theme in THEMES]

PATIENCE_MS = 200_000  # on a busy machine
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: str


@dataclass(frozen=True)
class Site:
    """Where pages are served, and the engine that they read."""

    port: int
    engine: Engine

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(
        self,
        address: str,
        *,
        method: str = "GET",
        host: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=550)
        connection.request(
            method, address, headers={"Host": host or f"127.0.0.1:{self.port}", **(headers or {})}
        )
        answer = connection.getresponse()
        found = Answer(answer.status, dict(answer.headers), answer.read().decode(errors="replace"))
        connection.close()
        return found


@contextlib.contextmanager
def served(app: ASGIApp, engine: Engine) -> Iterator[Site]:
    """Serve an application, which reads this engine, from a thread; the engine
    is disposed of at the end.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # who does not read soon holds up an answer
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Site(listening.getsockname()[1], engine)
        finally:
            server.should_exit = True
            thread.join()
            engine.dispose()


def opened(port: int, address: str) -> socket.socket:
    """Return a connection on which that was asked, through a small buffer, whose end is a reset."""
    asking = socket.socket()
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    asking.settimeout(60)
    asking.connect(("127.0.0.1", port))
    asking.sendall(f"GET {address} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    return asking


def until(holds: Callable[[], bool]) -> None:
    """Wait for what must come true; a test that hangs is ended by its own limit."""
    while not holds():
        time.sleep(0.02)


class Page(HTMLParser):
    """The tags of a page, its links and its words."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def links(self) -> list[str]:
        return [str(attrs["href"]) for tag, attrs in self.tags if tag == "a"]

    @property
    def sent(self) -> list[str]:
        """Where its forms lead as they are filled in, with each choice of each
        list; not those to type a name into.
        """
        found = []
        for form in re.findall(r"<form.*?</form>", self.source, re.DOTALL):
            tags = Page(form).tags
            filled, choices, name = {}, [], ""
            for tag, attrs in tags:
                if tag == "input":
                    filled[attrs["name"]] = attrs.get("value") or ""
                elif tag == "select":
                    name = attrs["name"]
                elif tag == "option" and name:
                    choices.append((name, attrs["value"]))
                    if "selected" in attrs or name not in filled:
                        filled[name] = choices[-1][1]
            if not any("list" in attrs for _, attrs in tags):
                found += [
                    f"{tags[0][1]['action']}?{urlencode(filled | dict([choice]))}"
                    for choice in choices
                ]
        return found

    @property
    def seen(self) -> str:
        return " ".join(" ".join(self.words).split())


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A headless browser; skips where there is none, saying what to install."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no playwright: make .venv/.ok installs it"
    )
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(
            f"no browser: install one of {', '.join(BROWSERS)}, such as Debian's package chromium"
        )
    with playwright.sync_playwright() as driver:
        # The sandbox needs rights that root and containers have not; only pages of these tests are
        # opened.
        opened = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


def axe_source() -> str:
    """The script of axe-core, which finds what keeps people from using a page;
    skips where it is not installed.
    """
    package = pytest.importorskip(
        "axe_core_python", reason="no axe-core: make .venv/.ok installs it"
    )
    return (Path(str(package.__file__)).parent / "axe.min.js").read_text(encoding="utf-8")


def complaints(chromium: Any, axe: str, url: str) -> list[str]:
    """What a browser, an eye and axe-core have against a page in every look.

    The looks of one width differ in colours alone, so the second is judged by the rules of those.
    """
    page, found = chromium.new_page(), list[str]()
    page.on("console", lambda said: found.append(f"console {said.type}: {said.text}"))
    page.on("pageerror", lambda error: found.append(f"script: {error}"))
    page.on("requestfailed", lambda request: found.append(f"request failed: {request.url}"))
    page.on("dialog", lambda dialog: (found.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.goto(url, timeout=PATIENCE_MS)
    page.evaluate(axe)
    for width, theme in LOOKS:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme)
        if (reach := page.evaluate("document.documentElement.scrollWidth")) > width:
            found.append(f"{width}: the page is {reach} wide")
        rules = {} if theme == THEMES[0] else {"runOnly": RULES_OF_COLOURS}
        asked = {"resultTypes": ["violations"], **rules}
        for violation in page.evaluate("asked => axe.run(asked)", asked)["violations"]:
            where = [" ".join(map(str, node["target"])) for node in violation["nodes"][:3]]
            if violation["impact"] in SERIOUS:
                found.append(f"{width} {theme}, {violation['id']}: {violation['help']}, at {where}")
    page.close()
    return found
