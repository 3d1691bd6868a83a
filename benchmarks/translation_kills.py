"""Kill a training, the translation of a file and a queue's worker at random moments.

`python -m benchmarks.translation_kills [KILLS]`: each is killed (SIGKILL) so often, 10 times by
default, and goes on each time it is started again. Its result must be that of undisturbed work: the
same weights, the same file, each queued text translated once.
"""

import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa
import torch

from benchmarks.backtest_kills import seconds_to_end
from benchmarks.made_language import made_pairs
from db.engine import open_store, reading, transaction
from db.rows import translations
from db.tables import translation_text
from flows.translating import files as translate_files
from flows.translating import worker as translate
from flows.translating.files import translate_lines
from flows.translating.folder import models_folder
from flows.translating.models import DEMO, open_model, train_and_store
from translation.cards import read_card
from translation.decoding.beam_search import Search
from translation.recipes import read_recipe

CPU = torch.device("cpu")
GREEDY = Search(beams=1, alpha=0.0)
NAME = "demo"
TEXTS = 1500
LEASE_S = 1.0
TURNS_S = 0.02  # between two tries to find work


def main() -> None:
    """Kill each kind of work, and print how it went."""
    child_kind = os.environ.get("KILLS_CHILD")
    if child_kind:
        _child(child_kind)
        return
    kills = int(sys.argv[1]) if sys.argv[1:] else 10
    print(f"{'work':8} {'undisturbed s':>13} {'kills':>6} {'times done':>10}  result")
    broken = False
    with tempfile.TemporaryDirectory() as name:
        trained = Path(name) / "train-0"
        for kind, result in RESULTS.items():
            expected, seconds, results = _killed(Path(name), kind, result, kills, trained)
            is_same = all(killed_result == expected for killed_result in results)
            broken = broken or not is_same
            words = "the same each time" if is_same else f"DIFFERS: {expected} became {results}"
            print(f"{kind:8} {seconds:13.1f} {kills:6} {len(results):10}  {words}", flush=True)
    if broken:
        sys.exit(1)


def _killed(
    folder: Path, kind: str, result: Callable[[], str], kills: int, trained: Path
) -> tuple[str, float, list[str]]:
    """Return the result of undisturbed work, its seconds, and the results of killed work.

    There are as many of those as it takes for so many kills in all.
    """
    generator = random.Random(kind)  # noqa: S311
    died = 0
    results: list[str] = []
    _prepare(folder / f"{kind}-0", kind, trained)
    seconds = _run(kind, None)
    expected = result()
    while died < kills:
        _prepare(folder / f"{kind}-{len(results) + 1}", kind, trained)
        while died < kills and _run(kind, generator.uniform(0, seconds)) < 0:
            died += 1
        _run(kind, None)
        results.append(result())
    return expected, seconds, results


def _prepare(home: Path, kind: str, trained: Path) -> None:
    """Make a folder with what the work needs, and change to it."""
    (home / "data").mkdir(parents=True)
    os.chdir(home)
    engine = open_store()
    sources = [source for source, _ in made_pairs(TEXTS, seed=1)]
    if kind != "train":
        models_folder().symlink_to(trained / "data" / "translation")
    if kind == "file":
        Path("text").write_text("".join(f"{source}\n" for source in sources))
    if kind == "work":
        with transaction(engine) as conn:
            translations.queue_texts(conn, NAME, sources)
    engine.dispose()


def _run(kind: str, kill_after: float | None) -> float:
    """Return the seconds of the work once its process was ready; -1 when it was killed.

    It is killed `kill_after` seconds after it was ready.
    """
    environment = os.environ | {"KILLS_CHILD": kind, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "benchmarks.translation_kills"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        return seconds_to_end(child, kill_after, kind)


def _child(kind: str) -> None:
    engine = open_store()
    if kind == "train":
        recipe = read_recipe(DEMO)
        short = dict(recipe.training) | {"updates": 150, "check_every": 25}
        print("ready", flush=True)
        train_and_store(replace(recipe, training=short), "cpu", engine)
        return
    model = open_model(NAME, CPU)
    print("ready", flush=True)
    if kind == "file":
        translate_files.LINES_AT_ONCE = 100
        translate_lines(model, Path("text"), Path("out"), GREEDY, NAME)
        return
    translate.AT_ONCE = 100
    translate.LEASE_S = LEASE_S
    # The texts of a killed worker can be taken only when its lease has ended.
    while _unfinished() > 0:
        translate.work_off(engine, None, GREEDY, CPU)
        time.sleep(TURNS_S)


def _unfinished() -> int:
    is_unfinished = translation_text.c.status.in_(["queued", "taken"])
    count = sa.select(sa.func.count()).where(is_unfinished)
    with reading(open_store()) as conn:
        return int(conn.execute(count).scalar_one())


def _weights() -> str:
    return read_card(models_folder() / NAME).weights_hash


def _file() -> str:
    file_hash = hashlib.sha256(Path("out").read_bytes()).hexdigest()
    files = sorted(file.name for file in Path.cwd().glob("out*"))
    return f"{file_hash} {files}"


def _queue() -> str:
    columns = translation_text.c["id", "text", "status", "translation"]
    statement = sa.select(columns).order_by(translation_text.c.id)
    with reading(open_store()) as conn:
        rows = conn.execute(statement).all()
    return hashlib.sha256(repr(rows).encode()).hexdigest()


RESULTS: dict[str, Callable[[], str]] = {"train": _weights, "file": _file, "work": _queue}


if __name__ == "__main__":
    main()
