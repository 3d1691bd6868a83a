"""Walk every ranking model and rule through the stored history of a market.

The models are trained again every quarter of a year on the days before it. What they rank is scored
and stored once. Each training is done once, its scores kept in a file; some run side by side.
"""

import hashlib
import io
import json
import logging
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, partial
from importlib import resources
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool
from numpy import ndarray
from threadpoolctl import threadpool_limits

from db.engine import transaction
from db.rows import rankings
from dtml.backtest.turnover import after_costs
from dtml.errors import UsageError
from dtml.evaluation.metrics import MINIMUM_DAYS
from dtml.evaluation.ranking import (
    both_known,
    figures_of,
    rank_differences,
    rank_ics,
    score_ranking,
)
from dtml.evaluation.splits import Split
from dtml.evaluation.survivorship import survivorship_of
from dtml.evaluation.tear_sheet import TearSheet
from dtml.markets.definition import NetworkName
from dtml.own.code import OWN
from dtml.pages.ranking import HEADLINE, Ranking, ranking_page
from dtml.ranking.features import FEATURE_SETS, RULES, rule_scores
from dtml.ranking.outcomes import Leg, measured_legs, outcomes, overlap_of
from dtml.ranking.panel import Grid, ranked
from dtml.ranking.rankers import RankersConfig, Training, trainings
from dtml.ranking.rankers import walk as walk_rankers
from dtml.ranking.relative import NETWORKS, RelativeConfig
from dtml.ranking.walk import History, earliest, folds
from flows.nightly.context import (
    MarketContext,
    digest_of_rejected,
    newest_source,
    quotes_of,
    stored_bars,
)
from flows.nightly.night import Stage, directly
from flows.nightly.own_code import doubt_of, own_code_record, walk_own
from flows.nightly.ranking import history_of
from flows.progress import rankings_progress, reporting
from flows.ranking.tear_sheet import stored_ranking, walk_sheet, walked_days, write_sheet
from flows.settings import data_folder, page_of, write_page
from flows.workers import worker_pool
from translation.atomic_files import write_whole

log = logging.getLogger(__name__)


def _scores_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.npy"


def train_once(folder: Path, name: str, train: Callable[[], Grid]) -> Grid:
    """Return the scores of a training from its file in the folder; train and write it if missing.

    So an interrupted walk resumes where it stopped, and finds what other processes trained.
    """
    file = _scores_file(folder, name)
    if not file.exists():
        trained_scores = train()
        # The array is written to memory first: given a path, `np.save` adds .npy to the name.
        with io.BytesIO() as buffer:
            np.save(buffer, trained_scores, allow_pickle=False)
            data = buffer.getvalue()
        write_whole(file, lambda path: path.write_bytes(data))
        log.info("%s: trained and scored %s", folder.name, name)
    scores: Grid = np.load(file, allow_pickle=False)
    return scores


def train_side_by_side(
    trainings: Iterable[Training],
    history: History,
    config: RankersConfig,
    *,
    market: str,
    folder: Path,
    workers: int,
) -> None:
    """Run, in `workers` processes, the trainings whose scores the folder lacks; the slowest first.

    Each process writes the scores of its trainings into the folder. The progress shows the market.
    If one training fails, all processes are killed. Raises DtmlError if a process was killed from
    outside.
    """
    missing = [each for each in trainings if not _scores_file(folder, each.name).exists()]
    ordered = sorted(missing, key=_speed)
    with (
        worker_pool(workers, _begin_worker, folder, history, config) as pool,
        rankings_progress(market, len(ordered)) as on_training,
    ):
        futures = [pool.submit(_train_one, training) for training in ordered]
        for training, future in zip(ordered, futures, strict=True):
            future.result()
            on_training(training.name)


def _speed(training: Training) -> int:
    if training.predictor in NETWORKS:
        return 0
    if training.predictor == "boosting":
        return 1
    return 2


# In a worker process it has one entry, which `_begin_worker` adds: the history is sent only once.
_worker_inputs: list[tuple[Path, History, RankersConfig]] = []


def _begin_worker(folder: Path, history: History, config: RankersConfig) -> None:
    # One thread for each worker: together they use the cores.
    torch.set_num_threads(1)
    threadpool_limits(1)
    _worker_inputs.append((folder, history, config))


def _train_one(training: Training) -> None:
    folder, history, config = _worker_inputs[0]
    train_once(folder, training.name, partial(training.run, history, config))


StockDays = Bool[ndarray, "days stocks"]

VALIDATION = 252  # sessions before the first close, on which portfolios that trade less are chosen
# Bars are read so long after the last close: the outcome of the longest leg needs them.
AFTERWARDS = timedelta(days=49)
BEGINNING = date(1970, 1, 1)  # before all stored bars


@dataclass(frozen=True)
class Plan:
    """Say on which closes, `first` to `last`, a walk ranks stocks, and which return it predicts.

    It is the return over `leg`, one of `dtml.ranking.outcomes.LEGS`. Ridge and boosting are always
    trained. The `networks` are trained too, each with so many `seeds`.
    """

    first: date
    last: date
    leg: Leg = "next_close"
    networks: tuple[NetworkName, ...] = ()
    seeds: int = 3


@dataclass(frozen=True)
class RankingSet:
    """Describe a price file of the benchmark: its market, and the closes on which it is scored.

    The file has the calendar and the checks of the market. Settings were chosen on the half years
    before these closes; benchmarks/README.md says which.
    """

    market: str
    first: date
    last: date


SETS: Mapping[str, RankingSet] = {
    "kospi200_2020": RankingSet("kospi200", date(2022, 1, 3), date(2026, 5, 29)),
    "kospi200_2015": RankingSet("kospi200", date(2017, 1, 2), date(2020, 12, 18)),
    "sp500": RankingSet("sp500", date(2018, 1, 2), date(2022, 12, 30)),
    "kdd17": RankingSet("kdd17", date(2009, 1, 2), date(2016, 12, 30)),
    "ndx100": RankingSet("ndx100", date(2014, 1, 2), date(2017, 12, 8)),
    "acl18": RankingSet("acl18", date(2014, 1, 2), date(2017, 9, 1)),
}


def market_file_of(name: str) -> Path:
    """Write the market file of a set, with an index of its constituents, and return its path.

    It is the file of the set's market, except that the index is computed from the constituents.
    """
    shipped = resources.files("dtml.markets") / f"{SETS[name].market}.toml"
    text = shipped.read_text(encoding="utf-8")
    text_with_own_index = text.replace("[index]\n", "[index]\nof_constituents = true\n")
    file = data_folder() / "rankings" / f"ranking-{name}.toml"
    write_whole(file, lambda path: path.write_text(text_with_own_index, encoding="utf-8"))
    return file


@dataclass(frozen=True)
class Walk:
    """Hold a ranking that is to be run: its market and its plan."""

    context: MarketContext
    plan: Plan

    @property
    def rankers(self) -> RankersConfig:
        """Return the settings of its models."""
        seeds = self.plan.seeds
        networks = [RelativeConfig.for_network(name, seeds) for name in self.plan.networks]
        return RankersConfig(self.plan.leg, networks=tuple(networks))

    @cached_property
    def bars(self) -> tuple[pd.DataFrame, datetime]:
        """Return the bars up to the last one that an outcome needs, and their watermark.

        Raises UsageError where they end before the plan does.
        """
        bars, watermark = stored_bars(self.context, BEGINNING, self.plan.last + AFTERWARDS)
        newest = bars["session"].max().date()
        if self.plan.last > newest:
            raise UsageError(
                f"the store has prices of {self.context.name} up to {newest}, before --to "
                f"{self.plan.last}: choose an earlier --to, or fetch later prices"
            )
        return bars, watermark

    @cached_property
    def history(self) -> History:
        """Return what the models read: ranked features and outcomes of each day's constituents."""
        bars, _watermark = self.bars
        return history_of(self.context, bars, self.plan.leg)

    @property
    def config(self) -> dict[str, Any]:
        """Return every setting, for the column `config`."""
        market = self.context.market
        return {
            **asdict(self.rankers),
            "features": list(FEATURE_SETS[market.features]),
            "max_return": market.checks.max_return,
            "trading": asdict(market.trading),
            **own_code_record(self.context),
        }

    @property
    def id(self) -> str:
        """Return the name of the ranking: its market, its first day, and a digest.

        The digest is of the settings, of the version, and of the bars, the rejected ones included.
        """
        bars, _watermark = self.bars
        settings = [
            asdict(self.plan),
            self.config,
            self.context.market.settings,
            version("dtml-nightshift"),
            digest_of_rejected(self.context, bars),
        ]
        row_hashes = pd.util.hash_pandas_object(bars, index=False)
        digest = hashlib.sha256(json.dumps(settings, default=str).encode())
        digest.update(row_hashes.to_numpy().tobytes())
        return f"{self.context.name}-{self.plan.first}-{digest.hexdigest()[:8]}"

    def outcome(self, leg: Leg) -> Grid:
        """Return the return over a leg of each stock-day that is ranked, NaN for the others."""
        largest_return = self.context.experiment.windows.largest_return
        returns = outcomes(self.history.panel, leg, max_return=largest_return)
        return np.where(self.history.there, returns, np.nan)


def run_ranking(walk: Walk, stage: Stage = directly, workers: int = 1) -> Ranking:
    """Walk every model and rule through the plan's days, store their scores, and write the page.

    The tear sheet is written beside the page. A ranking that is already stored is returned without
    a walk; its page is written if missing, but not its tear sheet. With several `workers`, so many
    processes of this machine train side by side, which does not change the figures. The scores of
    each training, except those of own code, are kept in a folder until the ranking is stored, so
    that an interrupted walk resumes. Raises DtmlError for days that cannot be walked
    (`dtml.ranking.walk.folds`), and for own code that fails.
    """
    stored = stored_ranking(walk.context.engine, walk.id)
    if stored is not None:
        write_missing_page(stored)
        return stored
    start = time.perf_counter()
    splits = folds(walk.history, pd.Timestamp(walk.plan.first), pd.Timestamp(walk.plan.last))
    # A return needs the opens of two sessions after the first close that is scored.
    bars, _watermark = walk.bars
    first = walk.history.panel.sessions[splits[0].scored.start]
    later = np.unique(bars.loc[bars["session"] > first, "session"])
    if len(later) < 2:
        raise UsageError(
            f"no portfolio has a return from {first.date()} to {walk.plan.last}, because it needs "
            "the opens of two later sessions: choose an earlier --from"
        )
    folder = data_folder() / "rankings" / walk.id
    once = partial(train_once, folder)
    if workers > 1:
        # The walk below then finds the scores of every training in the folder.
        stage(
            "train side by side",
            lambda: train_side_by_side(
                trainings(walk.history, splits, walk.rankers),
                walk.history,
                walk.rankers,
                market=walk.context.name,
                folder=folder,
                workers=workers,
            ),
        )
    total = sum(1 for _ in trainings(walk.history, splits, walk.rankers))
    with rankings_progress(walk.context.name, total) as on_training:
        reported = reporting(once, on_training)
        scores = stage("walk", lambda: walk_rankers(walk.history, splits, walk.rankers, reported))
    if walk.context.market.code:
        scores[OWN] = stage("own code", lambda: _own_scores(walk, splits))
    portfolios = stage("portfolios", lambda: _portfolios(walk, splits, scores[HEADLINE], once))
    stage("score", lambda: _score_and_store(walk, splits, scores, portfolios, start))
    shutil.rmtree(folder, ignore_errors=True)
    stored = stored_ranking(walk.context.engine, walk.id)
    assert stored is not None
    sheet = stage("tear sheet", lambda: _tear_sheet(walk, splits, scores[HEADLINE], stored))
    write_sheet(stored.row, sheet)
    ranking = replace(stored, sheet=sheet)
    write_page(page_of("ranking", stored.row), ranking_page(ranking))
    return ranking


def write_missing_page(stored: Ranking) -> None:
    """Write the page of a stored ranking where it is missing: a run may be killed before it."""
    page = page_of("ranking", stored.row)
    if not page.exists():
        write_page(page, ranking_page(stored))


def _tear_sheet(walk: Walk, splits: list[Split], scores: Grid, stored: Ranking) -> TearSheet:
    """Return the tear sheet of the model HEADLINE, whose `scores` are of all sessions."""
    days = slice(splits[0].scored.start, splits[-1].scored.stop)
    returns = {leg: walk.outcome(leg)[days] for leg in measured_legs(walk.history.panel)}
    rule = stored.row["best_rule"] if stored.strongest is None else stored.strongest["other"]
    return walk_sheet(
        walked_days(walk.history, days, scores, rule, returns),
        walk.plan.leg,
        stored.scores,
        walk.context.market,
    )


def _own_scores(walk: Walk, splits: list[Split]) -> Grid:
    """Return the scores of the user's own model, [sessions stocks]; warn of doubtful ones."""
    spans = [(fold.trained, fold.scored) for fold in splits]
    scores, _last_model = walk_own(walk.context, walk.history, spans)
    days = slice(splits[0].scored.start, splits[-1].scored.stop)
    if doubt := doubt_of(walk.context, walk.history, scores[days], days):
        log.warning("%s", doubt)
    return scores


def _portfolios(
    walk: Walk, splits: list[Split], scores: Grid, train_or_load: Callable[..., Grid]
) -> pd.DataFrame:
    """Return the performance after costs of the portfolios that trade a ranking (`after_costs`).

    How much to trade is chosen on the last `VALIDATION` sessions before the first close, or on as
    many as the history allows; it is not chosen if these are fewer than `MINIMUM_DAYS`. These
    sessions are ranked by a walk of their own, whose models, too, are trained on the days before.
    `scores` are those of the walk, [sessions stocks]. `train_or_load` is the argument of this name
    of `dtml.ranking.rankers.walk`.
    """
    history = walk.history
    sessions = history.panel.sessions
    # Places in `sessions`: of the first close, just after the last one, and of the first session
    # of the validation.
    first = splits[0].scored.start
    stop = splits[-1].scored.stop
    begin = max(first - VALIDATION, earliest(history.leg))
    scores = scores.copy()  # those of the validation are written into it
    if first - begin >= MINIMUM_DAYS:
        validation_scores = walk_rankers(
            history,
            folds(history, sessions[begin], sessions[first - 1]),
            RankersConfig(walk.plan.leg),  # without networks, which the blend does not need
            # The prefix tells the files of this walk from those of the plan's.
            lambda name, train: train_or_load(f"validation-{name}", train),
        )
        scores[begin:first] = validation_scores[HEADLINE][begin:first]
    else:
        begin = first
    days = slice(begin, stop)
    bars, _watermark = walk.bars
    return after_costs(
        scores=np.where(history.there[days], scores[days], np.nan),
        as_of=sessions[days],
        quotes=quotes_of(walk.context, bars, history.panel.symbols),
        trading=walk.context.market.trading,
        first=sessions[first],
    )


def _score_and_store(
    walk: Walk,
    splits: list[Split],
    models: Mapping[str, Grid],
    portfolios: pd.DataFrame,
    start: float,
) -> None:
    """Score the models and rules over the days of the walk, and store the ranking.

    `models` are the scores of each model on all sessions of the history, [sessions stocks]. `start`
    is when the walk began, on the clock of `time.perf_counter`.
    """
    days = slice(splits[0].scored.start, splits[-1].scored.stop)
    days_of_first_training = slice(0, splits[0].trained.stop)
    rules = {name: rule_scores(walk.history.features, name) for name in RULES}
    predictions: dict[str, Grid] = {}
    for name, scores in {**models, **rules}.items():
        predictions[name] = np.where(walk.history.there, scores, np.nan)[days]
    returns = {leg: walk.outcome(leg)[days] for leg in measured_legs(walk.history.panel)}
    parts = dict(_parts_of_stock_days(walk, days))
    # [stocks], on any day. Every walk trains ridge, and ridge scores each stock that is ranked.
    is_ranked = np.isfinite(predictions["ridge"]).any(axis=0)
    bars, watermark = walk.bars
    closes = walk.history.panel.sessions[days]
    row = {
        "id": walk.id,
        "market": walk.context.name,
        "first": walk.plan.first,
        "last": walk.plan.last,
        "leg": walk.plan.leg,
        "config": {
            **walk.config,
            "list": survivorship_of(walk.context.market, closes, bars).stored,
            "source": newest_source(walk.context),
        },
        "stocks": int(is_ranked.sum()),
        "folds": len(splits),
        "best_rule": best_rule(rules, walk.history.outcome, days_of_first_training),
        "code_version": version("dtml-nightshift"),
        "data_watermark": watermark,
        "seconds": time.perf_counter() - start,
        "read_at": datetime.now(UTC),
    }
    leg = walk.plan.leg
    score_rows = pd.DataFrame(list(_score_rows(leg, predictions, returns, parts)))
    pairs = rank_differences(predictions, returns[leg], overlap=overlap_of(leg))
    differences = pd.DataFrame(list(pairs)).assign(leg=leg)
    with transaction(walk.context.engine) as conn:
        rankings.save_ranking(conn, row, score_rows, differences, portfolios)


def best_rule(rules: Mapping[str, Grid], outcome: Grid, days: slice) -> str:
    """Return the rule with the highest mean rank IC on these days; of equals, the first.

    The days must lie before all that are scored, so that the choice does not know the outcomes.
    """
    mean_rank_ic: dict[str, float] = {}
    for name, scores in rules.items():
        known_scores, known_outcome = both_known(scores[days], outcome[days])
        mean_rank_ic[name] = float(np.nanmean(rank_ics(known_scores, known_outcome)))
    return max(mean_rank_ic, key=lambda name: mean_rank_ic[name])


def _score_rows(
    leg: Leg,
    predictions: Mapping[str, Grid],
    returns: Mapping[Leg, Grid],
    parts: Mapping[tuple[str, str], StockDays],
) -> Iterator[dict[str, Any]]:
    """Yield a row for each predictor and leg over all stock-days, and for each part of them.

    `parts` maps the kind and value of each part to its mask (`_parts_of_stock_days`). Parts other
    than all stock-days are scored only on `leg`, for which the models were trained.
    """
    for predictor, scored_leg in product(predictions, returns):
        for (part, value), is_in_part in parts.items():
            if part != "all" and scored_leg != leg:
                continue
            score = score_ranking(
                np.where(is_in_part, predictions[predictor], np.nan),
                returns[scored_leg],
                overlap=overlap_of(scored_leg),
            )
            yield {
                "predictor": predictor,
                "leg": scored_leg,
                "slice": part,
                "value": value,
                "is_rule": predictor in RULES,
                **figures_of(score),
            }


def _parts_of_stock_days(walk: Walk, days: slice) -> Iterator[tuple[tuple[str, str], StockDays]]:
    """Yield each part of the stock-days that is scored by itself: its kind and value, and a mask.

    The kinds are "all" stock-days (with an empty value), "year", "sector", and "move": thirds of
    each day's stocks by how far their return is from the day's median. The mask, [days stocks],
    says which stock-days are in the part. A stock without a sector is in no part of that kind, nor
    is a stock-day without a return in a third.
    """
    outcome = walk.history.outcome[days]
    yield ("all", ""), np.ones(outcome.shape, dtype=bool)
    years = walk.history.panel.sessions[days].year
    for year in years.unique():
        is_of_year = (years == year)[:, None]  # [days 1]
        yield ("year", str(year)), np.broadcast_to(is_of_year, outcome.shape)
    sectors = {stock.symbol: stock.sector for stock in walk.context.market.constituents}
    sector_of_stock = np.array([sectors.get(name) or "" for name in walk.history.panel.symbols])
    for sector in sorted(set(sector_of_stock) - {""}):
        yield ("sector", sector), np.broadcast_to(sector_of_stock == sector, outcome.shape)
    # NumPy warns of days without an outcome.
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        median = np.nanmedian(outcome, axis=1, keepdims=True)
        size_rank = ranked(np.abs(outcome - median))  # in [-0.5, 0.5] within the day
    # 0, 1 or 2; without the clip, the largest rank, 0.5, would give 3.
    third = np.floor(3 * (size_rank + 0.5)).clip(0, 2)
    for number, value in enumerate(("small", "middle", "large")):
        yield ("move", value), third == number
