"""A small store with all that the dashboard shows, names that a page must escape among them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url, text

from db.admin.roles import grant_reader
from db.engine import open_engine, transaction, upgrade
from db.rows import prices as stored_prices
from db.save import save
from dtml.baselines.naive_rules import NAIVE_RULES
from flows.dashboard.app import dashboard
from tests.support.benchmark_rows import ranker
from tests.support.browser import Site, served
from tests.support.night_rows import store_night
from tests.support.prediction_rows import run
from tests.support.run_folder import made_once
from tests.support.windows import random_bars

MARKET, BARE, EVIL = "toy", "bare", "<i>a/b%25 \"c\" 'd'&e"
STOCKS = tuple(f"S{number:02d}" for number in range(8))
EVIL_STOCKS = (
    "<script>alert(1)</script>",
    "A/B",
    "100 %",
    "a&b=c?d#e",
    "\"q\" 'q'",
    "..x",
    "{{ 7 * 7 }}",
    "ÄÖ 日本",
)
NIGHTS, EVIL_NIGHTS = 25, 4
DAYS = pd.bdate_range(end="2024-06-28", periods=NIGHTS + 2)
LEVEL = 0.8
EVIL_RUNS = ("<run>/1", "run?a=1&b=2")
FIRST_RUN, SECOND_RUN, BACKTEST_RUN = "toy-first", "toy-second", "toy-backtest"
SECOND_FROM = 18  # the night from which on the second run predicts

RANKER, RULE = "blend", "reversal"  # what ranks the stocks, and a rule that is scored beside it

VISITOR = "visitor_of_tests"


@pytest.fixture(scope="module", params=["sqlite", "postgresql"], name="site")
def served_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """The pages over a filled store; on PostgreSQL for a role that sees the
    documented views and what studies found.
    """
    if request.param == "sqlite":
        with served_kept_store() as found:
            yield found
        return
    with served_to_a_reader(request.getfixturevalue("postgresql_server"), "dashboards") as found:
        yield found


@contextmanager
def served_to_a_reader(
    server: str, database: str, filled: Callable[[Engine], object] | None = None
) -> Iterator[Site]:
    """The pages over a filled database of its own, because rights on a database
    are everybody's, for a reader.
    """
    url = make_url(server)
    admin = create_engine(url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with admin.connect() as conn:
        conn.execute(text(f"create database {database}"))
    with served_store(
        url.set(database=database).render_as_string(hide_password=False), VISITOR, filled
    ) as found:
        yield found
    with admin.connect() as conn:
        conn.execute(text(f"drop database {database} with (force)"))
        conn.execute(text(f"drop role {VISITOR}"))
    admin.dispose()


def served_kept_store() -> AbstractContextManager[Site]:
    """The pages over an SQLite store that is filled once a test run."""
    engine = open_engine(
        f"sqlite:///{made_once('dashboard', _fill_in)}/store.sqlite", read_only=True
    )
    return served(dashboard(engine), engine)


def _fill_in(folder: Path) -> None:
    owner = open_engine(f"sqlite:///{folder}/store.sqlite")
    upgrade(owner)
    fill(owner)
    owner.dispose()


def served_store(
    url: str, visitor: str | None, filled: Callable[[Engine], object] | None = None
) -> AbstractContextManager[Site]:
    owner = open_engine(url)
    upgrade(owner)
    (filled or fill)(owner)
    if visitor is not None:
        grant_reader(owner, visitor)
        url = make_url(url).set(username=visitor).render_as_string(hide_password=False)
    owner.dispose()
    engine = open_engine(url, read_only=True)
    return served(dashboard(engine), engine)


def moment(day: Any, hours: float = 22) -> datetime:
    """That hour of a day, in UTC."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(hours=hours)


def fill(engine: Engine) -> None:
    """Write all of it into an empty store."""
    with transaction(engine) as conn:
        _fill_market(conn, MARKET, STOCKS, (FIRST_RUN, SECOND_RUN), 0)
        _fill_market(conn, EVIL, EVIL_STOCKS, EVIL_RUNS, NIGHTS - EVIL_NIGHTS)
        save(conn, "run", run_row("bare-run", BARE, DAYS[0]))
        # a run that predicted all the nights of the first one, a little otherwise
        save(conn, "run", run_row(BACKTEST_RUN, MARKET, DAYS[0], "backtest"))
        made = _predictions(np.random.default_rng(11), STOCKS, (BACKTEST_RUN, SECOND_RUN), 0)
        made = made[made["run_id"] == BACKTEST_RUN].reset_index(drop=True)
        moments = {"known_at": moment(DAYS[0]), "made_at": moment(DAYS[NIGHTS])}
        save(conn, "prediction", made, market=MARKET, **moments)


def product(**values: Sequence[Any]) -> pd.DataFrame:
    """A row for each combination of values."""
    return pd.MultiIndex.from_product(values.values(), names=values).to_frame(index=False)


def _fill_market(
    conn: Connection, market: str, stocks: tuple[str, ...], runs: tuple[str, str], first: int
) -> None:
    """A market whose nights begin with that one."""
    rng = np.random.default_rng(len(stocks[0]))
    names = [*stocks, "INDEX"]
    named = pd.DataFrame({"symbol": names, "source_symbol": names, "sector": "<Tin>"})
    named["kind"] = ["stock"] * len(stocks) + ["index"]
    save(conn, "instrument", named.assign(name=named["symbol"] + " & Sons"), market=market)
    prices = random_bars(names, DAYS[:-1], seed=1).assign(volume=1e6, dividend=np.nan, split=np.nan)
    stored_prices.append_prices(conn, market, prices, source="files", known_at=moment(DAYS[0], 0))
    bands = pd.DataFrame({"level": [0.5, LEVEL], "threshold": [0.5, 0.52], "days": 40, "n": 400})
    for run_id, night in zip(runs, (0, SECOND_FROM), strict=True):
        save(conn, "run", run_row(run_id, market, DAYS[night]))
        default = bands["level"] == LEVEL
        save(conn, "abstention_band", bands.assign(is_default=default), run_id=run_id)
    made = _predictions(rng, stocks, runs, first)
    moments = {"known_at": moment(DAYS[0]), "made_at": moment(DAYS[1])}
    save(conn, "prediction", made, market=market, **moments)
    _fill_outcomes(conn, market, made, prices)
    _fill_evidence(conn, market, made, rng)
    for (as_of, target, run_id), rows in made.groupby(["as_of", "target", "run_id"]):
        store_ended_night(conn, market, as_of, target, stocks, rows["symbol"], run_id=run_id)
    _fill_account(conn, market, stocks, rng)
    _fill_rankings(conn, market, stocks, rng, first)
    figures = {"acc": (0.45, 0.55), "mcc": (-0.1, 0.1)}
    keys = {"protocol": ["published", "all"], "predictor": ["dtml", *NAIVE_RULES]}
    rows = _scored(0, figures, rng, **keys)
    half = 4 * rows["nights"]
    rows = rows.assign(n=2 * half, rises=half, predicted_rises=half)
    refused_at = moment(DAYS[NIGHTS], 23)
    save(conn, "score", rows, market=market, scored_at=refused_at)
    refused = pd.DataFrame(
        {"symbol": stocks[:1], "session": DAYS[NIGHTS], "reason": "null_price", "value": "<nan>"}
    )
    save(conn, "rejected_bar", refused, market=market, source="files", first_known_at=refused_at)
    store_night(
        conn,
        market,
        DAYS[NIGHTS].date(),
        target=DAYS[NIGHTS + 1].date(),
        at=refused_at,
        status="refused",
        reason="too many bars refused: <b>9</b> of 10",
    )


def store_ended_night(
    conn: Connection,
    market: str,
    as_of: Any,
    target: Any,
    stocks: Iterable[str],
    predicted: Iterable[str],
    run_id: str | None = None,
) -> None:
    """A night with some of the stocks predicted; each of the others is a gap."""
    missing = sorted({*stocks} - {*predicted})
    store_night(
        conn,
        market,
        as_of.date(),
        target=target.date(),
        at=moment(as_of),
        finished_at=moment(as_of, 23),
        status="complete_with_gaps" if missing else "complete",
        counts={"fetched": 90, "stored": 9, "rejected": 1, "predictions": len(list(predicted))},
        run_id=run_id,
        gaps=[{"symbol": each, "reason": "no bar: <none>"} for each in missing],
        known_at=moment(as_of),
    )


def _fill_account(
    conn: Connection, market: str, stocks: tuple[str, ...], rng: np.random.Generator
) -> None:
    """A paper account that holds two stocks from the first night on."""
    portfolios = ("account", "account, no costs", "equal parts", "index")
    rows = product(portfolio=portfolios, session=DAYS[:NIGHTS])
    net = pd.Series(rng.normal(0.001, 0.01, len(rows)))
    rows = rows.assign(gross=net, net=net, turnover=0.0, cost=0.0)
    rows["equity"] = (1 + net).groupby(rows["portfolio"]).cumprod()
    save(conn, "paper_return", rows, market=market)
    held = product(session=DAYS[:NIGHTS], symbol=stocks[:2])
    save(conn, "paper_position", held.assign(weight=0.5), market=market)


def _fill_rankings(
    conn: Connection, market: str, stocks: tuple[str, ...], rng: np.random.Generator, first: int
) -> None:
    """A ranking of every night, its scores beside a rule's, and what the account is to hold: two
    stocks, of which the last night replaces the first.
    """
    targets = DAYS[first + 1 : NIGHTS + 1]
    scores = rng.normal(0, 1, (len(targets), len(stocks)))
    save_rankings(conn, market, DAYS[: NIGHTS + 1], {RANKER: pd.DataFrame(scores, targets, stocks)})
    wanted = product(target=targets, symbol=stocks[:2]).assign(weight=0.5)
    wanted.loc[wanted["target"] == targets[-1], "symbol"] = stocks[1:3]
    wanted["kept"] = wanted["symbol"] == stocks[1]
    now = moment(DAYS[NIGHTS], 23)
    save(conn, "target_position", wanted, market=market, decided_at=now)
    rows = _scored(first, {"rank_ic": (-0.2, 0.4)}, rng, predictor=[RANKER, RULE])
    rows = rows.rename(columns={"nights": "days"})
    rows = rows.assign(leg="next_close", is_rule=rows["predictor"] == RULE, n=8 * rows["days"])
    save(conn, "rank_score", rows, market=market, scored_at=now)


def save_rankings(
    conn: Connection, market: str, days: pd.DatetimeIndex, scores: dict[str, pd.DataFrame]
) -> None:
    """Store rankings by scores of targets and symbols; the first predictor is the chosen one."""
    (chosen, *_), own = scores, f"{market}-rankers"
    file = {"checkpoint_path": "none", "checkpoint_hash": "none", "data_watermark": moment(days[0])}
    times = {"train_last": days[0].date(), "created_at": moment(days[0])}
    save(conn, "ranker", ranker(id=own, market=market, chosen=chosen, **file, **times))
    for predictor, frame in scores.items():
        rows = frame.rename_axis(index="target", columns="symbol").stack().dropna().rename("score")
        rows = rows.reset_index()
        place = rows.groupby("target")["score"].rank(ascending=False, method="first").astype(int)
        as_of = days[days.get_indexer(rows["target"]) - 1]
        rows = rows.assign(as_of=as_of, place=place, probability=1 / (1 + np.exp(-rows["score"])))
        rows = rows.assign(predictor=predictor, ranker_id=own, chosen=predictor == chosen)
        moments = {"known_at": moment(days[0]), "made_at": moment(days[-1])}
        save(conn, "stock_rank", rows, market=market, **moments)


def save_outcomes(conn: Connection, market: str, returns: pd.DataFrame) -> None:
    """Store the returns of symbols on sessions, known after the last of them."""
    long = (
        returns.rename_axis(index="session", columns="symbol")
        .stack()
        .dropna()
        .rename("realised_return")
    )
    rise, known = long > 0, moment(returns.index[-1])
    rows = long.to_frame().assign(rise=rise, label=np.where(rise, 1, -1)).reset_index()
    save(conn, "outcome", rows, market=market, known_at=known, recorded_at=known)


def _scored(
    first: int,
    figures: dict[str, tuple[float, float]],
    rng: np.random.Generator,
    **keys: list[str],
) -> pd.DataFrame:
    """Figures of each night after the first and of all up to it, drawn between two ends; with
    intervals from twenty nights on.
    """
    rows = product(target=DAYS[first + 1 : NIGHTS], span=["night", "running"], **keys)
    so_far = DAYS.get_indexer(rows["target"]) - first
    rows["nights"] = np.where(rows["span"] == "night", 1, so_far)
    for name, ends in figures.items():
        rows[name] = rng.uniform(*ends, len(rows))
        for end, by in (("low", -0.05), ("high", 0.05)):
            rows[f"{name}_{end}"] = (rows[name] + by).where(rows["nights"] >= 20)
    return rows


def run_row(run_id: str, market: str, day: pd.Timestamp, kind: str = "nightly") -> dict[str, Any]:
    """A run trained up to a day."""
    model = {"window": 3, "model": {"hidden": 8, "seed": run_id}}
    spans = {"train_first": (day - pd.Timedelta(days=300)).date(), "train_last": day.date()}
    times = {"data_watermark": moment(day), "created_at": moment(day, 23)}
    file = {"checkpoint_path": run_id, "checkpoint_hash": "0" * 64, "universe": None, "losses": []}
    return run(run_id, market=market, kind=kind, config=model, **spans, **times, **file)


def _predictions(
    rng: np.random.Generator, stocks: tuple[str, ...], runs: tuple[str, str], first: int
) -> pd.DataFrame:
    """Of the nights from one on: the first stock is left out of every seventh."""
    made = product(as_of=DAYS[first:NIGHTS], symbol=stocks)
    night = DAYS.get_indexer(made["as_of"])
    said = np.clip(rng.normal(0.5, 0.03, len(made)), 0.3, 0.7)
    made = made.assign(target=DAYS[night + 1], run_id=np.where(night < SECOND_FROM, *runs))
    made = made.assign(probability=said, probability_std=0.01, calibrated=1.1 * said - 0.05)
    made = made.assign(lowest=said - 0.02, highest=said + 0.02)
    made["rising_share"] = np.where(said > 0.5, 1.0, 1 / 3)
    is_left_out = (night % 7 == 6) & (made["symbol"] == stocks[0])
    return made[~is_left_out].reset_index(drop=True)


def _fill_outcomes(conn: Connection, market: str, made: pd.DataFrame, prices: pd.DataFrame) -> None:
    """What came of all predictions but the last night's."""
    settled = made[made["target"] < DAYS[NIGHTS]]
    returns = prices.pivot(index="session", columns="symbol", values="close").pct_change()
    is_settled = settled.pivot(index="target", columns="symbol", values="probability").notna()
    save_outcomes(conn, market, returns.reindex_like(is_settled).where(is_settled))
    counted = {"level": LEVEL, "n": 8, "covered": 7, "decided": 3, "decided_correct": 2}
    nights = settled[["run_id", "target"]].drop_duplicates()
    save(conn, "abstention_count", nights.assign(**counted))


def _fill_evidence(
    conn: Connection, market: str, made: pd.DataFrame, rng: np.random.Generator
) -> None:
    """What the rules predicted, the longest without history at first, and
    attention to three stocks.
    """
    nights = made[["as_of", "target"]].drop_duplicates()
    rules = nights.assign(**dict.fromkeys(NAIVE_RULES, True))
    rules["index_below_mean20"] = [None if each < DAYS[10] else False for each in nights["as_of"]]
    save(conn, "rule_direction", rules, market=market)
    sources = pd.DataFrame({"source": sorted(made["symbol"].unique())[:3]})
    looks = made[["run_id", "target", "symbol"]].merge(sources, how="cross")
    looks = looks.assign(weight=rng.uniform(0.1, 0.3, len(looks)))
    save(conn, "attention_weight", looks, market=market)
