"""Train a user's own code, and ask it for scores in nights, which go on without it where it fails.

Stored rankers hold the text of the code, which runs only if this user once gave it in a market's
file (`flows.markets.files`).
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float
from numpy import ndarray

from dtml.errors import DtmlError, UsageError
from dtml.own.code import OWN, OwnCode, OwnCodeError
from dtml.own.plausible import doubt
from dtml.own.process import Fitted, IsolatedCode
from dtml.ranking.panel import Grid, ranked
from dtml.ranking.rankers import Rankers, slope_of, spans_of
from dtml.ranking.walk import History
from flows.markets.files import file_of, is_trusted, keep, trusted_folder
from flows.nightly.context import MarketContext
from flows.progress import step_progress
from flows.settings import data_folder

log = logging.getLogger(__name__)


def own_code_record(context: MarketContext) -> dict[str, Any]:
    """Return what a training records of the market's own code under `OWN`; empty without any.

    The file's name and SHA-256, and `max_rank_ic` where set.
    """
    file = context.market.code
    if file is None:
        return {}
    record: dict[str, Any] = {"file": file.name, "sha256": OwnCode.read(file).sha256}
    if context.market.checks.max_rank_ic is not None:
        record["max_rank_ic"] = context.market.checks.max_rank_ic
    return {OWN: record}


def change(context: MarketContext, config: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether the market's own code differs from that in a training's `config`, and how in
    words.

    A file that cannot be read counts as the same, and the words say why.
    """
    try:
        record_now = own_code_record(context).get(OWN, {})
    except UsageError as error:
        return False, str(error)
    now = _record_in_words(record_now)
    then = _record_in_words(config.get(OWN, {}))
    if now == then:
        return False, ""
    return True, f"own code changed: {now}, was {then}"


def _record_in_words(record: Mapping[str, Any]) -> str:
    """Say which file a training recorded under `OWN`, and the highest rank IC believed, if set."""
    if not record:
        return "none"
    words = f"{record['file']} ({str(record['sha256'])[:12]})"
    if "max_rank_ic" in record:
        return f"{words} with max_rank_ic {record['max_rank_ic']}"
    return words


def train_own(
    context: MarketContext, history: History, rankers: Rankers
) -> tuple[Rankers, dict[str, Any]]:
    """Return the rankers with the market's own model added and its text trusted, and a record.

    Where the code fails, the record says why under "refused"; a rank IC too good to be true is
    under "doubt". It is empty for a market without own code.
    """
    if context.market.code is None:
        return rankers, {}
    # If the file cannot be read, the record of the refusal has its name alone.
    record = {"file": context.market.code.name, "sha256": None}
    try:
        record = own_code_record(context)[OWN]
        split, whole = spans_of(history)
        # The first fold gives scores on validation days, from which the slope is measured. The
        # second one scores no day: its model, fitted on the whole history, is the one returned.
        folds = [(split.trained, split.scored), (whole, slice(0, 0))]
        scores, model = walk_own(context, history, folds)
        scores_then = scores[split.scored]
        slope = slope_of(ranked(scores_then), history.relative[split.scored])
        rankers = Rankers(rankers.models, {**rankers.slopes, OWN: slope}, model)
        trust(model.code)  # it is the user's own file, so later nights and replays may run it
        record = {**record, "features": model.description["features"]}
        doubt = doubt_of(context, history, scores_then, split.scored)
        return rankers, {OWN: {**record, "doubt": doubt} if doubt else record}
    except (OwnCodeError, UsageError) as error:
        return rankers, {OWN: {**record, "refused": str(error)}}


def doubt_of(context: MarketContext, history: History, scores: Grid, days: slice) -> str:
    """Say why the scores of own code on some days are too good to be true; empty where not."""
    market = context.market
    outcome = history.outcome[days]
    found = doubt(market, history.panel, market.leg, scores, outcome)
    return f"{market.code.name}: {found}" if found and market.code else ""


def walk_own(
    context: MarketContext, history: History, folds: Sequence[tuple[slice, slice]]
) -> tuple[Grid, Fitted]:
    """Return the own model's scores over the scored days of folds, else NaN, and the last fold's
    model.

    A fold is two slices of days: fitted and scored. Raises OwnCodeError if the code fails,
    UsageError if its file cannot be read.
    """
    assert context.market.code is not None
    code = IsolatedCode(OwnCode.read(context.market.code), values_folder())
    with step_progress(f"features of {code.code.name}, session", every=50) as on_day:
        return code.walk(history.panel, history.there, history.relative, folds, on_day)


def values_folder() -> Path:
    """Return the folder that keeps the values of users' own features."""
    return data_folder() / "own"


def ask_own(
    context: MarketContext, fitted: Fitted, history: History
) -> tuple[dict[str, Float[ndarray, " stocks"]], str]:
    """Return the last day's scores of the code stored with the rankers, under `OWN`, and a note.

    Where it fails or must not run, there are none, and the note says why. It may run if the
    market's file names a file of this text, or the text is in the trusted folder.
    """
    try:
        file = context.market.code
        if not (
            file is not None and file.exists() and OwnCode.read(file).sha256 == fitted.code.sha256
        ):
            require_trusted(fitted.code)
        # [1 day, stocks]
        code = IsolatedCode(fitted.code, values_folder())
        scores = code.night(history.panel, history.there, fitted)
        return {OWN: scores[0]}, ""
    except DtmlError as error:
        night = history.panel.sessions[-1].date()
        log.warning(
            "%s: your own model has no scores for the night of %s: %s", context.name, night, error
        )
        return {}, str(error)


def trust(code: OwnCode) -> None:
    """Keep a text from this user's own file, so that its models may run it later."""
    try:
        keep(code.text, file_of(code.text, "py"))
    except OSError as error:
        log.warning(
            "%s cannot be saved in %s (%s): past nights that used it cannot be replayed once the "
            "file has changed; make that folder writable, or set XDG_STATE_HOME to a writable one",
            code.name,
            trusted_folder(),
            error.strerror,
        )


def require_trusted(code: OwnCode) -> None:
    """Raise OwnCodeError for a text that is not trusted, and write it to `refused`."""
    if is_trusted(code.text, "py"):
        return
    trusted = file_of(code.text, "py")
    refused = trusted.parent / "refused" / trusted.name
    try:
        keep(code.text, refused)
    except OSError as error:
        raise OwnCodeError(
            f"{code.name} came with the store and your nights have never trained it, so it does "
            f"not run; its text cannot be written to {refused.parent} ({error.strerror}): to read "
            "it there, make that folder writable, or set XDG_STATE_HOME to a writable one"
        ) from error
    raise OwnCodeError(
        f"{code.name} came with the store and your nights have never trained it, so it does not "
        f"run: read {refused}, and move it to {trusted} to let it run"
    )
