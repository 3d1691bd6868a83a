"""Train a market's model when it is due, and keep what it takes to train it again."""

import hashlib
import json
import logging
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from db.engine import reading, transaction
from db.rows import calibration as stored_calibration
from db.rows import runs
from dtml.checkpoints import Ensemble, checkpoint_hash, load_ensemble, save_ensemble
from dtml.errors import DtmlError
from dtml.evaluation.calibration import Calibration, calibrate
from dtml.inference import choose_device, member_probabilities, name_of
from dtml.machine import computed_by, torch_build
from dtml.markets import Market
from dtml.prices.sessions import next_session, previous_session, sessions_between
from dtml.training.fit import EpochReport, devices_of, fit_members, no_report, stack_members
from dtml.training.state import Fit, StateFolder
from dtml.windows import WindowConfig, Windows, build_windows
from flows.nightly.context import MarketContext, stored_bars
from flows.nightly.fetch import history_start
from flows.progress import training_progress
from flows.settings import data_folder, weights_file
from flows.upkeep.pruning import drop_states, states_folder
from translation.atomic_files import write_whole

log = logging.getLogger(__name__)

Kind = Literal["nightly", "backtest"]  # what a training is for
CALIBRATED = "calibrated"  # in the digest of a run, to tell it from one without calibration


@dataclass(frozen=True)
class Model:
    """Hold a trained ensemble and the run that made it."""

    run_id: str
    ensemble: Ensemble
    calibration: Calibration | None = None  # None: not calibrated


@dataclass(frozen=True)
class Fitted:
    """Hold an ensemble as trained, its calibration, and the course of training of each seed.

    `first` is the target of the first day trained on.
    """

    ensemble: Ensemble
    calibration: Calibration
    fits: Sequence[Fit]
    first: date


def why_due(context: MarketContext, as_of: date, known_at: datetime | None = None) -> str | None:
    """Return why the market's policy wants a training at `as_of`; None where it wants none.

    It wants none where the latest model serves, or where the market never trains. Only models
    trained on sessions up to `as_of`, on prices as known at a moment (None: now), count: a past
    night never uses a later model, nor one that saw later revisions. A model whose weights are lost
    does not serve.
    """
    with reading(context.engine) as conn:
        latest = runs.latest_run(conn, context.name, on_or_before=as_of, known_by=known_at)
    if context.market.retrain == "never":
        return None
    if latest is None:
        return "there is no model yet"
    return _why_another(context, latest, as_of)


def _why_another(context: MarketContext, latest: Mapping[str, Any], as_of: date) -> str | None:
    if latest["config"] != _config(context):
        return f"the configuration differs from that of {latest['id']}"
    index = latest["universe"]["index"]
    if index != context.market.index.symbol:
        now = context.market.index.symbol
        return f"the index is {now}, but {latest['id']} was trained on {index}"
    # The number of sessions after the last one trained on.
    age = len(sessions_between(context.market.calendar, latest["train_last"], as_of)) - 1
    policy = context.market.retrain
    if isinstance(policy, int) and age >= policy:
        return f"{latest['id']} is {age} sessions old"
    try:
        load_run(context, latest)  # only to see whether it raises
    except DtmlError as error:
        return f"the weights of {latest['id']} are lost: {error}"
    return None


def load_model(context: MarketContext, as_of: date, known_at: datetime | None = None) -> Model:
    """Return the latest model trained on sessions up to `as_of`, on prices as known at a moment.

    If `known_at` is None, the moment is now. The weights are checked against the run's row. Where
    only models trained on prices known later exist, as in a market whose nights never train, the
    latest of these serves, and a warning says so. Raises DtmlError where there is no model up to
    `as_of`, or where its weights are lost.
    """
    with reading(context.engine) as conn:
        run = runs.latest_run(conn, context.name, on_or_before=as_of, known_by=known_at)
        if run is None:
            run = runs.latest_run(conn, context.name, on_or_before=as_of)
            if run is not None:
                log.warning(
                    "%s was trained on prices as known at %s, but only those known at %s count "
                    "for the night of %s: the model may have seen later revisions, and look better "
                    "than it was",
                    run["id"],
                    run["data_watermark"],
                    known_at,
                    as_of,
                )
    if run is None:
        raise DtmlError(
            f"market {context.name} has no model trained up to {as_of}: "
            f"run `dtml train {context.name} --as-of {as_of}`"
        )
    return load_run(context, run)


def train_model(
    context: MarketContext,
    as_of: date,
    on_epoch: EpochReport = no_report,
    *,
    known_at: datetime | None = None,
) -> Model:
    """Train on what is stored up to `as_of`, as known at a moment (None: now), and record the run.

    Equal data, settings and seeds give an equal run. A run that is stored already is loaded. A
    training that was interrupted resumes from its last epoch. Raises DtmlError for a history that
    is too short, and where the weights with which a warm start begins are lost.
    """
    previous = _model_to_start_from(context, as_of, known_at)
    model, row = fit_model(context, as_of, on_epoch, known_at=known_at, previous=previous)
    with transaction(context.engine) as conn:
        runs.save_run(conn, row)
        if model.calibration is not None:
            stored_calibration.save_bands(
                conn, model.run_id, model.calibration.bands, default=context.market.level
            )
    return model


def train_with_progress(
    context: MarketContext, as_of: date, known_at: datetime | None = None
) -> Model:
    """Train as `train_model` does, with a progress bar on a terminal and log lines elsewhere."""
    with training_progress(context.experiment.members_of()) as on_epoch:
        return train_model(context, as_of, on_epoch, known_at=known_at)


def fit_model(
    context: MarketContext,
    as_of: date,
    on_epoch: EpochReport = no_report,
    *,
    kind: Kind = "nightly",
    known_at: datetime | None = None,
    previous: Model | None = None,
    serves: str = "",
) -> tuple[Model, Mapping[str, Any]]:
    """Train on bars up to `as_of`, as known at a moment (None: now), or load a run that is stored.

    Returns the model and the row of its run, and writes nothing to the store; the checkpoint is
    written to the data folder, and the states kept to resume from are deleted. A warm start begins
    with the weights of the `previous` model. `serves` tells apart runs with equal weights that will
    predict from different bars. A run whose weights are lost is trained again; if that gives other
    weights, as on another processor, they become a run of their own, whose name is the lost run's
    with a suffix.
    """
    bars, watermark = stored_bars(context, history_start(context, as_of), as_of, known_at)
    previous_id = None if previous is None else previous.run_id
    run_id = _run_id(context, as_of, bars, [kind, serves, previous_id])
    stored = _stored_run(context, run_id)
    if stored is not None:
        # A process that was killed after it stored the run may have left the state.
        drop_states(context.name, as_of, kind, run_id)
        return stored
    folder = states_folder(kind) / run_id
    log.info("training %s", run_id)
    fitted = fit_bars(context, as_of, bars, folder, on_epoch, previous)
    run_id = _id_for_weights(context, run_id, checkpoint_hash(fitted.ensemble))
    path = Path("models") / f"{run_id}.safetensors"
    sha = save_ensemble(fitted.ensemble, data_folder() / path, write_whole)
    losses = [
        {
            "seed": fit.member.seed,
            "best_epoch": fit.best_epoch,
            "epochs": [asdict(epoch) for epoch in fit.epochs],
        }
        for fit in fitted.fits
    ]
    row = {
        "id": run_id,
        "market": context.name,
        "model": "dtml",
        "config": _config(context),
        "universe": universe_of(context.market),
        "seeds": list(fitted.ensemble.seeds),
        "code_version": version("dtml-nightshift"),
        "checkpoint_path": str(path),
        "checkpoint_hash": sha,
        "losses": losses,
        "slope": fitted.calibration.slope,
        "intercept": fitted.calibration.intercept,
        "train_first": fitted.first,
        "created_at": datetime.now(UTC),
        "computed_by": computed_by(choose_device(context.device)),
        "kind": kind,
        "data_watermark": watermark,
        "train_last": as_of,
    }
    # The folder keeps the id that the run had before `_id_for_weights`.
    drop_states(context.name, as_of, kind, folder.name)
    return Model(run_id, fitted.ensemble, fitted.calibration), row


def fit_seed(
    context: MarketContext, as_of: date, seed: int, *, kind: Kind, known_at: datetime, serves: str
) -> None:
    """Train one of the seeds that `fit_model` will train, and leave its state for that function.

    The arguments must be those of `fit_model`, so that both find the same folder. Seeds can thus be
    trained by several processes. A run that is stored is not trained.
    """
    bars, _ = stored_bars(context, history_start(context, as_of), as_of, known_at)
    run_id = _run_id(context, as_of, bars, [kind, serves, None])  # None: no warm start
    if _stored_run(context, run_id) is None:
        fit_bars(context, as_of, bars, states_folder(kind) / run_id, seeds=(seed,))


def fit_bars(
    context: MarketContext,
    as_of: date,
    bars: pd.DataFrame,
    folder: Path,
    on_epoch: EpochReport = no_report,
    previous: Model | None = None,
    seeds: Sequence[int] = (),
) -> Fitted:
    """Train on these bars, which end at `as_of`, and calibrate on the validation days.

    The state after each epoch is kept in `folder` to resume from. All seeds of the experiment are
    trained, or these `seeds` alone. A warm start begins with the weights of the `previous` model;
    it needs all seeds.
    """
    windows = windows_of(context, bars, context.experiment.windows, context.market.symbols)
    train, validation = context.experiment.spans(windows, as_of)
    device = choose_device(context.device)
    where = f"{' and '.join(map(name_of, devices_of(device)))} of {platform.node()}"
    log.info("%d days to train on, %d for validation, on %s", len(train), len(validation), where)
    members = context.experiment.members_of(*seeds)
    begin = None
    if previous is not None:
        # Each seed begins with the weights of the same seed: both lists have all seeds in order.
        begin = [previous.ensemble.member(place) for place in range(len(members))]
    fits = fit_members(
        train,
        validation,
        members,
        device=device,
        state_folder=StateFolder(folder, write_whole),
        on_epoch=on_epoch,
        begin=begin,
    )
    ensemble = Ensemble(
        market=context.name,
        symbols=windows.symbols,
        seeds=tuple(fit.member.seed for fit in fits),
        model=context.experiment.model,
        windows=context.experiment.windows,
        weights=stack_members(fits),
    )
    # The mean over the members: [days stocks].
    probabilities = member_probabilities(ensemble, validation, device).mean(dim=0)
    return Fitted(
        ensemble=ensemble,
        calibration=calibrate(probabilities.double().numpy(), validation.movement.double().numpy()),
        fits=fits,
        first=train.target[0].date(),
    )


def _model_to_start_from(
    context: MarketContext, as_of: date, known_at: datetime | None
) -> Model | None:
    """Return the model with whose weights a training at `as_of` begins.

    It is the latest one trained on sessions before `as_of`, on prices known at `known_at` (None:
    now), if its settings are the same. None where there is no such model, or where the experiment
    makes no warm start. Raises DtmlError where its weights are lost.
    """
    if not context.experiment.warm_start:
        return None
    before = previous_session(context.market.calendar, as_of)
    with reading(context.engine) as conn:
        run = runs.latest_run(conn, context.name, on_or_before=before, known_by=known_at)
    if run is None or run["config"] != _config(context):
        return None
    return load_run(context, run)


def windows_of(
    context: MarketContext, bars: pd.DataFrame, config: WindowConfig, symbols: tuple[str, ...]
) -> Windows:
    """Build the windows of a market's bars; the last one predicts the session after the last bar.

    A stock is observed only on days on which it was a constituent.
    """
    calendar = context.market.calendar
    days = bars["session"]
    last = next_session(calendar, days.max().date())
    sessions = sessions_between(calendar, days.min().date(), last)
    windows = build_windows(
        bars,
        sessions=sessions,
        symbols=symbols,
        index_symbol=context.market.index.symbol,
        config=config,
    )
    return windows.only(context.market.is_constituent(windows.as_of, symbols))


def _config(context: MarketContext) -> dict[str, Any]:
    """Return the settings of the experiment as they come back from stored JSON.

    A model with a gain for each stock serves no other stocks, so its settings list them too.
    """
    config: dict[str, Any] = json.loads(json.dumps(asdict(context.experiment)))
    if context.experiment.model.normalisation == "per_stock":
        config["stocks"] = list(context.market.symbols)
    return config


def universe_of(market: Market) -> dict[str, Any]:
    """Return a market's index and its constituents as they come back from stored JSON.

    A constituent is a list of its symbol, its first day, and the first day on which it is none any
    more, as text; None is an open end. If constituents have such dates, `as_of` is the day on which
    the market's list was true, where that is known.
    """
    constituents = []
    for stay in market.constituents:
        since = None if stay.since is None else str(stay.since)
        until = None if stay.until is None else str(stay.until)
        constituents.append([stay.symbol, since, until])
    universe = {"index": market.index.symbol, "constituents": constituents}
    if market.constituents_as_of is not None and not market.is_snapshot:
        universe["as_of"] = str(market.constituents_as_of)
    return universe


def _run_id(
    context: MarketContext, as_of: date, bars: pd.DataFrame, purpose: list[str | None]
) -> str:
    """Return the name of a run: its market, its date, and a digest.

    The digest is of all that decides the weights, except for the processor, which may decide their
    last bits, and of their `purpose`: the kind of training, what it serves, and the run that a warm
    start begins with.
    """
    device = choose_device(context.device).type
    versions = [version("dtml-nightshift"), torch_build(), device, CALIBRATED]
    settings = [_config(context), universe_of(context.market), versions, purpose]
    digest = hashlib.sha256(json.dumps(settings).encode())
    digest.update(pd.util.hash_pandas_object(bars, index=False).to_numpy().tobytes())
    return f"{context.name}-{as_of}-{digest.hexdigest()[:8]}"


def _stored_run(context: MarketContext, run_id: str) -> tuple[Model, Mapping[str, Any]] | None:
    """Return the model and the row of a run, or of one that was trained again in its place.

    It is the oldest of these runs whose weights can be loaded. None where no run is stored under
    such a name, or where all weights are lost.
    """
    with reading(context.engine) as conn:
        all_ids = runs.runs(conn, context.name)["id"]
        # The run itself, and those that `_id_for_weights` named after it: a hyphen and a suffix.
        candidates = [name for name in all_ids if f"{name}-".startswith(f"{run_id}-")]
        stored = [runs.run(conn, name) for name in candidates]
    for run in stored:
        with suppress(DtmlError):
            return load_run(context, run), run
    if stored:
        log.warning("the weights of %s are lost; training it again", run_id)
    return None


def _id_for_weights(context: MarketContext, run_id: str, sha: str) -> str:
    """Return the name under which weights with this SHA-256 are stored.

    It is `run_id`, unless a run of that name is stored with other weights: a stored row never
    changes, so the weights get a name with their SHA-256 as a suffix.
    """
    with reading(context.engine) as conn:
        stored = runs.runs(conn, context.name).set_index("id")["checkpoint_hash"]
    if stored.get(run_id, sha) == sha:
        return run_id
    beside = f"{run_id}-{sha[:8]}"
    log.warning(
        "the weights of %s, SHA-256 %s..., are lost, and training again gave %s... instead: "
        "another processor or library computes different last bits. "
        "The new weights are stored beside the old run, as %s, and are used from now on; "
        "to replay predictions of the lost weights, restore their checkpoint from a backup",
        run_id,
        stored[run_id][:12],
        sha[:12],
        beside,
    )
    return beside


def load_run(context: MarketContext, run: Mapping[str, Any]) -> Model:
    """Load the model of a row of the table `run`, and check its weights against the row.

    Raises DtmlError where they are lost or changed.
    """
    file = weights_file(run["checkpoint_path"])
    ensemble = load_ensemble(file, market=context.name, sha=run["checkpoint_hash"])
    with reading(context.engine) as conn:
        bands = stored_calibration.bands(conn, run["id"])
    return Model(run["id"], ensemble, _calibration_of(run, bands))


def _calibration_of(run: Mapping[str, Any], bands: pd.DataFrame) -> Calibration | None:
    if run["slope"] is None or bands.empty:
        return None
    first = bands.iloc[0]  # all bands of a run were measured on the same days
    return Calibration(
        slope=run["slope"],
        intercept=run["intercept"],
        thresholds=dict(zip(bands["level"], bands["threshold"], strict=True)),
        days=int(first["days"]),
        directions=int(first["n"]),
    )
