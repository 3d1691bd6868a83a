"""The paper account: what each order makes it hold, filled at the next open,
night after night, on both engines.
"""

import json
import logging
import re
from dataclasses import asdict, replace
from datetime import UTC, date, datetime
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import sqlalchemy as sa

from db import tables, where
from db.engine import reading, transaction
from db.read import read, read_value
from db.rows import paper_account, rankings
from db.save import save
from dtml.backtest.portfolio import equal_weight_track, index_track
from dtml.backtest.turnover import track_of
from dtml.errors import DtmlError
from dtml.experiments import vary
from dtml.features import FEATURES
from dtml.markets.definition import FREE, Trading
from dtml.prices.sessions import next_session, sessions_up_to
from flows.morning import after_costs
from flows.nightly import paper
from flows.nightly.context import MarketContext, Tonight, quotes_of, read_bars
from flows.nightly.drift import watch_drift
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import run_night
from flows.nightly.paper import Orders, follow_rankings, next_orders
from flows.service.alerts import after_night
from tests.support.benchmark_rows import ranker
from tests.support.bounds import assert_arrays_close_in_float64, in_float64
from tests.support.commands import Command
from tests.support.facts import in_order
from tests.support.nights import AS_OF, BARS

# A fill is decided by 60 sessions before it: there are more nights than that, among them a split
# and two opens without a price. A few are enough for what depends on the newest alone.
MANY, FEW = 80, 12
LAST = date(2024, 2, 7)
NIGHTS = sessions_up_to("XNYS", LAST, MANY)
TRADING = Trading(3.0, 4.0, 0.0, purchase_tax=5.0, sale_tax=20.0, top=4, smooth=3, band=2.0)


@pytest.fixture
def traded(context: MarketContext) -> MarketContext:
    """A market whose prices are stored, with orders from nights that nobody followed yet."""
    context = replace(context, experiment=vary(context.experiment, {"train_sessions": 400}))
    fetch_bars(context, LAST)
    with transaction(context.engine) as conn:
        save(
            conn,
            "ranker",
            ranker(market=context.name, checkpoint_path="models/none", checkpoint_hash="0" * 64),
        )
    return replace(context, market=replace(context.market, trading=TRADING))


def test_trades_at_opens_that_are_the_close_are_logged_as_what_they_are(
    context: MarketContext, caplog: pytest.LogCaptureFixture
) -> None:
    bars = BARS[BARS["session"] >= "2024-06-03"]
    with caplog.at_level(logging.WARNING):
        quotes_of(context, bars, context.market.symbols)
        assert caplog.text == ""
        closes = bars.assign(open=bars["close"], high=bars["close"], low=bars["close"])
        quotes_of(context, closes, context.market.symbols)
    assert re.search("next open .*next close", caplog.text)


def scores_of(context: MarketContext) -> np.ndarray:
    return np.random.default_rng(11).standard_normal((MANY, len(context.market.symbols)))


def say(context: MarketContext, *nights: int) -> None:
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


def account(context: MarketContext) -> pd.DataFrame:
    with reading(context.engine) as conn:
        found = paper_account.paper_returns(conn, context.name)
    return found[found["portfolio"] == "account"].reset_index(drop=True)


def followed(context: MarketContext, nights: int) -> None:
    """Order and follow so many nights, and one more that nobody filled yet."""
    for night in range(nights):
        say(context, night)
        follow_rankings(Tonight(context, NIGHTS[night].date()))


def wanted_of(context: MarketContext) -> pd.DataFrame:
    """What the newest night wants held, by symbol."""
    with reading(context.engine) as conn:
        target = read_value(conn, "target_position", "target", market=context.name, order="-target")
        rows = read(conn, "target_position", market=context.name, target=target)
    return rows.set_index("symbol")


def orders_of(
    context: MarketContext, capital: float, held: "pd.Series[float] | None" = None
) -> Orders:
    with reading(context.engine) as conn:
        found = next_orders(conn, context.market, capital, held)
    assert found is not None
    return found


def backtest(context: MarketContext, *without: int) -> pd.DataFrame:
    """What following the same orders over all nights at once earned."""
    bars = read_bars(context, sessions_up_to("XNYS", NIGHTS[0].date(), 70)[0].date(), LAST)
    scores = scores_of(context)
    scores[list(without)] = np.nan
    return track_of(
        scores, NIGHTS, quotes_of(context, bars, context.market.symbols), context.market.trading
    )


def assert_as(found: pd.DataFrame, whole: pd.DataFrame, nights: int = MANY) -> None:
    track = whole[: nights - 2]  # the last open is not followed by another
    assert len(found) == len(track) == nights - 2
    for name in ("gross", "turnover", "cost", "net"):
        assert_arrays_close_in_float64(found[name], track[name])
    assert_arrays_close_in_float64(found["equity"], (1 + track["net"]).cumprod())
    assert found["session"].tolist() == track["session"].tolist()


def test_an_index_is_held_on_sessions_without_a_volume_too(traded: MarketContext) -> None:
    bars = read_bars(traded, NIGHTS[0].date(), LAST)
    index = (traded.market.index.symbol,)
    silent = bars.assign(volume=1.0 * (bars["session"] == NIGHTS[0]))
    assert np.isfinite(quotes_of(traded, silent, index).open).all()
    stocks = quotes_of(traded, silent, traded.market.symbols).open
    assert np.isfinite(stocks).sum() == np.isfinite(stocks[0]).sum()


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_many_nights_earn_what_the_backtest_of_their_orders_earns(
    traded: MarketContext,
) -> None:
    followed(traded, MANY)
    assert_as(account(traded), backtest(traded))
    with reading(traded.engine) as conn:
        found = paper_account.paper_returns(conn, traded.name).pivot(
            index="session", columns="portfolio", values="gross"
        )
        bars = read_bars(traded, NIGHTS[0].date(), LAST)
    quotes, index = (
        quotes_of(traded, bars, each)
        for each in (traded.market.symbols, (traded.market.index.symbol,))
    )
    everyone = np.full((MANY, len(traded.market.symbols)), 0.5)
    for name, track in {
        "equal parts": equal_weight_track(everyone, NIGHTS, quotes, "next_open"),
        "index": index_track(index, NIGHTS, "next_open"),
    }.items():
        # one without a price is kept by whoever held it before
        whole = np.isfinite(quotes.open).all(axis=1)[1:-1]
        assert_arrays_close_in_float64(found[name][whole], track["gross"][whole])
    assert_arrays_close_in_float64(found["account, no costs"], found["account"])


@pytest.mark.soak
@pytest.mark.parametrize(("module", "at"), [(paper, "save"), (paper_account, "save_paper_account")])
def test_a_night_that_ends_between_any_two_steps_loses_no_order_and_books_none_twice(
    traded: MarketContext, monkeypatch: pytest.MonkeyPatch, module: ModuleType, at: str
) -> None:
    rng, save = np.random.default_rng(5), getattr(module, at)

    def dies(*given: object, **named: object) -> None:
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


@pytest.mark.soak
def test_a_session_without_an_order_keeps_what_is_held(traded: MarketContext) -> None:
    refused = (4, 5, 8)
    for night in range(FEW):
        if night not in refused:
            say(traded, night)
            follow_rankings(Tonight(traded, NIGHTS[night].date()))
    found = account(traded)
    assert_as(found, backtest(traded, *refused), FEW)
    assert (found.loc[list(refused), "turnover"] == 0).all()


def test_a_market_without_orders_has_no_account(traded: MarketContext) -> None:
    follow_rankings(Tonight(traded, LAST))
    assert account(traded).empty


@pytest.mark.soak
def test_orders_lead_from_what_is_held_to_what_the_newest_night_wants(
    traded: MarketContext,
) -> None:
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


@pytest.mark.soak
def test_orders_of_a_capital_of_a_few_shares_sell_no_more_than_it_is_worth(
    traded: MarketContext,
) -> None:
    followed(traded, FEW)
    for capital in (50.0, 130.0, 410.0, 990.0):
        orders = orders_of(traded, capital)
        sold = orders.rows.loc[orders.rows["side"] == "sell", "value"].sum()
        assert sold <= capital
        assert orders.cash >= 0


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_orders_that_are_none_say_why(
    tmp_path: Path, command: Command, traded: MarketContext
) -> None:
    followed(traded, 1)
    code, said, _ = command("orders", traded.name, "--capital", "1")
    assert code == 0
    assert "0 orders worth 0" in said
    assert "symbol" not in said
    wanted = wanted_of(traded)
    found = orders_of(traded, 1.0)
    bars = read_bars(traded, NIGHTS[0].date(), NIGHTS[0].date()).set_index("symbol")
    price = bars["close"].reindex(wanted.index)
    needed = price / wanted["weight"]
    least = needed.idxmin()
    assert found.reason in " ".join(said.split())
    facts = (f" {len(wanted)} stocks ", f"{least}, 1 share costs {price[least]:,.2f}, ")
    part = f" {wanted.loc[least, 'weight']:,.2f}."
    assert re.fullmatch(in_order("A capital of 1.00", *facts, part), found.reason)
    document = json.loads(command("orders", traded.name, "--capital", "1", "--json")[1])
    assert (document["orders"], document["reason"]) == ([], found.reason)
    file = tmp_path / "positions.csv"
    shares = (1e6 * wanted["weight"] / price).rename("shares").rename_axis("symbol")
    shares.to_csv(file)
    held = ("--capital", "1e6", "--positions", str(file))
    said = " ".join(command("orders", traded.name, *held)[1].split())
    assert "less than a lot" in said
    assert "0 orders worth 0" in said
    more = orders_of(traded, float(needed.min()) * 1.1)
    assert (len(more.rows) > 0, more.reason) == (True, "")


@pytest.mark.soak
def test_a_holding_that_the_night_wants_kept_is_not_sold_because_its_share_is_below_a_lot(
    traded: MarketContext,
) -> None:
    followed(traded, FEW)
    wanted = wanted_of(traded)
    kept = wanted.index[wanted["kept"].astype(bool)]
    bars = read_bars(traded, NIGHTS[FEW - 1].date(), NIGHTS[FEW - 1].date()).set_index("symbol")
    one = pd.Series(1.0, index=kept[:1])
    capital = float(bars.loc[kept[0], "close"] / wanted.loc[kept[0], "weight"] * 0.9)
    found = orders_of(traded, capital, one)
    assert kept[0] not in set(found.rows["symbol"])


@pytest.mark.soak
def test_fine_lots_bring_the_account_to_what_its_next_fill_holds_at_the_same_prices(
    traded: MarketContext,
) -> None:
    """With an open at the last close, free trades and lots of nearly nothing:
    also what has doubled is kept.
    """
    market = replace(traded.market, trading=replace(TRADING, **asdict(FREE), band=5.0))
    traded = replace(traded, market=market)
    followed(traded, FEW)
    capital, last = 1e12, NIGHTS[FEW - 1].date()
    found, aims = orders_of(traded, capital), wanted_of(traded)
    with reading(traded.engine) as conn:
        before = read(conn, "paper_position", market=traded.name, session=last).set_index("symbol")[
            "weight"
        ]
    bars = read_bars(traded, NIGHTS[0].date(), last)
    quotes = quotes_of(traded, bars, market.symbols)
    grown = quotes.marks("close")[-1] / quotes.marks("next_open")[-1]
    value = before.reindex(market.symbols).fillna(0.0) * grown
    drifted = value / (value.sum() + 1 - before.sum())
    weights, kept = (
        aims["weight"].reindex(market.symbols).fillna(0.0),
        aims["kept"].reindex(market.symbols),
    )
    stuck = drifted.where(kept.fillna(value=False).astype(bool), 0.0)
    asked = weights.where(stuck == 0, 0.0)
    after = stuck + asked * min(1.0, (1 - stuck.sum()) / asked.sum() if asked.sum() else 1.0)
    rows = found.rows.set_index("symbol")
    signed = (
        (rows["value"] * np.where(rows["side"] == "buy", 1, -1)).reindex(market.symbols).fillna(0.0)
    )
    np.testing.assert_allclose(drifted + signed / capital, after, atol=1e-8)


def test_a_stock_that_could_not_be_bought_at_its_first_open_is_bought_at_the_next(
    traded: MarketContext,
) -> None:
    market = replace(traded.market, trading=replace(TRADING, smooth=1, band=5.0))
    traded = replace(traded, market=market)
    followed(traded, 2)
    with reading(traded.engine) as conn:
        aims = read(
            conn, "target_position", market=traded.name, target=where.since(NIGHTS[1].date())
        )
    first, second = (of_day for _, of_day in aims.groupby("target"))
    stock = second.loc[second["kept"].astype(bool), "symbol"].iloc[0]
    assert stock in set(first["symbol"])
    number = sa.select(tables.instrument.c.id).where(tables.instrument.c.symbol == stock)
    is_stock = tables.price.c.instrument_id == number.scalar_subquery()
    with transaction(traded.engine) as conn:
        for table in (tables.paper_position, tables.paper_return):
            conn.execute(sa.delete(table))
        is_first = tables.price.c.session == NIGHTS[1]
        conn.execute(sa.update(tables.price).where(is_stock, is_first).values(open=None))
    follow_rankings(Tonight(traded, NIGHTS[1].date()))
    found = orders_of(traded, 1e6)
    follow_rankings(Tonight(traded, NIGHTS[2].date()))
    with reading(traded.engine) as conn:
        held = read(
            conn,
            "paper_position",
            market=traded.name,
            session=where.between(NIGHTS[1].date(), NIGHTS[2].date()),
        )
    days = held.loc[held["symbol"] == stock, "session"].tolist()
    assert days == [NIGHTS[2]], "the account could buy it at the second open alone"
    bought = found.rows[found.rows["side"] == "buy"]
    assert stock in set(bought["symbol"])


def test_a_file_of_positions_is_read_to_the_letter(
    tmp_path: Path, command: Command, traded: MarketContext
) -> None:
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
    file.write_text("symbol,shares\nL01,3\n")
    assert command(*asked)[0] == 0


def test_orders_of_an_account_that_was_not_filled_say_so(traded: MarketContext) -> None:
    followed(traded, 4)
    with transaction(traded.engine) as conn:
        conn.execute(
            sa.delete(tables.paper_position).where(tables.paper_position.c.session == NIGHTS[3])
        )
    # filled, and nothing could be bought: all is cash
    assert set(orders_of(traded, 1000.0).rows["side"]) == {"buy"}
    with transaction(traded.engine) as conn:  # the fill itself is missing
        conn.execute(
            sa.delete(tables.paper_return).where(tables.paper_return.c.session == NIGHTS[2])
        )
    with pytest.raises(DtmlError, match="not traded"):
        orders_of(traded, 1000.0)


def test_orders_of_stocks_without_a_close_are_refused(traded: MarketContext) -> None:
    with reading(traded.engine) as conn:
        assert next_orders(conn, traded.market, 1000.0) is None
    followed(traded, 1)
    with pytest.raises(DtmlError, match="close of GONE from"):
        orders_of(traded, 1000.0, pd.Series({"GONE": 3.0}))


@pytest.mark.soak
def test_the_first_page_says_what_costs_leave_of_the_account(traded: MarketContext) -> None:
    with reading(traded.engine) as conn:
        paper = paper_account.paper_returns(conn, traded.name)
        assert after_costs(conn, traded.name, paper) is None
    for night in range(MANY):
        say(traded, night)
    follow_rankings(Tonight(traded, NIGHTS[MANY - 1].date()))
    with reading(traded.engine) as conn:
        paper = paper_account.paper_returns(conn, traded.name)
        said = after_costs(conn, traded.name, paper)
    found = paper.pivot(index="session", columns="portfolio", values="net")
    gain = 252 * (found["account"] - found["equal parts"]).mean()
    assert said
    assert said.figures.startswith(f"{100 * gain:+.1f} % a year [")
    assert (said.beside, said.source) == ("equal parts", f"paper account, {MANY - 2} sessions")
    assert str(said.verdict).startswith(("beats", "is beaten by", "does not differ"))


def test_skill_lasts_since_its_interval_has_lain_above_0(traded: MarketContext) -> None:
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


def test_a_night_says_what_to_hold_and_whether_its_inputs_drifted(context: MarketContext) -> None:
    context = replace(context, experiment=vary(context.experiment, {"train_sessions": 400}))
    days = [day.date() for day in sessions_up_to("XNYS", AS_OF, 3)]
    for day in days:
        night = run_night(context, day)
    run_night(context, days[-1])  # a complete night adds nothing
    with reading(context.engine) as conn:
        aims = read(conn, "target_position", market=context.name)
        told = read(conn, "drift", market=context.name, as_of=days[-1], order="measure")
    assert aims["target"].nunique() == 3
    assert set(told["measure"]) >= {*FEATURES, "stock-day", "coverage"}
    assert len(account(context)) == 1
    assert f"in {len(told)} measures" in night.report.read_text(encoding="utf-8")


@pytest.mark.soak
def test_a_session_without_bars_does_not_end_the_watch_over_the_inputs(
    context: MarketContext,
) -> None:
    context = replace(context, experiment=vary(context.experiment, {"train_sessions": 400}))
    run_night(context, AS_OF)
    with transaction(context.engine) as conn:
        conn.execute(sa.delete(tables.night_drift))
        gone = sessions_up_to("XNYS", AS_OF, 6)[0].date()
        conn.execute(sa.delete(tables.price).where(tables.price.c.session == gone))
    watch_drift(Tonight(context, AS_OF))
    with reading(context.engine) as conn:
        told = read(conn, "drift", market=context.name, as_of=AS_OF, order="measure")
    assert set(told["measure"]) >= {*FEATURES, "stock-day"}


@pytest.mark.soak
def test_a_drift_that_begins_is_told_once(context: MarketContext) -> None:
    days = [day.date() for day in sessions_up_to("XNYS", AS_OF, 3)]
    row = {"measure": ["z_open"], "value": 3.0, "expected": 0.7, "evidence": 9.0, "needed": 4.5}
    for number, day in enumerate(days):
        run_night(context, day)
        with transaction(context.engine) as conn:
            conn.execute(sa.delete(tables.night_drift))
            for earlier in days[: number + 1]:
                drifted = pd.DataFrame(row).assign(drifted=earlier >= days[1])
                save(conn, "night_drift", drifted, market=context.name, as_of=earlier)
        after_night(context.engine, context.name, day)
    with reading(context.engine) as conn:
        told = read(conn, "alert", market=context.name, order="raised_at, market, as_of, kind")
    assert told.loc[told["kind"] == "drifted", "as_of"].dt.date.tolist() == [days[1]]
