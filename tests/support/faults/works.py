"""The works that faults are tried on: the product's own commands in small,
without Prefect's server.
"""

import shutil
import socket
import subprocess
import time
from datetime import date, timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import sqlalchemy as sa
import torch

from db.admin.copying import NO_PROGRESS
from db.engine import open_store, reading, transaction
from db.rows import translations
from db.tables import translation_text
from dtml.errors import DtmlError
from dtml.experiments import nightly_of, vary
from dtml.markets import load_market
from dtml.prices.sessions import next_session
from flows.markets.opened import RunRequest
from flows.nightly.context import MarketContext, Tonight
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import run_night
from flows.nightly.train import train_model
from flows.service import prefect_server as server
from flows.service import runner as serving
from flows.service.prefect_server import Server
from flows.service.runner import service_of
from flows.translating import files as translate_files
from flows.translating import worker as translate
from flows.translating.folder import model_names, models_folder
from flows.translating.models import open_model, train_and_store
from flows.upkeep.backups import back_up, checkpoints, read_backup, restore
from tests.support.faults.runs import Work
from tests.support.nights import AS_OF, BARS, SIMULATED, SMALL, FrameSource
from tests.support.recipe import SOURCES, write_recipe
from translation.decoding.beam_search import Search
from translation.models import load_model
from translation.recipes import read_recipe

NEXT = next_session("XNYS", AS_OF)
CPU, GREEDY = torch.device("cpu"), Search(beams=1, alpha=0.0)
TEXTS, AT_ONCE, LEASE_S, LINES_AT_ONCE = 12, 5, 0.2, 4


def context() -> MarketContext:
    """A desk of the small market, on the store of the environment."""
    market = load_market("simulated").with_symbols(sorted(SIMULATED.market.symbols))
    experiment = vary(
        nightly_of(market.model, z_close="adjusted", returns="adj_close", max_return=0.35), SMALL
    )
    return MarketContext(market, FrameSource(BARS), open_store(), experiment, "cpu")


def night(as_of: date) -> None:
    """A night of it."""
    run_night(context(), as_of)


def weights_are_whole(_home: Path) -> list[str]:
    """What is wrong with the weights of a run that the store knows."""
    return [f"{run}: {wrong}" for run, _, _, wrong in checkpoints(open_store()) if wrong]


def keep(home: Path) -> None:
    """A backup, unless there is one."""
    back_up(open_store(), home / "kept", NO_PROGRESS)


def lose(home: Path) -> None:
    """A backup, and nothing but it."""
    night(AS_OF)
    keep(home)
    shutil.rmtree(home / "data")
    store = open_store()
    if store.dialect.name == "postgresql":
        with transaction(store) as conn:
            conn.execute(sa.text("drop schema public cascade"))
            conn.execute(sa.text("create schema public"))
    open_store()


def bring_back(home: Path) -> None:
    """What was kept."""
    restore(home / "kept", read_backup(home / "kept"), open_store(), NO_PROGRESS)


def kept_is_whole(home: Path) -> list[str]:
    """What is wrong with a backup that is there."""
    try:
        if (home / "kept").exists():
            read_backup(home / "kept")
    except DtmlError as error:
        return [str(error)]
    return []


def learn(home: Path) -> None:
    """A training of a translator, of four steps."""
    recipe = read_recipe(home / "corpus" / "tiny.toml")
    train_and_store(recipe, "cpu", open_store())


def corpus(home: Path) -> None:
    """What it reads."""
    (home / "corpus").mkdir()
    write_recipe(home / "corpus", updates=4, check_every=2, dropout=0.1)
    open_store()


def learned(home: Path) -> None:
    """A translator, and texts to translate."""
    corpus(home)
    learn(home)
    (home / "text").write_text("".join(f"{text}\n" for text in SOURCES[:TEXTS]))
    with transaction(open_store()) as conn:
        translations.queue_texts(conn, "tiny", SOURCES[:TEXTS])


def one_translates(_home: Path) -> list[str]:
    """Whether there is a translator that can be opened, the one before or the new one."""
    return (
        []
        if model_names() == ["tiny"] and load_model(models_folder() / "tiny", CPU)
        else ["there is no model"]
    )


def translate_file(home: Path) -> None:
    """A file, a few lines at a time."""
    with mock.patch.object(translate_files, "LINES_AT_ONCE", LINES_AT_ONCE):
        translate_files.translate_lines(
            open_model("tiny", CPU), home / "text", home / "out", GREEDY, "tiny"
        )


def translate_queue(_home: Path) -> None:
    """All that is queued; what a killed worker held is free when its lease ends."""
    store = open_store()
    # a lease is renewed at each turn, on any machine
    clock = SimpleNamespace(monotonic=count().__next__)
    with mock.patch.multiple(translate, AT_ONCE=AT_ONCE, LEASE_S=LEASE_S, time=clock):
        while _unfinished(store):
            translate.work_off(store, None, GREEDY, CPU)
            time.sleep(LEASE_S / 10)


def serve(_home: Path) -> None:
    """The start of a service, up to the place where its server runs, and its
    end; the server only waits.
    """
    open_store()
    service = service_of(["simulated"], [], RunRequest("simulated"), timedelta(minutes=150), None)
    started = mock.patch.multiple(
        server, _start=_waiting, _wait=lambda *_: None, import_prefect=lambda: None
    )
    with started, mock.patch.object(serving, "_serve"):
        serving.serve_markets(service)


def _waiting(listening: socket.socket, _log: object, _settings: object) -> Server:
    """Stands for a Prefect server, and ends, as one does, when the process that
    started it is gone.
    """
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    started = Server(process, "http://127.0.0.1:1/api", "user:password", listening)
    server._running.append(started)
    return started


def _unfinished(store: sa.Engine) -> int:
    of_them = sa.select(sa.func.count()).where(translation_text.c.status.in_(["queued", "taken"]))
    with reading(store) as conn:
        return int(conn.execute(of_them).scalar_one())


WORKS = {
    work.name: work
    for work in (
        Work(
            "night",
            lambda _: night(AS_OF),
            lambda _: night(NEXT),
            weights_are_whole,
            warm=lambda _: night(NEXT),
        ),
        Work("first night", lambda _: open_store(), lambda _: night(AS_OF), weights_are_whole),
        Work(
            "training",
            lambda _: fetch_bars(context(), AS_OF),
            lambda _: train_model(Tonight(context(), AS_OF)),
            weights_are_whole,
        ),
        Work(
            "backup",
            lambda _: night(AS_OF),
            keep,
            kept_is_whole,
            again="is not an empty folder",
            warm=keep,
        ),
        Work("restore", lose, bring_back, weights_are_whole, again="is not empty", warm=bring_back),
        Work("translation training", corpus, learn),
        Work("translation training again", learned, learn, one_translates),
        Work("translated file", learned, translate_file, warm=translate_file),
        Work("service", lambda _: None, serve, warm=serve),
        Work("queue", learned, translate_queue, warm=translate_queue),
    )
}
