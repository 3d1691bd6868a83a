"""The page of a backtest of random figures."""

from collections.abc import Iterable
from datetime import date
from typing import Any

import numpy as np
import pandas as pd

from dtml.pages.backtest import PAPER_SUFFIX, backtest_page
from tests.support.backtest_rows import backtest
from tests.support.pages import curve

NAN = float("nan")
RULES = ("always_up", "index_reversal", "index_below_mean20")
TRADED = ("long, next open", "long-short, next open", "weighted, next open")
FREE_ONES = tuple(
    f"{form}, close, no costs {PAPER_SUFFIX}" for form in ("long", "long-short", "weighted")
)
PORTFOLIOS = (*TRADED, *FREE_ONES, "index", "equal weight")
LIST = {
    "list_date": "2022-12-30",
    "is_dated": False,
    "names": 25,
    "first_names": 25,
    "last_names": 25,
    "first_priced": 24,
    "constituent_days": 10_000,
    "without_price": 123,
}
BACKTEST: dict[str, Any] = backtest(
    "sp500-2018-01-02-1a2b3c4d",
    market="sp500",
    first=date(2018, 1, 2),
    last=date(2019, 6, 28),
    config={"note": "<script>alert(1)</script>", "sessions_a_year": 252, "list": LIST},
    stocks=25,
    constituent_days=10_000,
    without_price=123,
    expected_best=0.5,
    tried=7,
    seconds=7512.3,
)
SCORES = ("acc", "acc_low", "acc_high", "mcc", "mcc_low", "mcc_high")
GAINS = dict.fromkeys(
    (f"{of}_gain{end}" for of in ("model", "index") for end in ("", "_low", "_high")), NAN
)
ORDER = dict.fromkeys(
    (f"rank_{of}{end}" for of in ("ic", "gain") for end in ("", "_low", "_high")), NAN
)
OTHERS = {"settled": 0, "unbooked": 0.0} | GAINS
FIGURES = (
    *("annual_return", "annual_volatility", "sharpe", "sharpe_low", "sharpe_high"),
    *("deflated_sharpe", "max_drawdown", "hit_rate", "turnover", "break_even"),
)


def score(
    predictor: str = "dtml", kind: str = "all", value: str = "", **known: Any
) -> dict[str, Any]:
    row = {
        "slice": kind,
        "value": value,
        "protocol": "all",
        "predictor": predictor,
        "n": 7398,
        "days": 252,
    }
    return row | {"rises": 3788} | dict.fromkeys(SCORES, NAN) | GAINS | ORDER | known


def held(
    portfolio: str, figures: Iterable[float] = (NAN,) * 10, names: tuple[str, ...] = FIGURES
) -> dict[str, Any]:
    blank = {"portfolio": portfolio, "days": 252} | OTHERS
    return blank | dict.fromkeys(FIGURES, NAN) | dict(zip(names, figures, strict=True))


def random_scores(symbols: int = 25, folds: int = 6) -> pd.DataFrame:
    """Every breakdown of every predictor, each figure another one."""
    generator = np.random.default_rng(7)
    breakdowns = [
        ("all", ""),
        ("year", "2018"),
        ("year", "2019"),
        *(("fold", str(i)) for i in range(1, folds + 1)),
    ]
    rows = [
        score(
            predictor,
            kind,
            value,
            protocol=protocol,
            **dict(zip(SCORES, generator.random(6).tolist(), strict=True)),
        )
        for kind, value in [
            *breakdowns,
            *(("symbol", f"S{number:03d}") for number in range(symbols)),
        ]
        for protocol in ("published", "all")
        for predictor in ("dtml", *RULES)
    ]
    return pd.DataFrame(rows)


def random_tracks(days: int) -> pd.DataFrame:
    generator = np.random.default_rng(11)
    names, sessions = (
        np.repeat(PORTFOLIOS, days),
        np.tile(pd.bdate_range("2018-01-02", periods=days), len(PORTFOLIOS)),
    )
    gross, turnover = 0.01 * generator.standard_normal(len(names)), generator.random(len(names))
    paid = {"cost": 3e-4 * turnover, "borrow": 1e-5, "net": gross - 3e-4 * turnover - 1e-5}
    return pd.DataFrame(
        {"portfolio": names, "session": sessions, "gross": gross, "turnover": turnover} | paid
    )


def random_performances() -> pd.DataFrame:
    figures = np.random.default_rng(13).random((len(PORTFOLIOS), 10))
    figures[-2:, FIGURES.index("deflated_sharpe")] = NAN  # those that follow no prediction
    return pd.DataFrame([held(*each) for each in zip(PORTFOLIOS, figures, strict=True)])


def random_rolling(days: int) -> pd.DataFrame:
    sessions = np.tile(pd.bdate_range("2018-04-02", periods=days), 4)
    middle = 0.1 * np.random.default_rng(17).standard_normal(4 * days)
    ends = {"mcc": middle, "mcc_low": middle - 0.1, "mcc_high": middle + 0.1}
    return pd.DataFrame(
        {"session": sessions, "predictor": np.repeat(["dtml", *RULES], days)} | ends
    )


def folds(number: int = 6) -> pd.DataFrame:
    days = pd.date_range("2018-01-01", periods=number, freq="63D")
    spans = {
        "as_of": days,
        "first": days + pd.Timedelta(days=1),
        "last": days + pd.Timedelta(days=62),
    }
    return pd.DataFrame(
        {"number": range(1, number + 1), "predictions": 1575, "validation_acc": 0.5234} | spans
    )


def page(**known: Any) -> str:
    given = {
        "backtest": BACKTEST,
        "folds": folds(),
        "scores": random_scores(),
        "tracks": random_tracks(378),
    }
    given |= {
        "performances": random_performances(),
        "rolling": random_rolling(315),
        "curve": curve(),
    }
    given |= {"coverage": pd.DataFrame()}
    return backtest_page(**(given | known))
