"""Laws of a backtest's page, its verdict and its README tables."""

import re
from html import unescape
from typing import get_args
from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest

from dtml.backtest.performance import drawdown, equity
from dtml.backtest.portfolio import Form, Strategy
from dtml.backtest.quotes import Fill
from dtml.markets.definition import FREE, Costs
from dtml.pages.backtest import (
    EQUAL_WEIGHT,
    PAPER_SUFFIX,
    drawdowns,
    earned,
    portfolio_rows,
    readme_lines,
    tracks_chart,
    verdict,
)
from dtml.pages.figures import figure, named, percent, quoted
from dtml.pages.survivorship import of_study
from tests.support.backtest_page import (
    BACKTEST,
    FREE_ONES,
    LIST,
    NAN,
    PORTFOLIOS,
    RULES,
    SCORES,
    TRADED,
    folds,
    held,
    page,
    random_performances,
    random_rolling,
    random_scores,
    random_tracks,
    score,
)
from tests.support.bounds import in_float64
from tests.support.facts import in_order
from tests.support.pages import Reader, curve, without_script

FILLS: tuple[tuple[Fill, Costs], ...] = (("next_open", Costs()), ("close", FREE))
RULE = quoted("index_reversal")
SHARPE = ("sharpe", "sharpe_low", "sharpe_high")


def table_rows(text: str) -> list[list[str]]:
    rows = (
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
        for row in re.findall(r"<tr.*?</tr>", text, re.DOTALL)
    )
    return [[unescape(re.sub(r"<[^>]+>", "", cell)) for cell in row] for row in rows]


@pytest.mark.slow
def test_the_tables_hold_the_figures_of_the_frames() -> None:
    scores, performances, tracks = random_scores(), random_performances(), random_tracks(378)
    rows = table_rows(page(scores=scores, performances=performances, tracks=tracks))
    for row in performances.to_dict("records"):
        cells = next(cells for cells in rows if cells[0] == named(row["portfolio"]))
        track = tracks[tracks["portfolio"] == row["portfolio"]]
        became, gross = (equity(track[name].to_numpy())[-1] for name in ("net", "gross"))
        sharpe = (
            f"{figure(row['sharpe'], 2)} [{figure(row['sharpe_low'], 2)}, "
            f"{figure(row['sharpe_high'], 2)}]"
        )
        earned = [percent(row["annual_return"]), percent(gross ** (252 / 378) - 1)]
        assert cells[1:5] == ["252", figure(became, 3), *earned]
        deflated = (
            "-"
            if row["portfolio"] in ("index", "equal weight")
            else figure(row["deflated_sharpe"], 2)
        )
        assert cells[6:8] == [sharpe, deflated]
        assert cells[-8:-6] == [
            percent(252 * track["cost"].mean()),
            percent(252 * track["borrow"].mean()),
        ]
        assert cells[-6] == f"{row['break_even']:.1f} bp"
    shown = scores[(scores["protocol"] == "all") & (scores["slice"].isin(["all", "year"]))]
    for row in shown.to_dict("records"):
        said = f"{figure(row['mcc'])} [{figure(row['mcc_low'])}, {figure(row['mcc_high'])}]"
        name = named(row["predictor"])
        assert any(cells[-1] == said and name in cells[:2] for cells in rows), row
    mine = scores[
        (scores["slice"] == "fold")
        & (scores["protocol"] == "all")
        & (scores["predictor"] == "dtml")
    ]
    for number, mcc in zip(mine["value"], mine["mcc"], strict=True):
        cells = next(cells for cells in rows if cells[0] == number and " to " in cells[2])
        assert (cells[4], cells[-1].split()[0]) == ("52.3 %", figure(mcc))


@pytest.mark.slow
def test_years_compound_their_own_sessions() -> None:
    tracks = random_tracks(378).sort_values(["portfolio", "session"])  # as SQL gives them
    rows = table_rows(page(tracks=tracks))
    names = [named(portfolio) for portfolio in PORTFOLIOS]
    header = next(cells for cells in rows if cells == ["year", *names])
    for year in (2018, 2019):
        cells = next(cells for cells in rows if cells[0] == str(year) and len(cells) == len(header))
        for portfolio, said in zip(PORTFOLIOS, cells[1:], strict=True):
            mine = tracks[(tracks["portfolio"] == portfolio) & (tracks["session"].dt.year == year)]
            assert said == percent(float(np.prod(1 + mine["net"]) - 1))


@pytest.mark.slow
def test_the_best_and_the_worst_stocks_are_listed_and_none_twice() -> None:
    for symbols in (25, 7, 1):
        scores = random_scores(symbols)
        text = page(scores=scores)
        listed = [cells[0] for cells in table_rows(text) if re.fullmatch(r"S\d{3}", cells[0])]
        wanted = (
            (scores["slice"] == "symbol")
            & (scores["protocol"] == "all")
            & (scores["predictor"] == "dtml")
        )
        ordered = scores[wanted].sort_values("mcc", ascending=False)["value"].tolist()
        assert listed == ordered[:10] + ordered[10:][-10:]
        assert f"Of {symbols} stocks " in text


def test_every_portfolio_is_drawn_with_its_own_look_and_all_but_a_few_wait() -> None:
    net = {
        name: pd.Series([0.01, -0.02, 0.03], pd.bdate_range("2018-01-02", periods=3))
        for name in PORTFOLIOS
    }
    chart = tracks_chart(net, hidden=PORTFOLIOS[1:6], dashed=FREE_ONES)
    assert chart
    assert [key.name for key in chart.keys if key.is_shown] == [TRADED[0], "index", "equal parts"]
    assert [key.name for key in chart.keys if key.is_dashed] == list(FREE_ONES)
    assert len({(key.colour, key.is_dashed) for key in chart.keys}) == len(PORTFOLIOS)
    names = [
        Strategy(form, fill, costs=costs).name for fill, costs in FILLS for form in get_args(Form)
    ]
    assert names == [*TRADED, *FREE_ONES]
    assert page().count('data-key="v') == _drawn_lines()


def _drawn_lines() -> int:
    """Every portfolio, the best one and the yardsticks again, and the predictors."""
    return len(PORTFOLIOS) + 3 + 1 + len(RULES)


@pytest.mark.slow
def test_the_page_is_whole_alone_and_accessible() -> None:
    whole = page()
    assert "vegaEmbed" in whole  # it carries the script that makes its charts live
    assert '<script src="/charts.js"></script>' in page(served=True)
    read = Reader(text := without_script(whole))
    assert not re.search(r"https?:|src\s*=|<link|<script|@import|url\((?!#)", text)
    assert not re.search(r"\b(nan|NaN|NaT|None)\b", read.seen)
    ids = [attrs["id"] for _, attrs in read.found if "id" in attrs]
    drawn = [attrs["aria-label"] for _, attrs in read.found if attrs.get("role") == "img"]
    # portfolios, months, sessions, rolling returns, rolling MCC, calibration
    assert (len(drawn), len(ids)) == (
        6,
        len(set(ids)),
    )
    assert all(drawn)
    assert all(attrs.get("scope") in ("col", "row") for tag, attrs in read.found if tag == "th")
    for said in (
        "2 h 05 min",
        "So far, 7 portfolios",
        "Survivorship",
        "nothing promises profit",
        "deepest drawdowns",
    ):
        assert said in read.seen


def test_names_are_escaped() -> None:
    evil = "<script>alert('x')</script>"
    scores = random_scores().replace({"always_up": evil, "S001": evil})
    tracks, performances = (
        frame.replace({TRADED[0]: evil}) for frame in (random_tracks(90), random_performances())
    )
    text = page(
        scores=scores,
        tracks=tracks,
        performances=performances,
        backtest=BACKTEST | {"market": evil},
    )
    assert "<script>" in Reader(text := without_script(text)).seen
    assert "<script" not in text


def test_the_page_shows_what_there_is() -> None:
    blank = {
        "scores": random_scores().iloc[:0],
        "rolling": random_rolling(1).iloc[:0],
        "curve": curve().iloc[:0],
    }
    blank |= {"tracks": random_tracks(1).iloc[:0], "performances": random_performances().iloc[:0]}
    unfinished = dict.fromkeys(
        (
            "seconds",
            "stocks",
            "constituent_days",
            "without_price",
            "tried",
            "list_as_of",
            "expected_best",
        )
    )
    read = Reader(
        without_script(
            page(
                **blank,
                backtest=BACKTEST | unfinished,
                folds=folds().drop(columns="validation_acc"),
            )
        )
    )
    for said in (
        "No prediction has",
        "No portfolio has",
        "for rolling scores",
    ):
        assert said in read.seen
    assert not re.search(r"\b(nan|NaN|NaT|None)\b", read.seen)
    short = page(
        tracks=random_tracks(12), performances=pd.DataFrame([held(name) for name in PORTFOLIOS])
    )
    assert "252 days are too" in Reader(without_script(short)).seen


@pytest.mark.slow
def test_the_page_of_seven_years_stays_below_a_megabyte_and_keeps_the_extremes() -> None:
    tracks = random_tracks(1800)
    text = page(
        tracks=tracks, rolling=random_rolling(1738), scores=random_scores(500, 29), folds=folds(29)
    )
    assert len(without_script(text).encode()) < 400_000
    assert len(text.encode()) < 2_100_000  # 0.9 MB of it Vega's
    last = tracks.loc[tracks["portfolio"] == "index", "net"].to_numpy()
    deepest = drawdown(last).min()
    ends = (percent(drawdown(last)[-1]), percent(deepest), " 0.0 %")
    assert re.search(in_order("drawdown, index: ", *ends), text)


@pytest.mark.parametrize(
    ("ends", "low_of_other", "said", "widened"),
    [
        ((0.006, 0.056), 0.03, "beats", "[+.002, +.060]"),
        # The interval of this difference alone is above 0, but not that of both rules at once.
        ((0.001, 0.061), 0.03, "does not differ", "[-.003, +.065]"),
        ((-0.09, -0.001), 0.03, "is beaten by", "[-.107, -.006]"),
        # The model gains more over the other rule, but less certainly.
        ((0.006, 0.056), -0.01, "not proven to beat", "[+.002, +.060]"),
        ((NAN, NAN), 0.03, "cannot be compared", ""),
    ],
)
def test_the_verdict_on_directions_follows_the_paired_difference(
    ends: tuple[float, float], low_of_other: float, said: str, widened: str
) -> None:
    model = score(**dict(zip(SCORES, (0.52, 0.5, 0.54, 0.0411, -0.01, 0.09), strict=True)))
    gain = dict(zip(("model_gain_low", "model_gain_high"), ends, strict=True))
    best = score(
        "index_reversal",
        acc=0.51,
        mcc=0.01,
        mcc_low=-0.05,
        mcc_high=0.03,
        model_gain=0.0311,
        **gain,
    )
    gain = {"model_gain": 0.0411, "model_gain_low": low_of_other, "model_gain_high": 0.05}
    other = score("always_up", acc=0.53, mcc=0.0, mcc_low=0.0, mcc_high=0.0, **gain)
    paper = score("always_up", protocol="published", mcc=0.9, mcc_low=0.8, mcc_high=1.0)
    whole = verdict(BACKTEST, pd.DataFrame([other, model, best, paper]), random_performances())
    over = (RULE, "2 naive rules", "252 days", "7,398 stock-days", "sp500")
    assert re.search(in_order("DTML ", said, *over), whole)
    assert (": difference" in whole, "widened for 2 rules" in whole) == (bool(widened),) * 2
    assert not widened or f" +.031 {widened}, " in whole
    facts = ("MCC", ".041 [-.010, .090]", "ACC", "52.0 % [50.0, 54.0]", "rule .010", "51.0 %.")
    assert re.search(in_order(*facts), whole)
    assert whole.endswith("Nothing here promises profit.")
    assert "No prediction for sp500" in verdict(
        BACKTEST, pd.DataFrame([other, best]), random_performances()
    )


@pytest.mark.parametrize(
    ("gain", "verb", "difference"),
    [
        ((-0.01, -0.02, 0.01), "does not differ", " -.010 [-.020, +.010]."),
        ((-0.05, -0.06, -0.04), "is beaten by", " -.050 [-.060, -.040]."),
    ],
)
def test_the_verdict_says_how_the_probabilities_order_the_stocks(
    gain: tuple[float, ...], verb: str, difference: str
) -> None:
    ends = {
        f"rank_ic{end}": value
        for end, value in zip(("", "_low", "_high"), (0.01, 0.0, 0.02), strict=True)
    }
    ends |= {
        f"rank_gain{end}": value for end, value in zip(("", "_low", "_high"), gain, strict=True)
    }
    model, rule = score(mcc=0.1, **ends), score("always_up", mcc=0.0)
    whole = verdict(BACKTEST, pd.DataFrame([model, rule]), random_performances())
    facts = ("rank IC of .010", " [.000, .020]; ", verb, "the day's losers rise\": ", difference)
    assert re.search(in_order(*facts), whole)


@pytest.mark.parametrize(
    ("first", "second", "gain", "said"),
    [
        (
            (0.9, 0.1, 1.7),
            (0.2, -0.5, 0.9),
            (-0.1, 0.3),
            ("1 of 2 ", '"long, next open" (.90', " [.10, 1.70]), which does "),
        ),
        (
            (0.9, 0.1, 1.7),
            (0.2, -0.5, 0.9),
            (0.1, 0.3),
            ("(.90 [.10, 1.70])", "beats the index: ", " +.10 ["),
        ),
        (
            (0.4, -0.4, 1.2),
            (0.2, -0.5, 0.9),
            (0.0, 1),
            ("none of 2 ", '"long, next open" (.40', " [-.40, 1.20]), which does "),
        ),
        (
            (0.1, -4, 2),
            (-5, -6, -4),
            (-1, -0.1),
            ("none of 2 ", '"long, next open" (.10', " [-4.00, 2.00]), which is "),
        ),
        (
            (0.9, 0.1, 1.7),
            (1.9, 1.1, 2.7),
            (-1, 1),
            ("2 of 2 ", '"weighted, next open" (1.90', " [1.10, 2.70]), which does "),
        ),
        (
            (0.9, 0.1, 1.7),
            (0.2, -0.5, 0.9),
            (NAN, NAN),
            ("cannot be compared", " the index."),
        ),
        (
            (NAN, NAN, NAN),
            (NAN, NAN, NAN),
            (NAN, NAN),
            ("252 days are too",),
        ),
    ],
)
def test_the_verdict_on_portfolios_follows_sharpe_ratios_and_their_paired_difference(
    first: tuple[float, ...], second: tuple[float, ...], gain: tuple[float, float], said: str
) -> None:
    ratios = {TRADED[0]: first, TRADED[2]: second, FREE_ONES[0]: (9.0, 8.0, 10.0)}
    names = (*SHARPE, "index_gain", "index_gain_low", "index_gain_high")
    rows = [held(portfolio, (*each, 0.1, *gain), names) for portfolio, each in ratios.items()]
    scores = random_scores().iloc[:0]
    words = verdict(
        BACKTEST, scores, pd.DataFrame([*rows, held("index", (0.8, -0.2, 1.8), SHARPE)])
    )
    assert re.search(in_order(*said), words)
    is_any_above = any(each[1] > 0 for each in (first, second))
    assert ("2.5 %" in words) == is_any_above
    assert PAPER_SUFFIX not in words  # nobody can trade it
    assert "index" not in verdict(BACKTEST, scores, pd.DataFrame(rows))
    assert "no tradable portfolio" in verdict(BACKTEST, scores, pd.DataFrame(rows[2:]))


def test_survivorship_is_said_in_a_line() -> None:
    facts = ("Survivorship: ", "snapshot of 2022-12-30, ", "1.2 %", " 10,000 constituent-days")
    assert re.match(in_order(*facts), of_study(BACKTEST))
    none = BACKTEST | {"config": BACKTEST["config"] | {"list": LIST | {"constituent_days": 0}}}
    assert "- of 0 constituent-days" in of_study(none)


def test_the_readme_tables_are_exact() -> None:
    dtml = dict(zip(SCORES, (0.5353, 0.512, 0.561, -0.012, -0.053, 0.027), strict=True))
    scores = pd.DataFrame(
        [score("always_up", acc=0.512, mcc=0.0), score(**dtml), score(kind="year", value="2018")]
    )
    figures = (0.1234, 0.2, 0.617, -0.2, 1.4, 0.51, -0.25, 0.53, 1.2, 4.04)
    span = "2018-01-02 to 2019-06-28, 25 stocks"
    assert readme_lines(
        BACKTEST, scores, pd.DataFrame([held(TRADED[0], figures), held("index")])
    ) == (
        f"**sp500, all stock-days**: {span}, 252 days, 7,398 stock-days, 3,788 of them rises.\n\n"
        "| predictor | ACC [95 %] | MCC [95 %] |\n| --- | --- | --- |\n"
        "| dtml | .5353 [.512, .561] | -.0120 [-.053, .027] |\n| always_up | .5120 | .0000 |\n\n"
        f"**sp500, portfolios**: {span}, retrained every 63 sessions.\n\n"
        "| portfolio | return a year, net | volatility | Sharpe [95 %] | deflated | drawdown | "
        "days above 0 "
        "| turnover a day | break-even |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| long, next open | 12.3 % | 20.0 % | .62 [-.20, 1.40] | .51 | -25.0 % | 53.0 % | 120.0 % "
        "| 4.0 bp |\n"
        "| index | - | - | - | - | - | - | - | - |"
    )


def test_drawdowns_have_dates_and_ratios_are_those_of_their_definitions() -> None:
    days = pd.bdate_range("2018-01-01", periods=6)
    line = pd.Series([0.1, -0.5, 1.0, 0.2, -0.1, -0.1], days)
    deepest, latest = drawdowns(line)
    assert (deepest["first"], deepest["lowest"], deepest["recovered"]) == (
        days[1],
        days[1],
        "2018-01-03",
    )
    assert (deepest["depth"], deepest["sessions"]) == (-0.5, 1)
    assert (latest["first"], latest["lowest"], latest["recovered"], latest["sessions"]) == (
        days[4],
        days[5],
        "not yet",
        2,
    )
    assert latest["depth"] == in_float64(0.81 - 1)
    long = pd.Series(
        np.random.default_rng(3).normal(0, 0.01, 500), pd.bdate_range("2018-01-01", periods=500)
    )
    lines = {"two": 2 * long, "index": long, "few": long.head(19)}
    tracks = pd.concat(
        pd.DataFrame({"portfolio": name, "session": each.index, "net": each.to_numpy()})
        for name, each in lines.items()
    ).assign(gross=0.0, cost=0.0, borrow=0.0)
    performances = pd.DataFrame({"portfolio": list(lines), "annual_return": 0.1})
    rows = portfolio_rows(performances.assign(max_drawdown=[-0.2, 0.0, -0.2]), tracks, 252)
    few, found, index = sorted(rows, key=lambda row: row["portfolio"] != "few")[:3]
    assert all(pd.isna(few[name]) for name in ("beta", "calmar", "sortino", "value_at_risk"))
    assert found["calmar"] == in_float64(0.5)
    assert pd.isna(index["calmar"])
    assert found["beta"] == in_float64(2)
    assert found["value_at_risk"] == in_float64(2 * long.quantile(0.05))
    assert found["expected_shortfall"] < found["value_at_risk"] < 0
    assert found["sortino"] == in_float64(
        long.mean() / np.sqrt((long.clip(upper=0) ** 2).mean()) * np.sqrt(252)
    )


@pytest.mark.slow
def test_a_served_page_gives_the_rows_and_the_sql_of_its_chart_and_tables() -> None:
    text = page(served=True, backtest=BACKTEST | {"id": "it's"})
    for table in ("backtest_return", "backtest_summary", "backtest_score", "backtest_fold"):
        asked = quote(f"select * from {table} where backtest_id = 'it''s'")
        assert f'href="/sql/rows.csv?q={asked}"' in text
        assert f'href="/sql?q={asked}"' in text
    assert "/sql" not in without_script(page())


def test_a_backtest_says_first_whether_it_earned_more_than_all_stocks() -> None:
    def said(strategy: float, all_stocks: float) -> str:
        rows = random_performances().head(2).copy()
        rows["portfolio"] = [TRADED[0], EQUAL_WEIGHT]
        rows["annual_return"] = [strategy, all_stocks]
        return earned(rows, TRADED[0])

    assert re.fullmatch(in_order("20.0 %", "equal parts 10.0 %."), said(0.2, 0.1))
    assert said(0.1, 0.2).startswith("10.0 %")
    assert earned(random_performances(), None) == ""
