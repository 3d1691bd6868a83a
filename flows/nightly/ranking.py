"""Rank the stocks of each night, best first.

Where a market's file says `ranker = "earned"`, the first champion, whose ranking a night shows, is
chosen by a walk. Another candidate replaces it once nights have shown that it ranks better, by a
test that is valid however often it is made (`dtml.evaluation.evidence`).
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pandas as pd
import torch
from sqlalchemy import Connection

from db import where
from db.engine import reading, transaction
from db.read import query, read, read_value
from db.rows import rankings as stored
from db.save import save
from dtml.baselines.naive_rules import MODEL
from dtml.devices import choose_device
from dtml.errors import DtmlError
from dtml.evaluation.evidence import Evidence, evidence, promoted
from dtml.evaluation.ranking import FIGURES, both_known, rank_ics, score_daily, score_each_day
from dtml.markets.definition import EARNED, LEGS, Leg
from dtml.own.code import OWN
from dtml.prices.sessions import next_known_session, next_session, sessions_up_to
from dtml.ranking.features import ALL, FEATURE_SETS, RULES, RULES_READ, Names, rule_scores
from dtml.ranking.outcomes import measured_legs, outcomes, overlap_of, sessions_to
from dtml.ranking.rankers import (
    Rankers,
    RankersConfig,
    fit_rankers,
    load_rankers,
    ranking_of_day,
    save_rankers,
    trainings,
    walk,
)
from dtml.ranking.walk import History, folds, market_panel
from flows.nightly.context import (
    RANKER_SESSIONS,
    SESSIONS_FOR_GAPS,
    MarketContext,
    Tonight,
)
from flows.nightly.fetch import history_start
from flows.nightly.own_code import ask_own, change, train_own
from flows.nightly.train import Weights, stored_row, weights_for, why_due
from flows.progress import rankings_progress
from flows.settings import data_folder, weights_file

log = logging.getLogger(__name__)

WALKED_SESSIONS = 252  # the last ones of the history, on which a first champion is chosen


def choose_ranker(
    context: MarketContext,
    as_of: date,
    history: History | None = None,
    *,
    otherwise: str | None = None,
) -> str:
    """Return the ranker whose ranking the night of `as_of` shows.

    The one that the market's file names, or with "earned" the stored champion of the next session.
    If none of the listed is stored, it is chosen on the `history` and stored; without a `history`
    it is `otherwise` or the first listed.
    """
    market = context.market
    if market.ranker != EARNED:
        return market.ranker
    target = next_session(market.calendar, as_of)
    with reading(context.engine) as conn:
        champion = stored.champion(conn, context.name, target)
    # The market's file may list the champion no longer.
    if champion is not None and champion["predictor"] in market.candidates:
        return str(champion["predictor"])
    if history is None:
        return otherwise or market.candidates[0]
    first, nights = _first_champion(context, history)
    with transaction(context.engine) as conn:
        _save_champion(conn, context, since=target, predictor=first, replaced=None, nights=nights)
    return first


def _first_champion(context: MarketContext, history: History) -> tuple[str, int]:
    """Return the candidate with the highest mean rank IC in a walk, and its number of rank ICs.

    Only rankers that train in seconds are walked, over WALKED_SESSIONS. Where that cannot be: the
    first listed, and 0.
    """
    candidates = context.market.candidates
    sessions = history.panel.sessions
    first_walked = sessions[-WALKED_SESSIONS:][0]
    try:
        walked = folds(history, first_walked, sessions[-1])
    except DtmlError:  # too few sessions to train on, or too few stocks to rank
        return candidates[0], 0
    # This config has no networks, which train for minutes.
    config = RankersConfig(context.market.leg)
    total = sum(1 for _ in trainings(history, walked, config))
    with rankings_progress(f"first champion of {context.name}", total) as train_and_report:
        scores = walk(history, walked, config, train_and_report)
    # A row a session, a column a ranker. Stock-days count if both values are known.
    daily_rank_ics = pd.DataFrame(
        {name: rank_ics(*both_known(score, history.outcome)) for name, score in scores.items()}
    )
    # `reindex` leaves out rankers that are no candidates, `dropna` candidates that were not walked.
    mean = daily_rank_ics.mean().reindex(list(candidates)).dropna()
    if mean.empty:
        return candidates[0], 0
    best = str(mean.idxmax())
    return best, int(daily_rank_ics[best].count())


def promote(conn: Connection, context: MarketContext, as_of: date) -> Mapping[str, Any] | None:
    """Replace the champion if another candidate has proved better since, up to `as_of`.

    Stores and returns the new row of `champion`, valid from the first session not ranked yet; None
    where none is due.
    """
    market = context.market
    following = next_known_session(market.calendar, as_of)
    row = stored.champion(conn, context.name) if market.ranker == EARNED else None
    if row is None or following is None:
        return None
    champion = row["predictor"]
    nights = read(conn, "rank_score", market=context.name, span="night", leg=market.leg)
    nights = nights[nights["target"].between(pd.Timestamp(row["since"]), pd.Timestamp(as_of))]
    # A row a session, a column a predictor.
    daily_rank_ics = nights.pivot(index="target", columns="predictor", values="rank_ic")
    daily_rank_ics = daily_rank_ics.astype(float)  # with NaN for a session without a rank IC
    scored_candidates = [name for name in market.candidates if name in daily_rank_ics]
    challengers = [name for name in scored_candidates if name != champion]
    if champion not in daily_rank_ics or not challengers:
        return None
    gathered = []
    for name in challengers:
        gain = (daily_rank_ics[name] - daily_rank_ics[champion]).to_numpy()
        # The more challengers, the more evidence each needs: one of many is ahead by luck.
        overlap = overlap_of(market.leg)
        gathered.append(evidence(name, gain, challengers=len(challengers), overlap=overlap))
    winner = promoted(gathered)
    if winner is None:
        return None
    # The night of `as_of` shows the present champion, whether its ranking is stored yet or not.
    ranked_sessions = [following]
    last_ranked = read_value(conn, "stock_rank", "target", market=context.name, order="-target")
    if last_ranked is not None:
        ranked_sessions.append(last_ranked)
    return _save_champion(
        conn,
        context,
        since=next_session(market.calendar, max(ranked_sessions)),
        predictor=winner.challenger,
        replaced=champion,
        nights=winner.nights,
        proof=winner,
    )


def _save_champion(
    conn: Connection,
    context: MarketContext,
    *,
    since: date,
    predictor: str,
    replaced: str | None,
    nights: int,
    proof: Evidence | None = None,
) -> dict[str, Any]:
    """Store and return the row of the champion from the session `since` on; a stored one stays.

    `nights` are the daily rank ICs that the choice rests on, 0 if it is merely the first listed.
    """
    row = {
        "market": context.name,
        "since": since,
        "predictor": predictor,
        "replaced": replaced,
        "nights": nights,
        "gain": None if proof is None else proof.gain,
        "stake": None if proof is None else proof.stake,
        "needed": None if proof is None else proof.needed,
        "decided_at": datetime.now(UTC),
    }
    save(conn, "champion", row)
    log.info(
        "%s becomes champion of %s on %s, by the rank ICs of %d sessions",
        predictor,
        context.name,
        since,
        nights,
    )
    return row


# The figures of each night from which running scores are computed (`score_daily`).
DAILY_FIGURES = ("n", *FIGURES)
LONGEST: Leg = max(LEGS, key=sessions_to)  # the return that is known last
AWAITED = 250  # sessions after which what is still not known of a night is given up


def history_of(
    context: MarketContext,
    bars: pd.DataFrame,
    leg: Leg,
    symbols: tuple[str, ...] | None = None,
    names: Names = ALL,
) -> History:
    """Return what rankers read of bars: ranked features, and outcomes of the return `leg`.

    Ranked are each day's constituents, or these `symbols` on all days.
    """
    panel = market_panel(context.market, bars, symbols or ())
    among = None if symbols else context.market.is_constituent(panel.sessions)
    largest_return = context.experiment.windows.largest_return
    return History.of(
        panel,
        leg,
        among,
        max_return=largest_return,
        names=names,
        feature_set=context.market.features,
    )


@dataclass(frozen=True)
class Trained:
    """Hold rankers and their row in the store."""

    row: Mapping[str, Any]
    rankers: Rankers
    note: str = ""  # what the night's row says of a user's own code; empty where nothing


def rankers_for(
    tonight: Tonight, *, only_stored: bool = False, anew: bool = False
) -> Trained | None:
    """Return a night's rankers, as `weights_for`; None, with a warning, without any."""
    name = tonight.context.name
    try:
        trained = weights_for(tonight, RANKER_WEIGHTS, only_stored=only_stored, anew=anew)
    except DtmlError as error:
        log.warning("the stocks of %s are not ranked as of %s: %s", name, tonight.as_of, error)
        return None
    if trained.note:
        log.warning("%s: %s", name, trained.note)
    return trained


def _why_due(context: MarketContext, latest: Mapping[str, Any] | None, as_of: date) -> str | None:
    reason = why_due(context, latest, as_of, _config(context))
    if reason or latest is None:
        return reason
    has_changed, words = change(context, latest["config"])
    if has_changed:
        return words
    is_eligible = latest["chosen"] in context.market.eligible_rankers
    return None if is_eligible else f"{latest['chosen']} is no longer eligible"


def _note(context: MarketContext, before: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Say how own code has changed since the training `before`, and faults in `config`."""
    own = config.get(OWN, {})
    notes = (change(context, before)[1], own.get("refused"), own.get("doubt"))
    return "; ".join(dict.fromkeys(note for note in notes if note))  # each text once


def train_rankers(tonight: Tonight, previous: Mapping[str, Any] | None = None) -> Trained:
    """Train on what is stored up to a night, as it knows it; write checkpoint and row.

    An "earned" market without a champion gets one (`choose_ranker`). Raises DtmlError where there
    are too few bars.
    """
    context, as_of = tonight.context, tonight.as_of
    market = context.market
    bars, watermark = tonight.known(history_start(context, as_of))
    history = history_of(context, bars, market.leg)
    asked = RankersConfig.for_rankers(market.leg, *market.eligible_rankers)
    config = _config(context)
    rankers = fit_rankers(history, asked, _place(context, asked))
    rankers, own_record = train_own(context, history, rankers)
    settings = {
        "market": context.name,
        "chosen": choose_ranker(context, as_of, history),
        "config": config | own_record,
    }
    stem = data_folder() / "models" / f"{context.name}-{as_of}"
    file, sha = save_rankers(rankers, settings, stem)
    name = file.name.removesuffix("-rankers.safetensors")
    row = {
        **stored_row(tonight, file, sha, name=name, watermark=watermark),
        **settings,
        "leg": market.leg,
    }
    with transaction(context.engine) as conn:
        save(conn, "ranker", row)
    return Trained(row, rankers, _note(context, (previous or row)["config"], row["config"]))


def _place(context: MarketContext, config: RankersConfig) -> torch.device:
    """Return the device of the networks among the rankers, which are trained twice."""
    stocks = len(context.market.symbols)
    return choose_device(context.device, [each.load(stocks) for each in config.networks] * 2)


def _config(context: MarketContext) -> dict[str, Any]:
    """Return the settings that rankers are trained with, as they come back from stored JSON."""
    asked = RankersConfig.for_rankers(context.market.leg, *context.market.eligible_rankers)
    config: dict[str, Any] = json.loads(json.dumps(asdict(asked)))
    market = context.market
    features = list(FEATURE_SETS[market.features])
    return config | {"features": features, "max_return": market.checks.max_return}


def load_trained(context: MarketContext, row: Mapping[str, Any]) -> Trained:
    """Load the rankers of a row of `ranker`.

    Raises DtmlError where the checkpoint is lost, changed, or of other features than the market's.
    """
    rankers = load_rankers(
        weights_file(row["checkpoint_path"]),
        market=context.name,
        sha=row["checkpoint_hash"],
        feature_set=context.market.features,
    )
    return Trained(row, rankers)


RANKER_WEIGHTS = Weights(
    what="rankers",
    relation="ranker",
    why_due=_why_due,
    load=lambda context, row: replace(
        load_trained(context, row), note=_note(context, row["config"], row["config"])
    ),
    train=train_rankers,
)


def rank(tonight: Tonight) -> None:
    """Rank the stocks for the next session; without rankers, none is ranked."""
    tonight.ranking = pd.DataFrame()
    if tonight.rankers is not None:
        probabilities = tonight.forecast.predictions.set_index("symbol")["probability"]
        tonight.ranking = rank_night(tonight, tonight.rankers, probabilities)


def rank_night(
    tonight: Tonight, trained: Trained, probabilities: "pd.Series[float]"
) -> pd.DataFrame:
    """Return the ranking of the session after the night's; no row unless bars end at `as_of`.

    A row a predictor and stock with a score: `ranking_of_day` with `ranker_id, as_of, target,
    chosen` (shown by the night). `probabilities`, by symbol, rank stocks too. `attrs["note"]`: what
    to say of a user's own code, or "".
    """
    context = tonight.context
    as_of = tonight.as_of
    own = trained.rankers.own
    own_history = own.description["history"] if own else 0
    # More than `USUAL_SESSIONS`, as own code may need, makes the night read all its bars again.
    sessions_read = max(RANKER_SESSIONS, own_history) + SESSIONS_FOR_GAPS
    first = sessions_up_to(context.market.calendar, as_of, sessions_read)[0].date()
    bars, _ = tonight.known(first)
    symbols = tuple(sorted(context.constituents(as_of)))
    history = history_of(context, bars, trained.row["leg"], symbols)
    if not len(history.panel.sessions) or history.panel.sessions[-1].date() != as_of:
        return pd.DataFrame()
    last_day = slice(-1, None)
    grids = trained.rankers.scores(history.features, history.there, last_day)
    # By ranker: [stocks], from grids of [1 day, stocks].
    scores = {name: grid[0] for name, grid in grids.items()}
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


def score_rankings(conn: Connection, tonight: Tonight, changed: Iterable[date]) -> None:
    """Score the rankings up to the night that lack a score, and those whose returns `changed`.

    They are scored beside one-line rules, on each kind of return once its last bar is there;
    running scores follow from the first changed session on, and perhaps another champion.
    """
    context = tonight.context
    leg = context.market.leg
    nights = _scores_of_nights(conn, tonight, changed)
    if nights.empty:
        return
    now = datetime.now(UTC)
    key = ["target", "predictor"]
    stored_scores = read(conn, "rank_score", market=context.name, span="night", leg=leg)
    save(conn, "rank_score", nights, market=context.name, scored_at=now)
    scores = nights[nights["leg"] == leg]
    before = scores[key].merge(stored_scores, on=key, how="left")[[*DAILY_FIGURES]]
    figures = scores[[*DAILY_FIGURES]].to_numpy(dtype=float)
    is_same = np.isclose(figures, before.to_numpy(dtype=float), equal_nan=True).all(axis=1)
    # A new score without figures would count as the same: NaN beside NaN.
    new_or_changed = scores[~is_same | before["n"].isna().to_numpy()]
    if len(new_or_changed):
        first = new_or_changed["target"].min()
        all_scores = pd.concat([scores, stored_scores]).drop_duplicates(key)
        all_scores = all_scores.sort_values("target", ignore_index=True)
        running = pd.DataFrame(list(_running_scores(all_scores, first, overlap_of(leg))))
        save(conn, "rank_score", running.assign(leg=leg), market=context.name, scored_at=now)
        promote(conn, context, tonight.as_of)


def _scores_of_nights(conn: Connection, tonight: Tonight, changed: Iterable[date]) -> pd.DataFrame:
    """Return the scores (`_night_scores`) of all rankings from the first that may need one."""
    context = tonight.context
    as_of = tonight.as_of
    calendar = context.market.calendar
    first_awaited = sessions_up_to(calendar, as_of, AWAITED)[0].date()
    # The longest return is scored last: a session with a score for it has a score for the others.
    # Where prices are closes alone, no session has a score for the longest return, so all rankings
    # since `first_awaited` are scored each time.
    unscored = query(
        conn, "first_unscored", market=context.name, leg=LONGEST, first=first_awaited, last=as_of
    )
    days = [*unscored["target"].dt.date, *changed]
    if not days:
        return pd.DataFrame()
    night_rankings = read(
        conn,
        "stock_rank",
        market=context.name,
        target=where.between(min(days), as_of),
        order="target, made_at, predictor, place",
    )
    if night_rankings.empty:
        return pd.DataFrame()
    first = night_rankings["as_of"].min().date()
    # The rankings are stored: of the features, only those of the one-line rules are computed.
    start = sessions_up_to(calendar, first, RULES_READ + SESSIONS_FOR_GAPS)[0].date()
    bars = tonight.newest(start)
    names = [feature for feature, _ in RULES.values()]
    history = history_of(context, bars, context.market.leg, names=names)
    return _night_scores(context, history, night_rankings)


def _running_scores(
    nights: pd.DataFrame, first: pd.Timestamp, overlap: int
) -> Iterator[dict[str, Any]]:
    """Yield each predictor's running scores, a row for each session from `first` on.

    `nights` are scores of single nights in order; a return spans `overlap` sessions.
    """
    for predictor, scores in nights.groupby("predictor"):
        daily = {figure: scores[figure].to_numpy(dtype=float) for figure in DAILY_FIGURES}
        for position in np.flatnonzero(scores["target"] >= first):
            days_so_far = {figure: values[: position + 1] for figure, values in daily.items()}
            yield {
                "target": scores["target"].iloc[position],
                "span": "running",
                "predictor": predictor,
                "is_rule": predictor in RULES,
                **score_daily(days_so_far, overlap=overlap),
            }


def _night_scores(
    context: MarketContext, history: History, night_rankings: pd.DataFrame
) -> pd.DataFrame:
    """Return a row for each ranked session, known return, and predictor or one-line rule."""
    panel = history.panel
    # A night whose rankers were trained again may be ranked more than once: the newest counts.
    newest = night_rankings.sort_values("made_at").drop_duplicates(
        ["target", "predictor", "symbol"], keep="last"
    )
    nights = newest.groupby("target", as_index=False)["as_of"].first()
    day = panel.sessions.get_indexer(pd.DatetimeIndex(nights["as_of"]))  # -1 without bars
    follows = panel.sessions[1:].append(pd.DatetimeIndex([pd.NaT]))[day]
    # Otherwise the bars do not reach the target yet, or the calendar has changed since.
    has_target = (day >= 0) & (follows == nights["target"].to_numpy())
    day = day[has_target]
    targets = pd.DatetimeIndex(nights["target"][has_target])
    # Each [nights stocks], NaN where a predictor did not rank.
    scores = {
        str(predictor): rows.pivot(index="target", columns="symbol", values="score")
        .reindex(index=targets, columns=list(panel.symbols))
        .to_numpy()
        for predictor, rows in newest.groupby("predictor")
    }
    ranked_by = {
        predictor: targets.isin(newest.loc[newest["predictor"] == predictor, "target"])
        for predictor in scores
    }
    rules = []
    if len(day):
        # A rule is scored on the stocks that any of the predictors ranked.
        is_ranked = np.any([np.isfinite(score) for score in scores.values()], axis=0)
        for name in RULES:
            rule = rule_scores(history.features, name)[day]
            scores[name] = np.where(is_ranked, rule, np.nan)
        rules = [scores[name] for name in RULES]
    largest_return = context.experiment.windows.largest_return
    figures = []
    for leg in measured_legs(panel):
        outcome = outcomes(panel, leg, max_return=largest_return)[day]
        is_over = day + sessions_to(leg) < len(panel.sessions)
        for predictor, score in scores.items():
            is_scored = is_over & ranked_by.get(predictor, True)
            figures.append(
                score_each_day(
                    score[is_scored], outcome[is_scored], [rule[is_scored] for rule in rules]
                ).assign(
                    target=targets[is_scored],
                    span="night",
                    leg=leg,
                    predictor=predictor,
                    is_rule=predictor in RULES,
                )
            )
    return pd.concat(figures, ignore_index=True) if figures else pd.DataFrame()
