"""Order the stocks of each night, best first: train the rankers when they are due, ask them, score
what they said.

Where a market's file says that the order is to be earned, a first champion is chosen by a walk
through the stored history; another replaces it when the nights since have shown, by a test that is
valid at every look, that it orders better (`dtml.evaluation.drift`).
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
from sqlalchemy import Connection

from db.engine import reading, transaction
from db.rows import prices
from db.rows import rankings as stored
from dtml.baselines.naive_rules import MODEL
from dtml.errors import DtmlError
from dtml.evaluation.drift import Evidence, evidence, promoted
from dtml.evaluation.ranking import both_known, figures_of, rank_ics, score_daily, score_ranking
from dtml.markets.definition import EARNED, LEGS, Leg
from dtml.own.code import OWN
from dtml.prices.sessions import next_session, sessions_between, sessions_up_to
from dtml.ranking.features import ALL, FEATURES, HISTORY, MAX_GAP, Names
from dtml.ranking.outcomes import HISTORY as RULES_READ
from dtml.ranking.outcomes import RULES, outcomes, rule_scores, sessions_to
from dtml.ranking.rankers import (
    Rankers,
    RankersConfig,
    fit_rankers,
    load_rankers,
    order_of,
    save_rankers,
    walk,
)
from dtml.ranking.relative import RelativeConfig
from dtml.ranking.walk import History, folds, market_panel
from flows.nightly.context import MarketContext, stored_bars
from flows.nightly.fetch import history_start
from flows.nightly.own_code import ask_own, change, train_own
from flows.settings import data_folder, weights_file
from translation.atomic_files import write_whole

log = logging.getLogger(__name__)

DAILY = ("n", "rank_ic", "auc", "acc", "mcc", "decile_spread")
LONGEST: Leg = max(LEGS, key=sessions_to)  # the return that is known last
SEEN = RelativeConfig().window - 1  # sessions before the last one that a ranker may look at
AWAITED = 250  # sessions for which a return is waited for
WALKED = 252  # sessions on which a first champion is chosen


def history_of(
    context: MarketContext,
    bars: pd.DataFrame,
    leg: Leg,
    symbols: tuple[str, ...] | None = None,
    names: Names = ALL,
) -> History:
    """Return what rankers read of bars: ranked features and outcomes of each
    day's constituents, or of these alone.
    """
    panel = market_panel(context.market, bars, symbols or ())
    among = None if symbols else context.market.membership(panel.sessions)
    return History.of(
        panel, leg, among, max_return=context.experiment.windows.largest_return, names=names
    )


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
    """Return the rankers of a night, trained `anew` or when the policy says so; None, logged, where
    there are none.

    Only those trained on sessions up to `as_of`, on prices as known at a moment (None: now), serve
    a night. Those whose checkpoint is lost are trained again.
    """
    with reading(context.engine) as conn:
        latest = stored.latest_ranker(conn, context.name, on_or_before=as_of, known_by=known_at)
    trains = anew or not (only_stored or context.market.retrain == "never")
    try:
        if latest is not None and not anew and not (trains and _is_due(context, latest, as_of)):
            try:
                return _noted(context, load_trained(context, latest), latest)
            except DtmlError as error:
                if not trains:
                    raise
                log.warning("training the rankers of %s again: %s", context.name, error)
        if trains:
            return _noted(context, train_rankers(context, as_of, known_at, latest), latest)
        raise DtmlError(f"it has no rankers: run `dtml train {context.name}`")
    except DtmlError as error:
        log.warning("the stocks of %s are not ordered as of %s: %s", context.name, as_of, error)
        return None


def _noted(context: MarketContext, trained: Trained, latest: Mapping[str, Any] | None) -> Trained:
    """Say what a night is to know of the market's own code: that it changed
    since the latest, or why it is left out.
    """
    said = [
        change(context, latest["config"])[1] if latest else "",
        trained.row["config"].get(OWN, {}).get("refused"),
    ]
    if note := "; ".join(dict.fromkeys(each for each in said if each)):
        log.warning("%s: %s", context.name, note)
    return replace(trained, note=note)


def _is_due(context: MarketContext, latest: Mapping[str, Any], as_of: date) -> bool:
    policy = context.market.retrain
    age = len(sessions_between(context.market.calendar, latest["train_last"], as_of)) - 1
    config = {name: value for name, value in latest["config"].items() if name != OWN}
    asked = config == _config(context) and latest["chosen"] in context.market.speakers
    asked = asked and not change(context, latest["config"])[0]
    return not asked or (isinstance(policy, int) and age >= policy)


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
    bars, watermark = stored_bars(context, history_start(context, as_of), as_of, known_at)
    history = history_of(context, bars, context.market.leg)
    asked, config = (
        RankersConfig.asking(context.market.leg, *context.market.speakers),
        _config(context),
    )
    rankers = fit_rankers(history, asked)
    rankers, own = train_own(context, history, bars, rankers, before["config"] if before else {})
    settings = {
        "market": context.name,
        "chosen": speaker(context, as_of, history),
        "config": config | own,
    }
    stem = data_folder() / "models" / f"{context.name}-{as_of}"
    file, sha = save_rankers(rankers, settings, stem, write_whole)
    row = settings | {
        "id": file.name.removesuffix("-order.safetensors"),
        "leg": context.market.leg,
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
    asked = RankersConfig.asking(context.market.leg, *context.market.speakers)
    config: dict[str, Any] = json.loads(json.dumps(asdict(asked)))
    return config | {"features": list(FEATURES), "max_return": context.market.checks.max_return}


def load_trained(context: MarketContext, row: Mapping[str, Any]) -> Trained:
    """Load the rankers of a row of `ranker`, their checkpoint checked against it."""
    file = weights_file(row["checkpoint_path"])
    return Trained(row, load_rankers(file, market=context.name, sha=row["checkpoint_hash"]))


def order_night(
    context: MarketContext,
    trained: Trained,
    as_of: date,
    probabilities: "pd.Series[float]",
    known_at: datetime | None = None,
) -> pd.DataFrame:
    """Return the order of the stocks in the session after `as_of`, from bars as known at a moment
    (None: now).

    `probabilities` are those that the night's model gives, by symbol: an order too. Rows are those
    of `order_of` with `ranker_id, as_of, target` and `speaks`, whether it is the champion's; none
    when the bars do not end at `as_of`.
    """
    own = trained.rankers.own
    bars = _recent(context, as_of, as_of, known_at, own.told["history"] if own else 0)
    history = history_of(
        context, bars, trained.row["leg"], tuple(sorted(context.constituents(as_of)))
    )
    if not len(history.panel.sessions) or history.panel.sessions[-1].date() != as_of:
        return pd.DataFrame()
    last = slice(-1, None)
    scores = {
        name: each[0]
        for name, each in trained.rankers.scores(history.features, history.there, last).items()
    }
    mine, said = ask_own(context, own, history) if own else ({}, "")
    scores |= mine
    scores[MODEL] = probabilities.reindex(list(history.panel.symbols)).to_numpy()
    order = order_of(scores, trained.rankers.slopes, history.panel.symbols)
    target = next_session(context.market.calendar, as_of)
    speaks = order["predictor"] == speaker(context, as_of, otherwise=trained.row["chosen"])
    order = order.assign(
        ranker_id=trained.row["id"],
        as_of=pd.Timestamp(as_of),
        target=pd.Timestamp(target),
        speaks=speaks,
    )
    order.attrs["note"] = "; ".join(each for each in (trained.note, said) if each)
    return order


def _recent(
    context: MarketContext, first: date, last: date, known_at: datetime | None, sessions: int
) -> pd.DataFrame:
    """Return the bars that the features of first..last read, and own ones that
    read so many sessions.
    """
    start = sessions_up_to(
        context.market.calendar, first, max(HISTORY + SEEN, sessions) + 2 * MAX_GAP
    )[0].date()
    return stored_bars(context, start, last, known_at)[0]


def score_orders(
    conn: Connection, context: MarketContext, as_of: date, changed: Iterable[date]
) -> None:
    """Score the orders up to `as_of` that lack a score, and those whose returns `changed`, beside
    one-line rules.

    Each return is scored once its last bar is there; running scores of the market's own return
    follow.
    """
    calendar, leg = context.market.calendar, context.market.leg
    awaited = sessions_up_to(calendar, as_of, AWAITED)[0].date()
    unscored = stored.first_unscored(conn, context.name, LONGEST, first=awaited, last=as_of)
    days = [*changed] if unscored is None else [unscored, *changed]
    said = (
        stored.orders(conn, context.name, first=min(days), last=as_of) if days else pd.DataFrame()
    )
    if said.empty:
        return
    start = sessions_up_to(calendar, said["as_of"].min().date(), RULES_READ + 2 * MAX_GAP)[0].date()
    bars = prices.prices(conn, context.name, start, as_of)
    history = history_of(context, bars, leg, names=[feature for feature, _ in RULES.values()])
    nights = pd.DataFrame(list(_night_scores(context, history, said)))
    if nights.empty:
        return
    before = stored.rank_scores(conn, context.name, span="night", leg=leg)
    now = datetime.now(UTC)
    stored.save_rank_scores(conn, context.name, nights, scored_at=now)
    after = stored.rank_scores(conn, context.name, span="night", leg=leg)
    both = after.merge(before, on=["target", "predictor"], how="left", suffixes=("", "_before"))
    new = both[
        ~np.isclose(both["rank_ic"], both["rank_ic_before"], equal_nan=True)
        | both["n_before"].isna()
    ]
    if len(new):
        running = pd.DataFrame(list(_running_scores(after, new["target"].min(), sessions_to(leg))))
        stored.save_rank_scores(conn, context.name, running.assign(leg=leg), scored_at=now)
        promote(conn, context, as_of)


def _running_scores(
    nights: pd.DataFrame, first: pd.Timestamp, overlap: int
) -> Iterator[dict[str, Any]]:
    """Yield a row a predictor and session from `first` on, over all sessions up to it."""
    for name, own in nights.groupby("predictor"):
        daily = {figure: own[figure].to_numpy(dtype=float) for figure in DAILY}
        for position in np.flatnonzero(own["target"] >= first):
            made = score_daily(
                {figure: each[: position + 1] for figure, each in daily.items()}, overlap=overlap
            )
            key = {"target": own["target"].iloc[position], "span": "running", "predictor": name}
            yield key | {"is_rule": name in RULES} | figures_of(made)


def _night_scores(
    context: MarketContext, history: History, said: pd.DataFrame
) -> Iterator[dict[str, Any]]:
    """Yield a row a session, return and predictor, for the returns that are known."""
    panel, symbols = history.panel, list(history.panel.symbols)
    largest = context.experiment.windows.largest_return
    found = {leg: outcomes(panel, leg, max_return=largest) for leg in LEGS}
    rules = {name: rule_scores(history.features, name) for name in RULES}
    for target, night in said.groupby("target"):
        day = panel.sessions.get_indexer(pd.DatetimeIndex(night["as_of"].iloc[:1]))[0]
        if day < 0 or day + 1 >= len(panel.sessions) or panel.sessions[day + 1] != target:
            continue
        newest = night.sort_values("made_at").drop_duplicates(["predictor", "symbol"], keep="last")
        scores = {
            name: own.set_index("symbol")["score"].reindex(symbols).to_numpy()
            for name, own in newest.groupby("predictor")
        }
        ordered = np.any([np.isfinite(each) for each in scores.values()], axis=0)
        scores |= {name: np.where(ordered, each[day], np.nan) for name, each in rules.items()}
        for leg, outcome in found.items():
            if day + sessions_to(leg) < len(panel.sessions):
                for name, score in scores.items():
                    made = score_ranking(score[None], outcome[day][None])
                    key = {"target": target, "span": "night", "leg": leg, "predictor": name}
                    yield key | {"is_rule": name in RULES} | figures_of(made)


def speaker(
    context: MarketContext,
    as_of: date,
    history: History | None = None,
    *,
    otherwise: str | None = None,
) -> str:
    """Return who orders the stocks of the session after `as_of`; the first champion is chosen on
    the `history`.

    Without a history, and without a champion, it is `otherwise`, whom the training named.
    """
    market = context.market
    if market.ranker != EARNED:
        return market.ranker
    target = next_session(market.calendar, as_of)
    with reading(context.engine) as conn:
        row = stored.champion(conn, context.name, target)
    if row is not None and row["predictor"] in market.candidates:
        return str(row["predictor"])
    if history is None:
        return otherwise or market.candidates[0]
    first, nights = _first_champion(context, history)
    with transaction(context.engine) as conn:
        _save_champion(conn, context, target, first, None, nights)
    return first


def _first_champion(context: MarketContext, history: History) -> tuple[str, int]:
    """Return the candidate with the best rank IC of a walk, among those that
    train in seconds, and the days walked.
    """
    # Where none of them is a candidate, or the history is too short to walk, it is the first one
    # listed.
    candidates, sessions = context.market.candidates, history.panel.sessions
    try:
        walked = folds(history, sessions[-min(WALKED, len(sessions))], sessions[-1])
    except DtmlError:
        return candidates[0], 0
    found = walk(history, walked, RankersConfig(context.market.leg))
    daily = pd.DataFrame(
        {name: rank_ics(*both_known(score, history.outcome)) for name, score in found.items()}
    )
    mean = daily.mean().reindex(list(candidates)).dropna()
    return (
        (str(mean.idxmax()), int(daily[mean.idxmax()].count())) if len(mean) else (candidates[0], 0)
    )


def promote(conn: Connection, context: MarketContext, as_of: date) -> Mapping[str, Any] | None:
    """Replace the champion from the next night on, if the scores of the nights since it began show
    a better candidate.

    Only scores of the sessions up to `as_of` count: a night may be run after later ones. The next
    night is the first that nobody has ordered yet. Returns the new row of `champion`, or None.
    """
    market = context.market
    champion = stored.champion(conn, context.name) if market.ranker == EARNED else None
    if champion is None:
        return None
    nights = stored.rank_scores(conn, context.name, span="night", leg=market.leg)
    nights = nights[nights["target"].between(pd.Timestamp(champion["since"]), pd.Timestamp(as_of))]
    daily = nights.pivot(index="target", columns="predictor", values="rank_ic").astype(float)
    others = [name for name in market.candidates if name != champion["predictor"] and name in daily]
    if champion["predictor"] not in daily or not others:
        return None
    gains = {name: (daily[name] - daily[champion["predictor"]]).to_numpy() for name in others}
    found = promoted(
        [evidence(name, gain, challengers=len(others)) for name, gain in gains.items()]
    )
    if found is None:
        return None
    ordered = [
        next_session(market.calendar, as_of)
    ]  # by the champion, whether that night is stored yet or not
    if (last := stored.last_ordered(conn, context.name)) is not None:
        ordered.append(last)
    since = next_session(market.calendar, max(ordered))
    return _save_champion(
        conn, context, since, found.challenger, champion["predictor"], found.nights, found
    )


def _save_champion(
    conn: Connection,
    context: MarketContext,
    since: date,
    predictor: str,
    replaced: str | None,
    nights: int,
    found: Evidence | None = None,
) -> dict[str, Any]:
    row = {
        "market": context.name,
        "since": since,
        "predictor": predictor,
        "replaced": replaced,
        "nights": nights,
    }
    row |= {
        name: None if found is None else getattr(found, name)
        for name in ("gain", "stake", "needed")
    }
    row |= {"decided_at": datetime.now(UTC)}
    stored.save_champion(conn, row)
    log.info(
        "%s orders the stocks of %s from %s on, after %d nights",
        predictor,
        context.name,
        since,
        nights,
    )
    return row
