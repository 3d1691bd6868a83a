"""Reject cross-origin requests.

Only browsers say which site a request comes from. A link that a person follows from another site to
a page is answered.
"""

from http import HTTPStatus
from urllib.parse import urlsplit

from fastapi.responses import PlainTextResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

# Values of the header Sec-Fetch-Site: "none" is a person who typed an address or chose a bookmark.
# Another port of this machine is "same-site", and may belong to another program.
OWN = ("same-origin", "none")
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
    """Return whether a request comes from a page of another site, as its browser says.

    Programs and old browsers say nothing.
    """
    origin = headers.get("origin")
    if origin is not None:
        host = headers.get("host", "")
        if urlsplit(origin).netloc.lower() != host.lower():
            return True
    return headers.get("sec-fetch-site", "none") not in OWN


def is_followed_link(headers: Headers) -> bool:
    """Return whether the answer will be the page of a window.

    It is then not for a frame, for a script, or for a fetch in advance.
    """
    return (
        "origin" not in headers
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
        and "sec-purpose" not in headers
    )
