"""A study: computed once, its trainings kept in files until its rows are stored, then its page."""

import hashlib
import json
import shutil
from abc import ABC, abstractmethod
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pandas as pd
from filelock import FileLock, Timeout
from sqlalchemy import Connection, Engine

from db.engine import reading
from dtml.errors import DtmlError
from flows.service.tasks import as_flow
from flows.settings import data_folder, err, page_of, write_page
from flows.signals import signals_of

Stored = TypeVar("Stored")  # the rows of a study; its own row is the attribute `row`


class Study(ABC, Generic[Stored]):
    """What is to be run; a subclass says what its figures depend on, and how they are made."""

    table: ClassVar[str]  # that has the study's own row
    read_at: ClassVar[str]  # the column of the moment at which that row was complete

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """Return the store."""

    @property
    @abstractmethod
    def id(self) -> str:
        """Return its name (`study_id`)."""

    @abstractmethod
    def make(self) -> None:
        """Train, score and store its rows, once; trainings that `folder` has are not made again."""

    @abstractmethod
    def read(self, conn: Connection) -> Stored | None:
        """Return it from the store; None where it is not stored, or not whole."""

    @abstractmethod
    def page(self, stored: Stored) -> str:
        """Render its page from what is stored."""

    @property
    def folder(self) -> Path:
        """Return the folder of its trainings."""
        return data_folder() / f"{self.table}s" / self.id

    def stored(self) -> Stored | None:
        """Return it from the store, as `read` does."""
        with reading(self.engine) as conn:
            return self.read(conn)


def study_id(market: str, first: date, settings: list[Any], bars: pd.DataFrame) -> str:
    """Return a name of a market, a first session, and a digest of all that decides the figures."""
    text = json.dumps([version("dtml-nightshift"), *settings], default=str)
    digest = hashlib.sha256(text.encode())
    digest.update(pd.util.hash_pandas_object(bars, index=False).to_numpy().tobytes())
    return f"{market}-{first}-{digest.hexdigest()[:8]}"


def run_study(study: Study[Stored]) -> Stored:
    """Return a study from the store; make it if it is not stored, and its page if that is missing.

    An interrupted study resumes. Raises DtmlError where another process is running it.
    """
    study.folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(study.folder.with_suffix(".lock")).acquire(timeout=0):
            is_new = study.stored() is None
            if is_new:
                study.make()
            shutil.rmtree(study.folder, ignore_errors=True)
            stored: Any = study.stored()
            page = page_of(study.table, stored.row)
            if is_new or not page.exists():  # a run may be killed before it writes the page
                write_page(page, study.page(stored))
            return stored  # type: ignore[no-any-return]
    except Timeout as error:
        raise DtmlError(
            f"another process is running the {study.table} {study.id}: wait until it ends"
        ) from error


def run_attended(study: Study[Stored], run_name: str) -> Stored:
    """Run a study for a command, perhaps as a flow whose run has this name (`as_flow`)."""
    stored: Any = study.stored()
    if stored is not None:
        err.print(f"stored on {stored.row[study.read_at]:%Y-%m-%d}: nothing was trained")
        return run_study(study)

    def run() -> Stored:
        with signals_of(attended=True):
            return run_study(study)

    return as_flow(study.table, run_name, run)
