"""The commands that compute the past again, without Prefect, and write nothing to the store.

With --retrain, the file of a model's weights may be restored.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from datetime import time as clock
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from db.engine import open_reader
from dtml.errors import UsageError
from dtml.markets.definition import LEVELS
from dtml.self_test import TOLERANCE
from flows.commands import options
from flows.commands.answers import Answer, answering
from flows.commands.options import AsOf, MarketFile, known_markets
from flows.console import ConsoleTable, Part, rendered, styled
from flows.freezing import check, is_frozen
from flows.markets.opened import RunRequest
from flows.nightly.context import experiment_of
from flows.nightly.report import publish_night
from flows.progress import training_progress
from flows.replay import (
    FIGURES,
    ROUNDING,
    Archive,
    NotReplayedError,
    Receipt,
    Replay,
    Reproduction,
    Retraining,
    made_by,
    market_of,
    replay_of,
    reproduce,
    restated_since,
    retrain,
    run_of,
)
from flows.settings import out

commands = typer.Typer()

PRECISE = {
    "probability": "{:.6f}".format,
    "replayed_probability": "{:.6f}".format,
    "difference": "{:+.2e}".format,
}
RUN_FACTS = (  # of a reproduction, from the row of its model
    "market",
    "kind",
    "train_first",
    "train_last",
    "seeds",
    "data_watermark",
    "code_version",
    "checkpoint_hash",
)
REMEDY = (  # ends the message of a replay that differs
    "; replay it with the version of dtml and on the kind of processor that made it, or, if the "
    "store was changed, restore a backup"
)
WHAT = (
    "A market that `dtml markets` lists, or a receipt, RUN/SYMBOL/TARGET, from the column receipt "
    "of latest_prediction."
)
KNOWN_AT = (
    "Use bars as known at this time (ISO 8601 with a time zone), or at the end of this day in UTC."
)
RETRAIN = "With a receipt, retrain its model and compare the weights, or restore lost weights."
REPLAY_DEVICE = "Where to compute; auto uses what computed then, the CPU or CUDA if it is here."
LEVEL = "Level of the abstention band, such as 0.9; by default the market's."


@commands.command()
@answering("json")
def replay(
    what: Annotated[
        str | None,
        typer.Argument(help=WHAT, metavar="[MARKET|RECEIPT]", autocompletion=known_markets),
    ] = None,
    market_file: MarketFile = None,
    as_of: AsOf = None,
    known_at: Annotated[str | None, typer.Option(help=KNOWN_AT)] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Replay every complete night of the market.")
    ] = False,
    train_again: Annotated[bool, typer.Option("--retrain", help=RETRAIN)] = False,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help=REPLAY_DEVICE)] = "auto",
) -> Answer:
    """Recompute a past night, or one prediction, and compare it bit for bit.

    For a market it replays the last complete night, that of --as-of, or --all. With --known-at, it
    shows what the night would have predicted from the bars as known at that time. For a receipt it
    replays that prediction, and with --retrain its model too. The exit code is 1 if anything
    differs, other than by rounding after a change of versions or processor, which it names.

    Example: dtml replay simulated --as-of 2026-11-19

    Example: dtml replay simulated-2026-11-20-1a2b3c4d/L01/2026-11-23 --retrain
    """
    if what is not None and "/" in what:
        options.refuse(
            {"--as-of": as_of, "--known-at": known_at, "--all": every},
            f"{what} is a receipt, which names a single prediction",
        )
        return _replay_prediction(what, market_file, device, train_again=train_again)
    if train_again:
        raise UsageError(
            "--retrain needs the receipt of a prediction: give one, RUN/SYMBOL/TARGET, in place of "
            "the market, or leave out --retrain"
        )
    request = options.request_of(what, market_file, device=device)
    if not every:
        return _replay_night(request, as_of, known_at)
    options.refuse(
        {"--as-of": as_of, "--known-at": known_at}, "--all replays each night from what it knew"
    )
    return _replay_all(request)


@commands.command()
@options.of_a_market("device")
def report(
    request: RunRequest,
    as_of: AsOf = None,
    level: Annotated[float | None, typer.Option(help=LEVEL)] = None,
) -> None:
    """Write the HTML page of a past night again, and print its path.

    By default, this is the page of the last complete night. --level shows the directions at another
    level; a higher level gives fewer stocks a direction.

    Example: dtml report simulated --level 0.9
    """
    if level is not None and level not in LEVELS:
        levels = ", ".join(f"{known_level:g}" for known_level in LEVELS)
        raise UsageError(f"--level must be one of {levels}; got {level:g}")
    archive = Archive.open(request)
    tonight, _ = archive.tonight(archive.night(as_of))
    out.print(str(publish_night(tonight, level)), soft_wrap=True)


def _replay_night(request: RunRequest, as_of: date | None, known_at: str | None) -> Answer:
    """Replay the night of `as_of`, by default the last complete one.

    The answer fails if the replay differs. With `known_at` it tells how the bars have changed, and
    fails only if nothing could be predicted.
    """
    moment = None if known_at is None else moment_of(known_at)
    archive = Archive.open(request)
    replay = replay_of(archive, archive.night(as_of), moment)
    night = replay.night
    if moment is None:
        (replay,) = with_links(archive, [replay])
    document = replay_summary(replay)
    text = styled(
        "replay.txt",
        replay=replay,
        night=night,
        run=replay.run,
        known_at=at(replay.known_at),
        made_by=made_by(replay.run, replay.machine),
        rounding=ROUNDING,
    )
    parts: list[Part] = [text]
    failure = None
    if moment is not None and replay.failure is None:
        # Of the bars that are not the same at the night's moment and at `moment`.
        document["bars_since"] = restated = restated_since(archive, replay)
        counts = "{restated} restated, {new} new, {gone} not known".format_map(restated)
        rows = replay.predictions[["symbol", "probability", "replayed_probability"]]
        difference = rows["replayed_probability"] - rows["probability"]
        parts += [
            "since        bars that its windows reach, compared with "
            f"{at(replay.night['known_at'])}: {counts}",
            ConsoleTable(rows.assign(difference=difference), None, PRECISE),
        ]
    elif replay.reasons:
        advice = REMEDY if replay.failure is None else ""  # a failure says what to do
        failure = NotReplayedError(
            f"night {night['as_of']} of {night['market']}: {'; '.join(replay.reasons)}{advice}"
        )
    document["predictions"] = replay.predictions
    return Answer(parts, document, failure=failure)


def _replay_all(request: RunRequest) -> Answer:
    archive = Archive.open(request)
    nights = archive.nights()
    begun = time.perf_counter()
    replays = [replay_of(archive, night) for night in nights]
    seconds = time.perf_counter() - begun
    replays = with_links(archive, replays)
    name = archive.market.name
    # Those of nights that were computed in another environment than this one, by what has changed.
    computations: dict[str, list[Replay]] = {}
    for replay in replays:
        if replay.changes is not None:
            computations.setdefault(replay.changes, []).append(replay)
    text = rendered(
        "replays.txt",
        name=name,
        replays=replays,
        computations=computations,
        rounding=ROUNDING,
        each_ms=1000 * seconds / len(replays),
    )
    differing = [str(replay.night["as_of"]) for replay in replays if replay.reasons]
    failure = NotReplayedError(
        f"{len(differing)} of {len(replays)} nights of {name} were not reproduced: "
        f"{', '.join(differing)}; `dtml replay {name} --as-of DATE` shows why"
    )
    document = [replay_summary(replay) for replay in replays]
    return Answer([text], document, failure=failure if differing else None)


def with_links(archive: Archive, replays: Sequence[Replay]) -> list[Replay]:
    """Return replays, oldest first, with links of their nights and what changed since frozen."""
    name = archive.market.name
    if not is_frozen(name):
        return list(replays)
    links, found = check(archive.engine, name, first=replays[0].night["as_of"])
    numbers = {link.as_of: link.number for link in links}
    linked = []
    for replay in replays:
        as_of = replay.night["as_of"]
        changes = tuple(str(change) for change in found if change.link.as_of == as_of)
        linked.append(
            replace(replay, link=numbers.get(as_of), changes_since_frozen=changes),
        )
    return linked


def _replay_prediction(
    text: str, market_file: Path | None, device: str, *, train_again: bool
) -> Answer:
    """Make the prediction of a receipt, RUN/SYMBOL/TARGET, again, beside the stored one.

    With `train_again` its model too, whose lost weights are restored. The answer fails where either
    differs.
    """
    receipt = Receipt.read(text)
    engine = open_reader()
    run = run_of(engine, receipt)
    archive = Archive(engine, market_of(run, market_file), device)
    trained = None
    if train_again:  # first, because it restores weights that are lost
        with training_progress(experiment_of(run).members_of()) as on_epoch:
            trained = retrain(archive, run, on_epoch)
    reproduction = reproduce(archive, receipt, run)
    part = styled(
        "reproduction.txt",
        found=reproduction,
        run=run,
        trained=trained,
        names=FIGURES,
        tolerance=TOLERANCE,
        known_at=at(reproduction.known_at),
        trained_as_known_at=at(run["data_watermark"]),
        made_by=made_by(run, reproduction.machine),
        rounding=ROUNDING,
    )
    failure = None
    reasons = [*reproduction.reasons, *(trained.reasons if trained else ())]
    if reasons:
        # Only the reason that lost weights were not reproduced says what to do.
        says_what_to_do = trained is not None and trained.lost and not trained.restored
        advice = "" if says_what_to_do else REMEDY
        failure = NotReplayedError(f"{receipt}: {'; '.join(reasons)}{advice}")
    return Answer([part], reproduction_summary(reproduction, trained), failure=failure)


def moment_of(text: str) -> datetime:
    """Return the moment of `--known-at`: ISO 8601 with a zone, or a date, its end in UTC.

    Raises UsageError for other texts.
    """
    with suppress(ValueError):  # it is no date
        return datetime.combine(date.fromisoformat(text), clock.max, UTC)
    with suppress(ValueError):  # it is no time either
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment
    raise UsageError(
        f"--known-at {text!r} is neither a date nor a time with a time zone: write it as "
        "2026-11-20 or 2026-11-20T21:30:00+00:00"
    )


def replay_summary(replay: Replay) -> dict[str, Any]:
    """Return a replay as plain values; `differing` counts stocks not equal to the last bit."""
    night = replay.night
    return {
        "market": night["market"],
        "as_of": night["as_of"],
        "target": night["target"],
        "run_id": night["run_id"],
        "known_at": replay.known_at,
        "replayed_by": replay.machine,
        "inputs_equal": replay.inputs_equal,
        "inputs_hash": night["inputs_hash"],
        "replayed_inputs_hash": replay.inputs_hash,
        "checkpoint_hash": replay.run["checkpoint_hash"],
        "predictions": len(replay.predictions),
        "differing": len(replay.differing),
        "frozen_link": replay.link,
        "changes_since_frozen": list(replay.changes_since_frozen),
        **_verdict(replay),
    }


def reproduction_summary(reproduction: Reproduction, trained: Retraining | None) -> dict[str, Any]:
    """Return a reproduction, and the retraining if there was one, as plain values.

    Figures of the prediction made again have the prefix `reproduced_`. `equal` is True, too, for
    weights that are close on a GPU.
    """
    figures = reproduction.predictions.iloc[0]
    document: dict[str, Any] = {
        "receipt": str(reproduction.receipt),
        **{name: reproduction.run[name] for name in RUN_FACTS},
        "config_digest": reproduction.config_digest,
        "known_at": reproduction.known_at,
        "universe": reproduction.universe,
        "changed_since": reproduction.changed_since,
        "inputs_hash": reproduction.recorded_hash,
        "reproduced_inputs_hash": reproduction.inputs_hash,
        **{name: figures[name] for name in FIGURES},
        **{f"reproduced_{name}": value for name, value in reproduction.again.items()},
        "reproduced_by": reproduction.machine,
        **_verdict(reproduction),
    }
    if trained is not None:
        document["retrained"] = {
            "checkpoint_hash": trained.checkpoint_hash,
            "differing": trained.differing,
            "is_close": trained.is_close,
            "restored": trained.restored,
            "equal": not trained.reasons,
            "reasons": trained.reasons,
        }
    return document


def _verdict(found: Replay | Reproduction) -> dict[str, Any]:
    """Return whether what was made again is equal, to the last bit or but for rounding."""
    return {
        "equal": not found.reasons and not found.is_rounding,
        "equal_but_for_rounding": not found.reasons and found.is_rounding,
        "computed_by": found.computed_by,
        "changes": found.changes,
        "reasons": found.reasons,
    }


def at(moment: datetime) -> str:
    """Return a moment in UTC, to the microsecond, as it can be given to --known-at."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
