"""Qlib's table of CSI 300, with our models beside its figures on the same task.

A model is trained once, before the validation years, and ranks each day's constituents by their
return from the next close to the one after. Bars, index and constituents are files of the user.
"""

import json
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from functools import cached_property, partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sqlalchemy import Engine

from db.engine import open_store
from dtml.backtest.performance import sharpe
from dtml.devices import choose_device
from dtml.errors import UsageError
from dtml.evaluation.metrics import Estimate
from dtml.evaluation.ranking import Daily, both_known, mean_of_days, pearson_ics, rank_ics
from dtml.evaluation.splits import Split, known_before
from dtml.markets import Market, load_market_file
from dtml.markets.definition import NetworkName
from dtml.prices.bars import check
from dtml.prices.sessions import sessions_between
from dtml.ranking.features import FEATURES
from dtml.ranking.outcomes import Leg, sessions_to
from dtml.ranking.panel import Grid
from dtml.ranking.rankers import RankersConfig
from dtml.ranking.rankers import walk as walk_rankers
from dtml.ranking.relative import RelativeConfig
from dtml.ranking.walk import History, market_panel
from dtml.sources import open_source
from flows.settings import data_folder
from flows.studies.ranking import RankingStudy, other_than_cpu, train_once
from flows.studies.study import study_id
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

    test: Sequence[date]
    validation: Sequence[date]
    differences: Sequence[str]
    published: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls) -> "Table":
        """Read the table of the package."""
        file = resources.files("flows.studies") / "csi300.toml"
        return cls(**tomllib.loads(file.read_text(encoding="utf-8")))


def market_of(members: Path, last: date) -> Market:
    """Return the market of the benchmark: that of CSI 300, with the constituents of a table.

    Its file, without facts, is written to the data folder. `members` is the table, true up to
    `last`. Raises UsageError for an unreadable table, or a session without 300 constituents.
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


def read_bars(market: Market, files: Files, last: date) -> pd.DataFrame:
    """Read the checked bars of stocks and index up to `last`; UsageError without the index."""
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
    return checked.accepted


def history_of(market: Market, bars: pd.DataFrame, leg: Leg) -> History:
    """Return the features and outcomes of each day's constituents, from accepted bars."""
    panel = market_panel(market, bars)
    there = market.is_constituent(panel.sessions)
    return History.of(panel, leg, there, max_return=market.checks.max_return)


@dataclass(frozen=True)
class Csi300(RankingStudy):
    """The benchmark on files, with networks of so many `seeds`; errors as `market_of`."""

    files: Files
    networks: tuple[NetworkName, ...] = ()
    seeds: int = 10
    device: str = "auto"

    @cached_property
    def engine(self) -> Engine:
        """Return the store."""
        return open_store()

    @cached_property
    def table_of(self) -> Table:
        """Return the published table."""
        return Table.read()

    @cached_property
    def market(self) -> Market:
        """Return the market, with the constituents of the files."""
        return market_of(self.files.members, self.table_of.test[1])

    @cached_property
    def bars(self) -> pd.DataFrame:
        """Return the accepted bars of the files."""
        return read_bars(self.market, self.files, self.table_of.test[1])

    @property
    def known(self) -> tuple[pd.DataFrame, datetime]:
        """Return the bars; the files do not say when one became known."""
        return self.bars, datetime.now(UTC)

    @cached_property
    def history(self) -> History:
        """Return the models' features and outcomes."""
        return history_of(self.market, self.bars, LEG)

    @cached_property
    def rankers(self) -> RankersConfig:
        """Return the settings of the models."""
        sessions = self.history.panel.sessions
        begin, end = (pd.Timestamp(day) for day in self.table_of.validation)
        networks = [
            replace(
                RelativeConfig.for_network(name, self.seeds),
                sessions=len(sessions),  # no day is too old
                validation=int(((sessions >= begin) & (sessions <= end)).sum()),
                folds=1,  # a network is trained once
            )
            for name in self.networks
        ]
        return RankersConfig(LEG, networks=tuple(networks))

    @property
    def place(self) -> torch.device:
        """Return the device of the networks."""
        stocks = len(self.market.symbols)
        loads = [network.load(stocks) for network in self.rankers.networks]
        return choose_device(self.device, loads)

    @property
    def config(self) -> dict[str, Any]:
        """Return every setting."""
        features = {"features": list(FEATURES)}
        return {**asdict(self.rankers), **features, **other_than_cpu(self.place)}

    @cached_property
    def id(self) -> str:
        """Return the name of the benchmark."""
        settings = [self.config, self.market.settings]
        return study_id(NAME, self.table_of.test[0], settings, self.bars)

    @cached_property
    def splits(self) -> list[Split]:
        """Return the only split, as positions, which trains on what was known before."""
        # Places of the first sessions of the validation and of the test, and of the session after
        # the test, `stop`. The last date of the test is no session: the next one is just after it.
        first_validation, first, stop = (
            int(self.history.panel.sessions.searchsorted(pd.Timestamp(day)))
            for day in (self.table_of.validation[0], *self.table_of.test)
        )
        trained = slice(0, known_before(first_validation, horizon=sessions_to(LEG)))
        return [Split(trained=trained, scored=slice(first, stop))]

    @cached_property
    def returns(self) -> Mapping[Leg, Grid]:
        """Return the only return by which it is scored."""
        return {LEG: self.history.outcome[self.days]}

    def models(self) -> dict[str, Grid]:
        """Train every model, and return their scores on the days tested, [sessions stocks]."""
        train_or_load = partial(train_once, self.folder)
        # All but networks learn only from days before the validation.
        without = replace(self.rankers, networks=())
        scores = walk_rankers(self.history, self.splits, without, train_or_load)
        if self.networks:
            # A network is given the days up to the test, of which the last are the validation on
            # which it chooses its epoch. This walk has ridge and boosting too, but does not train
            # them on these days: a training is named after the model and the first day scored, so
            # those above are loaded.
            before_test = known_before(self.days.start, horizon=sessions_to(LEG))
            longer = replace(self.splits[0], trained=slice(0, before_test))
            walked = walk_rankers(self.history, [longer], self.rankers, train_or_load, self.place)
            scores |= {each.name: walked[each.name] for each in self.rankers.networks}
        return scores

    def make(self) -> None:
        """Train every model, score it on the test span, and store the figures."""
        start = time.perf_counter()
        predictions = self.with_rules(self.models())
        sessions = self.history.panel.sessions
        scored, trained = sessions[self.days], sessions[self.splits[0].trained]
        columns = []
        for name, scores in predictions.items():
            known = both_known(scores[self.days], self.returns[LEG])
            figures: dict[str, Any] = {"model": name, "source": ""}
            # Means over days, and these over their standard deviation.
            for figure, daily in (("rank_ic", rank_ics(*known)), ("ic", pearson_ics(*known))):
                figures |= mean_of_days(daily).named(figure)
                figures |= per_day_ratio(daily).named(f"{figure}ir")
            columns.append(figures)
        table = {
            "columns": columns,
            "published": self.table_of.published,
            "differences": self.table_of.differences,
            "trained": [str(trained[0].date()), str(trained[-1].date())],
        }
        found = self.score(
            predictions,
            pd.DataFrame(),
            first=scored[0].date(),
            last=scored[-1].date(),
            config={**self.config, "table": table, "trading": self.market.trading.settings},
            seconds=time.perf_counter() - start,
        )
        self.save(found)


def per_day_ratio(daily: Daily) -> Estimate:
    """Return the mean of a daily figure over its standard deviation, not annualised."""
    return sharpe(daily[np.isfinite(daily)], year=1)
