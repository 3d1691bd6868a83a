"""A revision after the newest, as the next dtml would bring it: every store
made before is an older one.
"""

import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from db import migrations
from db.migrations import REVISION
from db.views import View, parse_view, views

NEXT = f"{int(REVISION) + 1:04d}"
CHANGES = """
    op.create_table("made_up", sa.Column("id", sa.Integer, primary_key=True))
    op.add_column("instrument", sa.Column("made_up", sa.String))
    op.execute("update instrument set sector = 'Zinc' where sector = 'Tin'")
"""
SCRIPT = """
import sqlalchemy as sa
from alembic import op

revision = {revision!r}
down_revision = {before!r}


def upgrade():
    {changes}
"""
ALERTS = """-- Alerts by market: one row per market and kind.
--
-- market  text     Name of the market.
-- kind    text     What happened.
-- n       integer  Alerts of that kind.
select market, kind, count(*) as n
from alert
group by market, kind
"""


def next_views() -> dict[str, View]:
    """The views of the next dtml: one new, one replaced, by which a column went
    and another came.
    """
    replaced = parse_view("alert_log", ALERTS.replace("alert\n", "alert -- anew\n"))
    return {**views(), "alert_log": replaced, "alert_count": parse_view("alert_count", ALERTS)}


def become_next(monkeypatch: pytest.MonkeyPatch, folder: Path, changes: str = CHANGES) -> None:
    """Let this process be the next dtml, whose schema is NEXT, made of the
    newest by these changes.
    """
    scripts = folder / "migrations"
    shutil.copytree(migrations.FOLDER, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    script = SCRIPT.format(revision=NEXT, before=REVISION, changes=changes.strip())
    (scripts / "versions" / f"{NEXT}.py").write_text(script, encoding="utf-8")
    monkeypatch.setattr(migrations, "FOLDER", scripts)
    monkeypatch.setattr("db.engine.REVISIONS", (REVISION, NEXT))
    for module in ("flows.upkeep.backups", "db.admin.checks", "db.engine"):
        monkeypatch.setattr(f"{module}.REVISION", NEXT)


def tables_and_views(engine: Engine) -> tuple[set[str], set[str]]:
    inspector = sa.inspect(engine)
    return set(inspector.get_table_names()) - {"alembic_version"}, set(inspector.get_view_names())
