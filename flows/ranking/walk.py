"""Walk every ranking model and rule through the stored history of a market, and
score the order of each day once.
"""

import hashlib
import io
import json
import logging
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, partial
from importlib import resources
from importlib.metadata import version
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool
from numpy import ndarray
from sqlalchemy import Engine
from threadpoolctl import threadpool_limits

from db.engine import reading, transaction
from db.rows import rankings
from dtml.backtest.turnover import after_costs
from dtml.evaluation.metrics import MINIMUM_DAYS
from dtml.evaluation.ranking import both_known, figures_of, paired_rank_ic, rank_ics, score_ranking
from dtml.markets.definition import NetworkName
from dtml.own.code import OWN
from dtml.pages.ranking import HEADLINE, Ranking, ranking_page
from dtml.ranking.features import FEATURES
from dtml.ranking.outcomes import LEGS, Leg, outcomes, sessions_to
from dtml.ranking.panel import Grid, ranked
from dtml.ranking.rankers import RankersConfig, Training, trainings
from dtml.ranking.rankers import walk as walk_rankers
from dtml.ranking.relative import NETWORKS, RelativeConfig
from dtml.ranking.rules import RULES, rule_scores
from dtml.ranking.walk import Fold, History, earliest, folds
from flows.nightly.context import MarketContext, quotes_of, stored_bars
from flows.nightly.night import Stage, directly
from flows.nightly.order import history_of
from flows.nightly.own_code import named, walk_own
from flows.settings import data_folder, page_of, write_page
from translation.atomic_files import write_whole

log = logging.getLogger(__name__)

StockDays = Bool[ndarray, "days stocks"]

VALIDATION = 252  # sessions before the first close, on which portfolios that trade less are chosen
# which hold the sessions that the longest leg needs after the last close
AFTERWARDS = timedelta(days=21)
BEGINNING = date(1970, 1, 1)


@dataclass(frozen=True)
class Plan:
    """What is ordered: the closes from `first` to `last`, by a leg of the return.

    `networks` are asked too, with so many seeds each.
    """

    first: date
    last: date
    leg: Leg = "next_close"
    networks: tuple[NetworkName, ...] = ()
    seeds: int = 3


@dataclass(frozen=True)
class RankingSet:
    """A file of prices of the benchmark: the market whose calendar and checks it has, and the
    closes it is scored on.

    Settings were chosen on the half years before these closes; benchmarks/README.md says which.
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
    """Write the market of a set, its index made of its constituents, and return its file."""
    text = (
        resources.files("dtml.markets")
        .joinpath(f"{SETS[name].market}.toml")
        .read_text(encoding="utf-8")
    )
    file = data_folder() / "rankings" / f"ranking-{name}.toml"
    write_whole(
        file,
        lambda path: path.write_text(
            text.replace("[index]\n", "[index]\nof_constituents = true\n")
        ),
    )
    return file


@dataclass(frozen=True)
class Walk:
    """A ranking to be run: its market and its plan."""

    context: MarketContext
    plan: Plan

    @property
    def rankers(self) -> RankersConfig:
        """Return the settings of its models."""
        asked = (RelativeConfig.asking(name, self.plan.seeds) for name in self.plan.networks)
        return RankersConfig(self.plan.leg, networks=tuple(asked))

    @cached_property
    def bars(self) -> tuple[pd.DataFrame, datetime]:
        """Return the bars up to the last one that an outcome needs, and their watermark."""
        return stored_bars(self.context, BEGINNING, self.plan.last + AFTERWARDS)

    @cached_property
    def history(self) -> History:
        """Return what the models read: ranked features and outcomes of the
        constituents of each day.
        """
        return history_of(self.context, self.bars[0], self.plan.leg)

    @property
    def config(self) -> dict[str, Any]:
        """Return every setting, for the row."""
        market = self.context.market
        trading = json.loads(json.dumps(asdict(market.trading), default=str))
        data = {
            "features": list(FEATURES),
            "max_return": market.checks.max_return,
            "trading": trading,
        }
        return asdict(self.rankers) | data | named(self.context)

    @property
    def id(self) -> str:
        """Return the name of the ranking: its market, its first day, and a
        digest of all that decides its figures.
        """
        told = [
            asdict(self.plan),
            self.config,
            self.context.market.settings,
            version("dtml-nightshift"),
        ]
        digest = hashlib.sha256(json.dumps(told, default=str).encode())
        digest.update(pd.util.hash_pandas_object(self.bars[0], index=False).to_numpy().tobytes())
        return f"{self.context.name}-{self.plan.first}-{digest.hexdigest()[:8]}"

    def outcome(self, leg: Leg) -> Grid:
        """Return the return of each stock-day that is ordered, over a leg."""
        found = outcomes(
            self.history.panel, leg, max_return=self.context.experiment.windows.largest_return
        )
        return np.where(self.history.there, found, np.nan)


def run_ranking(walk: Walk, stage: Stage = directly, workers: int = 1) -> Ranking:
    """Walk every model and rule through the plan's days and store their scores; a stored ranking is
    returned as it is.

    So many `workers`, processes of this machine, train side by side: the figures are the same.
    Raises DtmlError when too few days lie before the first.
    """
    if (stored := stored_ranking(walk.context.engine, walk.id)) is not None:
        return stored
    begun = time.perf_counter()
    walked = folds(walk.history, pd.Timestamp(walk.plan.first), pd.Timestamp(walk.plan.last))
    folder = data_folder() / "rankings" / walk.id
    if workers > 1:
        stage("train side by side", lambda: _train_apart(walk, walked, folder, workers))
    scores = stage(
        "walk", lambda: walk_rankers(walk.history, walked, walk.rankers, partial(_once, folder))
    )
    if walk.context.market.code:
        spans = [(each.trained, each.scored) for each in walked]
        own = partial(walk_own, walk.context, walk.history, walk.bars[0], spans, workers=workers)
        scores[OWN] = stage("own code", own)[0]
    left = stage(
        "portfolios", lambda: _portfolios(walk, walked, scores[HEADLINE], partial(_once, folder))
    )
    stage("score", lambda: _store(walk, walked, scores, left, begun))
    shutil.rmtree(folder, ignore_errors=True)
    stored = stored_ranking(walk.context.engine, walk.id)
    assert stored is not None
    write_page(page_of("ranking", stored.row), ranking_page(stored))
    return stored


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.npy"


def _once(folder: Path, name: str, train: Callable[[], Grid]) -> Grid:
    """Return the scores of a file of the folder, or train and keep them: an
    interrupted walk resumes where it was.
    """
    file = _file(folder, name)
    if not file.exists():
        scores = train()
        with io.BytesIO() as written:
            np.save(written, scores, allow_pickle=False)
            write_whole(file, lambda path: path.write_bytes(written.getvalue()))
        log.info("%s: trained, and scored with it: %s", folder.name, name)
    found: Grid = np.load(file, allow_pickle=False)
    return found


def _train_apart(walk: Walk, walked: list[Fold], folder: Path, workers: int) -> None:
    """Run the trainings that the folder lacks in processes of their own, the slowest kind first."""
    missing = [
        each
        for each in trainings(walk.history, walked, walk.rankers)
        if not _file(folder, each.name).exists()
    ]
    order = sorted(
        missing, key=lambda each: (each.predictor not in NETWORKS, each.predictor != "boosting")
    )
    pool = ProcessPoolExecutor(
        workers, get_context("spawn"), _begin_worker, (folder, walk.history, walk.rankers)
    )
    try:
        for number, done in enumerate([pool.submit(_train_one, each) for each in order], start=1):
            done.result()
            log.info("%s: %d of %d trainings done", folder.name, number, len(order))
    except BaseException:
        for process in list(pool._processes.values()):  # a training does not look at signals
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


_given: list[tuple[Path, History, RankersConfig]] = []  # what a worker trains from


def _begin_worker(*given: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent ends it
    torch.set_num_threads(1)
    threadpool_limits(1)
    _given.append(given)


def _train_one(training: Training) -> None:
    folder, history, config = _given[0]
    _once(folder, training.name, partial(training.run, history, config))


def stored_ranking(engine: Engine, ranking_id: str) -> Ranking | None:
    """Return a ranking from the store, or None."""
    with reading(engine) as conn:
        row = rankings.ranking(conn, ranking_id)
        if row is None:
            return None
        tables = (
            rankings.ranking_scores,
            rankings.ranking_differences,
            rankings.ranking_portfolios,
        )
        return Ranking(row, *(read(conn, ranking_id) for read in tables))


def _portfolios(
    walk: Walk, walked: list[Fold], order: Grid, once: Callable[..., Grid]
) -> pd.DataFrame:
    """Return what is left of an order after the costs of its market, from
    models of the days before each close.
    """
    # How much to trade is chosen on the last sessions before the first close, as far as the history
    # has enough of them.
    history, (first, last) = walk.history, (walked[0].scored.start, walked[-1].scored.stop)
    sessions, scores = history.panel.sessions, order.copy()
    begin = max(first - VALIDATION, earliest(history.leg))
    if first - begin >= MINIMUM_DAYS:
        before = folds(history, sessions[begin], sessions[first - 1])
        config = RankersConfig(walk.plan.leg)
        found = walk_rankers(
            history, before, config, lambda name, train: once(f"validation-{name}", train)
        )[HEADLINE]
        scores[begin:first] = found[begin:first]
    else:
        begin = first
    days = slice(begin, last)
    quotes = quotes_of(walk.context, walk.bars[0], history.panel.symbols)
    ordered = np.where(history.there[days], scores[days], np.nan)
    return after_costs(
        ordered, sessions[days], quotes, walk.context.market.trading, sessions[first]
    )


def _store(
    walk: Walk,
    walked: list[Fold],
    models: Mapping[str, Grid],
    portfolios: pd.DataFrame,
    begun: float,
) -> None:
    days = slice(walked[0].scored.start, walked[-1].scored.stop)
    rules = {name: rule_scores(walk.history.features, name) for name in RULES}
    scored = {
        name: np.where(walk.history.there, each, np.nan)[days]
        for name, each in {**models, **rules}.items()
    }
    found = {leg: walk.outcome(leg)[days] for leg in LEGS}
    parts = dict(_parts(walk, days))
    row = {
        "id": walk.id,
        "market": walk.context.name,
        "first": walk.plan.first,
        "last": walk.plan.last,
        "leg": walk.plan.leg,
        "config": walk.config,
        "stocks": int(np.isfinite(scored["ridge"]).any(axis=0).sum()),
        "folds": len(walked),
        "best_rule": _best_rule(walk, rules, slice(0, walked[0].trained.stop)),
        "code_version": version("dtml-nightshift"),
        "data_watermark": walk.bars[1],
        "seconds": time.perf_counter() - begun,
        "read_at": datetime.now(UTC),
    }
    scores = pd.DataFrame(list(_scores(walk.plan.leg, scored, found, parts)))
    differences = pd.DataFrame(list(_differences(walk.plan.leg, scored, found)))
    with transaction(walk.context.engine) as conn:
        rankings.save_ranking(conn, row, scores, differences, portfolios)


def _best_rule(walk: Walk, rules: Mapping[str, Grid], days: slice) -> str:
    """Return the rule that ordered these days best, which lie before all that
    are scored; of equals, the first.
    """
    mean = {
        name: np.nanmean(rank_ics(*both_known(each[days], walk.history.outcome[days])))
        for name, each in rules.items()
    }
    return max(mean, key=lambda name: mean[name])


def _scores(
    leg: Leg,
    scored: Mapping[str, Grid],
    found: Mapping[Leg, Grid],
    parts: Mapping[tuple[str, str], StockDays],
) -> Iterator[dict[str, Any]]:
    """Yield a row for each predictor and leg over all days, and for each part
    of the leg it was trained for.
    """
    for (name, each), (scored_leg, outcome) in product(scored.items(), found.items()):
        for (part, value), which in parts.items():
            if part == "all" or scored_leg == leg:
                made = score_ranking(
                    np.where(which, each, np.nan), outcome, overlap=sessions_to(scored_leg)
                )
                row = {
                    "predictor": name,
                    "leg": scored_leg,
                    "slice": part,
                    "value": value,
                    "is_rule": name in RULES,
                }
                yield row | figures_of(made)


def _parts(walk: Walk, days: slice) -> Iterator[tuple[tuple[str, str], StockDays]]:
    """Yield the parts that are scored alone, as stock-days: years, sectors,
    thirds by the size of a day's returns.
    """
    outcome, years = walk.history.outcome[days], walk.history.panel.sessions[days].year
    yield ("all", ""), np.ones(outcome.shape, dtype=bool)
    for year in years.unique():
        yield ("year", str(year)), np.broadcast_to((years == year)[:, None], outcome.shape)
    sectors = {each.symbol: each.sector for each in walk.context.market.constituents}
    own = np.array([sectors.get(symbol) or "" for symbol in walk.history.panel.symbols])
    for sector in sorted(set(own) - {""}):
        yield ("sector", sector), np.broadcast_to(own == sector, outcome.shape)
    with warnings.catch_warnings(
        action="ignore", category=RuntimeWarning
    ):  # of days without an outcome
        size = ranked(np.abs(outcome - np.nanmedian(outcome, axis=1, keepdims=True)))
    for number, value in enumerate(("small", "middle", "large")):
        yield ("move", value), np.floor(3 * (size + 0.5)).clip(0, 2) == number


def _differences(
    leg: Leg, scored: Mapping[str, Grid], found: Mapping[Leg, Grid]
) -> Iterator[dict[str, Any]]:
    """Yield the paired difference of every two predictors on the leg that the
    models were trained for.
    """
    for one, other in product(scored, scored):
        if one != other:
            gain = paired_rank_ic(scored[one], scored[other], found[leg])
            cells = {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
            yield {"predictor": one, "other": other, "leg": leg} | cells
