"""Rank the stocks of each night, best first.

Rankers are trained when they are due, asked for their scores, and scored in turn. Where a market's
file says `ranker = "earned"`, `flows.nightly.champion` chooses whose ranking the night shows.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
from numpy import ndarray
from sqlalchemy import Connection

from db.engine import reading, transaction
from db.rows import rankings as stored
from dtml.baselines.naive_rules import MODEL
from dtml.errors import DtmlError
from dtml.evaluation.ranking import figures_of, score_daily, score_ranking
from dtml.markets.definition import LEGS, Leg
from dtml.own.code import OWN
from dtml.prices.changes import MAX_GAP
from dtml.prices.sessions import next_session, sessions_between, sessions_up_to
from dtml.ranking.features import ALL, FEATURES, HISTORY, Names
from dtml.ranking.outcomes import outcomes, sessions_to
from dtml.ranking.rankers import (
    Rankers,
    RankersConfig,
    fit_rankers,
    load_rankers,
    ranking_of_day,
    save_rankers,
)
from dtml.ranking.rules import HISTORY as RULES_READ
from dtml.ranking.rules import RULES, rule_scores
from dtml.ranking.walk import History, market_panel
from flows.nightly.bars import SEEN, NightBars
from flows.nightly.champion import choose_ranker, promote
from flows.nightly.context import MarketContext, stored_bars
from flows.nightly.fetch import history_start
from flows.nightly.own_code import ask_own, change, train_own
from flows.settings import data_folder, weights_file
from translation.atomic_files import write_whole

log = logging.getLogger(__name__)

DAILY = ("n", "rank_ic", "auc", "acc", "mcc", "decile_spread")
LONGEST: Leg = max(LEGS, key=sessions_to)  # the return that is known last
AWAITED = 250  # sessions for which a return is waited for


def history_of(
    context: MarketContext,
    bars: pd.DataFrame,
    leg: Leg,
    symbols: tuple[str, ...] | None = None,
    names: Names = ALL,
) -> History:
    """Return what rankers read of bars: ranked features and outcomes.

    They are those of each day's constituents, or of these `symbols` alone.
    """
    panel = market_panel(context.market, bars, symbols or ())
    among = None if symbols else context.market.is_constituent(panel.sessions)
    largest_return = context.experiment.windows.largest_return
    return History.of(panel, leg, among, max_return=largest_return, names=names)


@dataclass(frozen=True)
class Trained:
    """Hold rankers and their row in the store."""

    row: Mapping[str, Any]
    rankers: Rankers
    note: str = ""  # of a user's own code, for the night


def rankers_for(
    context: MarketContext,
    as_of: date,
    known_at: datetime | None = None,
    *,
    only_stored: bool = False,
    anew: bool = False,
) -> Trained | None:
    """Return the rankers of a night, trained `anew` or when the policy says so.

    None, logged, where there are none. Only those trained on sessions up to `as_of`, on prices as
    known at a moment (None: now), serve a night. Those whose checkpoint is lost are trained again.
    """
    with reading(context.engine) as conn:
        latest = stored.latest_ranker(conn, context.name, on_or_before=as_of, known_by=known_at)
    may_train = anew or not (only_stored or context.market.retrain == "never")
    try:
        trained = None
        if latest is not None and not anew:
            trained = _latest_trained(context, latest, as_of, may_train=may_train)
        if trained is None:
            if not may_train:
                raise DtmlError(f"no rankers are trained: run `dtml train {context.name}`")
            trained = train_rankers(context, as_of, known_at, latest)
        return _noted(context, trained, latest)
    except DtmlError as error:
        log.warning("the stocks of %s are not ranked as of %s: %s", context.name, as_of, error)
        return None


def _latest_trained(
    context: MarketContext, latest: Mapping[str, Any], as_of: date, *, may_train: bool
) -> Trained | None:
    """Load the latest rankers; None where others are to be trained in their place.

    Those that are lost, where no others may be trained, raise DtmlError.
    """
    if may_train and _is_due(context, latest, as_of):
        return None
    try:
        return load_trained(context, latest)
    except DtmlError as error:
        if not may_train:
            raise
        log.warning("training the rankers of %s again: %s", context.name, error)
        return None


def _noted(context: MarketContext, trained: Trained, latest: Mapping[str, Any] | None) -> Trained:
    """Add what a night is to know of the market's own code.

    That is that it changed since the latest rankers, or why it is left out.
    """
    changed = change(context, latest["config"])[1] if latest else ""
    refused = trained.row["config"].get(OWN, {}).get("refused")
    notes = dict.fromkeys(note for note in (changed, refused) if note)
    joined = "; ".join(notes)
    if joined:
        log.warning("%s: %s", context.name, joined)
    return replace(trained, note=joined)


def _is_due(context: MarketContext, latest: Mapping[str, Any], as_of: date) -> bool:
    """Return whether the latest rankers were asked for otherwise, or are too old."""
    config = {name: value for name, value in latest["config"].items() if name != OWN}
    is_as_asked = config == _config(context) and latest["chosen"] in context.market.eligible_rankers
    if not is_as_asked:
        return True
    is_changed, _ = change(context, latest["config"])
    if is_changed:
        return True
    policy = context.market.retrain
    age = len(sessions_between(context.market.calendar, latest["train_last"], as_of)) - 1
    return isinstance(policy, int) and age >= policy


def train_rankers(
    context: MarketContext,
    as_of: date,
    known_at: datetime | None = None,
    before: Mapping[str, Any] | None = None,
) -> Trained:
    """Train on what is stored up to `as_of`, as known at a moment (None: now), and record it.

    Own code that was audited `before` is not audited again. Raises DtmlError for a history too
    short.
    """
    market = context.market
    bars, watermark = stored_bars(context, history_start(context, as_of), as_of, known_at)
    history = history_of(context, bars, market.leg)
    asked = RankersConfig.asking(market.leg, *market.eligible_rankers)
    config = _config(context)
    rankers = fit_rankers(history, asked)
    config_before = before["config"] if before else {}
    rankers, own_record = train_own(context, history, bars, rankers, config_before)
    settings = {
        "market": context.name,
        "chosen": choose_ranker(context, as_of, history),
        "config": config | own_record,
    }
    stem = data_folder() / "models" / f"{context.name}-{as_of}"
    file, sha = save_rankers(rankers, settings, stem, write_whole)
    row = {
        **settings,
        "id": file.name.removesuffix("-rankers.safetensors"),
        "leg": market.leg,
        "code_version": version("dtml-nightshift"),
        "data_watermark": watermark,
        "checkpoint_path": str(file.relative_to(data_folder())),
        "checkpoint_hash": sha,
        "train_last": as_of,
        "created_at": datetime.now(UTC),
    }
    with transaction(context.engine) as conn:
        stored.save_ranker(conn, row)
    return Trained(row, rankers)


def _config(context: MarketContext) -> dict[str, Any]:
    """Return what rankers are asked for, as JSON gives it back."""
    asked = RankersConfig.asking(context.market.leg, *context.market.eligible_rankers)
    config: dict[str, Any] = json.loads(json.dumps(asdict(asked)))
    return config | {"features": list(FEATURES), "max_return": context.market.checks.max_return}


def load_trained(context: MarketContext, row: Mapping[str, Any]) -> Trained:
    """Load the rankers of a row of `ranker`, their checkpoint checked against it."""
    file = weights_file(row["checkpoint_path"])
    return Trained(row, load_rankers(file, market=context.name, sha=row["checkpoint_hash"]))


def rank_night(
    context: MarketContext,
    trained: Trained,
    night_bars: NightBars,
    probabilities: "pd.Series[float]",
) -> pd.DataFrame:
    """Return the ranking of the stocks in the session after the night's, from the bars it knew.

    `probabilities` are those that the night's model gives, by symbol: they rank stocks too. Rows
    are those of `ranking_of_day` with `ranker_id, as_of, target` and `chosen`, whether it is the
    ranking that the night shows; none when the bars do not end at `as_of`.
    """
    as_of = night_bars.as_of
    own = trained.rankers.own
    sessions_read = max(HISTORY + SEEN, own.description["history"] if own else 0) + 2 * MAX_GAP
    first = sessions_up_to(context.market.calendar, as_of, sessions_read)[0].date()
    bars, _ = night_bars.known(first)
    symbols = tuple(sorted(context.constituents(as_of)))
    history = history_of(context, bars, trained.row["leg"], symbols)
    if not len(history.panel.sessions) or history.panel.sessions[-1].date() != as_of:
        return pd.DataFrame()
    last_day = slice(-1, None)
    of_days = trained.rankers.scores(history.features, history.there, last_day)
    scores = {name: of_day[0] for name, of_day in of_days.items()}
    own_note = ""
    if own:
        own_scores, own_note = ask_own(context, own, history)
        scores |= own_scores
    scores[MODEL] = probabilities.reindex(list(history.panel.symbols)).to_numpy()
    ranking = ranking_of_day(scores, trained.rankers.slopes, history.panel.symbols)
    champion = choose_ranker(context, as_of, otherwise=trained.row["chosen"])
    ranking = ranking.assign(
        ranker_id=trained.row["id"],
        as_of=pd.Timestamp(as_of),
        target=pd.Timestamp(next_session(context.market.calendar, as_of)),
        chosen=ranking["predictor"] == champion,
    )
    ranking.attrs["note"] = "; ".join(note for note in (trained.note, own_note) if note)
    return ranking


def score_rankings(
    conn: Connection, context: MarketContext, night_bars: NightBars, changed: Iterable[date]
) -> None:
    """Score the rankings up to the night that lack a score, and those whose returns `changed`.

    They are scored beside one-line rules, each return once its last bar is there; running scores of
    the market's own return follow.
    """
    leg = context.market.leg
    nights = _scores_of_nights(conn, context, night_bars, changed)
    if nights.empty:
        return
    before = stored.rank_scores(conn, context.name, span="night", leg=leg)
    now = datetime.now(UTC)
    stored.save_rank_scores(conn, context.name, nights, scored_at=now)
    after = stored.rank_scores(conn, context.name, span="night", leg=leg)
    beside = after.merge(before, on=["target", "predictor"], how="left", suffixes=("", "_before"))
    is_same = np.isclose(beside["rank_ic"], beside["rank_ic_before"], equal_nan=True)
    new = beside[~is_same | beside["n_before"].isna()]
    if len(new):
        running = pd.DataFrame(list(_running_scores(after, new["target"].min(), sessions_to(leg))))
        stored.save_rank_scores(conn, context.name, running.assign(leg=leg), scored_at=now)
        promote(conn, context, night_bars.as_of)


def _scores_of_nights(
    conn: Connection, context: MarketContext, night_bars: NightBars, changed: Iterable[date]
) -> pd.DataFrame:
    """Return scores of the rankings up to the night, from the first that may need one."""
    as_of = night_bars.as_of
    calendar = context.market.calendar
    awaited = sessions_up_to(calendar, as_of, AWAITED)[0].date()
    unscored = stored.first_unscored(conn, context.name, LONGEST, first=awaited, last=as_of)
    days = [*changed] if unscored is None else [unscored, *changed]
    if not days:
        return pd.DataFrame()
    night_rankings = stored.night_rankings(conn, context.name, first=min(days), last=as_of)
    if night_rankings.empty:
        return pd.DataFrame()
    first = night_rankings["as_of"].min().date()
    start = sessions_up_to(calendar, first, RULES_READ + 2 * MAX_GAP)[0].date()
    bars = night_bars.newest(start)
    names = [feature for feature, _ in RULES.values()]
    history = history_of(context, bars, context.market.leg, names=names)
    return pd.DataFrame(list(_night_scores(context, history, night_rankings)))


def _running_scores(
    nights: pd.DataFrame, first: pd.Timestamp, overlap: int
) -> Iterator[dict[str, Any]]:
    """Yield a row a predictor and session from `first` on, over all sessions up to it."""
    for predictor, scores in nights.groupby("predictor"):
        daily = {figure: scores[figure].to_numpy(dtype=float) for figure in DAILY}
        for position in np.flatnonzero(scores["target"] >= first):
            until = {figure: values[: position + 1] for figure, values in daily.items()}
            running = score_daily(until, overlap=overlap)
            yield {
                "target": scores["target"].iloc[position],
                "span": "running",
                "predictor": predictor,
                "is_rule": predictor in RULES,
                **figures_of(running),
            }


def _night_scores(
    context: MarketContext, history: History, night_rankings: pd.DataFrame
) -> Iterator[dict[str, Any]]:
    """Yield a row a session, return and predictor, for the returns that are known."""
    panel = history.panel
    largest_return = context.experiment.windows.largest_return
    returns = {leg: outcomes(panel, leg, max_return=largest_return) for leg in LEGS}
    rules = {name: rule_scores(history.features, name) for name in RULES}
    for target, night in night_rankings.groupby("target"):
        day = panel.sessions.get_indexer(pd.DatetimeIndex(night["as_of"].iloc[:1]))[0]
        if day < 0 or day + 1 >= len(panel.sessions) or panel.sessions[day + 1] != target:
            continue
        scores = _newest_scores(night, list(panel.symbols))
        is_ranked = np.any([np.isfinite(score) for score in scores.values()], axis=0)
        for name, rule in rules.items():
            scores[name] = np.where(is_ranked, rule[day], np.nan)
        for leg, outcome in returns.items():
            if day + sessions_to(leg) >= len(panel.sessions):
                continue
            for predictor, score in scores.items():
                night_score = score_ranking(score[None], outcome[day][None])
                yield {
                    "target": target,
                    "span": "night",
                    "leg": leg,
                    "predictor": predictor,
                    "is_rule": predictor in RULES,
                    **figures_of(night_score),
                }


def _newest_scores(night: pd.DataFrame, symbols: list[str]) -> dict[str, ndarray]:
    """Return each predictor's newest scores of a night, [stocks]; NaN where there is none."""
    newest = night.sort_values("made_at").drop_duplicates(["predictor", "symbol"], keep="last")
    scores = {}
    for predictor, rows in newest.groupby("predictor"):
        by_symbol = rows.set_index("symbol")["score"]
        scores[str(predictor)] = by_symbol.reindex(symbols).to_numpy()
    return scores
