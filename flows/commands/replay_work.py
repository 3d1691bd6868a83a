"""The commands that make past nights again: they read the store, write nothing to it, and need no Prefect."""

import time
from contextlib import suppress
from datetime import UTC, date, datetime
from datetime import time as clock
from pathlib import Path

from db.engine import open_reader
from dtml.errors import UsageError
from flows.commands.replay_console import (
    print_all,
    print_at_moment,
    print_replay,
    print_reproduction,
    replay_summary,
    reproduction_summary,
)
from flows.console import print_json
from flows.nightly.context import Order, experiment_of
from flows.progress import training_progress
from flows.replay.archive import Archive, NotReplayedError, open_archive
from flows.replay.night import Replay, replay_of, restated_since
from flows.replay.prediction import Receipt, market_of, reproduce, run_of
from flows.replay.training import retrain


def replay_night(order: Order, as_of: date | None, known_at: str | None, *, as_json: bool) -> None:
    """Replay a night and print it; raises NotReplayedError when it differs from what is stored."""
    moment = None if known_at is None else moment_of(known_at)
    archive = open_archive(order)
    replay = replay_of(archive, archive.night(as_of), moment)
    if moment is not None and replay.failure is None:
        return _show_at_moment(archive, replay, as_json=as_json)
    if as_json:
        print_json(replay_summary(replay) | {"predictions": replay.predictions})
    else:
        print_replay(replay)
    if replay.reasons:
        night = replay.night
        raise NotReplayedError(f"night {night['as_of']} of {night['market']}: {'; '.join(replay.reasons)}")
    return None


def replay_all(order: Order, as_of: date | None, known_at: str | None, *, as_json: bool) -> None:
    """Replay every complete night of a market; raises NotReplayedError when any differs from what is stored."""
    if as_of is not None or known_at is not None:
        raise UsageError("--all replays every night as it was known: leave out --as-of and --known-at")
    archive = open_archive(order)
    nights = archive.nights()
    begun = time.perf_counter()
    replays = [replay_of(archive, night) for night in nights]
    seconds = time.perf_counter() - begun
    if as_json:
        print_json([replay_summary(replay) for replay in replays])
    else:
        print_all(archive.market.name, replays, seconds)
    if wrong := [str(replay.night["as_of"]) for replay in replays if replay.reasons]:
        raise NotReplayedError(f"{len(wrong)} of {len(replays)} nights differ: {', '.join(wrong)}")


def reproduce_prediction(text: str, market_file: Path | None, device: str, *, train_again: bool, as_json: bool) -> None:
    """Make a prediction again and print it beside its receipt; raises NotReplayedError when it is another."""
    receipt, engine = Receipt.read(text), open_reader()
    run = run_of(engine, receipt)
    archive = Archive(engine, market_of(run, market_file), device)
    trained = None
    if train_again:  # first, as it makes weights again that are lost
        with training_progress(experiment_of(run).members_of()) as on_epoch:
            trained = retrain(archive, run, on_epoch)
    found = reproduce(archive, receipt, run)
    if as_json:
        print_json(reproduction_summary(found, trained))
    else:
        print_reproduction(found, trained)
    if reasons := found.reasons + (trained.reasons if trained else []):
        raise NotReplayedError(f"{receipt}: {'; '.join(reasons)}")


def moment_of(text: str) -> datetime:
    """The moment that `--known-at` names: ISO 8601 with a zone, or a date, whose end in UTC is meant."""
    with suppress(ValueError):
        return datetime.combine(date.fromisoformat(text), clock.max, UTC)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--known-at {text!r} is no moment: write 2026-11-20T21:30:00+00:00 or a date") from error
    if moment.tzinfo is None:
        raise UsageError(f"--known-at {text!r} has no time zone: write {text}+00:00 or another offset")
    return moment


def _show_at_moment(archive: Archive, replay: Replay, *, as_json: bool) -> None:
    restated = restated_since(archive, replay)
    if as_json:
        return print_json(replay_summary(replay) | {"bars_since": restated, "predictions": replay.predictions})
    print_replay(replay)
    return print_at_moment(replay, restated)
