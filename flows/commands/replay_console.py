"""What replays and reproductions print, and the documents of them for programs."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from flows.console import SHOWN, print_frame
from flows.replay.archive import FIGURES, made_by
from flows.replay.night import Replay
from flows.replay.prediction import Reproduction
from flows.replay.training import Retraining
from flows.settings import out

PRECISE = dict.fromkeys(("probability", "replayed_probability"), ".6f") | {"difference": "+.2e"}


def replay_summary(replay: Replay) -> dict[str, Any]:
    """A replay as plain values, without its predictions."""
    night, run = replay.night, replay.run
    return {
        **{name: night[name] for name in ("market", "as_of", "target", "run_id")},
        "known_at": replay.known_at,
        "equal": not replay.reasons,
        "inputs_equal": replay.inputs_equal,
        "inputs_hash": night["inputs_hash"],
        "replayed_inputs_hash": replay.inputs_hash,
        "checkpoint_hash": run["checkpoint_hash"],
        "predictions": len(replay.predictions),
        "differing": len(replay.differing),
        "reasons": replay.reasons,
    }


def print_replay(replay: Replay) -> None:
    """Print what of a night is as it was."""
    night, run = replay.night, replay.run
    known = f"bars as known at {at(replay.known_at)}"
    out.print(f"[bold]{night['market']}, night of {night['as_of']}: {night['target']} predicted again[/bold], {known}")
    if replay.failure is not None:
        return out.print(f"not replayed: {replay.failure}")
    out.print(f"inputs       {_inputs(replay)}")
    out.print(f"model        {run['id']}, checkpoint as recorded, SHA-256 {run['checkpoint_hash'][:12]}...")
    out.print(f"predictions  {_predictions(replay)}")
    same = replay.left_out == replay.left_out_again
    left_out = "the same" if same else f"{len(replay.left_out_again)} stocks, the night had"
    out.print(f"left out     {left_out} {len(replay.left_out)} stocks")
    out.print(f"computed by  {made_by(run, replay.device)}")
    return None


def print_at_moment(replay: Replay, restated: dict[str, int]) -> None:
    """Print what became of a night's bars until another moment, and its predictions then and from them."""
    night = replay.night
    counts = f"{restated['restated']} restated, {restated['new']} new, {restated['gone']} not known"
    out.print(f"since        of the bars in reach of its windows, as known at {at(night['known_at'])}: {counts}")
    rows = replay.predictions.assign(
        difference=replay.predictions["replayed_probability"] - replay.predictions["probability"]
    )
    print_frame(rows[["symbol", "probability", "replayed_probability", "difference"]], formats=PRECISE)


def print_all(name: str, replays: list[Replay], seconds: float) -> None:
    """Print how many nights are as they were, and a line for each that is not."""
    wrong = [replay for replay in replays if replay.reasons]
    for replay in wrong:
        out.print(f"{replay.night['as_of']}  {'; '.join(replay.reasons)}")
    out.print(
        f"{name}: {len(replays)} nights replayed, {replays[0].night['as_of']} .. {replays[-1].night['as_of']}, "
        f"{len(replays) - len(wrong)} equal to the last bit, {1000 * seconds / len(replays):.0f} ms each"
    )


def reproduction_summary(found: Reproduction, trained: Retraining | None) -> dict[str, Any]:
    """A reproduction, and the training if there was one, as plain values."""
    run = found.run
    names = ("kind", "train_first", "train_last", "seeds", "data_watermark", "code_version", "checkpoint_hash")
    document = {
        "receipt": str(found.receipt),
        **{name: run[name] for name in ("market", *names)},
        "config_digest": found.config_digest,
        "known_at": found.prediction["known_at"],
        "universe": found.universe,
        "inputs_hash": found.night_hash,
        "reproduced_inputs_hash": found.inputs_hash,
        **{name: found.prediction[name] for name in FIGURES},
        **{f"reproduced_{name}": None if found.again is None else found.again[name] for name in FIGURES},
        "equal": not found.reasons,
        "reasons": found.reasons,
    }
    if trained is None:
        return document
    again = {name: getattr(trained, name) for name in ("checkpoint_hash", "differing", "restored")}
    return document | {"retrained": again | {"equal": not trained.reasons, "reasons": trained.reasons}}


def print_reproduction(found: Reproduction, trained: Retraining | None) -> None:
    """Print a receipt with all that it leads to, the prediction made again, and the model trained again."""
    run, made, again = found.run, found.prediction, found.again
    span = f"trained on {run['train_first']} .. {run['train_last']}, seeds {', '.join(map(str, run['seeds']))}"
    out.print(f"[bold]{found.receipt}[/bold]")
    out.print(f"run          {run['id']}, {run['kind']}, {span}")
    out.print(f"settings     SHA-256 {found.config_digest[:12]}..., code {run['code_version']}")
    out.print(f"checkpoint   as recorded, SHA-256 {run['checkpoint_hash']}")
    out.print(f"bars         as known at {at(made['known_at'])}, trained on as known at {at(run['data_watermark'])}")
    out.print(f"stocks       {found.universe}")
    out.print(f"stored       {_figures(made)}")
    if again is not None:
        out.print(f"made again   {_figures(again)}")
    out.print(f"computed by  {made_by(run, found.device)}")
    out.print(f"found        {'; '.join(found.reasons) or 'equal to the last bit'}")
    if trained is not None:
        equal = f"the weights are the same to the last bit, {trained.parameters} parameters"
        if trained.restored:
            equal = "the checkpoint was lost, came out as it was, and lies there again"
        out.print(f"retrained    {'; '.join(trained.reasons) or equal}; checkpoint SHA-256 {trained.checkpoint_hash}")


def at(moment: datetime) -> str:
    """A moment in UTC, to the microsecond, as it can be given to --known-at."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _inputs(replay: Replay) -> str:
    recorded, found = str(replay.night["inputs_hash"]), f"SHA-256 {str(replay.inputs_hash)[:12]}..."
    return f"equal, {found}" if replay.inputs_equal else f"differ: {found}, the night recorded {recorded[:12]}..."


def _figures(prediction: Mapping[str, float]) -> str:
    """Every digit that there is."""
    return ", ".join(f"{name} {float(prediction[name])!r}" for name in FIGURES)


def _predictions(replay: Replay) -> str:
    count, rows = len(replay.predictions), replay.differing
    if rows.empty:
        return f"{count} of {count} equal to the last bit"
    symbol, by = replay.largest
    listed = ", ".join(rows["symbol"].head(SHOWN)) + (", ..." if len(rows) > SHOWN else "")
    return f"{len(rows)} of {count} differ, most that of {symbol} by {by:.2g}: {listed}"
