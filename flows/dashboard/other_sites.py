"""Refuse what the page of another site asks for.

A browser says whose page it is, and nothing else says so. A link that a person follows from
elsewhere, to a page, is answered.
"""

from http import HTTPStatus
from urllib.parse import urlsplit

from fastapi.responses import PlainTextResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

# Of the header Sec-Fetch-Site: "none" is a person who typed an address or chose a bookmark. Another
# port of this machine is "same-site", and may be another program's.
OWN = ("same-origin", "none")
REFUSAL = (
    "a page of another site may not ask this dashboard: open the address in a window of its own\n"
)


class OtherSitesRefused:
    """Answer with 403 what pages of other sites ask for, before anything is done for it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what people, programs and our own pages ask for."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if is_of_another_site(headers) and not is_followed_link(headers):
                return await PlainTextResponse(REFUSAL, HTTPStatus.FORBIDDEN)(scope, receive, send)
        return await self.app(scope, receive, send)


def is_of_another_site(headers: Headers) -> bool:
    """Return whether a browser says that another site made it ask.

    Programs and old browsers say nothing.
    """
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        return True
    return headers.get("sec-fetch-site", "none") not in OWN


def is_followed_link(headers: Headers) -> bool:
    """Return whether the answer is to fill a window.

    That is neither a frame nor a script, and nothing fetched in advance.
    """
    return (
        "origin" not in headers
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
        and "sec-purpose" not in headers
    )
