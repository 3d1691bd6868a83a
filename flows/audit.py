"""Audit a part of a market for look-ahead: bars, settings, nights, latest model and rankers."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, date, datetime
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pandas as pd

from db.engine import open_engine, reading, transaction, upgrade
from db.read import read
from db.rows import prices, runs
from db.rows.runs import latest_trained
from dtml.lookahead import audit as look_ahead
from dtml.lookahead import pipeline
from dtml.lookahead.audit import EarlierList, Finding, audit_list
from dtml.lookahead.pipeline import History, Pipeline, Said, past_of
from dtml.lookahead.ranks import SMALL, RankingPath, audit_ranking
from dtml.prices.sessions import next_session, sessions_up_to
from dtml.ranking.rankers import RankersConfig
from flows.nightly.context import MarketContext, Tonight, save_universe, stored_bars
from flows.nightly.predict import forecast
from flows.nightly.ranking import load_trained
from flows.nightly.train import load_model, train_model
from flows.replay import market_then
from flows.studies.backtest import Fold, Nights

STOCKS, SESSIONS = 50, 1000  # of the audited part, at most: it shows what the whole market does
SEED = 0  # fixed, so that a second audit of the same bars finds the same
# In an audit's stores: when all bars became known, and when each of them was restated. No night of
# the audit may know a restatement.
FETCHED = datetime(2000, 1, 1, tzinfo=UTC)
FETCHED_AGAIN = datetime(2001, 1, 1, tzinfo=UTC)


def audit_market(
    context: MarketContext, as_of: date, tell: Callable[[str], object]
) -> pd.DataFrame:
    """Audit the way from bars to predictions and rankings, on the last SESSIONS up to a day.

    Nights are run on stores of their own; the market's is only read. A dated list of constituents,
    and the latest model and rankers, are audited; a user's own features see no later session
    (`dtml.own.process`). `tell` gets the name of each step. Returns findings: `audited, check, at,
    passed, detail` (`dtml.lookahead.audit.Finding`). Raises DtmlError for too short a history.
    """
    market = context.market
    first = sessions_up_to(market.calendar, as_of, SESSIONS)[0].date()
    bars, _watermark = stored_bars(context, first, as_of)
    history = past_of(market, bars)
    # Trainings use this part. Stored models and the user's code get the history of all stocks.
    part = history.cut(stocks=STOCKS, sessions=SESSIONS, seed=SEED)
    found: dict[str, Sequence[Finding]] = {}
    tell("the pipeline: windows, spans, training, predictions")
    found["pipeline"] = look_ahead.audit(Pipeline(context.experiment), part)
    if not market.is_snapshot:  # a list without dates says nothing of the past
        tell("the list of constituents")
        found["list"] = [audit_list(market, earlier_lists(context), pd.Timestamp(as_of))]
    tell("nights from a store")
    found["nights"] = [stored_nights(context, part, found["pipeline"][0].at)]
    with reading(context.engine) as conn:
        run = latest_trained(conn, "run", context.name, on_or_before=as_of)
        ranker = latest_trained(conn, "ranker", context.name, on_or_before=as_of)
    if run is not None:
        model = load_model(context, as_of)
        tell(f"the model {model.run_id}")
        found[model.run_id] = look_ahead.audit_model(model.ensemble, history)
    tell("the ranking of the stocks")
    largest_return = context.experiment.windows.largest_return
    path = RankingPath(RankersConfig(market.leg, boosting=SMALL), largest_return)
    found["ranking"] = audit_ranking(path, part)
    if ranker is not None:
        stored = load_trained(context, ranker).rankers
        # The checks ask a path to train: this one answers with the stored rankers.
        path_of_stored = replace(path, fit=lambda *_: stored)
        found[ranker["id"]] = audit_ranking(path_of_stored, history, trains=False)
    return pd.DataFrame(
        [{"audited": name, **asdict(each)} for name, findings in found.items() for each in findings]
    )


def earlier_lists(context: MarketContext) -> list[EarlierList]:
    """Return the dated lists of constituents that the market's trainings have recorded."""
    with reading(context.engine) as conn:
        ids = read(conn, "run", columns="id", market=context.name, order="created_at")["id"]
        trainings = [runs.run(conn, run_id) for run_id in ids]
    lists: list[EarlierList] = []
    for run in trainings:
        # Benchmarks record no list, and lists without dates say nothing of single days.
        if run["universe"] is not None and "as_of" in run["universe"]:
            list_date = date.fromisoformat(run["universe"]["as_of"])
            # The list was known when the training was made, and was true up to its own date.
            last_known_and_true = min(list_date, run["created_at"].date())
            market = market_then(context.market, run)
            lists.append(EarlierList(market, day=last_known_and_true))
    return lists


class _Predicted(NamedTuple):
    """What nights predicted by the model of `run_id`, one by one and as a backtest's `fold`.

    `refused` has the reason of each night that the fold refused.
    """

    run_id: str
    nights: pd.DataFrame
    fold: pd.DataFrame
    refused: dict[str, str]

    @property
    def predictions(self) -> Said:
        """Return both frames by name."""
        return {"predictions of a fold": self.fold, "predictions of single nights": self.nights}


def stored_nights(context: MarketContext, history: History, at: pd.Timestamp) -> Finding:
    """Check that no later data in a store changes a training as of `at` or a night up to it.

    Later data: bars after `at`, a fetch that restates every bar, and a model trained on both.
    Nights are run by their own code and by a backtest's fold that goes on after `at`; neither the
    bars of the training nor any prediction may change by a bit, and there must be some.
    """
    # The bars after `at` change; with the original market, the memberships of the stocks stay.
    scrambled = replace(history.scrambled_after(at, SEED), market=history.market)
    without_later = _predictions_of_nights(context, history, at)
    # A fetch that restates the prices of every bar by about 2 %.
    noise = np.random.default_rng(SEED).standard_normal((len(scrambled.bars), 1))
    restated = scrambled.bars.copy()
    restated[pipeline.ADJUSTED_TOO] *= np.exp(0.02 * noise)
    with_later = _predictions_of_nights(context, scrambled, at, restated=restated)
    if without_later.nights.empty or without_later.fold.empty:
        reason = next(iter(without_later.refused.values()), "no night has a prediction")
        detail = f"no night can be checked: {reason}"
        return Finding("stored_nights", at, passed=False, detail=detail)
    is_same_run = without_later.run_id == with_later.run_id
    change = look_ahead.changes(without_later.predictions, with_later.predictions)
    if not is_same_run:
        detail = (
            f"the training as of {at.date()} reads bars of later sessions or fetches, or a "
            "later model is used"
        )
    elif change:
        detail = f"{change} with later data in the store"
    else:
        detail = (
            f"{len(without_later.nights)} predictions of single nights and "
            f"{len(without_later.fold)} of a fold's are equal to the last bit, whatever later data "
            "the store has"
        )
    return Finding("stored_nights", at, is_same_run and not change, detail)


def _predictions_of_nights(
    context: MarketContext, history: History, at: pd.Timestamp, restated: pd.DataFrame | None = None
) -> _Predicted:
    """Train briefly as of `at` on a new store, and run its night and `pipeline.LOOK_BACK` before.

    One by one, and as a fold that goes on after `at`, whose later predictions are left out. With
    `restated` bars, the store has these and a model of them too. Changes DTML_DATA meanwhile.
    """
    with (
        TemporaryDirectory(prefix="dtml-audit-") as folder,
        patch.dict(os.environ, DTML_DATA=folder),  # here the trainings write their models
    ):
        engine = open_engine(f"sqlite:///{folder}/store.sqlite")
        brief = look_ahead.hurried(context.experiment)
        audited = replace(
            context, market=history.market, engine=engine, experiment=brief, device="cpu"
        )
        upgrade(engine)  # makes the tables of the new store
        with transaction(engine) as conn:
            save_universe(conn, audited)
            prices.append_prices(conn, audited.name, history.bars, source="audit", known_at=FETCHED)
            if restated is not None:
                prices.append_prices(
                    conn, audited.name, restated, source="audit", known_at=FETCHED_AGAIN
                )
        # The days with a bar of the index, which every night needs.
        is_index = history.bars["symbol"] == audited.market.index.symbol
        index_sessions = history.bars.loc[is_index, "session"]
        past_sessions = index_sessions[index_sessions <= at].sort_values()
        days = [day.date() for day in past_sessions.iloc[-1 - pipeline.LOOK_BACK :]]
        later = history.sessions[history.sessions > at][pipeline.LOOK_AHEAD - 1].date()
        train_model(Tonight(audited, at.date(), FETCHED))
        if restated is not None:
            # On all fetches: no night up to `at` may use this model.
            train_model(Tonight(audited, later))
        model = load_model(audited, at.date())
        forecasts = [forecast(Tonight(audited, day, FETCHED), model) for day in days]
        first = next_session(audited.market.calendar, days[0])
        fold = Fold(number=1, as_of=days[0], first=first, last=later)
        predictions_of_fold, refused = Nights(audited, fold, FETCHED, "now").predict(model)
        engine.dispose()  # before the folder with its file is deleted
    nights = pd.concat([each.predictions for each in forecasts], ignore_index=True)
    # A fold of which every night was refused has no columns. It gets those of the single nights, so
    # that its rows can be chosen by `as_of`, and compared with the fold of another store.
    same_columns = predictions_of_fold.reindex(columns=list(nights)).astype(dict(nights.dtypes))
    return _Predicted(
        run_id=model.run_id,
        nights=nights,
        fold=same_columns[same_columns["as_of"] <= at],
        refused=refused,
    )
