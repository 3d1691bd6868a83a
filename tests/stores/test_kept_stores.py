"""A store of every schema since 0.1.0, its models and its states open with this version, on both
engines.
"""

import json
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import pandas as pd
import pytest
import sqlalchemy as sa
import torch
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from fastapi.routing import APIRoute
from sqlalchemy import Connection, Engine

from db import tables
from db.admin.checks import check_store
from db.engine import open_engine, reading, require_current_schema, transaction, upgrade
from db.errors import StoreError, StoreUsageError
from db.migrations import REVISION, revisions
from db.rows import backtests
from db.rows.nights import alerts, raise_alert
from db.views import views
from dtml.markets import load_market
from dtml.training.state import StateFolder, start
from flows.backtest.walk import Result
from flows.dashboard.app import dashboard, pages
from flows.printed_studies import print_backtest
from flows.replay import Archive, replay_of
from flows.service.alerts import Kind
from flows.settings import data_folder
from flows.upkeep.pruning import states_folder
from tests.support.browser import served
from tests.support.kept_store import (
    ABOUT,
    NIGHTS,
    kept_file,
    open_kept,
    small_context,
    translations,
    unpack,
)
from tests.support.schema import newest
from translation.atomic_files import write_whole

Rows = dict[str, list[str]]


@pytest.fixture(params=revisions())
def revision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kept(revision: str, store_url: str) -> Iterator[Engine]:
    """The kept store of a revision, as it was left, and its files in the data folder."""
    opened = open_kept(revision, store_url)
    yield opened
    opened.dispose()


def columns_of(engine: Engine) -> dict[str, list[str]]:
    inspector = sa.inspect(engine)
    names = set(inspector.get_table_names()) - {"alembic_version"}
    return {name: [column["name"] for column in inspector.get_columns(name)] for name in names}


def rows_of(engine: Engine, columns: dict[str, list[str]]) -> Rows:
    """Every row of these columns, in an order of its own."""
    found: Rows = {}
    with reading(engine) as conn:
        for table, names in columns.items():
            listed = ", ".join(f'"{name}"' for name in names)
            rows = conn.exec_driver_sql(f'select {listed} from "{table}"')
            found[table] = sorted(str(row) for row in rows)
    return found


def test_the_newest_schema_has_a_kept_store() -> None:
    to_do = "run `python -m tests.support.kept_store`, which makes it"
    assert kept_file(REVISION).is_file(), f"no store of schema {REVISION} is kept: {to_do}"
    with zipfile.ZipFile(kept_file(REVISION)) as packed:
        about: dict[str, Any] = json.loads(packed.read(ABOUT))
    assert about["schema"] == newest().schema, f"the kept store has another schema: {to_do}"


def test_every_kept_store_is_of_a_schema_that_is_known() -> None:
    assert sorted(file.stem for file in kept_file(REVISION).parent.iterdir()) == revisions()


def test_an_upgrade_of_a_kept_store_keeps_every_row(kept: Engine, revision: str) -> None:
    columns = columns_of(kept)
    before = rows_of(kept, columns)
    assert all(before.values()), "every table has a row"
    if revision != REVISION:
        with pytest.raises(StoreUsageError, match=rf"schema {revision},.*`dtml db upgrade`"):
            require_current_schema(kept)
    assert upgrade(kept) is (revision != REVISION)
    require_current_schema(kept)
    assert rows_of(kept, columns) == before
    assert {finding.state for finding in check_store(kept)} == {"ok"}


@pytest.mark.soak
@pytest.mark.slow
def test_an_upgraded_store_has_the_schema_of_a_new_one(kept: Engine) -> None:
    upgrade(kept)
    with reading(kept) as conn:
        context = MigrationContext.configure(conn, opts={"compare_server_default": True})
        assert compare_metadata(context, tables.metadata) == []


def test_an_upgraded_store_takes_every_kind_of_alert_and_no_other(kept: Engine) -> None:
    upgrade(kept)
    kinds = get_args(Kind)
    day = NIGHTS[-1]
    with transaction(kept) as conn:
        for kind in kinds:
            raise_alert(conn, "toy", day, kind, message="", raised_at=datetime.now(UTC))
    with pytest.raises(StoreError), transaction(kept) as conn:
        raise_alert(conn, "toy", day, "another", message="", raised_at=datetime.now(UTC))
    with reading(kept) as conn:
        stored = alerts(conn, "toy")
    assert set(stored.loc[stored["as_of"] == pd.Timestamp(day), "kind"]) == set(kinds)


def addresses_of(conn: Connection) -> list[str]:
    """Every page of the dashboard, with every name that the store has for it."""
    names: dict[str, list[str]] = {"table": list(views())}
    for kind in ("run", "backtest", "benchmark", "ranking"):
        ids = sa.select(tables.metadata.tables[kind].c.id)
        names[kind] = [str(name) for name in conn.execute(ids).scalars()]
    symbols = "select distinct market, symbol from price_latest order by market, symbol"
    stocks = [(row.market, row.symbol) for row in conn.execute(sa.text(symbols))]
    markets = sorted({market for market, _symbol in stocks})
    found: list[str] = []
    for route in pages.routes:
        assert isinstance(route, APIRoute)
        path = route.path
        if "{symbol}" in path:
            filled = [{"market": market, "symbol": symbol} for market, symbol in stocks]
        elif "{market}" in path:
            filled = [{"market": market} for market in markets]
        elif "{name}" in path:
            filled = [{"name": name} for name in names[path.split("/")[1]]]
        else:
            filled = [{}]
        assert filled, f"the store has nothing for {path}"
        for values in filled:
            quoted = {key: quote(value, safe="") for key, value in values.items()}
            found.append(path.format_map(quoted))
    return found


@pytest.mark.slow
def test_every_page_shows_an_upgraded_store(kept: Engine, store_url: str) -> None:
    upgrade(kept)
    with reading(kept) as conn:
        addresses = addresses_of(conn)
    engine = open_engine(store_url, read_only=True)
    with served(dashboard(engine), engine) as site:
        answers = {address: site.get(address) for address in addresses}
        for answer in list(answers.values()):
            if answer.status == HTTPStatus.SEE_OTHER:
                address = answer.headers["location"]
                answers[address] = site.get(address)
    statuses = {address: answer.status for address, answer in answers.items()}
    good = (HTTPStatus.OK, HTTPStatus.SEE_OTHER)
    assert {address: status for address, status in statuses.items() if status not in good} == {}


def test_a_backtest_of_an_upgraded_store_is_printed_again(
    kept: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    upgrade(kept)
    with reading(kept) as conn:
        (name,) = conn.execute(sa.text("select id from backtest")).scalars()
        row = backtests.backtest(conn, name)
        assert row is not None
        result = Result(
            row=row,
            folds=backtests.backtest_folds(conn, name).assign(validation_acc=0.5),
            scores=backtests.backtest_scores(conn, name),
            portfolios=backtests.backtest_portfolios(conn, name),
            page=Path("page.html"),
        )
    print_backtest(result)
    assert "year has 252 sessions" in capsys.readouterr().out


@pytest.mark.soak
@pytest.mark.slow
def test_the_nights_of_a_kept_store_replay(kept: Engine, store_url: str) -> None:
    upgrade(kept)
    archive = Archive(open_engine(store_url, read_only=True), load_market("simulated"), "cpu")
    replays = [replay_of(archive, night) for night in archive.nights()]
    assert [replay.night["as_of"] for replay in replays] == list(NIGHTS)
    assert [len(replay.predictions) for replay in replays] == [6, 6]
    assert [replay.reasons for replay in replays] == [[], []]
    archive.engine.dispose()


@pytest.mark.slow
def test_a_training_that_was_interrupted_before_an_upgrade_goes_on(
    revision: str, engine: Engine
) -> None:
    unpack(revision, data_folder())
    (folder,) = states_folder("nightly").iterdir()
    member, *_ = small_context(engine).experiment.members_of()
    fit = start(member, stocks=6, device=torch.device("cpu"))
    drawn = {name: value.clone() for name, value in fit.weights.items()}
    assert StateFolder(folder, write_whole).restore(fit)
    assert [epoch.number for epoch in fit.epochs] == [1]
    assert any(not torch.equal(value, drawn[name]) for name, value in fit.weights.items())


def test_a_translator_that_is_kept_translates_as_before(revision: str, tmp_path: Path) -> None:
    about = unpack(revision, tmp_path)
    assert len(set(about["translations"])) > 10
    assert translations(tmp_path) == about["translations"]
