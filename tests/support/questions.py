"""Sixty nights of the simulated market for the questions of db/questions, and the page of their
answers.

The bars are those of `dtml nightly simulated`; what is predicted from them comes from a formula,
because trained weights differ from machine to machine: a follower's chance to rise goes with its
leader's last return, blurred by random numbers that grow with the model's age. `python -m
tests.support.questions` writes db/QUESTIONS.md again.
"""

import tempfile
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
from sqlalchemy import Connection, Engine

from db.engine import open_engine, transaction, upgrade
from db.rows import fetches, prices
from db.save import save
from dtml.baselines.naive_rules import directions_on
from dtml.evaluation.calibration import LEVELS
from dtml.experiments import nightly_of
from dtml.markets import load_market
from dtml.prices.sessions import next_session, session_close, sessions_up_to
from dtml.ranking.rankers import ranking_of_day
from dtml.sources.simulated import DAILY_VOLATILITY, SimulatedSource
from flows.commands.questions import questions_page
from flows.nightly.context import MarketContext, Tonight
from flows.nightly.score import dated_directions, score
from tests.support.night_rows import store_night
from tests.support.places import ROOT

REMARK = """

In that market, followers copy part of their leader's last return. For this page, a formula makes
the predictions instead of a network: `python -m tests.support.questions` writes the page again."""
RANKER = "simulated-2024-04-04-0a1b2c3d"
PAGE = ROOT / "db" / "QUESTIONS.md"
MARKET = "simulated"
LAST = date(2024, 6, 28)
# nights, sessions stored before them, nights that a model serves
NIGHTS, BEFORE, SERVED = (
    60,
    60,
    30,
)
SEEDS, LOOKS = 3, 3
LATE = {41: 43, 42: 43}  # nights that were made up with a later one
REFUSED_NIGHT = 23  # without an answer from the source
REJECTED_BAR = (35, "F05B", "high_below_low", "high=97.31, low=98.02")
RESTATED = {
    17: ("F03A", 1.021),
    38: ("L07", 0.985),
}  # a close of that night, too high or low until five nights later
SLOPE, INTERCEPT = 0.55, 0.02
SOURCE = SimulatedSource()
STOCKS = sorted(SOURCE.market.symbols)
LEADER = np.array([STOCKS.index(SOURCE.market.leader_of(stock)) for stock in STOCKS])
FOLLOWS = np.array([stock.startswith("F") for stock in STOCKS])
Days = pd.DatetimeIndex


@dataclass(frozen=True)
class Model:
    """A run and the nights it predicts; `unknown` is what it does not know,
    beside a signal of 1.6 on a usual day.
    """

    name: str
    kind: str
    first: int
    last: int
    unknown: float
    seed: int


MODELS = (
    Model("simulated-2024-04-04-5f0c1d2e", "nightly", 0, SERVED, 0.8, 11),
    Model("simulated-2024-05-16-9b3a7c44", "nightly", SERVED, NIGHTS, 0.6, 13),
    Model("simulated-lstm-2024-05-02-7e21", "backtest", 20, NIGHTS, 2.4, 17),
)


def fill(engine: Engine) -> None:
    """Sixty nights in a store with its tables and nothing in them."""
    days = sessions_up_to("XNYS", LAST, BEFORE + NIGHTS)
    bars = SOURCE.bars(LAST)
    bars = bars[bars["session"] >= days[0]].reset_index(drop=True)
    number, stock, *_ = REJECTED_BAR
    bars = bars[(bars["symbol"] != stock) | (bars["session"] != days[BEFORE + number])]
    returns = bars.pivot(index="session", columns="symbol", values="adj_close").pct_change(
        fill_method=None
    )
    with transaction(engine) as conn:
        _save_market(conn)
        for night in range(NIGHTS):
            _save_bars(conn, night, days, bars)
        for model in MODELS:
            _save_model(conn, model, days, returns)
        for night in range(NIGHTS):
            _save_night(conn, night, days, bars)
        _save_night_rankings(conn, days, returns)
        seen = days[BEFORE:]
        directions = directions_on(seen, bars, SOURCE.index_symbol)
        save(conn, "rule_direction", dated_directions(directions, _targets(seen)), market=MARKET)
    market = load_market(MARKET).with_symbols(STOCKS)
    experiment = nightly_of(
        market.model,
        z_close=market.z_close,
        returns=market.returns,
        max_return=market.checks.max_return,
    )
    context = MarketContext(market, SOURCE, engine, experiment, "cpu")
    score(Tonight(context, LAST))


def filled_store(folder: Path) -> str:
    """The URL of an SQLite store with these nights."""
    url = store_in(folder)
    engine = open_engine(url)
    upgrade(engine)
    fill(engine)
    engine.dispose()
    return url


def store_in(folder: Path) -> str:
    return f"sqlite:///{folder}/questions.sqlite"


def page(url: str) -> str:
    """The page of the answers of such a store."""
    reader = open_engine(url, read_only=True)
    said = questions_page(reader, MARKET, REMARK)
    reader.dispose()
    return said


def predictions(model: Model, night: int, day: pd.Timestamp, returns: pd.DataFrame) -> pd.DataFrame:
    """Return what a model predicts after a session, of the stocks with a return in it: none where
    it is NaN.

    A night below 0 is one before the model was trained.
    """
    draw = np.random.default_rng([model.seed, night + BEFORE])
    last = returns.loc[day, STOCKS].to_numpy()
    signal = np.where(FOLLOWS, 1.6 * np.nan_to_num(last[LEADER] / DAILY_VOLATILITY), 0.0)
    unsure = (
        model.unknown * (1 + max(night - model.first, 0) / SERVED) * np.where(FOLLOWS, 1.0, 0.5)
    )
    shared, own = draw.normal(size=len(STOCKS)), draw.normal(size=(SEEDS, len(STOCKS)))
    seeds = _logistic(signal + unsure * (0.8 * shared + 0.6 * own)).round(3).clip(0.001, 0.999)
    mean = seeds.mean(axis=0).round(3)
    frame = pd.DataFrame(
        {"symbol": STOCKS, "probability": mean, "probability_std": seeds.std(axis=0).round(4)}
    )
    said = {"calibrated": _logistic(SLOPE * np.log(mean / (1 - mean)) + INTERCEPT).round(4)}
    said |= {
        "lowest": seeds.min(axis=0),
        "highest": seeds.max(axis=0),
        "rising_share": (seeds > 0.5).mean(axis=0),
    }
    frame = frame.assign(
        **said, run_id=model.name, as_of=day, target=_targets(pd.DatetimeIndex([day]))[0]
    )
    return frame[np.isfinite(last)]


def _logistic(logit: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logit))


def _targets(days: Days) -> Days:
    return Days([next_session("XNYS", day.date()) for day in days])


def _known_at(night: int, days: Days) -> datetime:
    """When the prices of a night were known: 95 minutes after the close, of a
    later session for one made up.
    """
    close = session_close("XNYS", days[BEFORE + LATE.get(night, night)].date())
    return close + timedelta(minutes=95 - 10 * (LATE.get(night, night) - night))


def _made_at(night: int, days: Days) -> datetime:
    return _known_at(night, days) + timedelta(minutes=2 + 7 * night % 5, seconds=night)


def _save_market(conn: Connection) -> None:
    sectors = [f"sector {(1 + int(stock[1:3])) // 2}" for stock in STOCKS]
    stocks = pd.DataFrame(
        {
            "symbol": STOCKS,
            "kind": "stock",
            "source_symbol": STOCKS,
            "name": None,
            "sector": sectors,
        }
    )
    index = {"symbol": SOURCE.index_symbol, "kind": "index", "source_symbol": SOURCE.index_symbol}
    save(
        conn,
        "instrument",
        pd.concat([stocks, pd.DataFrame([index])], ignore_index=True),
        market=MARKET,
    )


def _save_bars(conn: Connection, night: int, days: Days, bars: pd.DataFrame) -> None:
    """What a night fetched: the sessions since the one before it, and a bar
    that was wrong five nights ago.
    """
    if night == REFUSED_NIGHT:
        return
    first = 0 if night == 0 else BEFORE + night - (night - 1 == REFUSED_NIGHT)
    fetched = bars[bars["session"].between(days[first], days[BEFORE + night])].reset_index(
        drop=True
    )
    if night in RESTATED:
        stock, factor = RESTATED[night]
        fetched.loc[fetched["symbol"] == stock, ["close", "adj_close"]] *= factor
    if night - 5 in RESTATED:
        wrong = (bars["session"] == days[BEFORE + night - 5]) & (
            bars["symbol"] == RESTATED[night - 5][0]
        )
        fetched = pd.concat([bars[wrong], fetched], ignore_index=True)
    known_at = _known_at(night, days)
    prices.append_prices(conn, MARKET, fetched, source="simulated", known_at=known_at)
    if night == REJECTED_BAR[0]:
        _, stock, reason, value = REJECTED_BAR
        row = {"symbol": stock, "session": days[BEFORE + night], "reason": reason, "value": value}
        save(
            conn,
            "rejected_bar",
            pd.DataFrame([row]),
            market=MARKET,
            source="simulated",
            first_known_at=known_at,
        )
        second = {"field": "bar", "first_value": np.nan, "second_value": 97.64}
        differing = pd.DataFrame([row | second | {"difference": np.nan}])
        comparison = {
            "market": MARKET,
            "as_of": row["session"].date(),
            "known_at": known_at,
            "source": "files",
            "symbols": 1,
            "bars": 0,
            "differing": 1,
            "failures": [],
            "failure": None,
        }
        fetches.save_comparison(conn, comparison, differing)


def _save_model(conn: Connection, model: Model, days: Days, returns: pd.DataFrame) -> None:
    """A run, its band from the forty sessions before it, and its predictions
    with where each stock looks.
    """
    trained = _known_at(model.first, days)
    save(conn, "run", _run(model, days, trained))
    save(
        conn,
        "abstention_band",
        _bands(model, days, returns).assign(is_default=False),
        run_id=model.name,
    )
    nightly = model.kind == "nightly"
    nights = [
        night
        for night in range(model.first, model.last)
        if not (nightly and night == REFUSED_NIGHT)
    ]
    made = {night: predictions(model, night, days[BEFORE + night], returns) for night in nights}
    if not nightly:
        stamps = {"known_at": _known_at(nights[-1], days), "made_at": _made_at(nights[-1], days)}
        of_model = pd.concat(made.values(), ignore_index=True)
        save(conn, "prediction", of_model, market=MARKET, **stamps)
        return
    for night, frame in made.items():
        stamps = {"known_at": _known_at(night, days), "made_at": _made_at(night, days)}
        save(conn, "prediction", frame, market=MARKET, **stamps)
    save(
        conn,
        "attention_weight",
        pd.concat([_looks(model, night, made[night]) for night in nights]),
        market=MARKET,
    )


def _run(model: Model, days: Days, trained: datetime) -> dict[str, object]:
    return {
        "id": model.name,
        "market": MARKET,
        "kind": model.kind,
        "model": "dtml" if model.kind == "nightly" else "lstm",
        "config": {"formula": "leaders' last returns"},
        "seeds": list(range(SEEDS)),
        "code_version": "0.1.0",
        "data_watermark": trained,
        "checkpoint_path": None,
        "checkpoint_hash": None,
        "losses": [],
        "train_first": days[0].date(),
        "train_last": days[BEFORE + model.first].date(),
        "created_at": trained,
        "slope": SLOPE,
        "intercept": INTERCEPT,
    }


def _bands(model: Model, days: Days, returns: pd.DataFrame) -> pd.DataFrame:
    """Return thresholds above which a share of `level` of the stock-days were
    not predicted the wrong way.
    """
    parts = [predictions(model, night, days[BEFORE + night], returns) for night in range(-41, -1)]
    said = pd.concat(parts, ignore_index=True)
    rose = (
        returns.stack().reindex(pd.MultiIndex.from_frame(said[["target", "symbol"]])).to_numpy() > 0
    )
    surprise = np.where(rose, 1 - said["calibrated"], said["calibrated"])
    threshold = np.quantile(surprise, LEVELS, method="higher").clip(0.5)
    return pd.DataFrame(
        {"level": LEVELS, "threshold": threshold, "days": len(parts), "n": len(said)}
    )


def _looks(model: Model, night: int, made: pd.DataFrame) -> pd.DataFrame:
    """The stocks that each looks at most: a follower at its leader on most
    nights, a leader at anyone.
    """
    weight = 0.12 * np.random.default_rng([model.seed, night, 1]).random((len(STOCKS), len(STOCKS)))
    weight[FOLLOWS, LEADER[FOLLOWS]] += 3 * weight[FOLLOWS, 0]
    long = pd.DataFrame(weight.round(4), index=STOCKS, columns=STOCKS).rename_axis(
        index="symbol", columns="source"
    )
    rows = long.loc[made["symbol"], made["symbol"]].stack().rename("weight").reset_index()
    rows = rows[rows["symbol"] != rows["source"]].sort_values(
        ["symbol", "weight", "source"], ascending=[True, False, True]
    )
    return (
        rows.groupby("symbol").head(LOOKS).assign(target=made["target"].iloc[0], run_id=model.name)
    )


def _save_night_rankings(conn: Connection, days: Days, returns: pd.DataFrame) -> None:
    """Keep what a formula for rankers says: a follower's place goes with its
    leader's last return, blurred.
    """
    trained = _known_at(0, days)
    row = {
        "id": RANKER,
        "market": MARKET,
        "leg": "next_close",
        "chosen": "blend",
        "config": {"formula": "leaders"},
        "code_version": "0.1.0",
        "data_watermark": trained,
        "checkpoint_path": "none",
        "checkpoint_hash": "none",
        "train_last": days[BEFORE].date(),
        "created_at": trained,
    }
    save(conn, "ranker", row)
    for night in set(range(NIGHTS)) - {REFUSED_NIGHT}:
        day, draw = days[BEFORE + night], np.random.default_rng([19, night])
        last = returns.loc[day, STOCKS].to_numpy()
        signal = np.where(FOLLOWS, np.nan_to_num(last[LEADER] / DAILY_VOLATILITY), 0.0)
        blurs = {"blend": 1.0, "boosting": 1.2, "ridge": 3.0}
        said = {
            name: (signal + blur * draw.normal(size=len(STOCKS))).round(6)
            for name, blur in blurs.items()
        }
        said = {name: np.where(np.isfinite(last), score, np.nan) for name, score in said.items()}
        order = ranking_of_day(said, dict.fromkeys(blurs, 0.8), tuple(STOCKS))
        order = order.assign(
            ranker_id=RANKER, as_of=day, target=_targets(pd.DatetimeIndex([day]))[0]
        )
        order["chosen"] = order["predictor"] == "blend"
        save(
            conn,
            "stock_rank",
            order,
            market=MARKET,
            known_at=_known_at(night, days),
            made_at=_made_at(night, days),
        )


def _save_night(conn: Connection, night: int, days: Days, bars: pd.DataFrame) -> None:
    day, known_at = days[BEFORE + night].date(), _known_at(night, days)
    there = set(bars.loc[bars["session"] == days[BEFORE + night], "symbol"])
    fetch = {
        "market": MARKET,
        "as_of": day,
        "known_at": known_at,
        "source": "simulated",
        "asked": len(STOCKS) + 1,
        "restated": [],
        "failures": [],
    }
    missing = [stock for stock in STOCKS if stock not in there]
    rejected = int(night == REJECTED_BAR[0])
    counts = {"fetched": len(there) + rejected, "stored": len(there), "rejected": rejected}
    ending: dict[str, object] = {
        "status": "complete_with_gaps" if missing else "complete",
        "gaps": [{"symbol": each, "reason": f"no good bar of {day}"} for each in missing],
        "run_id": next(each.name for each in MODELS if each.first <= night < each.last),
        "known_at": known_at,
    }
    predictions = len(STOCKS) - len(missing)
    if night == REFUSED_NIGHT:
        limited = {"status": "rate_limited", "detail": "wait and ask again"}
        fetch["failures"] = [{"symbol": SOURCE.index_symbol} | limited]
        counts = dict.fromkeys(counts, 0)
        ending = {"status": "refused", "reason": "no bar of the index came: rate_limited"}
        predictions = 0
    save(conn, "price_fetch", fetch | counts)
    store_night(
        conn,
        MARKET,
        day,
        target=next_session("XNYS", day),
        source="simulated",
        at=known_at,
        finished_at=_made_at(night, days),
        counts=counts | {"predictions": predictions},
        **ending,
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        PAGE.write_text(page(filled_store(Path(home))), encoding="utf-8")
