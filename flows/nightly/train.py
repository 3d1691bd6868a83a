"""Train a market's model when it is due, and keep what it takes to train it again."""

import hashlib
import json
import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import pandas as pd

from db.engine import reading, transaction
from db.read import read
from db.rows import runs
from db.rows.runs import latest_trained
from db.save import save
from dtml.checkpoints import Ensemble, checkpoint_hash, load_ensemble, save_ensemble
from dtml.devices import name_of
from dtml.errors import DtmlError
from dtml.evaluation.calibration import Calibration, calibrate
from dtml.inference import member_probabilities
from dtml.machine import computed_by, torch_build
from dtml.markets import Market
from dtml.own.code import OWN
from dtml.prices.sessions import next_session, previous_session, sessions_between
from dtml.training import EpochReport, Fit, devices_of, fit_members, no_report, stack_members
from dtml.windows import WindowConfig, Windows, build_windows
from flows.nightly.context import MarketContext, Tonight
from flows.nightly.fetch import history_start
from flows.progress import training_progress
from flows.settings import data_folder, weights_file
from flows.upkeep.pruning import drop_state, drop_states, states_folder

log = logging.getLogger(__name__)

Kind = Literal["nightly", "backtest"]  # what a training is for
CALIBRATED = "calibrated"  # in the digest of a run, to tell it from one without calibration


@dataclass(frozen=True)
class Model:
    """Hold a trained ensemble, its calibration (None: not calibrated) and the row of its run."""

    row: Mapping[str, Any]
    ensemble: Ensemble
    calibration: Calibration | None

    @property
    def run_id(self) -> str:
        """Return the name of the run."""
        return str(self.row["id"])


@dataclass(frozen=True)
class Fitted:
    """An ensemble, its calibration and trainings; `first` is the first day's target."""

    ensemble: Ensemble
    calibration: Calibration
    fits: Sequence[Fit]
    first: date


T = TypeVar("T")


@dataclass(frozen=True)
class Weights(Generic[T]):
    """How the weights of a market's model or rankers come to a night.

    Their rows are in `relation`; `why_due` says why others are to be trained, or None.
    """

    what: str
    relation: Literal["run", "ranker"]
    why_due: Callable[[MarketContext, Mapping[str, Any] | None, date], str | None]
    load: Callable[[MarketContext, Mapping[str, Any]], T]
    train: Callable[[Tonight, Mapping[str, Any] | None], T]


def weights_for(
    tonight: Tonight, weights: Weights[T], *, only_stored: bool = False, anew: bool = False
) -> T:
    """Return the weights of a night, trained if `anew` or where the market's policy wants it.

    Only those count that were trained on sessions and prices that the night knows. Lost ones are
    trained again. With `only_stored` and the policy "never" none are trained; weights trained on
    prices known later then serve, with a warning. Raises DtmlError where none can be had.
    """
    context, as_of, known_at = tonight.context, tonight.as_of, tonight.known_at
    trains = anew or not (only_stored or context.market.retrain == "never")
    with reading(context.engine) as conn:
        latest = latest_trained(
            conn, weights.relation, context.name, on_or_before=as_of, known_by=known_at
        )
        if latest is None and not trains:
            latest = latest_trained(conn, weights.relation, context.name, on_or_before=as_of)
            if latest is not None:
                log.warning(
                    "%s was trained on prices as known at %s, but only those known at %s count "
                    "for the night of %s: it may have seen later revisions, and look better than "
                    "it was",
                    latest["id"],
                    latest["data_watermark"],
                    known_at,
                    as_of,
                )
    if not trains:
        if latest is None:
            raise DtmlError(
                f"market {context.name} has no {weights.what} trained up to {as_of}: "
                f"run `dtml train {context.name} --as-of {as_of}`"
            )
        return weights.load(context, latest)
    reason = "it was asked for" if anew else weights.why_due(context, latest, as_of)
    if reason is None and latest is not None:
        try:
            return weights.load(context, latest)
        except DtmlError as error:
            reason = f"the weights of {latest['id']} are lost: {error}"
    log.info("training the %s of %s: %s", weights.what, context.name, reason)
    return weights.train(tonight, latest)


def why_due(
    context: MarketContext,
    latest: Mapping[str, Any] | None,
    as_of: date,
    config: Mapping[str, Any],
) -> str | None:
    """Return why weights other than the `latest` are to be trained at `as_of`; None: no reason."""
    if latest is None:
        return "there are none yet"
    if {name: value for name, value in latest["config"].items() if name != OWN} != config:
        return f"the configuration differs from that of {latest['id']}"
    index = latest.get("universe", {}).get("index", context.market.index.symbol)
    if index != context.market.index.symbol:
        return (
            f"the index is {context.market.index.symbol}, but {latest['id']} was trained on {index}"
        )
    # The number of sessions after the last one trained on.
    age = len(sessions_between(context.market.calendar, latest["train_last"], as_of)) - 1
    policy = context.market.retrain
    if isinstance(policy, int) and age >= policy:
        return f"{latest['id']} is {age} sessions old"
    return None


def load_model(context: MarketContext, as_of: date) -> Model:
    """Return the latest model trained on sessions up to `as_of`, and train none."""
    return weights_for(Tonight(context, as_of), MODEL_WEIGHTS, only_stored=True)


def stored_row(
    tonight: Tonight, file: Path, sha: str, *, name: str, watermark: datetime
) -> dict[str, Any]:
    """Return what the store holds of any weights: those in `file`, with this SHA-256."""
    return {
        "id": name,
        "market": tonight.context.name,
        "code_version": version("dtml-nightshift"),
        "data_watermark": watermark,
        "checkpoint_path": str(file.relative_to(data_folder())),
        "checkpoint_hash": sha,
        "train_last": tonight.as_of,
        "created_at": datetime.now(UTC),
    }


def train_model(tonight: Tonight, on_epoch: EpochReport = no_report) -> Model:
    """Train on what is stored up to a night, as it knows it, and record the run.

    Equal data, settings and seeds give an equal run, loaded if stored; an interrupted one resumes.
    Raises DtmlError for too short a history, and where the weights of a warm start are lost.
    """
    context = tonight.context
    model = fit_model(tonight, on_epoch, previous=_model_to_start_from(tonight))
    with transaction(context.engine) as conn:
        save(conn, "run", model.row)
        if model.calibration is not None:
            save(
                conn,
                "abstention_band",
                model.calibration.bands.assign(
                    is_default=model.calibration.bands["level"] == context.market.level
                ),
                run_id=model.run_id,
            )
    drop_states(
        context.name, tonight.as_of
    )  # only once the run is stored does none resume from them
    return model


def train_with_progress(tonight: Tonight) -> Model:
    """Train as `train_model` does, with a progress bar on a terminal and log lines elsewhere."""
    with training_progress(tonight.context.experiment.members_of()) as on_epoch:
        return train_model(tonight, on_epoch)


def fit_model(
    tonight: Tonight,
    on_epoch: EpochReport = no_report,
    *,
    kind: Kind = "nightly",
    previous: Model | None = None,
    serves: str = "",
) -> Model:
    """Train on bars up to a night, as it knows them, or load a run that is stored.

    Writes the checkpoint, nothing to the store. A warm start begins with the `previous` model.
    `serves` tells apart runs with equal weights that predict from different bars. A run whose
    weights are lost is trained again; other weights, as on another processor, become a run with a
    suffix.
    """
    context, as_of = tonight.context, tonight.as_of
    bars, watermark = tonight.known(history_start(context, as_of))
    run_id = _run_id(context, as_of, bars, [kind, serves, previous.run_id if previous else None])
    stored = _runs_named(context, run_id)
    model = _first_whole(context, stored)
    folder = states_folder(kind) / run_id
    if model is not None:
        # A process that was killed after it stored the run may have left the state.
        drop_state(folder)
        return model
    log.info("training %s", run_id)
    fitted = fit_bars(context, as_of, bars, folder, on_epoch, previous)
    sha = checkpoint_hash(fitted.ensemble)
    # A stored row never changes: other weights than those that were lost get a name of their own.
    lost = next((run for run in stored if run["id"] == run_id), None)
    if lost is not None:
        log.warning("the weights of %s are lost; it was trained again", run_id)
    if lost is not None and lost["checkpoint_hash"] != sha:
        run_id = f"{run_id}-{sha[:8]}"
        log.warning(
            "the weights of %s, SHA-256 %s..., are lost, and training again gave %s... instead: "
            "another processor or library computes different last bits. The new weights are stored "
            "beside the old run, as %s, and are used from now on; to replay predictions of the "
            "lost weights, restore their checkpoint from a backup",
            lost["id"],
            lost["checkpoint_hash"][:12],
            sha[:12],
            run_id,
        )
    file = data_folder() / "models" / f"{run_id}.safetensors"
    save_ensemble(fitted.ensemble, file)
    row = {
        **stored_row(tonight, file, sha, name=run_id, watermark=watermark),
        "model": "dtml",
        "config": config_of(context),
        "universe": universe_of(context.market),
        "seeds": list(fitted.ensemble.seeds),
        "losses": [
            {
                "seed": fit.member.seed,
                "best_epoch": fit.best_epoch,
                "epochs": [asdict(epoch) for epoch in fit.epochs],
            }
            for fit in fitted.fits
        ],
        "slope": fitted.calibration.slope,
        "intercept": fitted.calibration.intercept,
        "train_first": fitted.first,
        "computed_by": computed_by(context.place),
        "kind": kind,
    }
    if kind == "backtest":
        drop_state(folder)
    return Model(row, fitted.ensemble, fitted.calibration)


def fit_seed(tonight: Tonight, seed: int, *, kind: Kind, serves: str) -> None:
    """Train a seed that `fit_model` will train with the same arguments; leave its state."""
    context, as_of = tonight.context, tonight.as_of
    bars, _ = tonight.known(history_start(context, as_of))
    run_id = _run_id(context, as_of, bars, [kind, serves, None])  # None: no warm start
    if _first_whole(context, _runs_named(context, run_id)) is None:
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

    The state after each epoch is kept in `folder`. All seeds are trained, as a warm start needs, or
    these.
    """
    windows = windows_of(context, bars, context.experiment.windows, context.market.symbols)
    train, validation = context.experiment.spans(windows, as_of)
    device = context.place
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
        state_folder=folder,
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


def _model_to_start_from(tonight: Tonight) -> Model | None:
    """Return the model with whose weights a warm start begins; None where there is none.

    The latest of the same settings on earlier sessions and known prices. Raises DtmlError where its
    weights are lost.
    """
    context = tonight.context
    if not context.experiment.warm_start:
        return None
    before = previous_session(context.market.calendar, tonight.as_of)
    with reading(context.engine) as conn:
        run = latest_trained(
            conn,
            "run",
            context.name,
            on_or_before=before,
            known_by=tonight.known_at,
        )
    if run is None or run["config"] != config_of(context):
        return None
    return load_run(context, run)


def windows_of(
    context: MarketContext, bars: pd.DataFrame, config: WindowConfig, symbols: tuple[str, ...]
) -> Windows:
    """Build the windows of a market's bars; the last predicts the session after them."""
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


def config_of(context: MarketContext) -> dict[str, Any]:
    """Return the settings of the experiment as they come back from stored JSON.

    With a gain for each stock they list the stocks.
    """
    config: dict[str, Any] = json.loads(json.dumps(asdict(context.experiment)))
    if context.experiment.model.normalisation == "per_stock":
        config["stocks"] = list(context.market.symbols)
    return config


def universe_of(market: Market) -> dict[str, Any]:
    """Return a market's index and constituents as they come back from stored JSON.

    A constituent: symbol, first day, first day after, None an open end. With dates, `as_of` is that
    of the list.
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
    """Return a run's name: market, date, digest of what decides weights, and `purpose`."""
    device = context.place.type
    versions = [version("dtml-nightshift"), torch_build(), device, CALIBRATED]
    settings = [config_of(context), universe_of(context.market), versions, purpose]
    digest = hashlib.sha256(json.dumps(settings).encode())
    digest.update(pd.util.hash_pandas_object(bars, index=False).to_numpy().tobytes())
    return f"{context.name}-{as_of}-{digest.hexdigest()[:8]}"


def _runs_named(context: MarketContext, run_id: str) -> list[dict[str, Any]]:
    """Return the row of a run, and of those that were trained in its place, the oldest first."""
    with reading(context.engine) as conn:
        ids = read(conn, "run", market=context.name, order="created_at, id")["id"]
        return [runs.run(conn, name) for name in ids if f"{name}-".startswith(f"{run_id}-")]


def _first_whole(context: MarketContext, stored: Sequence[Mapping[str, Any]]) -> Model | None:
    """Return the first model of these runs whose weights can be loaded; None without one."""
    for run in stored:
        with suppress(DtmlError):
            return load_run(context, run)
    return None


def load_run(context: MarketContext, run: Mapping[str, Any]) -> Model:
    """Load the model of a row of `run`; raises DtmlError where its weights are lost or changed."""
    file = weights_file(run["checkpoint_path"])
    ensemble = load_ensemble(file, market=context.name, sha=run["checkpoint_hash"])
    with reading(context.engine) as conn:
        bands = read(conn, "abstention_band", columns="level, threshold, days, n", run_id=run["id"])
    return Model(run, ensemble, _calibration_of(run, bands))


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


MODEL_WEIGHTS = Weights(
    what="model",
    relation="run",
    why_due=lambda context, latest, as_of: why_due(context, latest, as_of, config_of(context)),
    load=load_run,
    train=lambda tonight, _before: train_with_progress(tonight),
)
