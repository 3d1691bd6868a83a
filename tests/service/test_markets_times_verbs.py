"""Every command, view, question and page, on every market of the package.

A market's prices are made up, in a store of its own; its calendar, currency, stocks, limits, lots,
costs and network are those that ship. What is new, be it a market, a command, a view, a question or
a route, is in it by itself, or a table below says why not.
"""

import json
import re
from dataclasses import astuple
from datetime import date
from inspect import getclosurevars
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest
from fastapi import APIRouter, FastAPI
from starlette.routing import Match, Route

from db.connection.user_sql import select
from db.engine import open_engine
from db.questions import questions
from db.views import views
from dtml.experiments import nightly, vary
from dtml.markets import load_market, market_names
from dtml.markets.definition import rate_on
from dtml.prices.sessions import sessions_up_to
from dtml.ranking.models import BoostingConfig
from flows import text_tables
from flows.commands.questions import ask
from flows.dashboard import app as app_of_pages
from tests.support.browser import served
from tests.support.commands import options_of_commands, run_in
from tests.support.kinds import of_this_quarter
from tests.support.pages import follow

# Each command with what it is given, in this order; `write_prices` says what capitals stand for.
LINES = """
fetch MARKET --source files --prices earlier.parquet --universe source --as-of FIRST_NIGHT
train MARKET
predict MARKET
nightly MARKET --prices prices.parquet --universe source --nights 2
score MARKET
report MARKET --level 0.9
orders MARKET --capital 1000000000
status
history STOCK
runs
markets
query select*from(latest_prediction)
replay MARKET --all
replay RECEIPT --retrain
freeze MARKET
freeze MARKET --check
backtest MARKET --from FROM --to TO --train-sessions 64 --attention-on TO
ranking MARKET --from FROM --to TO
audit MARKET
questions 2
questions --markdown
db upgrade
db dictionary
db check
db prune
db export exported
db backup backup
""".strip().splitlines()
# A command is run again with each of these that it has, on a quarter of the markets a day.
OUTPUTS = ("--json", "--csv", "--markdown")
RUN_ONCE = {"train", "audit"}  # what computes everything again for another output
NOT_RUN = {
    "serve": "runs until it is ended",
    "dashboard": "runs until it is ended; its application is asked for every page instead",
    "benchmark": "has markets of its own, the published sets",
    "doctor": "judges the machine",
    "db copy": "fills another store",
    "db restore": "fills another store",
    "db grant-reader": "is for PostgreSQL alone",
    "translate": "knows no market",
}
WITHOUT_ROWS = {
    "alert_log": "no channel is set",
    "benchmark_configuration": "of the published sets",
    "champion_log": "no market that ships lets its rankers compete",
    "comparison_log": "no market that ships has a second source",
    "price_disagreement": "no market that ships has a second source",
    "price_warning": "no price looks wrong",
    "run_score": "of the published sets",
    "translation_": "no market's",
}
WITHOUT_PAGE = {"/benchmark/{name}": "of the published sets"}
MISSING = re.compile(r".{0,30}\b(nan|NaN|NaT|None)\b.{0,30}")
MAY_BE_EMPTY = {  # the lists of a command's JSON that tell what is wrong, new or asked for
    "fetch": {"rejected", "outcomes", "restated", "unadjusted", "doubtful"},
    "predict": {"gaps", "rejected", "scores", "coverage", "rank_scores"},  # no outcome is known
    "nightly": {"gaps", "rejected"},
    "score": {"nights"},
    "replay": {"changes_since_frozen", "differing", "reasons"},
    "freeze": {"replaced", "changes"},
    "backtest": {"refused"},
    "ranking": {"networks", "sources"},
    "db check": {"found"},
}
NO_LINK = ("/alive", "/health", "/metrics", "/live", "/charts.js", "/live.js")
OF_A_KIND = 2  # addresses visited that differ in names and values alone

WHOLE_PRICES = ("JPY", "KRW")
LAST = date(2025, 11, 28)  # no night is later, nor later than the market's list of stocks
SESSIONS, STOCKS, NIGHTS = 420, 13, 3


def test_every_command_is_run_or_said_why_not():
    known, run = set(options_of_commands()), {verb_of(line) for line in LINES}
    assert {verb for verb in known - run if reason(verb, NOT_RUN) is None} == set()
    assert {verb for verb in run if reason(verb, NOT_RUN)} == run - known == set()


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("name", market_names())
def test_a_market(name, tmp_path, prefect_api, monkeypatch):
    market = load_market(name)
    days = sessions_up_to(market.calendar, min(LAST, market.constituents_as_of or LAST), SESSIONS)
    meant = write_prices(market, days, tmp_path)
    be_brief(monkeypatch)
    empty_tables = tables_without_rows(monkeypatch)
    folders = {"DTML_DATA": tmp_path / "data", "DTML_REPORTS": tmp_path / "reports"}
    environment = {variable: str(folder) for variable, folder in folders.items()}
    wrong = {}

    def dtml(*words):
        empty_tables.clear()
        code, said, complaint = run_in(tmp_path, environment, prefect_api, *words)
        faults = [*empty_tables, *faults_of(said, words)]
        if code != 0 or faults:
            wrong[" ".join(words)] = code, faults, said[-2000:], complaint[-2000:]
        return said

    options = options_of_commands()
    outputs = OUTPUTS if name in of_this_quarter(market_names()) else ()
    for line in LINES:
        if "RECEIPT" in line:
            answer = dtml("query", "select receipt from latest_prediction", "--json")
            meant["RECEIPT"] = json.loads(answer)[0]["receipt"]
        words = [meant.get(word, word) for word in line.split()]
        dtml(*words)
        if (verb := verb_of(line)) not in RUN_ONCE and "--markdown" not in line:
            for output in (each for each in outputs if each in options[verb]):
                dtml(*words, output)

    store = open_engine(f"sqlite:///{folders['DTML_DATA'] / 'dtml.sqlite'}", read_only=True)
    pages = {file.stem for file in folders["DTML_REPORTS"].glob(f"{name}/*.html")}
    for kind in ("backtest", "ranking"):
        (study,) = select(store, f"select distinct {kind}_id from {kind}_summary").iloc[:, 0]
        wrong |= {study: "no page"} if f"{kind}-{study}" not in pages else {}
    wrong |= {night: "no page" for night in map(str, days[-NIGHTS:].date) if night not in pages}
    wrong |= without_rows(store, name) | pages_with_faults(store, name)
    assert not wrong, "\n".join(f"{what}: {why}" for what, why in wrong.items())


@pytest.mark.parametrize(
    ("said", "words", "faults"),
    [
        ("a  b\n1  NaT\n", "status", ["1  NaT"]),
        ("symbol,side\n", "orders --csv", ["no row"]),
        ('[{"a": null, "reasons": [], "b": "None"}]', "replay --all --json", []),
        ('{"cash": 1.0, "orders": []}', "orders --json", ["no row in orders"]),
    ],
)
def test_a_fault_of_what_is_printed_is_found(said, words, faults):
    assert list(faults_of(said, words.split())) == faults


def faults_of(said, words):
    """What is missing in the output of a command with these words."""
    if "--json" in words:
        may_be_empty = MAY_BE_EMPTY.get(verb_of(" ".join(words)), set())
        for name in empty_lists(json.loads(said)):
            if name not in may_be_empty:
                yield f"no row in {name or 'the document'}"
        return
    if not said.strip():
        yield "nothing is said"
    for missing in MISSING.finditer(said):
        yield missing[0]
    if "--csv" in words and said.count("\n") == 1:
        yield "no row"


def empty_lists(value, name=None):
    """The names of the lists of a JSON document that are empty, None of the document itself."""
    if value in ([], {}):
        yield name
    elif isinstance(value, list):
        for each in value:
            yield from empty_lists(each, name)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from empty_lists(each, key)


def tables_without_rows(monkeypatch):
    """The headings of columns without a value that are printed from now on."""
    found = []
    lay_out = text_tables._laid_out

    def laid_out(columns, *cells, is_narrow):
        if not is_narrow:
            found.extend(f"no row below {each.heading}" for each in columns if not each.cells)
        return lay_out(columns, *cells, is_narrow=is_narrow)

    monkeypatch.setattr(text_tables, "_laid_out", laid_out)
    return found


def be_brief(monkeypatch):
    """Let every training and every test of one be as small as it can be."""
    few_trees = astuple(BoostingConfig(trees=5))
    monkeypatch.setattr(BoostingConfig.__init__, "__defaults__", few_trees)
    one_epoch = vary(nightly(), {"epochs": 1, "first_kept_epoch": 1, "seeds": 1})
    monkeypatch.setattr("dtml.experiments.nightly", lambda: one_epoch)
    monkeypatch.setattr("flows.audit.STOCKS", 11)
    for setting in ("DATES", "EPOCHS", "MEMBERS"):
        monkeypatch.setattr(f"dtml.lookahead.audit.{setting}", 1)
    monkeypatch.setattr("dtml.lookahead.pipeline.LOOK_BACK", 2)


def without_rows(store, market):
    """The views and questions that answer nothing, and the exceptions that have rows."""
    wrong = {}
    for view in views():
        is_empty = select(store, f"select 1 from {view} limit 1").empty
        if is_empty != (reason(view, WITHOUT_ROWS) is not None):
            wrong[view] = "no row" if is_empty else "rows, although excepted"
    asked = {question.title: ask(store, question, market) for question in questions()}
    return wrong | {title: "no row" for title, answer in asked.items() if answer.empty}


def verb_of(line):
    words = line.split()
    return " ".join(words[: 2 if words[0] == "db" else 1])


def reason(name, exceptions):
    """Why it is excepted, itself or all names that begin as it does; None if it is not."""
    found = [why for each, why in exceptions.items() if f"{name} ".startswith(each)]
    return found[0] if found else None


def write_prices(market, days, folder):
    """Write prices that stay within a market's limits; return what the capitals of LINES mean.

    The later file restates a bar of the earlier one, and has a new bar that is rejected.
    """
    listed = [stay.symbol for stay in market.constituents_on(days[-1].date())][:STOCKS]
    stocks = listed or [f"S{number:02d}" for number in range(STOCKS)]
    limit = market.trading.price_limit
    most = np.minimum(market.checks.max_return, 1.0 if limit is None else rate_on(limit, days))
    whole = market.currency in WHOLE_PRICES
    draw = np.random.default_rng(0)
    of_all = draw.normal(0, 0.008, len(days))
    tables = []
    for symbol in (*stocks, market.index.symbol):
        own = draw.normal(0, 0.012, len(days)) if symbol in stocks else 0
        steps = np.clip(of_all + own, -most / 2, most / 2)
        close = (50_000 if whole else 50) * np.exp(steps.cumsum())
        opened = close * np.exp(draw.normal(0, 0.003, len(days)))
        bars = pd.DataFrame({"open": opened, "close": close}).round(0 if whole else 2)
        bars = bars.assign(high=bars.max(axis=1), low=bars.min(axis=1), adj_close=bars["close"])
        bars = bars.assign(
            symbol=symbol, date=days, volume=draw.integers(10_000, 90_000, len(days))
        )
        tables.append(bars)
    bars = pd.concat(tables, ignore_index=True)
    bars[bars["date"] <= days[-NIGHTS]].to_parquet(folder / "earlier.parquet")
    restated = (bars["symbol"] == stocks[0]) & (bars["date"] == days[-NIGHTS - 2])
    bars.loc[restated, ["open", "high", "low", "close", "adj_close"]] *= 1.02
    bars.loc[(bars["symbol"] == stocks[1]) & (bars["date"] == days[-1]), "low"] *= 2
    bars.to_parquet(folder / "prices.parquet")
    told = {"FIRST_NIGHT": days[-NIGHTS], "FROM": days[-11], "TO": days[-2]}
    meant = {name: str(day.date()) for name, day in told.items()}
    return {"MARKET": market.name, "STOCK": stocks[0], **meant}


def pages_with_faults(engine, market):
    """Follow links from the first page on, some of each kind; return what is wrong, by address."""
    app = app_of_pages.dashboard(engine)
    begin = ["/", *NO_LINK, *(app_of_pages.link(["table", view]) for view in views())]
    begin.append(app_of_pages.link(["market", market, "stock"], {"symbol": "typed"}))
    wrong = {}
    reached = set()
    with served(app, engine) as site:
        for address, answer, page in follow(site.get, begin, plain=OF_A_KIND, asked=OF_A_KIND):
            reached.add(urlsplit(address).path)
            if answer.status not in (200, 303):
                wrong[address] = answer.status, answer.body[-500:]
            if missing := MISSING.search(page.seen):
                wrong[address] = missing[0]
    inner = app
    while not isinstance(inner, FastAPI):  # behind its guards
        inner = inner.app if hasattr(inner, "app") else getclosurevars(inner).nonlocals["app"]
    routers = [each for each in vars(app_of_pages).values() if isinstance(each, APIRouter)]
    for route in (each for router in (inner, *routers) for each in router.routes):
        if isinstance(route, Route) and route.path not in WITHOUT_PAGE:
            asked = ({"type": "http", "method": "GET", "path": path} for path in reached)
            if not any(route.matches(each)[0] is Match.FULL for each in asked):
                wrong[route.path] = "no page links to it"
    return wrong
