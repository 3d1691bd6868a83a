"""Guard the dashboard: reject the requests that pages of other sites make, and limit its answers.

Browsers tell in a header which site a request comes from; other programs send no such header and
are answered. So is a link on another site that a person follows to a page. Headers on every answer
forbid a browser to do anything with it but show it.
"""

from http import HTTPStatus
from urllib.parse import urlsplit

from fastapi.responses import PlainTextResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Values of the header Sec-Fetch-Site: "none" is a person who typed an address or chose a bookmark.
# Another port of this machine is "same-site", and may belong to another program.
OWN = ("same-origin", "none")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
REFUSAL = "this dashboard rejects requests from other sites: open the address in a new window\n"


class OtherSitesRefused:
    """Answer requests by pages of other sites with 403, before any work is done for them."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on the requests of people, programs and our own pages."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if is_of_another_site(headers) and not is_followed_link(headers):
                refusal = PlainTextResponse(REFUSAL, HTTPStatus.FORBIDDEN)
                return await refusal(scope, receive, send)
        return await self.app(scope, receive, send)


def is_of_another_site(headers: Headers) -> bool:
    """Return whether a request comes from a page of another site, by the headers of its browser.

    False for programs and old browsers, which send none of them.
    """
    origin = headers.get("origin")
    if origin is not None:
        host = headers.get("host", "")
        if urlsplit(origin).netloc.lower() != host.lower():
            return True
    return headers.get("sec-fetch-site", "none") not in OWN


def is_followed_link(headers: Headers) -> bool:
    """Return whether a browser requests a page to show in a window, as after a click on a link.

    False for requests of a frame or a script, for a form that is posted, and for a page that is
    fetched in advance.
    """
    return (
        "origin" not in headers
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
        and "sec-purpose" not in headers
    )


def with_raw_paths_and_headers(app: ASGIApp) -> ASGIApp:
    """Return the application with undecoded paths, and with HEADERS on every answer.

    A name in a path may contain a slash, which is sent as %2F and must not become a separator. The
    headers, also of refusals, allow a browser to do nothing with an answer but show it.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                # An answer may have a header of its own: a browser may keep the script of charts.
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if scope["type"] != "http":  # such as the start and the end of the server
            return await app(scope, receive, send)
        path_as_sent = scope["raw_path"].decode("latin-1")
        return await app({**scope, "path": path_as_sent}, receive, send_with_headers)

    return answer
