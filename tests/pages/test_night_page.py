"""Laws of a night's page: its directions, its scores, and what an old night shows."""

import re
from html import unescape
from itertools import chain, pairwise

import numpy as np
import pandas as pd
import pytest

from dtml.attention import Attention
from dtml.pages.figures import figure, named, percent, records
from dtml.pages.night import direction_rows, ends, ranking_words
from tests.support.facts import in_order
from tests.support.night_page import (
    EVIL,
    LINE,
    NAN,
    NIGHT,
    RULES,
    THRESHOLD,
    direction,
    given,
    looks,
    old,
    page,
    region,
    running,
    stocks,
)
from tests.support.pages import Reader


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [None, 1.0])
def test_without_a_band_every_stock_is_called_and_at_the_largest_none(
    threshold: float | None,
) -> None:
    directions = stocks()
    found = direction(text := page(directions, threshold=threshold))
    # By the probability that is shown, which is the calibrated one.
    rises = set(directions.loc[directions["calibrated"] > 0.5, "symbol"])
    assert set(found["rise"]) == (rises if threshold is None else set())
    assert len(found["no direction"]) == (0 if threshold is None else len(directions))
    said = "no abstention band" if threshold is None else "Of the 23 stocks, none"
    assert said in Reader(text).seen


def test_what_the_members_said_is_drawn_on_the_scale_of_the_calls() -> None:
    directions = stocks()
    none = Attention.of(looks([]))
    for row in records(direction_rows(directions, THRESHOLD, none, LINE)):
        assert row["low"] < row["shown"] < row["high"]
        assert row["low"] == LINE.apply(np.array([row["lowest"]]))[0]
    # on another scale than `shown`
    assert direction_rows(directions, THRESHOLD, none)["low"].isna().all()
    raw = direction_rows(directions.assign(calibrated=NAN), None, none)
    assert raw["low"].equals(raw["lowest"])
    assert raw["shown"].equals(raw["probability"])


def test_the_verdict_counts_the_calls_and_the_page_says_what_it_is_made_of() -> None:
    rows = records(direction_rows(given()["directions"], THRESHOLD, Attention.of(looks([]))))
    counts = {
        direction: sum(row["direction"] == direction for row in rows)
        for direction in ("rise", "fall", "none")
    }
    likeliest = max(rows, key=lambda row: row["shown"])
    unlikeliest = min(rows, key=lambda row: row["shown"])
    risen = f" {counts['rise']} .*to rise .{likeliest['symbol']} .*{percent(likeliest['shown'])}"
    fallen = f" {counts['fall']} to fall .{unlikeliest['symbol']} "
    least = f"{percent(1 - unlikeliest['shown'])}.*, and {counts['none']} have no direction"
    seen = Reader(page()).seen
    assert re.search(f"Of 23 stocks,{risen}.*{fallen}.*{least}", seen)
    for said in (
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
        "Attention between stocks",
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
    assert [row[0] for row in rows] == ["DTML", *map(named, RULES)]
    for name, row in zip(["dtml", *RULES], rows, strict=True):
        *_, acc, correlation = row
        assert acc.split(" [")[0] == percent(last.loc[name, "acc"])
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
        "No prediction of this",
        "No stock was left",
        "No attention between stocks",
        "No bar was rejected",
        "with an abstention band",
    ):
        assert said in seen
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


@pytest.mark.slow
def test_the_page_of_500_stocks_stays_below_a_megabyte() -> None:
    text = page(directions := stocks(500, sectors=11))
    assert len(text.encode()) < 1_000_000
    assert sorted(chain(*direction(text).values())) == directions["symbol"].tolist()
    assert len(region(text, 'Strongest sources[^"]*')) == 501
    assert re.search("500 stocks, .* 40 ", Reader(text).seen)


def test_what_a_night_says_of_own_code_is_on_its_page() -> None:
    said = "own code: mine.py refused"
    assert said in page(night=NIGHT | {"reason": said})
    assert "Own code" not in page()


@pytest.mark.slow
def test_the_order_of_the_stocks_is_shown_with_what_such_orders_were_worth() -> None:
    ranking = pd.DataFrame(
        {"place": [1, 2], "symbol": ["S002", "S001"], "name": None, "probability": [0.6, 0.4]}
    )
    ranking = ranking.assign(predictor="blend", leg="open_to_open")
    blank = {"is_rule": [False, True, True], "days": 40, "rank_ic": [0.08, 0.01, 0.03]}
    scored = pd.DataFrame({"predictor": ["blend", "volume_shock", "day_losers"], **blank})
    scored = scored.assign(leg="open_to_open")
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
    champion |= {"stake": 71.4, "needed": 60.0}
    text = page(
        ranking=ends(ranking), ranking_words=ranking_words(ranking, records(scored), champion)
    )
    assert region(text, 'The ranking[^"]*')[1:] == [
        ["S002", "1", "60.0 %"],
        ["S001", "2", "40.0 %"],
    ]
    assert re.search("2 stocks.*blend.*next open", text)
    facts = ("40 nights", ".080 [.060, .100]; ", "the day's losers", ".030 [.010, .050].")
    assert re.search(in_order(*facts), unescape(text))
    since = (
        "blend ",
        "champion since 2026-03-02",
        "ridge: ",
        "41 nights",
        " +.012 ",
        " 71, ",
        " 60 ",
    )
    assert re.search(in_order(*since), text)
    assert 'href="#ranking"' not in page()
    of_another_leg = scored.assign(leg="next_close")
    for none_of_its_own in ([], records(of_another_leg)):
        text = page(ranking=ends(ranking), ranking_words=ranking_words(ranking, none_of_its_own))
        assert "No ranking has" in text
