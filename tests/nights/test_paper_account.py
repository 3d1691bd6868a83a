"""The paper account: what each order makes it hold, filled at the next open,
night after night, on both engines.
"""

import re
from dataclasses import replace
from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
import pytest

from db.engine import reading, transaction
from db.read import read, read_value
from db.rows import paper_account, rankings
from db.save import save
from dtml.backtest.turnover import track_of
from dtml.markets.definition import Trading
from dtml.prices.sessions import next_session, sessions_up_to
from flows.nightly import paper
from flows.nightly.context import Tonight, quotes_of, read_bars
from flows.nightly.fetch import fetch_bars
from flows.nightly.paper import follow_rankings, next_orders
from tests.support.benchmark_rows import ranker
from tests.support.bounds import assert_arrays_close_in_float64, in_float64

# A fill is decided by 60 sessions before it: there are more nights than that, among them a split
# and two opens without a price. A few are enough for what depends on the newest alone.
MANY, FEW = 80, 12
LAST = date(2024, 2, 7)
NIGHTS = sessions_up_to("XNYS", LAST, MANY)
TRADING = Trading(3.0, 4.0, 0.0, purchase_tax=5.0, sale_tax=20.0, top=4, smooth=3, band=2.0)


@pytest.fixture
def traded(ranking_context):
    """A market whose prices are stored, with orders from nights that nobody followed yet."""
    context = ranking_context
    fetch_bars(context, LAST)
    with transaction(context.engine) as conn:
        save(
            conn,
            "ranker",
            ranker(market=context.name, checkpoint_path="models/none", checkpoint_hash="0" * 64),
        )
    return replace(context, market=replace(context.market, trading=TRADING))


def scores_of(context):
    return np.random.default_rng(11).standard_normal((MANY, len(context.market.symbols)))


def say(context, *nights):
    """Store the orders of some nights."""
    now = datetime.now(UTC)
    for night in nights:
        target = next_session("XNYS", NIGHTS[night].date())
        rows = pd.DataFrame({"symbol": context.market.symbols, "score": scores_of(context)[night]})
        rows = rows.assign(
            place=1, probability=np.nan, chosen=True, predictor="ridge", as_of=NIGHTS[night]
        )
        rows = rows.assign(ranker_id=ranker()["id"], target=pd.Timestamp(target))
        with transaction(context.engine) as conn:
            save(conn, "stock_rank", rows, market=context.name, known_at=now, made_at=now)


def account(context):
    with reading(context.engine) as conn:
        found = paper_account.paper_returns(conn, context.name)
    return found[found["portfolio"] == "account"].reset_index(drop=True)


def followed(context, nights):
    """Order and follow so many nights, and one more that nobody filled yet."""
    for night in range(nights):
        say(context, night)
        follow_rankings(Tonight(context, NIGHTS[night].date()))


def backtest(context, *without):
    """What following the same orders over all nights at once earned."""
    bars = read_bars(context, sessions_up_to("XNYS", NIGHTS[0].date(), 70)[0].date(), LAST)
    scores = scores_of(context)
    scores[list(without)] = np.nan
    return track_of(
        scores, NIGHTS, quotes_of(context, bars, context.market.symbols), context.market.trading
    )


def assert_as(found, whole, nights=MANY):
    track = whole[: nights - 2]  # the last open is not followed by another
    assert len(found) == len(track) == nights - 2
    for name in ("gross", "turnover", "cost", "net"):
        assert_arrays_close_in_float64(found[name], track[name])
    assert_arrays_close_in_float64(found["equity"], (1 + track["net"]).cumprod())
    assert found["session"].tolist() == track["session"].tolist()


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_many_nights_earn_what_the_backtest_of_their_orders_earns(traded):
    followed(traded, MANY)
    assert_as(account(traded), backtest(traded))


@pytest.mark.soak
@pytest.mark.parametrize(("module", "at"), [(paper, "save"), (paper_account, "save_paper_account")])
def test_a_night_that_ends_between_any_two_steps_loses_no_order_and_books_none_twice(
    traded, monkeypatch, module, at
):
    rng, save = np.random.default_rng(5), getattr(module, at)

    def dies(*given, **named):
        save(*given, **named)
        raise KeyboardInterrupt

    for night in range(FEW):
        say(traded, night)
        how = rng.integers(4)
        if how == 0 and night > 1:
            with monkeypatch.context() as patched:
                patched.setattr(module, at, dies)
                with pytest.raises(KeyboardInterrupt):
                    follow_rankings(Tonight(traded, NIGHTS[night].date()))
        if how != 1:  # else a later night catches up
            follow_rankings(Tonight(traded, NIGHTS[night].date()))
        if how == 2:
            follow_rankings(Tonight(traded, NIGHTS[night].date()))
    follow_rankings(Tonight(traded, NIGHTS[FEW - 1].date()))
    assert_as(account(traded), backtest(traded), FEW)


def test_a_file_of_positions_is_read_to_the_letter(tmp_path, command, traded):
    followed(traded, 1)
    file = tmp_path / "positions.csv"
    asked = ("orders", traded.name, "--capital", "1000", "--positions", str(file))
    for written, why in (
        ("NA,3", "close of NA from"),
        ("null,3", "close of null from"),
        ("00123 ,3", "close of 00123 from"),
        ("L01,inf", "row 1 below.*L01.*inf"),
        ("L01,", "row 1 below.*''"),
        ("L01,nan", "row 1 below.*L01.*nan"),
        ("L01,1,000", "row 1 below.*L01.*1"),
        (",3", "row 1 below.*''"),
        ("L01,3\nL01,4", "row 2 below.*L01.*4"),
        ('"L01,5\n' + 200_000 * "x", "field larger"),
    ):
        file.write_text(f"symbol,shares\n{written}\n")
        code, _, said = command(*asked)
        assert code != 0, written
        assert re.search(why, " ".join(said.split())), written
    for heading in ("ticker,qty\nL01,3\n", "symbol;shares\nL01;3\n", ""):
        file.write_text(heading)
        code, _, said = command(*asked)
        assert code != 0, heading
        assert "columns are" in said
    file.write_text("shares,symbol\n3\n")  # a row without a symbol
    code, _, said = command(*asked)
    assert code == 2, said
    assert re.search("row 1 below.*'', 3", " ".join(said.split()))
    file.write_text("symbol,shares\nL01,3\n")
    assert command(*asked)[0] == 0
    file.unlink()
    assert "cannot be read" in command(*asked)[2]


def test_skill_lasts_since_its_interval_has_lain_above_0(traded):
    lows = [np.nan, 0.01, -0.01, 0.01, 0.02, 0.03]
    rows = pd.DataFrame({"target": NIGHTS[: len(lows)], "rank_ic_low": lows}).assign(
        span="running", leg="next_close", predictor="ridge", is_rule=False, days=30, n=300
    )
    with transaction(traded.engine) as conn:
        save(conn, "rank_score", rows, market=traded.name, scored_at=datetime.now(UTC))
        asked = (conn, traded.name, "next_close", "ridge")
        assert rankings.lasting_skill(*asked, NIGHTS[5].date()) == NIGHTS[3].date()
        assert rankings.lasting_skill(*asked, NIGHTS[2].date()) is None
        assert rankings.lasting_skill(*asked, NIGHTS[1].date()) == NIGHTS[1].date()


def wanted_of(context):
    """What the newest night wants held, by symbol."""
    with reading(context.engine) as conn:
        target = read_value(conn, "target_position", "target", market=context.name, order="-target")
        rows = read(conn, "target_position", market=context.name, target=target)
    return rows.set_index("symbol")


def orders_of(context, capital, held=None):
    with reading(context.engine) as conn:
        found = next_orders(conn, context.market, capital, held)
    assert found is not None
    return found


@pytest.mark.soak
def test_orders_lead_from_what_is_held_to_what_the_newest_night_wants(traded):
    traded = replace(traded, market=replace(traded.market, trading=replace(TRADING, lot=10)))
    followed(traded, FEW)
    found = orders_of(traded, 100_000.0)
    mine = orders_of(traded, 100_000.0, pd.Series({"L01": 25.0, "L02": 0.0}))
    wanted = wanted_of(traded)
    bars = read_bars(traded, NIGHTS[FEW - 1].date(), NIGHTS[FEW - 1].date()).set_index("symbol")
    buys = mine.rows[mine.rows["side"] == "buy"].set_index("symbol")
    assert set(buys.index) <= set(wanted.index)
    assert (buys["shares"] % 10 == 0).all()
    assert buys["price"].to_numpy() == in_float64(bars.loc[buys.index, "close"])
    share = wanted["weight"].reindex(buys.index)
    room = share * 100_000 / buys["price"] - buys["shares"] - (buys.index == "L01") * 25
    assert ((room >= -1e-9) & (room < 20)).all()  # a lot too few at most, and a lot in hand
    assert buys["cost"].to_numpy() == in_float64(buys["value"] * 12e-4)
    if "L01" not in set(wanted.index):
        sold = mine.rows.set_index("symbol").loc["L01"]
        assert (sold["side"], sold["shares"], sold["cost"]) == (
            "sell",
            25,
            in_float64(sold["value"] * 27e-4),
        )
    assert 0 <= mine.cash < 0.1 * 100_000
    assert found.rows["value"].sum() < mine.rows["value"].sum(), (
        "the account holds some of it already"
    )
