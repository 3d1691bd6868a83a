"""Laws of a night's page: its directions, its scores and curves, and who looks at whom."""

import re
from datetime import date
from functools import cache
from html import unescape
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dtml.attention.weights import KEPT, Attention
from dtml.evaluation.breakdowns import ROLLING_SESSIONS, rolling_scores
from dtml.evaluation.calibration import (
    LEVELS,
    Calibration,
    count_band,
    count_bins,
    coverage,
    curve_with_intervals,
    recalibrated,
)
from dtml.evaluation.metrics import accuracy, mcc
from dtml.pages.charts import COLUMNS, NARROWEST, probability_axis, stacked
from dtml.pages.figures import figure
from dtml.pages.night import direction_rows, heat_map, night_report, sector_map
from dtml.pages.order import order_part
from tests.support.bounds import as_drawn, assert_arrays_close_in_float64, in_float64
from tests.support.pages import Reader

NAN = float("nan")
EVIL = "<script>alert('x')</script>&\""
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
LINE = Calibration(0.7, 0.01, {}, 0, 0)
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
        for protocol in ("paper", "all")
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
        "explanation": None,
    }
    whole |= {
        "attention": looks(directions["symbol"].tolist()),
        "rejected": rejected,
        "rejected_sessions": 30,
    }
    whole |= {"warnings": pd.DataFrame(), "order": order_part(pd.DataFrame(), pd.DataFrame())}
    return whole | {"receipt": facts, "calibrations": {"first": LINE}} | known


def page(directions: pd.DataFrame | None = None, **known: Any) -> str:
    whole = given(directions, **known)
    return night_report(**whole | {"attention": Attention.of(whole["attention"])})


def old(**known: Any) -> str:
    """The page of a night that was neither calibrated nor scored, and whose model is gone."""
    directions = stocks().drop(
        columns=["calibrated", "lowest", "highest", "rising_share", "name", "sector"]
    )
    blank = {
        name: given()[name].iloc[:0]
        for name in ("scores", "rolling", "bins", "coverage", "attention", "rejected")
    }
    return page(
        directions, threshold=None, calibrations=None, night=NIGHT | {"gaps": []}, **(blank | known)
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


def test_every_stock_is_called_once_the_surest_first_and_no_call_is_set_apart() -> None:
    directions = stocks()
    found = direction(page(directions))
    ordered = directions.sort_values("calibrated", ascending=False)
    assert found["rise"] == ordered.loc[ordered["calibrated"] > THRESHOLD, "symbol"].tolist()
    assert (
        found["fall"] == ordered.loc[ordered["calibrated"] < 1 - THRESHOLD, "symbol"].tolist()[::-1]
    )
    silent = ordered["calibrated"].between(1 - THRESHOLD, THRESHOLD)
    assert found["no direction"] == ordered.loc[silent, "symbol"].tolist()
    assert sorted(chain(*found.values())) == directions["symbol"].tolist()
    assert min(map(len, found.values())) > 0
    assert not {row[1] for row in region(page(directions), "Directions")[1:]} & {"no direction"}


@pytest.mark.parametrize("threshold", [None, 1.0])
def test_without_a_band_every_stock_is_called_and_at_the_largest_none(
    threshold: float | None,
) -> None:
    directions = stocks()
    found = direction(text := page(directions, threshold=threshold))
    rises = set(directions.loc[directions["probability"] > 0.5, "symbol"])
    assert set(found["rise"]) == (rises if threshold is None else set())
    assert len(found["no direction"]) == (0 if threshold is None else len(directions))
    said = "this night has no abstention band" if threshold is None else "no stock of 23 is decided"
    assert said in Reader(text).seen


def test_what_the_members_said_is_drawn_on_the_scale_of_the_calls() -> None:
    directions = stocks()
    none = Attention.of(looks([]))
    for row in direction_rows(directions, THRESHOLD, none, LINE):
        assert row["low"] < row["shown"] < row["high"]
        assert row["low"] == LINE.apply(np.array([row["lowest"]]))[0]
    assert all(
        np.isnan(row["low"]) for row in direction_rows(directions, THRESHOLD, none)
    )  # on another scale than `shown`
    raw = direction_rows(directions.assign(calibrated=NAN), None, none)
    assert all(row["low"] == row["lowest"] and row["shown"] == row["probability"] for row in raw)


def test_the_verdict_counts_the_calls_and_the_page_says_what_it_is_made_of() -> None:
    rows = direction_rows(stocks(), THRESHOLD, Attention.of(looks([])))
    counts = {
        direction: sum(row["direction"] == direction for row in rows)
        for direction in ("rise", "fall", "none")
    }
    words = (
        f"For Tuesday, 2024-07-02, at the level of 80 %, {counts['rise']} of 23 stocks are "
        "predicted to rise, "
        f"{counts['fall']} to fall, and {counts['none']} have no direction."
    )
    seen = Reader(page()).seen
    for said in (
        words,
        "no bar on 2024-07-01",
        "toy-2024-06-03-1a2b3c4d",
        "nothing promises profit",
        "80 %, this page",
    ):
        assert said in seen
    order = (
        "Directions for",
        "The directions so far",
        "Calibration",
        "Who looks at whom",
        "Left out",
        "Receipt",
    )
    places = [seen.index(f"\n{title}") for title in order]
    assert places == sorted(places)


def test_the_scores_are_those_of_the_last_night_the_model_first() -> None:
    scores = running()
    last = scores[
        (scores["target"] == scores["target"].max()) & (scores["protocol"] == "all")
    ].set_index("predictor")
    rows = region(page(scores=scores), "Scores, all stock-days")[1:]
    assert [row[0] for row in rows] == ["dtml", *RULES]
    for name, *_, acc, correlation in rows:
        assert acc.split()[0] == figure(last.loc[name, "acc"])
        assert correlation.split()[0] == figure(last.loc[name, "mcc"])


@pytest.mark.parametrize(
    "text", [page(), old(), page(stocks(1)), page(stocks(2).assign(calibrated=[NAN, 0.6]))]
)
def test_the_page_is_whole_alone_and_accessible(text: str) -> None:
    read = Reader(text)
    assert not re.search(r"https?:|src\s*=|<link|<script|@import|url\((?!#)", text)
    assert not re.search(r"\b(nan|NaN|NaT|None)\b", read.seen)
    ids = [attrs["id"] for _, attrs in read.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in read.found:
        assert tag != "svg" or attrs.get("aria-hidden")  # what it shows is said in words around it
        assert attrs.get("role") != "img" or attrs["aria-label"]
        assert attrs.get("role") != "region" or (attrs["tabindex"] == "0" and attrs["aria-label"])
        assert tag != "th" or attrs.get("scope") in ("col", "row")
    regions = [attrs["aria-label"] for _, attrs in read.found if attrs.get("role") == "region"]
    assert len(regions) == len(set(regions))
    links = {attrs["href"] for tag, attrs in read.found if tag == "a"}
    assert links <= {f"#{each}" for each in ids}
    levels = [int(tag[1]) for tag, _ in read.found if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_an_old_night_shows_what_it_has() -> None:
    seen = Reader(old()).seen
    for said in (
        "was not calibrated",
        "No prediction of this market has an outcome yet",
        "No stock was left out",
        "No attention between stocks is kept",
        "No bar was rejected",
        "No night with an abstention band",
    ):
        assert said in seen
    assert "seeds above" not in seen
    assert sum(map(len, direction(old()).values())) == 23


def test_names_are_escaped() -> None:
    directions = stocks(7).assign(name=EVIL, sector=EVIL).replace({"S003": EVIL})
    night = NIGHT | {"status": EVIL, "gaps": [{"symbol": EVIL, "reason": EVIL}]}
    rejected = given()["rejected"].assign(symbol=EVIL, reason=EVIL, value=EVIL)
    scores = running().replace({"always_up": EVIL})
    receipt = {EVIL: EVIL, "config": {EVIL: EVIL}}
    text = page(
        directions, title=EVIL, night=night, rejected=rejected, scores=scores, receipt=receipt
    )
    assert Reader(text).seen.count("<script>") > 10
    assert "<script" not in text


def test_the_page_of_500_stocks_stays_below_a_megabyte() -> None:
    text = page(directions := stocks(500, sectors=11))
    assert len(text.encode()) < 1_000_000
    assert sorted(chain(*direction(text).values())) == directions["symbol"].tolist()
    assert len(region(text, "Strongest sources of each stock")) == 501
    assert "Of 500 stocks the 40 that the others look at most are drawn" in Reader(text).seen


@pytest.mark.parametrize("outcome", ["untested", "holds", "fails"])
def test_what_a_test_found_of_the_explanation_stands_before_the_map(outcome: str) -> None:
    row = {
        "told_apart": True,
        "agreement": 0.5,
        "agreement_low": 0.4 if outcome == "holds" else -0.1,
    }
    row |= {
        "agreement_high": 0.6,
        "distance": 0.01,
        "distance_p": 0.03,
        "seeds": 4,
        "shuffles": 8,
        "epochs": 5,
    }
    row |= {
        "drivers": None,
        "drivers_chance": None,
        "drivers_importance": None,
        "top": 3,
        "stocks": 23,
        "days": 42,
    }
    text = page(explanation=None if outcome == "untested" else row)
    words = {"untested": "Not tested", "holds": "and it held", "fails": "and it failed"}[outcome]
    assert text.index(words) < text.index('class="map"', text.index('id="attention"'))
    assert f'class="tested {outcome}"' in text


def test_a_rolling_score_is_that_of_its_last_quarter_and_none_comes_before() -> None:
    counts = GENERATOR.integers(0, 9, (80, 4))
    days = pd.bdate_range("2024-01-02", periods=80)
    found = rolling_scores(counts, days).set_index("session")
    assert len(found) == 80 - ROLLING_SESSIONS + 1
    for day in (days[ROLLING_SESSIONS - 1], days[-1]):
        place = days.get_loc(day) + 1
        total = counts[place - ROLLING_SESSIONS : place].sum(axis=0)
        assert found.loc[day, "acc"] == accuracy(total)
        assert found.loc[day, "mcc"] == mcc(total)
        assert found.loc[day, "acc_low"] < found.loc[day, "acc"] < found.loc[day, "acc_high"]
    assert rolling_scores(counts[: ROLLING_SESSIONS - 1], days[: ROLLING_SESSIONS - 1]).empty
    assert "Rolling ACC" in page()
    assert "Running ACC" in page(rolling=rolling_scores(counts[:9], days[:9]))


def test_the_curves_hold_every_call_and_calibration_moves_only_what_was_said() -> None:
    said, directions = curve_with_intervals(bins()), settled()
    assert said["n"].sum() == len(directions)
    assert (said["share_risen_low"] < said["share_risen"]).all()
    assert (said["share_risen"] < said["share_risen_high"]).all()
    moved = recalibrated(bins(), {"first": LINE, "other": LINE})
    assert moved["rises"].sum() == directions["rise"].sum()
    assert moved["probability_sum"].sum() == as_drawn(directions["calibrated"].sum(), share=1e-4)
    assert recalibrated(bins(), {"other": LINE}).empty
    assert curve_with_intervals(bins().head(3))["share_risen_low"].isna().all()  # too few nights


def test_marks_stand_on_one_another_above_their_place() -> None:
    values = [0.5, 0.5, 0.61, NAN, 0.39]
    axis = probability_axis(values)
    assert axis.high - 0.5 == in_float64(0.5 - axis.low)
    rows = pd.DataFrame({"value": values, "kind": "none", "words": list("abcde")})
    marks = stacked("title", "words", rows, axis, None).data["rows"]
    assert marks["words"].tolist() == ["e", "a", "b", "c"]
    assert marks["row"].tolist() == [0.5, 0.5, 1.5, 0.5]
    assert marks["place"].between(axis.low, axis.high).all()
    assert marks["place"].iloc[1] == in_float64(0.5 + (axis.high - axis.low) / COLUMNS / 2)
    assert probability_axis([]).high - 0.5 == in_float64(1.08 * NARROWEST)
    assert (probability_axis([1.0]).low, probability_axis([1.0]).high) == (0.0, 1.0)


def test_a_cell_of_the_map_is_how_much_its_row_looks_at_its_column() -> None:
    names = ["A", "B", "C", "D"]
    weights = np.full((4, 4), 0.2)
    weights[1, 3], weights[2, 0] = 0.9, 0.7  # B looks at D, C at A, and neither back
    weights[3, 1], weights[0, 2] = 0.01, 0.02
    frame = looks(names).assign(weight=weights.ravel()).sample(frac=1, random_state=7)
    drawn = heat_map(Attention.of(frame), {})
    assert drawn
    cells = drawn.data["rows"].pivot(index="y", columns="x", values="value")
    np.testing.assert_array_equal(cells.to_numpy(), weights)
    assert (
        "a row looks, a column is looked at. The strongest: B at D .9000; C at A .7000"
        in drawn.words
    )
    text = page(stocks(4, sectors=1).assign(symbol=names), attention=frame)
    assert drawn.words in unescape(text)


def test_the_map_holds_the_stocks_looked_at_most_by_sector_and_blanks_what_is_not_known() -> None:
    frame = looks(names := [f"S{i:03d}" for i in range(30)])
    sectors = {name: ("Tin", None, "Oil")[i % 3] for i, name in enumerate(names)}
    mean = frame[frame["symbol"] != frame["source"]].groupby("source")["weight"].mean()
    drawn = heat_map(Attention.of(frame), sectors, most=10)
    assert drawn
    shown = list(dict.fromkeys(drawn.data["rows"]["y"]))
    assert set(shown) == set(drawn.data["rows"]["x"]) == set(mean.nlargest(10).index)
    placed = [sectors[name] or "" for name in shown]
    assert placed == sorted(
        placed, key=lambda sector: (not sector, sector)
    )  # those of no sector last
    few = frame.sort_values("weight").groupby("symbol").tail(3)
    partial = heat_map(Attention.of(few), sectors)
    assert partial
    assert len(partial.data["rows"]) == len(few)
    assert sector_map(Attention.of(few), sectors) is None
    assert heat_map(Attention.of(frame.iloc[:0]), sectors) is None


def test_without_preference_no_sector_gets_more_than_its_stocks() -> None:
    frame = looks(names := [f"S{i:03d}" for i in range(17)])
    sectors = {name: f"Sector {i % 3}" for i, name in enumerate(names)}
    found = sector_map(Attention.of(frame), sectors)
    assert found
    side = frame.assign(s=frame["symbol"].map(sectors), t=frame["source"].map(sectors))
    share = side.groupby(["s", "symbol", "t"])["weight"].sum().groupby(["s", "t"]).mean().unstack()
    part = pd.Series(sectors).value_counts(normalize=True).sort_index().to_numpy()
    times = found.data["rows"].pivot(index="y", columns="x", values="value")
    assert_arrays_close_in_float64(times, share.to_numpy() / part)
    even = sector_map(Attention.of(frame.assign(weight=1 / 17)), sectors)
    assert even
    assert_arrays_close_in_float64(even.data["rows"]["value"], 1)


def test_what_a_night_says_of_own_code_is_on_its_page() -> None:
    said = "own code: mine.py is refused by the audit: ahead looked ahead"
    assert said in page(night=NIGHT | {"reason": said})
    assert "Own code" not in page()


def test_the_drivers_of_a_stock_are_its_strongest_sources_but_itself() -> None:
    frame = looks(names := [f"S{i:03d}" for i in range(11)])
    rows = region(page(stocks(11), attention=frame), "Strongest sources of each stock")[1:]
    assert [row[0] for row in rows] == names
    for name, own, *sources in rows:
        mine = frame[frame["symbol"] == name].set_index("source")["weight"]
        assert own == figure(mine[name])
        ordered = mine.drop(name).sort_values(ascending=False).head(KEPT)
        assert sources == [f"{source} {figure(weight)}" for source, weight in ordered.items()]


def test_the_order_of_the_stocks_is_shown_with_what_such_orders_were_worth() -> None:
    order = pd.DataFrame(
        {"place": [1, 2], "symbol": ["S002", "S001"], "name": None, "probability": [0.6, 0.4]}
    )
    order = order.assign(predictor="blend", leg="open_to_open")
    blank = {"is_rule": [False, True, True], "days": 40, "rank_ic": [0.08, 0.01, 0.03]}
    scored = pd.DataFrame({"predictor": ["blend", "volume_shock", "day_losers"], **blank})
    scored = scored.assign(
        rank_ic_low=scored["rank_ic"] - 0.02, rank_ic_high=scored["rank_ic"] + 0.02
    )
    champion = {
        "predictor": "blend",
        "since": "2026-03-02",
        "replaced": "ridge",
        "nights": 41,
        "gain": 0.012,
    }
    text = page(order=order_part(order, scored, champion | {"stake": 71.4, "needed": 60.0}))
    assert region(text, "The order of the stocks")[1:] == [
        ["S002", "1", ".600"],
        ["S001", "2", ".400"],
    ]
    assert (
        "2 stocks, ordered by blend for the return from the next open to the one after, best first."
        in text
    )
    assert (
        "Rank IC of 40 nights: .0800 [.060, .100]; the best rule, day_losers, .0300 [.010, .050]"
        in text
    )
    evidence = "rank IC +.0120 over 41 nights, a stake of 71 where 60 was needed"
    assert f"blend speaks since 2026-03-02 in place of ridge: {evidence}." in text
    assert 'href="#order"' not in page()
    assert "No order of this market has an outcome yet" in page(
        order=order_part(order, scored.iloc[:0])
    )
