"""A night's page of invented stocks, and what is read from it."""

import re
from datetime import date
from functools import cache
from html import unescape
from typing import Any

import numpy as np
import pandas as pd

from dtml.attention import Attention
from dtml.evaluation.breakdowns import rolling_scores
from dtml.evaluation.calibration import (
    LEVELS,
    Calibration,
    count_band,
    count_bins,
    coverage,
    decide,
)
from dtml.pages.figures import records
from dtml.pages.night import night_report

NAN = float("nan")
RULES = ("always_up", "index_reversal")
SCORES = tuple(name + end for name in ("acc", "mcc", "model_gain") for end in ("", "_low", "_high"))
NIGHT = {
    "as_of": date(2024, 7, 1),
    "target": date(2024, 7, 2),
    "status": "complete_with_gaps",
    "run_id": "first",
}
NIGHT |= {
    "rejected": 2,
    "gaps": [{"symbol": "GONE", "reason": "no bar on 2024-07-01"}],
    "reason": None,
}
# Arguments of the page; all else is shown as it is.
GIVEN = (
    *("night", "level", "directions", "threshold", "scores", "rolling"),
    *("bins", "coverage", "attention", "calibrations"),
)
LINE = Calibration(0.7, 0.01)
THRESHOLD = 0.55
GENERATOR = np.random.default_rng(23)


def stocks(count: int = 23, sectors: int = 3) -> pd.DataFrame:
    """A night's directions, each probability another one."""
    generator = np.random.default_rng(29)
    probability = generator.permutation(np.linspace(0.31, 0.73, count))
    columns = {
        "probability": probability,
        "probability_std": 0.02,
        "calibrated": LINE.apply(probability),
    }
    columns |= {
        "lowest": probability - 0.03,
        "highest": probability + 0.05,
        "rising_share": 0.6,
        "run_id": "first",
    }
    named = {
        "symbol": [f"S{i:03d}" for i in range(count)],
        "name": [f"Stock {i}" for i in range(count)],
    }
    return pd.DataFrame(
        named | {"sector": [f"Sector {i % sectors}" for i in range(count)]} | columns
    )


def looks(symbols: list[str]) -> pd.DataFrame:
    """Every stock's weight on every stock; rows add up to 1."""
    weights = np.random.default_rng(31).gamma(0.7, 1, (len(symbols), len(symbols)))
    weights /= weights.sum(axis=1, keepdims=True)
    pairs = {"symbol": np.repeat(symbols, len(symbols)), "source": np.tile(symbols, len(symbols))}
    return pd.DataFrame(pairs | {"weight": weights.ravel()})


@cache
def running(nights: int = 5) -> pd.DataFrame:
    keys = [
        (day, protocol, predictor)
        for day in pd.bdate_range("2024-06-24", periods=nights)
        for protocol in ("published", "all")
        for predictor in ("dtml", *RULES)
    ]
    rows = pd.DataFrame(keys, columns=["target", "protocol", "predictor"]).assign(
        nights=nights, n=7398
    )
    return rows.assign(
        **{name: np.random.default_rng(i).random(len(rows)) for i, name in enumerate(SCORES)}
    )


@cache
def rolled(sessions: int = 90) -> pd.DataFrame:
    counts = GENERATOR.integers(0, 9, (sessions, 4))
    days = pd.bdate_range("2024-01-02", periods=sessions)
    return pd.concat(
        [rolling_scores(counts, days).assign(predictor=name) for name in ("dtml", *RULES)]
    )


@cache
def settled(nights: int = 40) -> pd.DataFrame:
    """Calls with an outcome."""
    days = np.repeat(pd.bdate_range("2024-01-02", periods=nights), 23)
    probability = np.random.default_rng(37).uniform(0.4, 0.6, len(days))
    rise = np.random.default_rng(41).random(len(days)) < probability
    made = {"probability": probability, "calibrated": LINE.apply(probability), "rise": rise}
    return pd.DataFrame({"target": days, "run_id": "first"} | made)


@cache
def bins() -> pd.DataFrame:
    return count_bins(settled()).assign(run_id="first")


@cache
def kept() -> pd.DataFrame:
    bands = pd.DataFrame(
        {"run_id": "first", "level": LEVELS, "threshold": np.linspace(0.5, 0.56, len(LEVELS))}
    )
    return coverage(count_band(settled(), bands))


def given(directions: pd.DataFrame | None = None, **known: Any) -> dict[str, Any]:
    directions = stocks() if directions is None else directions
    threshold = known.get("threshold", THRESHOLD)
    if threshold is not None:
        decided = decide(directions["calibrated"].to_numpy(dtype=float), threshold)
        words = np.select([decided == 1, decided == 0], ["rise", "fall"], "none")
        directions = directions.assign(direction=words)
    rejected = pd.DataFrame(
        {"symbol": ["S001"], "session": [date(2024, 6, 28)], "reason": "stale", "value": None}
    )
    facts = {"id": "toy-2024-06-03-1a2b3c4d", "config": {"window": 10}, "inputs hash": "ab12"}
    whole = {
        "title": "Toy market",
        "night": NIGHT,
        "directions": directions,
        "level": 0.8,
        "threshold": THRESHOLD,
    }
    whole |= {
        "scores": running(),
        "rolling": rolled(),
        "bins": bins(),
        "coverage": kept(),
    }
    whole |= {
        "attention": looks(directions["symbol"].tolist()),
        "rejected": rejected,
        "rejected_sessions": 30,
    }
    whole |= {"warnings": [], "ranking": [], "ranking_words": None}
    whole |= {"receipt": facts, "calibrations": {"first": LINE}, "drift": "", "second_source": ()}
    whole |= {"frozen": None, "survivorship": "", "morning": None, "opens_at": None}
    return whole | known


def page(directions: pd.DataFrame | None = None, **known: Any) -> str:
    whole = given(directions, **known)
    whole["attention"] = Attention.of(whole["attention"])
    whole["rejected"] = records(whole["rejected"])
    given_whole = {name: whole.pop(name) for name in GIVEN}
    return night_report(**given_whole, facts=whole)


def old(**known: Any) -> str:
    """The page of a night that was neither calibrated nor scored, and whose model is gone."""
    directions = stocks().assign(calibrated=NAN, name=None, sector=None)
    blank = {
        name: given()[name].iloc[:0]
        for name in ("scores", "rolling", "bins", "coverage", "attention", "rejected")
    }
    return page(
        directions, threshold=None, calibrations={}, night=NIGHT | {"gaps": []}, **(blank | known)
    )


def region(text: str, label: str) -> list[list[str]]:
    """The cells of the rows of a table, by the label of its region."""
    found = re.search(f'aria-label="{label}">(.*?)</table>', text, re.DOTALL)
    rows = re.findall(r"<tr.*?</tr>", found[1], re.DOTALL) if found else []
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in row] for row in cells]


def direction(text: str) -> dict[str, list[str]]:
    """The symbols of the page by direction, as they are ordered."""
    rows = [row for label in ("Directions", "No direction") for row in region(text, label)[1:]]
    return {
        direction: [row[0].split()[0] for row in rows if row[1].endswith(direction)]
        for direction in ("rise", "fall", "no direction")
    }
