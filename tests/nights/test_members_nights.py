"""Nights of a market whose constituents come from a table, which changes between them."""

import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pandas as pd
import pytest
from sqlalchemy import Engine

from db.engine import reading
from db.read import read
from dtml.lookahead.audit import audit_list
from dtml.prices.sessions import next_session
from flows.audit import earlier_lists
from flows.markets.files import read_market
from flows.markets.opened import RunRequest
from flows.nightly.context import MarketContext, open_context
from flows.nightly.night import run_night
from flows.replay import Archive, replay_of
from tests.support.nights import AS_OF, BARS, FrameSource, small_market

FOLLOWING = next_session("XNYS", AS_OF)
KNOWN = date(2024, 6, 28)  # the date of the first table
ALWAYS = "".join(f"{stock},2022-01-03,\n" for stock in ("L01", "L02", "F01A", "F01B", "F02A"))
# F02B leaves and comes back; F03A left long before the night.
FIRST = f"{ALWAYS}F02B,2022-01-03,2023-03-31\nF02B,2024-03-01,\nF03A,2022-01-03,2023-06-30\n"
# The second table ends a spell before the date of the first, which still had the stock.
SECOND = FIRST.replace("L01,2022-01-03,", "L01,2022-01-03,2024-05-31") + "L03,2024-07-02,\n"


def listed(folder: Path, rows: str, as_of: date) -> MarketContext:
    """Open the market with a table of members that was true on a day."""
    (folder / "members.csv").write_text(f"symbol,since,until\n{rows}", encoding="utf-8")
    constituents = f'[constituents]\nas_of = {as_of}\nmembers = "members.csv"\nuntil = "included"\n'
    file = folder / "listed.toml"
    file.write_text(small_market(more=constituents), encoding="utf-8")
    request = RunRequest("listed", market_file=file, source="simulated", device="cpu")
    return replace(open_context(request), source=FrameSource(BARS), notice=None)


@pytest.mark.soak
@pytest.mark.slow
def test_a_table_that_changes_later_changes_no_replayed_night_and_is_found_by_the_audit(
    tmp_path: Path, engine: Engine
) -> None:
    first = listed(tmp_path, FIRST, KNOWN)
    run_night(first, AS_OF)
    members = {"L01", "L02", "F01A", "F01B", "F02A", "F02B"}
    assert set(first.constituents(AS_OF)) == members
    found = audit_list(first.market, earlier_lists(first), pd.Timestamp(AS_OF))
    assert found.passed is None  # no earlier list is stored

    second = listed(tmp_path, SECOND, FOLLOWING)
    run_night(second, FOLLOWING)
    assert set(second.constituents(FOLLOWING)) == members - {"L01"} | {"L03"}
    archive = Archive(engine, second.market, "cpu")
    replay = replay_of(archive, archive.night(AS_OF), None)
    assert replay.reasons == []
    assert replay.inputs_equal
    assert set(replay.predictions["symbol"]) == members
    finding = audit_list(second.market, earlier_lists(second), pd.Timestamp(FOLLOWING))
    assert finding.passed is False
    assert re.search(f"L01 .*on {KNOWN} .*earlier list, but not", finding.detail)


@pytest.mark.slow
def test_the_store_keeps_the_table_with_the_file_and_every_spell(
    tmp_path: Path, engine: Engine
) -> None:
    context = listed(tmp_path, FIRST, KNOWN)
    night = run_night(context, AS_OF)
    page = night.report.read_text(encoding="utf-8")
    assert "the list is dated" in page or "No prediction of" in page
    (tmp_path / "members.csv").unlink()
    (tmp_path / "listed.toml").unlink()
    kept = read_market("listed")
    assert kept.constituents == context.market.constituents
    with reading(engine) as conn:
        stays = read(conn, "constituent", market="listed")
    of_stock = stays[stays["symbol"] == "F02B"]
    assert of_stock["spell"].tolist() == [1, 2]
    assert of_stock["valid_to"].iloc[0] == pd.Timestamp("2023-04-01")
    assert pd.isna(of_stock["valid_to"].iloc[1])
