"""Who may have the dashboard run SQL, how much of it, and when it ends: nobody
else waits for it.
"""

import contextlib
import time
from urllib.parse import quote

import pytest
from sqlalchemy import text

from db.engine import READ_LIMIT_S, reading
from flows.dashboard.app import STATEMENTS
from tests.support.browser import opened, until
from tests.support.dashboard_store import (
    MARKET,
    served_site,  # noqa: F401 - the fixture `site`
)

pytestmark = pytest.mark.slow

FOREVER = (
    "with recursive n(i) as (select cast(1 as bigint) union all select i + 1 from n) select "
    "max(i) from n"
)
ASKED = "/sql?q=select+1+as+one"
FILE = "/sql/rows.csv?q=select+1+as+one"
NIGHT = f"/market/{MARKET}"


def sent_by(site, mode, destination, **more):
    """What a browser says of a request."""
    said = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": destination}
    return said | {name.replace("_", "-"): value for name, value in more.items()}


TYPED = sent_by("none", "navigate", "document", Sec_Fetch_User="?1")
OWN_FORM = sent_by("same-origin", "navigate", "document", Sec_Fetch_User="?1")
OWN_SCRIPT = sent_by("same-origin", "no-cors", "script")
FOLLOWED = sent_by("cross-site", "navigate", "document", Sec_Fetch_User="?1")
OTHER_PORT = sent_by("same-site", "navigate", "document")
FETCHED = sent_by("cross-site", "cors", "empty", Origin="http://elsewhere.example")
IMAGE = sent_by("cross-site", "no-cors", "image")
IMAGE_OF_OTHER_PORT = sent_by("same-site", "no-cors", "image")
FRAME = sent_by("cross-site", "navigate", "iframe")
IN_ADVANCE = sent_by("cross-site", "navigate", "document", Sec_Purpose="prefetch;prerender")
OLD_BROWSER = {"Origin": "http://elsewhere.example"}
SANDBOX = {"Origin": "null"}
FORM_OF_ELSEWHERE = sent_by("cross-site", "navigate", "document", Origin="http://elsewhere.example")
# Whether pages are answered to them, and whether SQL is.
WHO = {
    "a program": ({}, True, True),
    "a typed address": (TYPED, True, True),
    "our own form": (OWN_FORM, True, True),
    "our own page": (OWN_SCRIPT, True, True),
    "a link in a mail": (FOLLOWED, True, False),
    "a link of another port": (OTHER_PORT, True, False),
    "a script of another site": (FETCHED, False, False),
    "an image of another site": (IMAGE, False, False),
    "an image of another port": (IMAGE_OF_OTHER_PORT, False, False),
    "a frame of another site": (FRAME, False, False),
    "a page fetched in advance": (IN_ADVANCE, False, False),
    "a script in an old browser": (OLD_BROWSER, False, False),
    "a frame without an origin": (SANDBOX, False, False),
    "a form of another site": (FORM_OF_ELSEWHERE, False, False),
}


@pytest.mark.parametrize("who", WHO)
def test_a_page_of_another_site_gets_nothing_and_its_links_lead_to_pages_alone(site, who):
    headers, pages, statements = WHO[who]
    for address in (NIGHT, f"{NIGHT}?as_of=2024-06-21", "/sql", "/table/night_log", "/alive"):
        assert (site.get(address, headers=headers).status == 200) == pages, address
    for address in (ASKED, FILE, FILE.replace("csv", "json"), FILE.replace("csv", "parquet")):
        answer = site.get(address, headers=headers)
        assert answer.status == (200 if statements else 403), address
        assert statements or "other site" in answer.body


def test_our_own_origin_is_ours_by_every_name(site):
    for host in (f"127.0.0.1:{site.port}", "localhost:8050", "LOCALHOST:8050", "[::1]:8050"):
        assert site.get(ASKED, host=host, headers={"Origin": f"http://{host}"}).status == 200
        assert site.get(ASKED, host=host, headers={"Origin": "http://localhost:3000"}).status == 403


@contextlib.contextmanager
def full(site, address):
    """As many endless statements as may be under way."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(contextlib.closing(opened(site.port, address)))
            for _ in range(STATEMENTS)
        ]


def is_running(site):
    """Whether PostgreSQL runs an endless statement of the dashboard's role;
    SQLite runs in the dashboard's threads.
    """
    if site.engine.dialect.name == "sqlite":
        return False
    others = (
        "select count(*) from pg_stat_activity where state = 'active' and pid <> pg_backend_pid()"
    )
    with reading(site.engine) as conn:
        return bool(conn.execute(text(f"{others} and query like '%with recursive n(i)%'")).scalar())


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("address", ["/sql?q=", "/sql/rows.csv?q="])
def test_statements_have_places_of_their_own_and_end_with_their_reader(site, address):
    with full(site, address + quote(FOREVER)):
        until(lambda: site.get(ASKED).status == 429)
        began = time.monotonic()
        for refused in (site.get(ASKED), site.get(FILE)):
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            assert f"{STATEMENTS} statements are being served" in refused.body
        for other in ("/alive", "/", NIGHT, "/sql", "/table/night_log"):
            assert site.get(other).status == 200
        assert time.monotonic() - began < READ_LIMIT_S / 2  # nobody waited for a statement to end
        began = time.monotonic()
    until(lambda: site.get(ASKED).status == site.get(FILE).status == 200 and not is_running(site))
    assert time.monotonic() - began < READ_LIMIT_S / 2
