"""Rank the stocks of past days by every model and rule, and score the rankings.

A walk trains the models again every quarter of a year. Each training is done once, its scores kept
in a file; some run side by side.
"""

import io
import logging
import math
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
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
from sqlalchemy import Engine
from threadpoolctl import threadpool_limits

from db.engine import reading, transaction
from db.rows import rankings
from dtml.backtest.turnover import after_costs
from dtml.devices import Load, choose_device
from dtml.errors import UsageError
from dtml.evaluation.metrics import MINIMUM_DAYS
from dtml.evaluation.ranking import (
    Flags,
    both_known,
    decile_spreads,
    rank_differences,
    rank_ics,
    score_ranking,
)
from dtml.evaluation.splits import Split
from dtml.evaluation.survivorship import survivorship_of
from dtml.evaluation.tear_sheet import (
    OF_LEGS,
    OF_SECTORS,
    TRADED_LEG,
    TearSheet,
    cumulative_ic,
    running_means,
)
from dtml.markets import Market
from dtml.markets.definition import NetworkName
from dtml.networks import NETWORKS
from dtml.own.code import OWN
from dtml.pages.ranking import HEADLINE, Ranking, ranking_page
from dtml.prices.sessions import sessions_a_year
from dtml.ranking.features import FEATURE_SETS, RULES, rule_scores
from dtml.ranking.outcomes import Leg, measured_legs, outcomes, overlap_of
from dtml.ranking.panel import Grid, ranked
from dtml.ranking.rankers import RankersConfig, Training, trainings
from dtml.ranking.rankers import walk as walk_rankers
from dtml.ranking.relative import RelativeConfig
from dtml.ranking.walk import RETRAIN_EVERY, History, earliest, folds
from flows.nightly.context import (
    MarketContext,
    digest_of_rejected,
    newest_source,
    quotes_of,
    stored_bars,
)
from flows.nightly.own_code import doubt_of, own_code_record, walk_own
from flows.nightly.ranking import history_of
from flows.progress import rankings_progress
from flows.service.tasks import as_task
from flows.settings import data_folder
from flows.studies.study import Study, study_id
from flows.studies.tear_sheet import read_ranking, write_sheet
from flows.workers import worker_pool
from translation.atomic_files import write_whole

log = logging.getLogger(__name__)

Parts = Mapping[tuple[str, str], Flags]  # by kind and value

VALIDATION = 252  # sessions before the first close, on which portfolios that trade less are chosen
# Bars are read so long after the last close: the outcome of the longest leg needs them.
AFTERWARDS = timedelta(days=49)
BEGINNING = date(1970, 1, 1)  # before all stored bars


def train_once(folder: Path, name: str, train: Callable[[], Grid]) -> Grid:
    """Return a training's scores from its file in the folder; train and write it first."""
    file = folder / f"{name}.npy"
    if not file.exists():
        # The array is written to memory first: given a path, `np.save` adds .npy to the name.
        buffer = io.BytesIO()
        np.save(buffer, train(), allow_pickle=False)
        write_whole(file, lambda path: path.write_bytes(buffer.getvalue()))
        log.info("%s: trained and scored %s", folder.name, name)
    scores: Grid = np.load(file, allow_pickle=False)
    return scores


def other_than_cpu(place: torch.device) -> dict[str, str]:
    """Return the setting of a device whose networks differ from the CPU's in the last bits."""
    return {} if place.type == "cpu" else {"device": place.type}


class RankingStudy(Study[Ranking]):
    """A study that is stored as a ranking: its history, and the scores of models on it."""

    table = "ranking"
    read_at = "read_at"

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """Return the store."""

    @property
    @abstractmethod
    def market(self) -> Market:
        """Return the market."""

    @property
    @abstractmethod
    def known(self) -> tuple[pd.DataFrame, datetime]:
        """Return the bars, and the moment at which they were known."""

    @property
    @abstractmethod
    def history(self) -> History:
        """Return what the models read: ranked features and outcomes of each day's constituents."""

    @property
    @abstractmethod
    def splits(self) -> list[Split]:
        """Return the days that each training reads, and those that it ranks."""

    @property
    def days(self) -> slice:
        """Return the days that are ranked and scored, as positions of the history's sessions."""
        return slice(self.splits[0].scored.start, self.splits[-1].scored.stop)

    def stored(self) -> Ranking | None:
        """Return the ranking from the store, with its tear sheet if the file is here."""
        with reading(self.engine) as conn:
            return read_ranking(conn, self.id)

    def page(self, stored: Ranking) -> str:
        """Render the page of the ranking."""
        return ranking_page(stored)

    @cached_property
    def returns(self) -> Mapping[Leg, Grid]:
        """Return the return over each leg of each stock-day that is ranked, NaN for the others."""
        panel = self.history.panel
        found: dict[Leg, Grid] = {}
        for leg in measured_legs(panel):
            outcome = outcomes(panel, leg, max_return=self.market.checks.max_return)
            found[leg] = np.where(self.history.there, outcome, np.nan)[self.days]
        return found

    def parts(self) -> Parts:
        """Return the masks of all stock-days (with an empty value), and of each year's."""
        sessions = self.history.panel.sessions[self.days]
        every = np.ones((len(sessions), len(self.history.panel.symbols)), dtype=bool)
        years = {
            ("year", str(year)): np.broadcast_to((sessions.year == year)[:, None], every.shape)
            for year in sessions.year.unique()
        }
        return {("all", ""): every, **years}

    def with_rules(self, models: Mapping[str, Grid]) -> dict[str, Grid]:
        """Return the scores of models and of every rule, NaN where a stock is not ranked."""
        rules = {name: rule_scores(self.history.features, name) for name in RULES}
        return {
            name: np.where(self.history.there, scores, np.nan)
            for name, scores in {**models, **rules}.items()
        }

    def score(
        self, predictions: Mapping[str, Grid], portfolios: pd.DataFrame, **columns: Any
    ) -> Ranking:
        """Score models and rules over the days that are ranked, by their scores [sessions stocks].

        `columns` are those of the table that depend on the study.
        """
        leg = self.history.leg
        splits = self.splits
        of_days = {name: scores[self.days] for name, scores in predictions.items()}
        of_rules = [of_days[name] for name in RULES]
        scores = []
        parts = self.parts()
        for predictor, scored_leg, (part, value) in product(predictions, self.returns, parts):
            # Parts are scored only on the leg for which the models were trained.
            if part == "all" or scored_leg == leg:
                of_part = np.where(parts[part, value], of_days[predictor], np.nan)
                figures = score_ranking(
                    of_part,
                    self.returns[scored_leg],
                    () if predictor in RULES else of_rules,
                    overlap=overlap_of(scored_leg),
                )
                named = {"predictor": predictor, "leg": scored_leg, "slice": part, "value": value}
                scores.append({**named, "is_rule": predictor in RULES, **figures})
        differences = rank_differences(of_days, self.returns[leg], overlap=overlap_of(leg))
        before = slice(0, splits[0].trained.stop)
        rules = {name: predictions[name][before] for name in RULES}
        bars, watermark = self.known
        sessions = self.history.panel.sessions[self.days]
        row = {
            "id": self.id,
            "market": self.market.name,
            "leg": leg,
            # On any day. Ridge is always trained, and scores each stock that is ranked.
            "stocks": int(np.isfinite(of_days["ridge"]).any(axis=0).sum()),
            "folds": len(splits),
            "best_rule": best_rule(rules, self.history.outcome[before]),
            "code_version": version("dtml-nightshift"),
            "data_watermark": watermark,
            "read_at": datetime.now(UTC),
            **columns,
            "config": {
                **columns["config"],
                "list": asdict(survivorship_of(self.market, sessions, bars)),
            },
        }
        return Ranking(
            row, pd.DataFrame(scores), pd.DataFrame(differences).assign(leg=leg), portfolios
        )

    def save(self, ranking: Ranking) -> None:
        """Store a ranking."""
        with transaction(self.engine) as conn:
            rankings.save_ranking(
                conn, ranking.row, ranking.scores, ranking.differences, ranking.portfolios
            )


def best_rule(rules: Mapping[str, Grid], outcome: Grid) -> str:
    """Return the rule with the highest mean rank IC on some earlier days; of equals the first."""
    return max(
        rules, key=lambda name: float(np.nanmean(rank_ics(*both_known(rules[name], outcome))))
    )


@dataclass(frozen=True)
class Plan:
    """On which closes, `first` to `last`, a walk ranks stocks, and the return over `leg` it
    predicts.

    Ridge and boosting are always trained, `networks` with so many `seeds`.
    """

    first: date
    last: date
    leg: Leg = "next_close"
    networks: tuple[NetworkName, ...] = ()
    seeds: int = 3


@dataclass(frozen=True)
class Walk(RankingStudy):
    """A walk of every model and rule through the plan's days, of the bars in the store, by
    `workers`.

    Raises DtmlError for days that cannot be walked (`folds`), and for own code that fails.
    """

    context: MarketContext
    plan: Plan
    workers: int = 1

    @property
    def engine(self) -> Engine:
        """Return the store."""
        return self.context.engine

    @property
    def market(self) -> Market:
        """Return the market."""
        return self.context.market

    @property
    def rankers(self) -> RankersConfig:
        """Return the settings of its models."""
        seeds = self.plan.seeds
        networks = [RelativeConfig.for_network(name, seeds) for name in self.plan.networks]
        return RankersConfig(self.plan.leg, networks=tuple(networks))

    @property
    def place(self) -> torch.device:
        """Return the device of the networks, which "auto" chooses by all of their trainings."""
        sessions = len(pd.bdate_range(self.plan.first, self.plan.last))
        stocks = len(self.market.symbols)
        loads: list[Load] = []
        for network in self.rankers.networks:
            trainings_of_network = math.ceil(sessions / (RETRAIN_EVERY * network.folds))
            loads += [network.load(stocks)] * trainings_of_network
        return choose_device(self.context.device, loads)

    @cached_property
    def known(self) -> tuple[pd.DataFrame, datetime]:
        """Return the bars up to the last that an outcome needs, and their watermark.

        Raises UsageError where they end before the plan.
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
        return history_of(self.context, self.known[0], self.plan.leg)

    @cached_property
    def splits(self) -> list[Split]:
        """Return the days that each training reads, and those that it ranks."""
        return folds(self.history, pd.Timestamp(self.plan.first), pd.Timestamp(self.plan.last))

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return every setting, for the column `config`; a walk keeps those that it began with."""
        return {
            **asdict(self.rankers),
            "features": list(FEATURE_SETS[self.market.features]),
            "max_return": self.market.checks.max_return,
            "trading": self.market.trading.settings,
            **own_code_record(self.context),
            **other_than_cpu(self.place),
        }

    @cached_property
    def id(self) -> str:
        """Return the name of the ranking."""
        bars = self.known[0]
        rejected = digest_of_rejected(self.context, bars)
        settings = [asdict(self.plan), self.config, self.market.settings, rejected]
        return study_id(self.context.name, self.plan.first, settings, bars)

    def make(self) -> None:
        """Walk every model and rule, store their scores, and write the tear sheet."""
        start = time.perf_counter()
        history = self.history
        splits = self.splits
        days = self.days
        bars = self.known[0]
        # A return needs the opens of two sessions after the first close that is scored.
        first = history.panel.sessions[days.start]
        if bars.loc[bars["session"] > first, "session"].nunique() < 2:
            raise UsageError(
                f"no portfolio has a return from {first.date()} to {self.plan.last}, because it "
                "needs the opens of two later sessions: choose an earlier --from"
            )
        once = partial(train_once, self.folder)
        to_train = list(trainings(history, splits, self.rankers))
        if self.workers > 1:
            # The walk below then finds the scores of every training in the folder.
            as_task("train side by side", lambda: train_side_by_side(self, to_train))
        with rankings_progress(self.context.name, len(to_train)) as counted_training:

            def reported(name: str, train: Callable[[], Grid]) -> Grid:
                return counted_training(name, partial(once, name, train))

            scores = as_task(
                "walk", lambda: walk_rankers(history, splits, self.rankers, reported, self.place)
            )
        if self.market.code:
            spans = [(fold.trained, fold.scored) for fold in splits]
            scores[OWN], _last_model = as_task(
                "own code", lambda: walk_own(self.context, history, spans)
            )
            if doubt := doubt_of(self.context, history, scores[OWN][days], days):
                log.warning("%s", doubt)
        predictions = self.with_rules(scores)
        portfolios = as_task("portfolios", lambda: self._portfolios(predictions[HEADLINE]))
        found = as_task(
            "score",
            lambda: self.score(
                predictions,
                portfolios,
                first=self.plan.first,
                last=self.plan.last,
                config={**self.config, "source": newest_source(self.context)},
                seconds=time.perf_counter() - start,
            ),
        )
        # Before the rows: a walk that ends between the two is not stored, and writes it again.
        as_task("tear sheet", lambda: self._write_sheet(found, predictions))
        self.save(found)

    def parts(self) -> Parts:
        """Return the masks of the stock-days scored by themselves: "all", "year", "sector", "move".

        The last: thirds of each day by distance from the day's median return.
        """
        parts = dict(super().parts())
        every = parts["all", ""]
        sectors = {stock.symbol: stock.sector for stock in self.market.constituents}
        of_stock = np.array([sectors.get(name) or "" for name in self.history.panel.symbols])
        for sector in sorted(set(of_stock) - {""}):
            parts["sector", sector] = np.broadcast_to(of_stock == sector, every.shape)
        outcome = self.history.outcome[self.days]
        # NumPy warns of days without an outcome.
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            median = np.nanmedian(outcome, axis=1, keepdims=True)
            size_rank = ranked(np.abs(outcome - median))  # in [-0.5, 0.5] within the day
        # 0, 1 or 2; without the clip, the largest rank, 0.5, would give 3.
        third = np.floor(3 * (size_rank + 0.5)).clip(0, 2)
        for number, value in enumerate(("small", "middle", "large")):
            parts["move", value] = third == number
        return parts

    def _portfolios(self, scores: Grid) -> pd.DataFrame:
        """Return the performance after costs of the portfolios that trade a ranking.

        `scores` are [sessions stocks]. How much to trade is chosen on up to `VALIDATION` sessions
        before, ranked by a walk of their own; with fewer than `MINIMUM_DAYS` it is not chosen.
        """
        history = self.history
        sessions = history.panel.sessions
        first = self.days.start
        begin = max(first - VALIDATION, earliest(history.leg))
        scores = scores.copy()  # those of the validation are written into it
        if first - begin >= MINIMUM_DAYS:
            validation_scores = walk_rankers(
                history,
                folds(history, sessions[begin], sessions[first - 1]),
                RankersConfig(history.leg),  # without networks, which the blend does not need
                # The prefix tells the files of this walk from those of the plan's.
                lambda name, train: train_once(self.folder, f"validation-{name}", train),
            )
            scores[begin:first] = validation_scores[HEADLINE][begin:first]
        else:
            begin = first
        traded = slice(begin, self.days.stop)
        return after_costs(
            scores=np.where(history.there[traded], scores[traded], np.nan),
            as_of=sessions[traded],
            quotes=quotes_of(self.context, self.known[0], history.panel.symbols),
            trading=self.market.trading,
            first=sessions[first],
        )

    def _write_sheet(self, found: Ranking, predictions: Mapping[str, Grid]) -> None:
        """Write the tear sheet of the model HEADLINE; `predictions` are of all sessions."""
        strongest = found.strongest
        rule = found.row["best_rule"] if strongest is None else strongest["other"]
        history = self.history
        days, returns = self.days, self.returns
        sessions = history.panel.sessions[days]
        leg = history.leg
        overlap = overlap_of(leg)
        cumulative = {}
        for name in (HEADLINE, rule):
            daily = rank_ics(*both_known(predictions[name][days], returns[leg]))
            running = running_means(daily, overlap=overlap)
            cumulative[name] = cumulative_ic(sessions, daily, running)
        scores = predictions[HEADLINE][days]
        spread_leg = TRADED_LEG if TRADED_LEG in returns else leg
        # The scores by leg and by sector were made already.
        is_headline = found.scores["predictor"] == HEADLINE
        mine = found.scores[is_headline].rename(columns={"value": "sector"})
        legs = mine.loc[mine["slice"] == "all", OF_LEGS].sort_values("leg", ignore_index=True)
        sheet = TearSheet.of(
            predictor=HEADLINE,
            leg=leg,
            spread_leg=spread_leg,
            overlap=overlap,
            cumulative=cumulative,
            sessions=sessions,
            scores=scores,
            outcome=returns[leg],
            gross=decile_spreads(*both_known(scores, returns[spread_leg])),
            constituents=self.market.is_constituent(sessions, history.panel.symbols).sum(axis=1),
            costs=self.market.trading.costs,
            year=sessions_a_year(self.market.calendar),
            legs=legs,
            sectors=mine.loc[mine["slice"] == "sector", OF_SECTORS].reset_index(drop=True),
        )
        write_sheet(found.row, sheet)


def train_side_by_side(walk: Walk, to_train: list[Training]) -> None:
    """Run the trainings whose scores the folder lacks in the walk's `workers`, the slowest first.

    If one fails, all are killed. Raises DtmlError if one was killed from outside.
    """
    missing = [each for each in to_train if not (walk.folder / f"{each.name}.npy").exists()]
    ordered = sorted(
        missing, key=lambda each: (each.predictor not in NETWORKS, each.predictor != "boosting")
    )
    inputs = (walk.folder, walk.history, walk.rankers, walk.place)
    with (
        worker_pool(walk.workers, _begin_worker, *inputs) as pool,
        rankings_progress(walk.market.name, len(ordered)) as counted_training,
    ):
        futures = [pool.submit(_train_one, training) for training in ordered]
        for training, future in zip(ordered, futures, strict=True):
            counted_training(training.name, future.result)


# In a worker process it has one entry, which `_begin_worker` adds: the history is sent only once.
_worker_inputs: list[tuple[Path, History, RankersConfig, torch.device]] = []


def _begin_worker(
    folder: Path, history: History, config: RankersConfig, device: torch.device
) -> None:
    # One thread for each worker: together they use the cores.
    torch.set_num_threads(1)
    threadpool_limits(1)
    choose_device(device.type)  # which also sets its options in this process
    _worker_inputs.append((folder, history, config, device))


def _train_one(training: Training) -> None:
    folder, history, config, device = _worker_inputs[0]
    train_once(folder, training.name, partial(training.run, history, config, device))


@dataclass(frozen=True)
class RankingSet:
    """A price file of the benchmark, the market whose calendar and checks it has, and the closes
    scored.

    Settings were chosen on the half years before: benchmarks/README.md.
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
    """Write the market file of a set, with an index of its constituents, and return its path."""
    shipped = resources.files("dtml.markets") / f"{SETS[name].market}.toml"
    text = shipped.read_text(encoding="utf-8")
    text_with_own_index = text.replace("[index]\n", "[index]\nof_constituents = true\n")
    file = data_folder() / "rankings" / f"ranking-{name}.toml"
    write_whole(file, lambda path: path.write_text(text_with_own_index, encoding="utf-8"))
    return file
