"""A study: computed once, its trainings kept in files until its rows are stored, then its page."""

import hashlib
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pandas as pd
from filelock import FileLock, Timeout

from dtml.errors import DtmlError
from flows.service.tasks import as_flow
from flows.settings import data_folder, err, page_of, write_page
from flows.signals import signals_of


class StoredStudy(Protocol):
    """The rows of a study in the store."""

    @property
    def row(self) -> Mapping[str, Any]:
        """Return the study's own row."""


Stored = TypeVar("Stored", bound=StoredStudy)


class Study(ABC, Generic[Stored]):
    """What is to be run; a subclass says what its figures depend on, and how they are made."""

    table: ClassVar[str]  # that has the study's own row
    read_at: ClassVar[str]  # the column of the moment at which that row was complete

    @property
    @abstractmethod
    def id(self) -> str:
        """Return its name (`study_id`)."""

    @abstractmethod
    def make(self) -> None:
        """Train, score and store its rows, once; trainings that `folder` has are not made again."""

    @abstractmethod
    def stored(self) -> Stored | None:
        """Return it from the store; None where it is not stored, or not whole."""

    @abstractmethod
    def page(self, stored: Stored) -> str:
        """Render its page from what is stored."""

    def add(self, stored: Stored) -> None:
        """Store what was asked for beside it, which may be more each time; by default nothing."""

    @property
    def folder(self) -> Path:
        """Return the folder of its trainings."""
        return data_folder() / f"{self.table}s" / self.id


def study_id(market: str, first: date, settings: list[Any], bars: pd.DataFrame) -> str:
    """Return a name of a market, a first session, and a digest of all that decides the figures."""
    text = json.dumps([version("dtml-nightshift"), *settings], default=str)
    digest = hashlib.sha256(text.encode())
    digest.update(pd.util.hash_pandas_object(bars, index=False).to_numpy().tobytes())
    return f"{market}-{first}-{digest.hexdigest()[:8]}"


def run_study(study: Study[Stored]) -> Stored:
    """Return a study from the store, made, resumed, or its page written, where that is missing.

    Raises DtmlError where another process is running it.
    """

    def make() -> None:
        with signals_of(attended=True):  # inside the flow, which sets a handler of its own
            study.make()

    study.folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(study.folder.with_suffix(".lock"))
    try:
        with lock.acquire(timeout=0):
            stored = study.stored()
            is_new = stored is None
            if stored is None:
                as_flow(study.table, study.id, make)
                stored = study.stored()
                assert stored is not None
            else:
                err.print(f"stored on {stored.row[study.read_at]:%Y-%m-%d}: nothing was trained")
            shutil.rmtree(study.folder, ignore_errors=True)
            page = page_of(study.table, stored.row)
            if is_new or not page.exists():  # a run may be killed before it writes the page
                write_page(page, study.page(stored))
            study.add(stored)
            return stored
    except Timeout as error:
        raise DtmlError(
            f"another process is running the {study.table} {study.id}: wait until it ends"
        ) from error
