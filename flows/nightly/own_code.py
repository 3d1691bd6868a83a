"""Audit a user's own file when it is new, train it, and ask it in a market's nights.

What fails in it ends it alone.

A model carries the text of the own code that it was trained with, and a store or a backup may be a
stranger's: only such text runs as this user once gave in a market's file. The texts that this
user's nights trained lie in a folder of the user, outside of the data folder: no store, backup or
cloned working folder brings files there.
"""

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dtml.errors import DtmlError, UsageError
from dtml.own.admission import past_of, require_admitted
from dtml.own.code import OWN, OwnCode, OwnCodeError
from dtml.own.process import Fitted, IsolatedCode
from dtml.ranking.panel import Grid, ranked
from dtml.ranking.rankers import Rankers, slope_of, spans_of
from dtml.ranking.walk import History
from flows.nightly.context import MarketContext
from translation.atomic_files import write_whole

log = logging.getLogger(__name__)


def named(context: MarketContext) -> dict[str, Any]:
    """Return what is recorded of a market's file, by which a change is seen.

    Nothing without a file.
    """
    file = context.market.code
    if file is None:
        return {}
    record: dict[str, Any] = {"file": file.name, "sha256": OwnCode.read(file).sha256}
    if context.market.checks.max_rank_ic is not None:
        record["max_rank_ic"] = context.market.checks.max_rank_ic
    return {OWN: record}


def change(context: MarketContext, config: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether a market's file is another than a training recorded, and what to say of it."""
    try:
        record_now = named(context).get(OWN, {})
    except UsageError as error:
        return False, str(error)
    now = _words(record_now)
    then = _words(config.get(OWN, {}))
    if now == then:
        return False, ""
    return True, f"own code changed: {now}, was {then}"


def _words(record: Mapping[str, Any]) -> str:
    """Say which file a training saw, and what rank IC its market believes."""
    if not record:
        return "none"
    words = f"{record['file']} ({str(record['sha256'])[:12]})"
    if "max_rank_ic" in record:
        return f"{words} with max_rank_ic {record['max_rank_ic']}"
    return words


def train_own(
    context: MarketContext,
    history: History,
    bars: pd.DataFrame,
    rankers: Rankers,
    before: Mapping[str, Any],
) -> tuple[Rankers, dict[str, Any]]:
    """Return rankers with the market's own model, and what is recorded of it.

    It is audited, unless the config of a training `before` recorded it. Where it fails, the record
    says why.
    """
    if context.market.code is None:
        return rankers, {}
    record = {"file": context.market.code.name, "sha256": None}
    try:
        record = named(context)[OWN]
        record_before = before.get(OWN, {})
        is_audited = "refused" not in record_before and _words(record_before) == _words(record)
        split, whole = spans_of(history)
        spans = [(split.trained, split.scored), (whole, slice(0, 0))]
        scores, model = walk_own(context, history, bars, spans, audited=is_audited)
        relative = history.relative[split.scored]
        slope = slope_of(ranked(scores[split.scored]), relative)
        rankers = Rankers(rankers.models, {**rankers.slopes, OWN: slope}, model)
        trust(model.code)
        return rankers, {OWN: {**record, "features": model.description["features"]}}
    except (OwnCodeError, UsageError) as error:
        return rankers, {OWN: {**record, "refused": str(error)}}


def walk_own(
    context: MarketContext,
    history: History,
    bars: pd.DataFrame,
    folds: Sequence[Any],
    *,
    audited: bool = False,
    workers: int = 1,
) -> tuple[Grid, Fitted]:
    """Return the own model's scores over folds (days fitted, days scored), and the last model.

    Raises OwnCodeError if it fails. So many `workers` ask for a part of the folds each; what each
    fold draws begins anew.
    """
    assert context.market.code is not None
    code = IsolatedCode(OwnCode.read(context.market.code))
    if not audited:
        require_admitted(code, past_of(context.market, bars), context.market.leg)

    def walk(part: Sequence[Any]) -> tuple[Grid, Fitted]:
        return code.walk(history.panel, history.there, history.relative, part)

    parts = [folds[start::workers] for start in range(min(workers, len(folds)))]
    with ThreadPoolExecutor(len(parts)) as pool:
        walked = list(pool.map(walk, parts))
    scores = np.fmax.reduce([part_scores for part_scores, _ in walked])
    _, last_model = walked[(len(folds) - 1) % workers]
    return scores, last_model


def ask_own(
    context: MarketContext, fitted: Fitted, history: History
) -> tuple[dict[str, Grid], str]:
    """Return the scores of the last day, [stocks], by the code stored with the rankers.

    Where there are none, the text beside them says why: for one, the code came with the store and
    this user never ran it from a file.
    """
    try:
        if not _is_of_the_file(context, fitted.code):
            require_trusted(fitted.code)
        scores = IsolatedCode(fitted.code).night(history.panel, history.there, fitted)
        return {OWN: scores[0]}, ""
    except DtmlError as error:
        log.warning("%s: your own model has no scores tonight: %s", context.name, error)
        return {}, str(error)


def _is_of_the_file(context: MarketContext, code: OwnCode) -> bool:
    """Whether the market's file names this very text now."""
    file = context.market.code
    return file is not None and file.exists() and OwnCode.read(file).sha256 == code.sha256


def trusted_folder() -> Path:
    """Return the folder of the texts that may run: below `XDG_STATE_HOME`, or `~/.local/state`."""
    state = os.environ.get("XDG_STATE_HOME")
    home = Path(state) if state else Path.home() / ".local" / "state"
    return home / "dtml" / "own_code"


def trust(code: OwnCode) -> None:
    """Keep a text that came from this user's own file, so that its models may run it later.

    Where the folder cannot be written, a warning says so: the text then runs as long as the
    market's file names it.
    """
    try:
        _keep(code, trusted_folder())
    except OSError as error:
        log.warning(
            "%s cannot be saved in %s (%s): past nights that used it cannot be replayed once the "
            "file has changed",
            code.name,
            trusted_folder(),
            error.strerror,
        )


def require_trusted(code: OwnCode) -> None:
    """Raise OwnCodeError for a text that no file of this user's ever held.

    The text is then written beside the trusted ones, to be read.
    """
    trusted = trusted_folder() / _file_name(code)
    if trusted.is_file() and hashlib.sha256(trusted.read_bytes()).hexdigest() == code.sha256:
        return
    refused = trusted_folder() / "refused"
    try:
        _keep(code, refused)
    except OSError as error:
        raise OwnCodeError(
            f"{code.name} came with the store and your nights have never trained it, so it does "
            f"not run; its text cannot be written to {refused} ({error.strerror})"
        ) from error
    raise OwnCodeError(
        f"{code.name} came with the store and your nights have never trained it, so it does not "
        f"run: read {refused / trusted.name}, and move it to {trusted} to let it run"
    )


def _keep(code: OwnCode, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / _file_name(code), lambda partial: partial.write_bytes(code.text.encode()))


def _file_name(code: OwnCode) -> str:
    return f"{code.sha256}.py"
