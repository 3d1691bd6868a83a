"""Alerts: each is kept once, told to Prefect, and sent until every service
takes it; none ever ends a night.
"""

import logging
import re
import threading
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pandas as pd
import pytest

from db.engine import reading, transaction
from db.read import read
from db.save import save
from dtml.markets import load_market
from dtml.prices.sessions import next_session
from flows.nightly.night import NightRefusedError, run_night
from flows.service.alerts import Alert, after_night, send_waiting, tell, watch_markets
from tests.support.facts import in_order
from tests.support.night_rows import store_night
from tests.support.nights import AS_OF, BARS, FrameSource, after_nights, without
from tests.support.webhook import TOKEN, webhook

MARKETS = {"simulated": load_market("simulated")}
NOON = datetime(2024, 7, 2, 16, tzinfo=UTC)
LATE = datetime(2024, 7, 3, 4, tzinfo=UTC)


@pytest.fixture
def hook(monkeypatch):
    with webhook() as found:
        monkeypatch.setenv("DTML_ALERTS", found.url)
        yield found


@pytest.fixture(autouse=True)
def no_webhook(monkeypatch):
    monkeypatch.delenv("DTML_ALERTS", raising=False)


def kept(engine):
    """Each alert's night and kind, and whether it was sent."""
    with reading(engine) as conn:
        rows = read(conn, "alert", order="raised_at, market, as_of, kind")
    return [
        (str(each.as_of.date()), each.kind, pd.notna(each.sent_at)) for each in rows.itertuples()
    ]


def refuse(context, day):
    poor = replace(context, source=FrameSource(without(BARS, [context.market.index.symbol], day)))
    with pytest.raises(NightRefusedError):
        run_night(poor, day)
    after_night(context.engine, context.name, day)


def kind_of(said):
    return str(said["title"].split()[2])


def alert(message="no index", kind="refused"):
    return Alert("simulated", AS_OF, kind, message)


@pytest.mark.parametrize("answer", [500, 404, 302])
def test_what_a_webhook_does_not_take_is_kept_and_sent_with_the_next_alert(
    engine, hook, answer, caplog
):
    hook.answer = answer
    tell(engine, [alert()])
    assert kept(engine) == [("2024-07-01", "refused", False)]
    assert "accepted by JSON" in caplog.text
    assert "sent again" in caplog.text
    hook.answer = 200
    tell(engine, [replace(alert(), kind="late")])
    assert [kind_of(said) for said in hook.taken] == ["refused", "late"]
    assert kept(engine) == [("2024-07-01", "refused", True), ("2024-07-01", "late", True)]
    tell(engine, [alert()])
    assert len(hook.taken) == 2


def test_a_webhook_that_hangs_is_given_up(engine, hook, monkeypatch, caplog):
    hook.hangs = threading.Event()
    monkeypatch.setattr("apprise.URLBase.socket_read_timeout", 0.3)
    monkeypatch.setattr("flows.service.alerts.SENDING_S", 0)
    kinds = ["refused", "late", "below_rule"]
    tell(engine, [alert(kind=kind) for kind in kinds])
    assert hook.tried == 1  # the others wait for the next time
    assert caplog.text.count("not accepted by JSON") == 1
    assert [sent for *_, sent in kept(engine)] == [False] * 3


@pytest.mark.parametrize(
    "url",
    [
        f"http://127.0.0.1:9/{TOKEN}",
        f"http://127.0.0.1:9/{TOKEN} and more",
        f"http://{TOKEN}.invalid/",
        f"http://[{TOKEN}/",
        f"http://quant:{TOKEN}@127.0.0.1:9/",
        f"http://127.0.0.1:{TOKEN}/",
        f"file:///tmp/{TOKEN}",
        f"{TOKEN}",
        f"http://127.0.0.1:9/\n{TOKEN}é",
    ],
)
def test_no_complaint_shows_the_url_of_a_webhook(engine, url, monkeypatch, caplog):
    monkeypatch.setenv("DTML_ALERTS", url)
    with caplog.at_level(logging.DEBUG):
        tell(engine, [alert()])
    assert "simulated, night of" in caplog.text
    assert TOKEN not in caplog.text
    assert kept(engine) == [("2024-07-01", "refused", False)]


def test_what_nobody_took_in_a_week_is_no_news(engine, hook):
    with transaction(engine) as conn:
        old = datetime.now(UTC) - timedelta(days=8)
        save(
            conn,
            "alert",
            {
                "market": "simulated",
                "as_of": AS_OF,
                "kind": "refused",
                "message": "old",
                "raised_at": old,
            },
        )
    send_waiting(engine, datetime.now(UTC))
    assert hook.tried == 0


def test_an_alert_goes_to_every_address_and_an_unknown_one_is_named_without_its_text(
    engine, hook, monkeypatch, caplog
):
    # another service of Apprise, which this webhook cannot read
    forms = f"form://127.0.0.1:{hook.port}/"
    monkeypatch.setenv("DTML_ALERTS", f"{hook.url} nobody://{TOKEN}\n{hook.url}")
    tell(engine, [alert()])
    assert [said["message"] for said in hook.taken] == ["no index"] * 2
    assert re.search("1 of .*3 addresses.*DTML_ALERTS", caplog.text)
    assert TOKEN not in caplog.text
    assert kept(engine) == [("2024-07-01", "refused", True)]
    monkeypatch.setenv("DTML_ALERTS", f"{hook.url} {forms}")
    tell(engine, [alert(kind="late")])
    assert "accepted by Form, JSON" in caplog.text
    assert kept(engine)[1] == ("2024-07-01", "late", False)


def test_a_late_market_is_told_by_the_watch_once_for_each_night(context, hook):
    after_nights(context, AS_OF)
    watch_markets(context.engine, MARKETS, NOON)
    assert hook.taken == []
    for _ in range(2):
        (found,) = watch_markets(context.engine, MARKETS, LATE)
        assert found.is_late
    (said,) = hook.taken
    assert said["title"] == "simulated 2024-07-02 late"
    watch_markets(context.engine, MARKETS, LATE + timedelta(days=1))
    assert [said["title"].split()[1] for said in hook.taken] == ["2024-07-02", "2024-07-03"]


def test_a_refusal_that_was_never_told_is_told_by_the_watch(context, hook):
    poor = replace(context, source=FrameSource(without(BARS, [context.market.index.symbol])))
    with pytest.raises(NightRefusedError):
        run_night(poor, AS_OF)
    watch_markets(context.engine, MARKETS, NOON)
    assert [kind_of(said) for said in hook.taken] == ["refused"]


def save_night(engine, as_of, mcc):
    """A complete night of `as_of` that scored its session: MCC and its interval
    of the model and of rules.
    """
    target = next_session("XNYS", as_of)
    key = {
        "target": as_of,
        "protocol": "all",
        "span": "running",
        "n": 99,
        "nights": 30,
        "rises": 50,
        "predicted_rises": 50,
    }
    acc = {"acc": 0.5, "acc_low": 0.4, "acc_high": 0.6}
    rows = [
        key | acc | {"predictor": name, "mcc": value, "mcc_low": low, "mcc_high": high}
        for name, (value, low, high) in mcc.items()
    ]
    with transaction(engine) as conn:
        store_night(conn, "simulated", as_of, target=target, at=NOON)
        save(conn, "score", pd.DataFrame(rows), market="simulated", scored_at=NOON)
    after_night(engine, "simulated", as_of)


APART = {
    "dtml": (-0.02, -0.05, 0.01),
    "always_up": (0.0, 0.0, 0.0),
    "index_reversal": (0.06, 0.02, 0.1),
}
TOUCHING = APART | {"index_reversal": (0.06, 0.009, 0.1)}
TOO_FEW = {name: (each[0], float("nan"), float("nan")) for name, each in APART.items()}


def test_a_model_that_a_rule_beats_beyond_chance_is_told_when_it_comes_to_be_so(engine, hook):
    days = [date(2024, 7, day) for day in (1, 2, 3, 5, 8, 9)]
    for day, mcc in zip(days, (TOO_FEW, TOUCHING, APART, APART, TOUCHING, APART), strict=True):
        save_night(engine, day, mcc)
    assert [said["title"].split()[1] for said in hook.taken] == ["2024-07-03", "2024-07-09"]
    facts = ("MCC -.020 [-.050, .010]", "30 nights", "below", "the index fell", ".060 [.020, .100]")
    assert re.search(in_order(*facts), hook.taken[0]["message"])


def test_a_store_that_fails_costs_a_warning(context, monkeypatch, caplog):
    with transaction(context.engine) as conn:
        conn.exec_driver_sql("drop view alert_log")
        conn.exec_driver_sql("drop table alert")
    refuse(context, AS_OF)
    assert "simulated, night of 2024-07-01" in caplog.text
    with reading(context.engine) as conn:
        assert read(conn, "night")["status"].tolist() == ["refused"]
