"""Take pictures of nine pages: a night's report, and the dashboard over a store: python -m
tests.pictures FOLDER.

The store and the reports are those of the settings (`DTML_DATA`, `DTML_REPORTS`): those in the
documentation hold 60 nights and a backtest of the simulated market. A Chromium must be installed;
`--width 390 --dark` looks otherwise.
"""

import argparse
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from db.engine import open_engine
from flows.dashboard.app import dashboard, link
from flows.settings import reports_folder
from tests.support.browser import browser, served

HEIGHT = 1000
ASKED = (
    "select target, predictor, running_mcc from daily_score where market = '{market}' and "
    "protocol = 'all'"
)


def addresses(engine: Engine, market: str) -> dict[str, str]:
    """Return the address of each page of the dashboard, by the name of its picture."""
    with engine.connect() as conn:
        first = {
            table: conn.exec_driver_sql(f"select max(id) from {table}").scalar_one_or_none()
            for table in ("run", "backtest", "ranking")
        }
    asked = link(["sql"], {"q": ASKED.format(market=market)})
    stock = link(["market", market, "stock", "F01A"])
    found = {
        "markets": "/",
        "market": link(["market", market]),
        "stock": stock,
        "sql": asked,
        "runs": "/table/run_log",
    }
    return found | {table: link([table, name]) for table, name in first.items() if name}


def take(page: Any, address: str, picture: Path) -> None:
    """Keep what a page shows above the fold, once its charts are drawn."""
    page.goto(address)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=picture)


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--market", default="simulated")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--dark", action="store_true")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    engine = open_engine(read_only=True)
    night = max((reports_folder() / asked.market).glob("????-??-??.html"))
    with browser() as chromium, served(dashboard(engine), engine) as site:
        page = chromium.new_page(color_scheme="dark" if asked.dark else "light")
        page.set_viewport_size({"width": asked.width, "height": HEIGHT})
        take(page, night.as_uri(), asked.folder / "night.png")
        for name, address in addresses(engine, asked.market).items():
            take(page, site.url + address, asked.folder / f"{name}.png")


if __name__ == "__main__":
    main()
