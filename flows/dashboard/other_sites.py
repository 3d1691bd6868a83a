"""Reject the requests that pages of other sites make.

Browsers tell in a header which site a request comes from; other programs send no such header and
are answered. So is a link on another site that a person follows to a page.
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
