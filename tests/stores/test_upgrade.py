"""A store of an older dtml keeps every row when it is upgraded, or stays as it was."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from db import tables as schema
from db.admin.checks import check_store
from db.engine import open_engine, prepare, reading, require_current_schema, transaction, upgrade
from db.errors import StoreError, StoreUsageError
from db.migrations import REVISION
from db.views import views as documented_views
from tests.support.revisions import CHANGES, NEXT, become_next, next_views, tables_and_views
from tests.support.stores import contents, fill


@pytest.fixture
def old(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A store with rows in every table, older than the program is from now on."""
    fill(engine)
    become_next(monkeypatch, tmp_path)
    return engine


def seen(engine: Engine) -> dict[str, list[str]]:
    """Every row of every view, in an order of its own."""
    with reading(engine) as conn:
        return {
            name: sorted(
                str(row)
                for row in conn.execute(sa.text(f"select {', '.join(view.meanings())} from {name}"))
            )
            for name, view in documented_views().items()
        }


@pytest.mark.slow
def test_an_older_store_asks_for_an_upgrade_and_gets_it(old: Engine) -> None:
    for use in (require_current_schema, prepare):
        with pytest.raises(
            StoreUsageError,
            match=rf"schema {REVISION}, too old .*\({NEXT}\):.*`dtml db upgrade`",
        ):
            use(old)
    assert upgrade(old)
    assert not upgrade(old)
    require_current_schema(old)
    prepare(old)


@pytest.mark.soak
def test_an_upgrade_keeps_every_row_and_changes_what_it_says(old: Engine) -> None:
    tables, views = tables_and_views(old)
    rows, shown = contents(old), seen(old)
    assert upgrade(old)
    assert tables_and_views(old) == (tables | {"made_up"}, views)
    changed = contents(old)
    assert "Tin" in str(rows.pop("instrument"))
    assert "Tin" not in str(moved := changed.pop("instrument"))
    assert "Zinc" in str(moved)
    assert changed == rows
    assert {view: str(held).replace("Zinc", "Tin") for view, held in seen(old).items()} == {
        view: str(held) for view, held in shown.items()
    }
    assert {finding.state for finding in check_store(old)} == {"ok"}


@pytest.mark.slow
def test_foreign_keys_hold_after_an_upgrade(old: Engine) -> None:
    upgrade(old)
    for statement in (
        sa.delete(schema.run).where(schema.run.c.id == "first"),
        sa.update(schema.prediction).values(run_id="nothing"),
        sa.update(schema.night).values(run_id="nothing"),
    ):
        with pytest.raises(StoreError, match=r"(?i)foreign key"), transaction(old) as conn:
            conn.execute(statement)


@pytest.mark.slow
def test_an_upgrade_that_fails_half_way_changes_nothing(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(engine)
    before, made = contents(engine), tables_and_views(engine)
    become_next(monkeypatch, tmp_path, f"{CHANGES}\n    raise InterruptedError")
    with pytest.raises(InterruptedError):
        upgrade(engine)
    assert (contents(engine), tables_and_views(engine)) == (before, made)
    with pytest.raises(StoreUsageError, match="run `dtml db upgrade`"):
        require_current_schema(engine)


@pytest.mark.slow
def test_an_upgrade_replaces_views_and_adds_new_ones(
    old: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {name: held for name, held in contents(old).items() if name != "instrument"}
    monkeypatch.setattr("db.views.views", next_views)
    assert upgrade(old)
    assert {
        name: held for name, held in contents(old).items() if name not in ("instrument", "made_up")
    } == rows
    with reading(old) as conn:
        counted, added = (
            conn.execute(sa.text(f"select * from {name}")) for name in ("alert_log", "alert_count")
        )
        assert list(counted.keys()) == list(added.keys()) == ["market", "kind", "n"]
        assert sorted(counted.all()) == sorted(added.all())


def test_a_new_store_is_created_whole(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become_next(monkeypatch, tmp_path)
    engine = open_engine(store_url)
    prepare(engine)
    assert tables_and_views(engine) == (set(schema.metadata.tables), set(documented_views()))
    with reading(engine) as conn:
        assert conn.exec_driver_sql("select version_num from alembic_version").scalars().all() == [
            NEXT
        ]
