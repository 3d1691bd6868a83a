"""A night's page from a real store: what it gathers, and that nothing but the
night itself can keep it from coming.
"""

import logging
import re
from dataclasses import replace
from datetime import date
from html import unescape
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from db.admin.copying import table_counts
from db.engine import reading, transaction
from db.read import query, read, read_row
from dtml.evaluation.calibration import LEVELS
from dtml.prices.sessions import sessions_up_to
from flows.dashboard.markets import NotThereError
from flows.dashboard.studies import report_page
from flows.night_page import night_page
from flows.nightly.context import MarketContext, Tonight
from flows.nightly.night import run_night
from flows.nightly.report import publish_night
from flows.settings import data_folder
from tests.support.commands import Command
from tests.support.dashboard_store import served_to_a_reader
from tests.support.nights import AS_OF, after_nights

DAYS = [day.date() for day in sessions_up_to("XNYS", AS_OF, 2)]


@pytest.fixture
def nights(context: MarketContext) -> MarketContext:
    """A market with two nights, the first one scored."""
    after_nights(context, *DAYS)
    return context


def seen(page: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def direction(context: MarketContext, as_of: date, level: float) -> int:
    """The directions of a night at a level, from the store."""
    with reading(context.engine) as conn:
        night = read_row(conn, "night_log", market=context.name, as_of=as_of)
        assert night is not None
        bands = read(conn, "abstention_band", run_id=night["run_id"]).set_index("level")[
            "threshold"
        ]
        said = query(conn, "night_directions", market=context.name, as_of=as_of)["calibrated"]
    return int(((said > bands[level]) | (said < 1 - bands[level])).sum())


def require_page_of(context: MarketContext, level: float) -> None:
    """The directions and the receipt of the last night are those of the store."""
    words = seen(publish_night(Tonight(context, AS_OF), level))
    rises, falls = (
        int(re.search(rf"predicted to {way}\s*(\d+)", words)[1]) for way in ("rise", "fall")
    )  # type: ignore[index]
    assert rises + falls == direction(context, AS_OF, level)
    assert f"level of {100 * level:.0f} %" in words
    assert re.search("1 day.*9 stock-days.*Simulated market", words)
    with reading(context.engine) as conn:
        night = read_row(conn, "night_log", market=context.name, as_of=AS_OF)
        run = read(conn, "run", market=context.name, order="created_at, id").iloc[0]
    assert night is not None
    for said in (
        run["id"],
        run["checkpoint_hash"],
        night["inputs_hash"],
        "validation days",
        str(night["known_at"]),
    ):
        assert said in words


@pytest.mark.soak
def test_a_page_holds_what_the_store_does_and_a_past_one_is_written_again_the_same(
    nights: MarketContext, command: Command
) -> None:
    for level in (LEVELS[0], nights.market.level, LEVELS[-1]):
        require_page_of(nights, level)
    first = publish_night(Tonight(nights, DAYS[0]))
    past = first.read_text(encoding="utf-8")
    assert "No prediction of this" in past  # the later night had told one
    first.unlink()
    with reading(nights.engine) as conn:
        before = table_counts(conn)
    code, said, _ = command("report", "simulated", "--as-of", str(DAYS[0]))
    assert (code, said.strip()) == (0, str(first))
    assert first.read_text(encoding="utf-8") == past
    assert command("report", "simulated", "--level", "0.9")[0] == 0
    assert "level of 90 %" in seen(first.with_name(f"{AS_OF}-level-0.9.html"))
    assert "level of 80 %" in seen(first.with_name(f"{AS_OF}.html"))
    with reading(nights.engine) as conn:
        assert table_counts(conn) == before
    code, _, complaint = command("report", "simulated", "--level", "0.8123")
    assert code == 2
    assert re.search(r"--level .*0\.5,.*, 0\.99; .*0\.8123", complaint)
    code, _, complaint = command("report", "simulated", "--as-of", "2024-03-01")
    assert code == 2
    assert re.search("never run: .*2024-06-28 to 2024-07-01", complaint)


def test_a_role_that_only_reads_opens_the_page_of_a_night(
    context: MarketContext, postgresql_server: str
) -> None:
    def filled(owner: Engine) -> None:
        run_night(replace(context, engine=owner), AS_OF)

    with served_to_a_reader(postgresql_server, "a_night_to_read", filled) as site:
        answer = site.get(f"/market/simulated/night/{AS_OF}")
    assert answer.status == 200
    assert "L01" in answer.body


@pytest.mark.soak
def test_nothing_that_is_gone_keeps_a_night_from_its_page(
    nights: MarketContext, caplog: pytest.LogCaptureFixture
) -> None:
    assert "blank weight is unknown" not in seen(publish_night(Tonight(nights, AS_OF)))
    for file in (data_folder() / "models").glob("*.safetensors"):
        file.unlink()
    with caplog.at_level(logging.WARNING):
        file = publish_night(Tonight(nights, AS_OF))
    words = seen(file)
    with reading(nights.engine) as conn:
        browsed = night_page(conn, nights.market, Tonight(nights, AS_OF).row, served=True)
        assert "Receipt" in report_page(conn, nights.name, AS_OF, None)
        with pytest.raises(NotThereError, match="2001-01-02"):
            report_page(conn, nights.name, date(2001, 1, 2), None)
    (written,) = re.findall("<main.*</main>", file.read_text(encoding="utf-8"), re.DOTALL)
    # The dashboard shows the page that the night wrote, with links and the other levels.
    texts = [set(re.sub(r"<[^>]+>", "", page).splitlines()) for page in (written, browsed)]
    assert texts[0] <= texts[1]
    assert "blank weight is unknown" in words  # the sources that were stored are all there is
    assert "cannot be used: " in caplog.text
    with transaction(nights.engine) as conn:  # a night from before there were calibrations
        conn.execute(
            text(
                "update prediction set calibrated = null, lowest = null, highest = null, "
                "rising_share = null"
            )
        )
        conn.execute(text("update run set slope = null, intercept = null"))
        for table in ("abstention_band", "abstention_count", "calibration_bin", "attention_weight"):
            conn.execute(text(f"delete from {table}"))
        conn.execute(text("update score set target = '2001-01-02'"))  # nothing scored for years
    words = seen(publish_night(Tonight(nights, AS_OF)))
    for said in (
        "was not calibrated",
        "No attention between stocks",
        "nights up to 2001-01-02",
    ):
        assert said in words
    assert not re.search(r"\b(nan|NaN|NaT|None)\b", words)
