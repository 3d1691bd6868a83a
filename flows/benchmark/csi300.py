"""Qlib's table of CSI 300, with our models beside its figures on the same task.

A model is trained once, on the closes before the validation years, and ranks the constituents of
each day by their return from the next close to the one after. Its bars, its index and its table of
constituents are files of the user.
"""

import hashlib
import json
import shutil
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from functools import partial
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy import ndarray

from db.engine import open_store, transaction
from db.rows import rankings
from dtml.backtest.performance import session_sharpe, sharpe_interval
from dtml.errors import UsageError
from dtml.evaluation.ranking import (
    Daily,
    Estimate,
    both_known,
    figures_of,
    mean_of_days,
    pearson_ics,
    rank_differences,
    rank_ics,
    score_ranking,
)
from dtml.evaluation.splits import Split, known_before
from dtml.evaluation.survivorship import survivorship_of
from dtml.markets import Market, load_market_file
from dtml.markets.definition import YEAR, NetworkName
from dtml.pages.ranking import Ranking, ranking_page
from dtml.prices.bars import check
from dtml.prices.sessions import sessions_between
from dtml.ranking.features import FEATURES, RULES, rule_scores
from dtml.ranking.outcomes import Leg, overlap_of, sessions_to
from dtml.ranking.panel import Grid
from dtml.ranking.rankers import RankersConfig
from dtml.ranking.rankers import walk as walk_rankers
from dtml.ranking.relative import RelativeConfig
from dtml.ranking.walk import History, market_panel
from dtml.sources import open_source
from flows.ranking.tear_sheet import stored_ranking
from flows.ranking.walk import best_rule, train_once, write_missing_page
from flows.settings import data_folder, page_of, write_page
from translation.atomic_files import write_whole

NAME = "benchmark-csi300"
LEG: Leg = "second_close"
BEGINNING = date(2008, 1, 1)
MARKET = """
[index]
symbol = "SH000300"
name = "CSI 300"
{checks}
[constituents]
as_of = {as_of}
complete = true
count = 300
members = {members}
until = "included"
"""


@dataclass(frozen=True)
class Files:
    """The files of the benchmark: bars of stocks, bars of the index, and spells of constituents."""

    prices: Path
    index: Path
    members: Path


@dataclass(frozen=True)
class Table:
    """The published table, and the spans of its task; see csi300.toml."""

    test: tuple[date, date]
    validation: tuple[date, date]
    differences: tuple[str, ...]
    published: tuple[Mapping[str, Any], ...]

    @classmethod
    def read(cls) -> "Table":
        """Read the table of the package."""
        text = (resources.files("flows.benchmark") / "csi300.toml").read_text(encoding="utf-8")
        values = tomllib.loads(text)
        first, last = values["test"]
        first_validated, last_validated = values["validation"]
        return cls(
            test=(first, last),
            validation=(first_validated, last_validated),
            differences=tuple(values["differences"]),
            published=tuple(values["published"]),
        )


@dataclass(frozen=True)
class Set:
    """The market of the benchmark, its accepted bars, and the models' features and outcomes."""

    market: Market
    bars: pd.DataFrame
    history: History


def market_of(members: Path, last: date) -> Market:
    """Return the market of the benchmark: that of CSI 300, with the constituents of a table.

    Its file is the shipped one with another source, index and list of constituents, and without the
    facts, which are about the shipped list. It is written to the data folder and read from there.
    `members` is the table, and `last` the last day on which it is true. Raises UsageError for a
    table that cannot be read, or in which a session has not 300 constituents.
    """
    shipped = (resources.files("dtml.markets") / "csi300.toml").read_text(encoding="utf-8")
    head, rest = shipped.split("[index]\n")
    # What lies between the index and the constituents: costs, checks, and the settings of DTML.
    tables = rest[rest.index("[trading]") : rest.index("[constituents]")]
    facts_begin = head.index("facts = [")  # the last setting before the first table
    head = head[:facts_begin].replace('source = "yahoo"', 'source = "files"')
    text = head + MARKET.format(
        checks=tables, as_of=last, members=json.dumps(str(members.absolute()), ensure_ascii=False)
    )
    file = data_folder() / "benchmarks" / f"{NAME}.toml"
    write_whole(file, lambda path: path.write_text(text, encoding="utf-8"))
    return load_market_file(file)


def read_set(market: Market, files: Files, leg: Leg, last: date) -> Set:
    """Read the bars of a market's stocks and index, check them, and compute features and outcomes.

    Bars after `last` are left out. Raises UsageError where the files lack the index.
    """
    symbols = (*market.symbols, market.index.symbol)
    source = open_source("files", market, prices=files.prices, index=files.index)
    fetched = source.fetch(dict.fromkeys(symbols, BEGINNING), last)
    if market.index.symbol not in set(fetched.bars["symbol"]):
        raise UsageError(
            f"{files.index} has no bar of the index {market.index.symbol} from {BEGINNING} to "
            f"{last}: give a file that covers this time with --index"
        )
    checked = check(
        fetched.bars,
        sessions=sessions_between(market.calendar, BEGINNING, last),
        closed_until=last,
        checks=market.checks,
        index_symbol=market.index.symbol,
        returns=market.returns,
    )
    return Set(market, checked.accepted, history_of(market, checked.accepted, leg))


def history_of(market: Market, bars: pd.DataFrame, leg: Leg) -> History:
    """Return the features and outcomes of each day's constituents, from accepted bars."""
    panel = market_panel(market, bars)
    return History.of(
        panel,
        leg,
        market.is_constituent(panel.sessions),
        max_return=market.checks.max_return,
    )


def split_of(history: History, table: Table) -> tuple[Split, slice]:
    """Return the split of the benchmark, and the longer span of days that a network is given.

    All are positions of sessions. The split's `scored` are the days tested. Its `trained` are the
    days whose outcomes were known before the validation began. A network also gets the days of the
    validation, on which it chooses its epoch: its span goes on to the last day whose outcome was
    known before the first day tested.
    """
    sessions = history.panel.sessions
    # Places of the first sessions of the validation and of the test, and of the session after the
    # test, `stop`. The last date of the test is no session: the next session is just after it.
    first_validation, first, stop = (
        int(sessions.searchsorted(pd.Timestamp(day)))
        for day in (table.validation[0], table.test[0], table.test[1])
    )
    horizon = sessions_to(history.leg)
    trained = slice(0, known_before(first_validation, horizon=horizon))
    network_days = slice(0, known_before(first, horizon=horizon))
    return Split(trained=trained, scored=slice(first, stop)), network_days


def run_csi300(files: Files, networks: tuple[NetworkName, ...], seeds: int) -> Ranking:
    """Train every model, score it on the test span, store the figures and write the page.

    A benchmark that is stored already is only read, and its page written if it is missing.
    Trainings that an interrupted run has finished are not made again. Raises UsageError for files
    that lack the index, and for a table of constituents that `market_of` refuses.
    """
    start = time.perf_counter()
    table = Table.read()
    last = table.test[1]
    data_set = read_set(market_of(files.members, last), files, LEG, last)
    config = config_of(data_set.history.panel.sessions, table, networks, seeds)
    settings = [_settings(config), data_set.market.settings, version("dtml-nightshift")]
    digest = hashlib.sha256(json.dumps(settings, default=str).encode())
    digest.update(pd.util.hash_pandas_object(data_set.bars, index=False).to_numpy().tobytes())
    name = f"{NAME}-{digest.hexdigest()[:8]}"
    engine = open_store()
    stored = stored_ranking(engine, name)
    if stored is not None:
        write_missing_page(stored)
        return stored
    split, network_days = split_of(data_set.history, table)
    folder = data_folder() / "rankings" / name
    scores = model_scores(data_set.history, split, network_days, config, folder)
    row, score_rows, differences = _stored_rows(data_set, table, split, scores)
    row |= {
        "id": name,
        "config": {**_settings(config), **row["config"]},
        "seconds": time.perf_counter() - start,
    }
    with transaction(engine) as conn:
        rankings.save_ranking(conn, row, score_rows, differences, pd.DataFrame())
    shutil.rmtree(folder, ignore_errors=True)
    stored = stored_ranking(engine, name)
    assert stored is not None
    write_page(page_of("ranking", stored.row), ranking_page(stored))
    return stored


def config_of(
    sessions: pd.DatetimeIndex, table: Table, networks: tuple[NetworkName, ...], seeds: int
) -> RankersConfig:
    """Return the settings of the models."""
    begin, end = (pd.Timestamp(day) for day in table.validation)
    validation = int(((sessions >= begin) & (sessions <= end)).sum())
    configs = [
        replace(
            RelativeConfig.for_network(name, seeds),
            sessions=len(sessions),  # no day is too old
            validation=validation,
            folds=1,  # a network is trained once
        )
        for name in networks
    ]
    return RankersConfig(LEG, networks=tuple(configs))


def _settings(config: RankersConfig) -> dict[str, Any]:
    return {**asdict(config), "features": list(FEATURES)}


def model_scores(
    history: History, split: Split, network_days: slice, config: RankersConfig, folder: Path
) -> dict[str, Grid]:
    """Return the scores of each model and rule by its name, [sessions stocks] over all sessions.

    Models are ridge and boosting, their blend, and the networks of the config; networks train on
    `network_days`, all else on the days that `split` trains. The models have scores only on the
    days tested, the rules on all days; both are NaN where a stock is not ranked. The scores of each
    training are kept in `folder`, from which an interrupted run resumes.
    """
    train_or_load = partial(train_once, folder)
    # All but networks learn only from days before the validation.
    scores = walk_rankers(history, [split], replace(config, networks=()), train_or_load)
    if config.networks:
        # The last days of these are the validation on which a network chooses its epoch. This walk
        # has ridge and boosting too, but does not train them on these days: a training is named
        # after the model and the first day scored, so those of the walk above are loaded.
        of_networks = replace(split, trained=network_days)
        walked = walk_rankers(history, [of_networks], config, train_or_load)
        scores |= {network.name: walked[network.name] for network in config.networks}
    for rule in RULES:
        scores[rule] = rule_scores(history.features, rule)
    return {name: np.where(history.there, grid, np.nan) for name, grid in scores.items()}


def _stored_rows(
    data_set: Set, table: Table, split: Split, scores: Mapping[str, Grid]
) -> tuple[dict[str, Any], pd.DataFrame, pd.DataFrame]:
    """Return the row of the table `ranking`, and the rows of its scores and differences.

    The row lacks `id`, `seconds`, and the settings of the models in `config`. A difference is that
    between the rank ICs of two predictors (`rank_differences`).
    """
    history = data_set.history
    sessions = history.panel.sessions[split.scored]
    outcome = history.outcome[split.scored]
    tested = {name: grid[split.scored] for name, grid in scores.items()}
    columns = [
        {"model": name, "source": "", **_table_figures(grid, outcome)}
        for name, grid in tested.items()
    ]
    trained = history.panel.sessions[split.trained]
    config = {
        "list": survivorship_of(data_set.market, sessions, data_set.bars).stored,
        "table": {
            "columns": columns,
            "published": [dict(row) for row in table.published],
            "differences": list(table.differences),
            "trained": [str(trained[0].date()), str(trained[-1].date())],
        },
        "trading": asdict(data_set.market.trading),
    }
    # [stocks], on any day tested. Ridge scores each stock that is ranked.
    is_ranked = np.isfinite(tested["ridge"]).any(axis=0)
    row = {
        "market": NAME,
        "first": sessions[0].date(),
        "last": sessions[-1].date(),
        "leg": LEG,
        "config": config,
        "stocks": int(is_ranked.sum()),
        "folds": 1,
        "best_rule": best_rule(
            {name: scores[name] for name in RULES}, history.outcome, split.trained
        ),
        "code_version": version("dtml-nightshift"),
        "data_watermark": datetime.now(UTC),  # the files do not say when a bar became known
        "read_at": datetime.now(UTC),
    }
    score_rows = pd.DataFrame(list(_score_rows(tested, outcome, sessions)))
    differences = pd.DataFrame(rank_differences(tested, outcome, overlap=overlap_of(LEG)))
    return row, score_rows, differences.assign(leg=LEG)


def _score_rows(
    tested: Mapping[str, Grid], outcome: Grid, sessions: pd.DatetimeIndex
) -> Iterator[dict[str, Any]]:
    for name, grid in tested.items():
        for part, value, is_in_part in _all_and_years(sessions):
            score = score_ranking(grid[is_in_part], outcome[is_in_part], overlap=overlap_of(LEG))
            yield {
                "predictor": name,
                "leg": LEG,
                "slice": part,
                "value": value,
                "is_rule": name in RULES,
                **figures_of(score),
            }


def _all_and_years(sessions: pd.DatetimeIndex) -> Iterator[tuple[str, str, ndarray]]:
    """Yield "all" with an empty value, then "year" with each year, and a mask of their days."""
    yield "all", "", np.ones(len(sessions), dtype=bool)
    for year in sessions.year.unique():
        yield "year", str(year), np.asarray(sessions.year == year)


def _table_figures(scores: Grid, outcome: Grid) -> dict[str, float]:
    """Return the figures of a model in the published table, with their intervals over days.

    `rank_ic` and `ic` are means over the days; `rank_icir` and `icir` are these over the standard
    deviation of the days.
    """
    known = both_known(scores, outcome)
    rank_ic = rank_ics(*known)
    pearson = pearson_ics(*known)
    return {
        **mean_of_days(rank_ic).named("rank_ic"),
        **per_day_ratio(rank_ic).named("rank_icir"),
        **mean_of_days(pearson).named("ic"),
        **per_day_ratio(pearson).named("icir"),
    }


def per_day_ratio(daily: Daily) -> Estimate:
    """Return the mean of a daily figure over its standard deviation, not annualised.

    The ends of its interval are NaN where `sharpe_interval` has none.
    """
    known = daily[np.isfinite(daily)]
    low, high = sharpe_interval(known[:, None])  # of ratios a year; [days 1], of one series
    a_year = YEAR**0.5
    return Estimate(session_sharpe(known), float(low[0] / a_year), float(high[0] / a_year))
