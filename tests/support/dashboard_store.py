"""A small store with all that the dashboard shows, names that a page must escape among them."""

from collections.abc import Callable, Iterator
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
from tests.support.run_folder import made_once

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
        _fill_backtest(conn)
        _fill_market(conn, EVIL, EVIL_STOCKS, EVIL_RUNS, NIGHTS - EVIL_NIGHTS)
        save(conn, "run", run_row("bare-run", BARE, DAYS[0]))


def _fill_market(
    conn: Connection, market: str, stocks: tuple[str, ...], runs: tuple[str, str], first: int
) -> None:
    """A market whose nights begin with that one."""
    rng = np.random.default_rng(len(stocks[0]))
    named = pd.DataFrame({"symbol": [*stocks, "INDEX"], "source_symbol": [*stocks, "INDEX"]})
    named = named.assign(
        kind=["stock"] * len(stocks) + ["index"],
        name=[f"{each} & Sons" for each in named["symbol"]],
    )
    save(conn, "instrument", named.assign(sector="<Tin>"), market=market)
    prices = _bars(rng, [*stocks, "INDEX"])
    stored_prices.append_prices(conn, market, prices, source="files", known_at=moment(DAYS[0], 0))
    for number, run_id in enumerate(runs):
        save(conn, "run", run_row(run_id, market, DAYS[0 if number == 0 else SECOND_FROM]))
        bands = pd.DataFrame(
            {"level": [0.5, LEVEL], "threshold": [0.5, 0.52], "days": 40, "n": 400}
        )
        save(
            conn, "abstention_band", bands.assign(is_default=bands["level"] == LEVEL), run_id=run_id
        )
    made = pd.concat(
        [
            _predictions(rng, stocks, runs[each >= SECOND_FROM], each)
            for each in range(first, NIGHTS)
        ],
        ignore_index=True,
    )
    save(conn, "prediction", made, market=market, known_at=moment(DAYS[0]), made_at=moment(DAYS[1]))
    _fill_outcomes(conn, market, made, prices)
    _fill_evidence(conn, market, made, rng)
    _fill_nights(conn, market, stocks, made)
    _fill_scores(conn, market, rng)
    _fill_account(conn, market, stocks, rng)
    _fill_rankings(conn, market, stocks, first)
    refused_at = moment(DAYS[NIGHTS], 23)
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


def _fill_account(
    conn: Connection, market: str, stocks: tuple[str, ...], rng: np.random.Generator
) -> None:
    """A paper account that holds two stocks from the first night on."""
    held = pd.DataFrame([(day, stock, 0.5) for day in DAYS[:NIGHTS] for stock in stocks[:2]])
    rows = []
    for name in ("account", "account, no costs", "equal parts", "index"):
        net = rng.normal(0.001, 0.01, NIGHTS)
        row = {
            "session": DAYS[:NIGHTS],
            "portfolio": name,
            "gross": net,
            "turnover": 0.0,
            "cost": 0.0,
            "net": net,
        }
        rows.append(pd.DataFrame(row).assign(equity=(1 + net).cumprod()))
    save(conn, "paper_return", pd.concat(rows), market=market) + save(
        conn,
        "paper_position",
        held.set_axis(["session", "symbol", "weight"], axis=1),
        market=market,
    )


def _fill_rankings(conn: Connection, market: str, stocks: tuple[str, ...], first: int) -> None:
    """A ranking of every night, its scores beside a rule's, and what the account is to hold: two
    stocks, of which the last night replaces the first.
    """
    rng = np.random.default_rng(23)
    name, trained = f"{market}-ranker", moment(DAYS[0])
    file = {"checkpoint_path": "none", "checkpoint_hash": "none", "data_watermark": trained}
    own = {"id": name, "market": market, "chosen": RANKER, "created_at": trained}
    save(conn, "ranker", ranker(**own, **file, train_last=DAYS[0].date()))
    for night in range(first, NIGHTS):
        scores = pd.DataFrame([rng.normal(0, 1, len(stocks))], [DAYS[night + 1]], stocks)
        made = {"known_at": moment(DAYS[night]), "made_at": moment(DAYS[night], 23)}
        rows = rank_rows(scores, DAYS, predictor=RANKER, ranker_id=name, chosen=True)
        save(conn, "stock_rank", rows, market=market, **made)
        held = stocks[:2] if night < NIGHTS - 1 else stocks[1:3]
        targets = pd.DataFrame({"symbol": held, "weight": 0.5, "target": DAYS[night + 1]})
        targets = targets.assign(kept=targets["symbol"] == stocks[1])
        save(conn, "target_position", targets, market=market, decided_at=moment(DAYS[night], 23))
    _fill_rank_scores(conn, market, rng, first)


def rank_rows(scores: pd.DataFrame, days: pd.DatetimeIndex, **known: Any) -> pd.DataFrame:
    """Return rankings, in the columns of the table stock_rank, of scores of targets and symbols."""
    rows = scores.rename_axis(index="target", columns="symbol").stack().dropna().rename("score")
    rows = rows.reset_index()
    place = rows.groupby("target")["score"].rank(ascending=False, method="first").astype(int)
    as_of = days[days.get_indexer(rows["target"]) - 1]
    probability = 1 / (1 + np.exp(-rows["score"]))
    return rows.assign(as_of=as_of, place=place, probability=probability, **known)


def save_outcomes(conn: Connection, market: str, happened: pd.DataFrame) -> None:
    """Store the returns of symbols on sessions, known after the last of them."""
    rise = happened["realised_return"] > 0
    known = moment(happened["session"].max())
    rows = happened.assign(rise=rise, label=np.where(rise, 1, -1))
    save(conn, "outcome", rows, market=market, known_at=known, recorded_at=known)


def _fill_rank_scores(conn: Connection, market: str, rng: np.random.Generator, first: int) -> None:
    rows = _scored(first, {"rank_ic": (-0.2, 0.4)}, rng, predictor=[RANKER, RULE])
    rows = rows.rename(columns={"nights": "days"})
    rows = rows.assign(leg="next_close", is_rule=rows["predictor"] == RULE, n=8 * rows["days"])
    save(conn, "rank_score", rows, market=market, scored_at=moment(DAYS[NIGHTS], 23))


def _scored(
    first: int,
    figures: dict[str, tuple[float, float]],
    rng: np.random.Generator,
    **keys: list[str],
) -> pd.DataFrame:
    """Figures of each night after the first and of all up to it, drawn between two ends; with
    intervals from twenty nights on.
    """
    of_all = {"target": DAYS[first + 1 : NIGHTS], "span": ["night", "running"], **keys}
    rows = pd.MultiIndex.from_product(of_all.values(), names=of_all).to_frame(index=False)
    so_far = DAYS.get_indexer(rows["target"]) - first
    rows["nights"] = np.where(rows["span"] == "night", 1, so_far)
    for name, ends in figures.items():
        rows[name] = rng.uniform(*ends, len(rows))
        for end, by in (("low", -0.05), ("high", 0.05)):
            rows[f"{name}_{end}"] = (rows[name] + by).where(rows["nights"] >= 20)
    return rows


def _bars(rng: np.random.Generator, symbols: list[str]) -> pd.DataFrame:
    parts = []
    for symbol in symbols:
        close = 100 * np.exp(rng.normal(0, 0.01, len(DAYS) - 1).cumsum())
        parts.append(
            pd.DataFrame(
                {"symbol": symbol, "session": DAYS[:-1], "close": close, "adj_close": 0.9 * close}
            )
        )
    bars = pd.concat(parts, ignore_index=True).assign(volume=1e6, dividend=np.nan, split=np.nan)
    return bars.assign(open=bars["close"], high=bars["close"] * 1.01, low=bars["close"] * 0.99)


def run_row(
    run_id: str,
    market: str,
    day: pd.Timestamp,
    kind: str = "nightly",
    created_at: datetime | None = None,
) -> dict[str, Any]:
    made = {
        "model": "dtml",
        "config": {"window": 3, "model": {"hidden": 8, "seed": run_id}},
        "seeds": [1, 2, 3],
    }
    files = {
        "checkpoint_path": run_id,
        "checkpoint_hash": "0" * 64,
        "losses": [],
        "code_version": "0.1.0",
    }
    spans = {"train_first": (day - pd.Timedelta(days=300)).date(), "train_last": day.date()}
    named = {
        "id": run_id,
        "market": market,
        "kind": kind,
        "data_watermark": moment(day),
        "created_at": created_at or moment(day, 23),
    }
    return named | made | files | spans | {"slope": 1.1, "intercept": -0.01}


def _predictions(
    rng: np.random.Generator, stocks: tuple[str, ...], run_id: str, number: int
) -> pd.DataFrame:
    """Of a night: the first stock is left out of every seventh."""
    said = np.clip(rng.normal(0.5, 0.03, len(stocks)), 0.3, 0.7)
    made = pd.DataFrame(
        {"symbol": stocks, "run_id": run_id, "as_of": DAYS[number], "target": DAYS[number + 1]}
    )
    made = made.assign(
        probability=said, probability_std=0.01, calibrated=np.clip(1.1 * said - 0.05, 0, 1)
    )
    made = made.assign(
        lowest=said - 0.02, highest=said + 0.02, rising_share=np.where(said > 0.5, 1.0, 1 / 3)
    )
    return made.iloc[int(number % 7 == 6) :]


def _fill_outcomes(conn: Connection, market: str, made: pd.DataFrame, prices: pd.DataFrame) -> None:
    """What came of all predictions but the last night's."""
    closes = prices.set_index(["symbol", "session"])["close"]
    settled = made[made["target"] < DAYS[NIGHTS]]
    before, after = (
        closes.loc[pd.MultiIndex.from_frame(settled[["symbol", day]])].to_numpy()
        for day in ("as_of", "target")
    )
    happened = settled[["symbol", "target"]].rename(columns={"target": "session"})
    save_outcomes(conn, market, happened.assign(realised_return=after / before - 1))
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
    save(
        conn,
        "attention_weight",
        looks.assign(weight=rng.uniform(0.1, 0.3, len(looks))),
        market=market,
    )


def _fill_nights(
    conn: Connection, market: str, stocks: tuple[str, ...], made: pd.DataFrame
) -> None:
    for (seen, target, run_id), rows in made.groupby(["as_of", "target", "run_id"]):
        missing = sorted({*stocks} - {*rows["symbol"]})
        store_night(
            conn,
            market,
            seen.date(),
            target=target.date(),
            at=moment(seen),
            finished_at=moment(seen, 23),
            status="complete_with_gaps" if missing else "complete",
            counts={"fetched": 90, "stored": 9, "rejected": 1, "predictions": len(rows)},
            run_id=run_id,
            gaps=[{"symbol": each, "reason": "no bar: <none>"} for each in missing],
            known_at=moment(seen),
        )


def _fill_scores(conn: Connection, market: str, rng: np.random.Generator) -> None:
    keys = {"protocol": ["published", "all"], "predictor": ["dtml", *NAIVE_RULES]}
    rows = _scored(0, {"acc": (0.45, 0.55), "mcc": (-0.1, 0.1)}, rng, **keys)
    half = 4 * rows["nights"]
    rows = rows.assign(n=2 * half, rises=half, predicted_rises=half)
    save(conn, "score", rows, market=market, scored_at=moment(DAYS[NIGHTS], 23))


def _fill_backtest(conn: Connection) -> None:
    """A run that predicted all the nights of the first one, a little otherwise."""
    rng = np.random.default_rng(11)
    save(conn, "run", run_row(BACKTEST_RUN, MARKET, DAYS[0], "backtest"))
    made = pd.concat(
        [_predictions(rng, STOCKS, BACKTEST_RUN, number) for number in range(SECOND_FROM)]
    )
    save(
        conn,
        "prediction",
        made.reset_index(drop=True),
        market=MARKET,
        known_at=moment(DAYS[0]),
        made_at=moment(DAYS[NIGHTS]),
    )
