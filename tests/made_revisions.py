"""A revision after the newest, as the next dtml would bring it: every store made before is an older one."""

import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from db import engine
from db.migrations import REVISION

NEXT = "next"
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


def become_next(monkeypatch: pytest.MonkeyPatch, folder: Path, changes: str = CHANGES) -> None:
    """Let this process be the next dtml, whose schema is NEXT, made of the newest by these changes."""
    scripts = folder / "migrations"
    shutil.copytree(engine.MIGRATIONS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    script = SCRIPT.format(revision=NEXT, before=REVISION, changes=changes.strip())
    (scripts / "versions" / "next.py").write_text(script, encoding="utf-8")
    monkeypatch.setattr(engine, "MIGRATIONS", scripts)
    for module in ("flows.backups", "db.engine", "db.migrations"):  # whoever takes it from the schema comes first
        monkeypatch.setattr(f"{module}.REVISION", NEXT)


def tables_and_views(engine: Engine) -> tuple[set[str], set[str]]:
    inspector = sa.inspect(engine)
    return set(inspector.get_table_names()) - {"alembic_version"}, set(inspector.get_view_names())
