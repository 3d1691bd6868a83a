"""A small store of every schema since 0.1.0, with its models and states, which every later version
must open.

`python -m tests.support.kept_store` makes the file of the newest revision. Make it when you add a
revision, with the code that adds it, and never again: it stands for the stores that users have.
"""

import json
import shutil
import sqlite3
import zipfile
from contextlib import closing
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from sqlalchemy import Connection, Engine, text

from db.admin.copying import write_snapshot
from db.engine import location, open_engine, transaction, upgrade
from db.migrations import REVISION
from db.views import views
from dtml.experiments import nightly_of, vary
from dtml.markets import load_market
from dtml.prices.sessions import next_session
from dtml.sources.simulated import SimulatedMarket, SimulatedSource
from flows.nightly.context import MarketContext
from flows.nightly.night import run_night
from flows.nightly.train import train_model
from flows.settings import data_folder
from flows.upkeep.pruning import states_folder
from tests.support.nights import SMALL, FrameSource
from tests.support.places import ROOT
from tests.support.recipe import TEST, write_recipe
from tests.support.schema import newest, table_statements
from tests.support.stores import fill, keep_weights
from translation.decoding.beam_search import Search
from translation.models import load_model
from translation.recipes import read_recipe
from translation.training.distributed import SINGLE_PROCESS
from translation.training.from_recipe import train_model as train_translator
from translation.translate import translate

FOLDER = ROOT / "tests" / "stores" / "schemas"
STORE = "store.sqlite"
ABOUT = "about.json"
POSTGRESQL = "postgresql.json"  # the statements that made the schema there

MARKET = SimulatedMarket(leaders=2, followers=2, start=date(2022, 7, 1))
AS_OF = date(2024, 7, 1)
SETTINGS = SMALL | {"train_sessions": 220}  # the rankers need a year of outcomes
NIGHTS = (AS_OF, next_session("XNYS", AS_OF))
INTERRUPTED = next_session("XNYS", NIGHTS[-1])  # the training of this session ended in its midst


class InterruptionError(Exception):
    """Ends the training whose state is kept."""


def main() -> None:
    """Make the file of the newest revision."""
    file = kept_file(REVISION)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTML_DATA", folder)
        patch.setenv("DTML_REPORTS", f"{folder}/reports")
        fill_folder(Path(folder))
        keep(Path(folder), file)
    print(f"{file.relative_to(ROOT)}: {file.stat().st_size:,} bytes")  # noqa: T201


def kept_file(revision: str) -> Path:
    return FOLDER / f"{revision}.zip"


def fill_folder(folder: Path) -> None:
    """A data folder with a store of today, its models, an interrupted training and a translator."""
    engine = open_engine(f"sqlite:///{folder / 'filled.sqlite'}")
    upgrade(engine)
    fill(engine)
    keep_weights(folder)
    context = small_context(engine)
    for night in NIGHTS:
        run_night(context, night)
    leave_a_state(context)
    make_translator(folder)
    write_snapshot(engine, folder / STORE)
    engine.dispose()
    about = {
        "schema": newest().schema,
        "torch": torch.__version__,
        "translations": translations(folder),
    }
    (folder / ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")
    (folder / POSTGRESQL).write_text(json.dumps(postgresql_statements()), encoding="utf-8")


def small_context(engine: Engine) -> MarketContext:
    """The simulated market with six stocks, and an experiment of seconds."""
    market = load_market("simulated").with_symbols(sorted(MARKET.symbols))
    experiment = vary(
        nightly_of(market.model, z_close="adjusted", returns="adj_close", max_return=0.35), SETTINGS
    )
    source = FrameSource(SimulatedSource(market=MARKET).bars(date(2024, 12, 31)))
    return MarketContext(market, source, engine, experiment, "cpu")


def leave_a_state(context: MarketContext) -> None:
    """The state of a training that ended after its first epoch."""

    def interrupt(*_: object) -> None:
        raise InterruptionError

    with pytest.raises(InterruptionError):
        train_model(context, INTERRUPTED, interrupt)
    assert any(states_folder("nightly").iterdir())


def make_translator(folder: Path) -> None:
    """A tiny translation model, in its place below the data folder."""
    with TemporaryDirectory() as work:
        file = write_recipe(Path(work))
        narrow = file.read_text().replace("d_model = 32", "d_model = 16")
        file.write_text(narrow.replace("d_ff = 64", "d_ff = 32"))
        recipe = read_recipe(file)
        train_translator(
            recipe,
            folder / "translation",
            work=Path(work) / "work",
            device=torch.device("cpu"),
            process_group=SINGLE_PROCESS,
        )


def translations(folder: Path) -> list[str]:
    """What the translator of a filled folder makes of a few sentences."""
    model = load_model(folder / "translation" / "tiny", torch.device("cpu"))
    found = translate(model, [source for source, _ in TEST], Search(beams=1))
    return [translation.text for translation in found]


def postgresql_statements() -> list[str]:
    """What makes the newest schema, without a row, in an empty PostgreSQL database."""
    # psycopg doubles a % in a statement that takes parameters, and these take none.
    made = [said.replace("%%", "%") for said in table_statements("postgresql+psycopg://")]
    version = [
        "create table alembic_version (version_num varchar(32) primary key)",
        f"insert into alembic_version values ('{REVISION}')",
    ]
    shown = [statement for view in views().values() for statement in (view.sql, view.comments)]
    return [*made, *version, *shown]


def keep(folder: Path, file: Path) -> None:
    """Pack what of a filled folder is kept."""
    file.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as packed:
        for name in (STORE, ABOUT, POSTGRESQL):
            packed.write(folder / name, name)
        for kind in ("models", "training", "translation"):
            for part in sorted((folder / kind).rglob("*")):
                if part.is_file() and part.suffix != ".lock":
                    packed.write(part, part.relative_to(folder).as_posix())


def unpack(revision: str, folder: Path) -> dict[str, Any]:
    """Put a kept store into an empty folder; return what was noted when it was made."""
    with zipfile.ZipFile(kept_file(revision)) as packed:
        packed.extractall(folder)
    about: dict[str, Any] = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    return about


def open_kept(revision: str, url: str) -> Engine:
    """Open the kept store of a revision, as it was, at the URL of an empty place.

    Its models and states are put into the data folder.
    """
    unpack(revision, data_folder())
    engine = open_engine(url)
    if engine.dialect.name == "sqlite":
        engine.dispose()
        shutil.copy(data_folder() / STORE, location(engine))
        return engine
    statements = json.loads((data_folder() / POSTGRESQL).read_text(encoding="utf-8"))
    with transaction(engine) as conn:
        for statement in statements:
            conn.exec_driver_sql(statement, execution_options={"no_parameters": True})
        fill_postgresql(conn, data_folder() / STORE)
    return engine


def fill_postgresql(conn: Connection, store: Path) -> None:
    """Copy every row of an SQLite store of the same schema, whatever this version's tables are."""
    with closing(sqlite3.connect(store)) as source:
        for table in tables_in_order(conn):
            rows = source.execute(f'select * from "{table}"')
            names = [column[0] for column in rows.description]
            columns = ", ".join(f'"{name}"' for name in names)
            marks = ", ".join(["%s"] * len(names))
            # PostgreSQL reads each value from its text, as the column's type has it.
            values = [tuple(as_text(value) for value in row) for row in rows]
            if values:
                statement = f'insert into "{table}" ({columns}) values ({marks})'
                conn.exec_driver_sql(statement, values)
    numbered = "table_schema = current_schema() and column_default like 'nextval%'"
    found = conn.execute(
        text(f"select table_name, column_name from information_schema.columns where {numbered}")
    )
    for table, column in found.all():
        sequence = f"pg_get_serial_sequence('{table}', '{column}')"
        conn.exec_driver_sql(f'select setval({sequence}, (select max("{column}") from "{table}"))')


def as_text(value: object) -> str | None:
    return None if value is None else str(value)


def tables_in_order(conn: Connection) -> list[str]:
    """The tables of a PostgreSQL store, each after those that it refers to."""
    references = conn.execute(
        text(
            "select conrelid::regclass::text, confrelid::regclass::text "
            "from pg_constraint where contype = 'f'"
        )
    ).all()
    left = set(conn.dialect.get_table_names(conn)) - {"alembic_version"}
    ordered: list[str] = []
    while left:
        waiting = {
            table for table, other in references if table in left and other in left - {table}
        }
        ordered += sorted(left - waiting)
        left &= waiting
    return ordered


if __name__ == "__main__":
    main()
