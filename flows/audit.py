"""Audit a market for look-ahead: its own bars, settings, stored nights, latest model, and leaks
planted in all of them.

It audits a part of the market with short trainings, in a minute or two, and prints that it did.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pandas as pd

from db.engine import open_engine, reading, transaction, upgrade
from db.rows import prices, runs
from dtml.lookahead import audit as look_ahead
from dtml.lookahead.audit import Finding
from dtml.lookahead.pipeline import History, Pipeline
from dtml.lookahead.ranks import SMALL, RankingPath, audit_ranking, prove_ranking
from dtml.own.admission import admit, past_of
from dtml.own.code import OWN, OwnCode
from dtml.own.process import IsolatedCode
from dtml.prices.sessions import next_session, sessions_up_to
from dtml.ranking.rankers import RankersConfig
from flows.backtest.folds import Fold, Nights
from flows.nightly.bars import NightBars
from flows.nightly.context import MarketContext, save_universe, stored_bars
from flows.nightly.predict import forecast
from flows.nightly.ranking import rankers_for
from flows.nightly.train import load_model, train_model

STOCKS, SESSIONS = 50, 1000  # at most: a part shows what the whole market does
SEED = 0  # the same audit of the same bars finds the same
FETCHED = datetime(2000, 1, 1, tzinfo=UTC)  # when all bars of an audit's stores became known
FETCHED_AGAIN = datetime(2001, 1, 1, tzinfo=UTC)  # when each was restated, which no night may know


@dataclass(frozen=True)
class Audit:
    """Hold findings, and which planted leaks were caught.

    The rows of `findings` are `audited, check, at, passed, detail, has_power`.
    """

    findings: pd.DataFrame
    proof: pd.DataFrame

    @property
    def passed(self) -> bool:
        """Return whether every check could tell and found nothing, and each leak was caught."""
        return bool(self.findings["passed"].all() and not self.alarm)

    @property
    def alarm(self) -> bool:
        """Return whether look-ahead was found, a leak missed, or an honest pipeline accused."""
        is_found = self.findings["has_power"] & ~self.findings["passed"]
        is_wrong = self.proof["caught"] != self.proof["planted"]
        return bool(is_found.any() or is_wrong.any())


def audit_market(context: MarketContext, as_of: date, tell: Callable[[str], object]) -> Audit:
    """Audit windows, training and predictions on the last sessions up to a day.

    It only reads; `tell` gets each step.
    """
    market = context.market
    first = sessions_up_to(market.calendar, as_of, SESSIONS)[0].date()
    bars, _ = stored_bars(context, first, as_of)
    history = past_of(market, bars)
    part = history.cut(stocks=STOCKS, sessions=SESSIONS, seed=SEED)
    tell("the pipeline: windows, spans, training, predictions")
    findings = look_ahead.audit(Pipeline(context.experiment), part, seed=SEED)
    rows = _rows("pipeline", findings)
    tell("nights from a store")
    rows += _rows("nights", [stored_nights(context, part, findings[0].at, SEED)])
    with reading(context.engine) as conn:
        is_trained = runs.latest_run(conn, context.name, on_or_before=as_of) is not None
    if is_trained:
        model = load_model(context, as_of)
        tell(f"the model {model.run_id}")
        rows += _rows(model.run_id, look_ahead.audit_model(model.ensemble, history, seed=SEED))
    tell("the ranking of the stocks")
    largest_return = context.experiment.windows.largest_return
    path = RankingPath(RankersConfig(market.leg, boosting=SMALL), largest_return)
    rows += _rows("ranking", audit_ranking(path, part, seed=SEED))
    trained = rankers_for(context, as_of, only_stored=True)
    if trained is not None:
        stored = replace(path, fit=lambda *_: trained.rankers)
        rows += _rows(trained.row["id"], audit_ranking(stored, history, seed=SEED, trains=False))
    if market.code:
        for admitted in admit(IsolatedCode(OwnCode.read(market.code)), history, market.leg):
            rows.append({"audited": OWN, "at": part.sessions[-1], "has_power": True, **admitted})
    tell("leaks planted on purpose")
    proofs = [
        look_ahead.prove(part, context.experiment, seed=SEED, dates=1),
        prove_ranking(part, path, seed=SEED),
    ]
    planted = pd.concat([proof for proof in proofs if len(proof)], ignore_index=True)
    return Audit(pd.DataFrame(rows).drop(columns="what", errors="ignore"), planted)


def _rows(audited: str, findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return findings as rows that say what was audited."""
    return [{"audited": audited, **asdict(finding)} for finding in findings]


@dataclass(frozen=True)
class _Made:
    """Hold what a store gave: the run that served, predictions of single nights
    and of a fold's, nights refused.
    """

    run_id: str
    nights: pd.DataFrame
    fold: pd.DataFrame
    refused: dict[str, str]


def stored_nights(context: MarketContext, history: History, at: pd.Timestamp, seed: int) -> Finding:
    """Check that nothing that a store holds of later changes a training as of `at` or a night up to
    it.

    Of later are: other bars after `at`, a second fetch that restates every bar, and a model trained
    on both. The nights are run by the code of a night, and of a backtest's fold that continues
    after `at`, with their reads of a store. Neither the bars that the training reads, which its
    run's name digests, nor any prediction may change a bit.
    """
    scrambled = replace(history.scrambled_after(at, seed), market=history.market)
    before, after = (
        _nights(context, history, at),
        _nights(context, scrambled, at, restated=scrambled.tossed(seed).bars),
    )
    if before.nights.empty or before.fold.empty:
        said = (
            "no night can be checked: "
            f"{next(iter(before.refused.values()), 'no night has a prediction')}"
        )
        return Finding("stored_nights", at, passed=False, detail=said, has_power=False)
    both = ((before.nights, after.nights), (before.fold, after.fold))
    differing = [(rows, others) for rows, others in both if not rows.equals(others)]
    made = f"{len(before.nights)} predictions of single nights and {len(before.fold)} of a fold's"
    detail = f"{made} are equal to the last bit, whatever later data the store has"
    if before.run_id != after.run_id:
        detail = (
            f"the training as of {at.date()} reads bars of later sessions or fetches, or a "
            "later model is used"
        )
    elif differing:
        detail = look_ahead.changes(*differing[0])
    return Finding("stored_nights", at, before.run_id == after.run_id and not differing, detail)


def _nights(
    context: MarketContext, history: History, at: pd.Timestamp, restated: pd.DataFrame | None = None
) -> _Made:
    """Train briefly as of `at` on a store with this history; run its nights up
    to then, one by one and as a fold.
    """
    # With `restated` bars, a later fetch brought these, and a later training saw them.
    with (
        TemporaryDirectory(prefix="dtml-audit-") as folder,
        patch.dict(os.environ, DTML_DATA=folder),
    ):  # its models too
        engine = open_engine(f"sqlite:///{folder}/store.sqlite")
        brief = look_ahead.hurried(context.experiment, look_ahead.SHORT, seeds=look_ahead.MEMBERS)
        mine = replace(
            context, market=history.market, engine=engine, experiment=brief, device="cpu"
        )
        upgrade(engine)
        with transaction(engine) as conn:
            save_universe(conn, mine)
            prices.append_prices(conn, mine.name, history.bars, source="audit", known_at=FETCHED)
            if restated is not None:
                prices.append_prices(
                    conn, mine.name, restated, source="audit", known_at=FETCHED_AGAIN
                )
        index = history.bars.loc[history.bars["symbol"] == mine.market.index.symbol, "session"]
        days = [
            day.date() for day in index[index <= at].sort_values().iloc[-1 - look_ahead.LOOK_BACK :]
        ]
        later = history.sessions[history.sessions > at][look_ahead.LOOK_AHEAD - 1].date()
        train_model(mine, at.date(), known_at=FETCHED)
        if restated is not None:
            train_model(mine, later)
        model = load_model(mine, at.date())
        made = [forecast(mine, model, NightBars(mine, day, FETCHED)).predictions for day in days]
        fold = Fold(1, days[0], next_session(mine.market.calendar, days[0]), later)
        walked, refused = Nights(mine, fold, FETCHED).predict(model)
        engine.dispose()
    rows = pd.concat(made, ignore_index=True)
    walked = walked.reindex(columns=list(rows)).astype(dict(rows.dtypes))
    return _Made(model.run_id, rows, walked[walked["as_of"] <= at], refused)
