"""Laws of the benchmark's page, its README table and what it prints."""

import io
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from dtml.pages.benchmark import (
    benchmark_page,
    forest,
    readme_table,
    score_rows,
    seeds_chart,
    verdict,
)
from dtml.pages.charts import probability_axis
from dtml.pages.figures import fmt, named, quoted
from tests.support.benchmark_page import (
    BENCHMARK,
    ENSEMBLE,
    FIGURES,
    GAINS,
    OF_MODELS,
    RULES,
    score_row,
    small_scores,
)
from tests.support.facts import in_order
from tests.support.pages import NAN, Reader, curve, without_script


def random_scores(predictors: list[str]) -> pd.DataFrame:
    """Every figure of a model another one; a rule's as they can be."""
    generator = np.random.default_rng(7)
    rows = []
    for protocol in ("published", "all"):
        for predictor in [*predictors, *RULES]:
            gains = () if predictor == "index_reversal" else GAINS
            names = (*ENSEMBLE, *gains, *(() if predictor in RULES else OF_MODELS))
            known = {
                name: float(value)
                for name, value in zip(names, generator.random(len(names)), strict=True)
            }
            rows.append(score_row(predictor, protocol, **known))
    return pd.DataFrame(rows)


def random_members(predictors: list[str], configurations: int = 3, seeds: int = 4) -> pd.DataFrame:
    generator = np.random.default_rng(11)
    rows = [
        {
            "predictor": predictor,
            "configuration": configuration,
            "seed": seed,
            "kept": configuration == 1,
        }
        | {
            "settings": {"window": 15, "hidden": 64 + configuration},
            "best_epoch": 31,
            "validation_loss": NAN,
        }
        | {"validation_acc": 0.53, "acc": 0.5 + 0.1 * generator.random(), "mcc": 0.02}
        for predictor in predictors
        for configuration in range(configurations)
        for seed in range(seeds)
    ]
    return pd.DataFrame(rows)


def page(predictors: list[str], **known: Any) -> str:
    given = {
        "benchmark": BENCHMARK,
        "scores": random_scores(predictors),
        "seed_scores": random_members(predictors),
    }
    return benchmark_page(**(given | known))


def shown(predictors: list[str], **known: Any) -> str:
    return without_script(page(predictors, **known))


def test_the_page_holds_every_predictor_and_figure() -> None:
    scores = random_scores(["dtml", "lstm"])
    read = Reader(shown(["dtml", "lstm"], scores=scores, curves={"dtml": curve(), "lstm": curve()}))
    for row in [row for rows in score_rows(scores).values() for row in rows]:
        assert named(row["predictor"]) in read.seen
        for name, value in row.items():
            if name in FIGURES and not pd.isna(value):
                assert _written(name, value) in read.seen, (row["predictor"], name)
    for said in (
        "once, at 2026-01-20 08:12",
        "2 h 05 min",
        "NVIDIA H100",
        "96.4 %",
        "24 training runs",
    ):
        assert said in read.seen
    assert (
        read.seen.index("Against the naive rule")
        < read.seen.index("What was run")
        < read.seen.index("Receipt")
    )


def _written(name: str, value: float) -> str:
    """A figure as the page writes it: accuracies are percentages, their gains points."""
    if "acc" in name:
        return f"{100 * value:+.1f}" if "gain" in name else f"{100 * value:.1f}"
    kind = "gain" if "gain" in name or name == "calibration_intercept" else "coefficient"
    return fmt(value, kind, 2 if name.startswith("calibration") else 3)


@pytest.mark.parametrize(
    ("low", "high", "verb", "gained"),
    [
        (0.004, 0.038, "beats", " +2.1 points [+0.4, +3.8]"),
        (
            -0.004,
            0.046,
            "does not differ",
            " +2.1 points [-0.4, +4.6]",
        ),
        (
            0.0,
            0.042,
            "does not differ",
            " +2.1 points [0.0, +4.2]",
        ),
        (-0.04, -0.0001, "is beaten by", " +2.1 points [-4.0, -0.0]"),
        (
            NAN,
            NAN,
            "cannot be compared",
            " +2.1 points)",
        ),
    ],
)
def test_the_verdict_follows_the_interval_of_the_paired_gain(
    low: float, high: float, verb: str, gained: str
) -> None:
    gain = {"acc_gain": 0.021, "acc_gain_low": low, "acc_gain_high": high}
    other = {"acc_gain": -0.02, "acc_gain_low": -0.03, "acc_gain_high": -0.01}
    scores = pd.DataFrame(
        [
            score_row("dtml", "published", **gain),
            score_row("dtml", "all", **other),
            *(score_row("index_reversal", protocol, acc=0.5) for protocol in ("published", "all")),
        ]
    )
    rule = quoted("index_reversal")
    published, everything = verdict(BENCHMARK, scores).split("; ")
    of_set = ("252 test days", "kdd17: ", "published labels DTML ")
    assert re.search(in_order(*of_set, verb, f" {rule} (ACC gain", gained), published)
    others = ("all stock-days DTML ", "is beaten by", f" {rule} (ACC gain")
    assert re.match(in_order("on ", *others, " -2.0 points [-3.0, -1.0])."), everything)
    assert "not among the predictors" in verdict(BENCHMARK, scores.assign(predictor="lstm"))


def test_the_page_is_whole_alone_and_accessible() -> None:
    text = without_script(page(["dtml", "lstm"], curves={"dtml": curve()}))
    read = Reader(text)
    assert not re.search(r"https?:|src\s*=|<link|@import|url\((?!#)", text)
    assert not re.search(r"\b(nan|none|nat)\b", read.seen, re.IGNORECASE)
    ids = [attrs["id"] for _, attrs in read.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    drawn = [attrs["aria-label"] for tag, attrs in read.found if attrs.get("role") == "img"]
    assert len(drawn) == 4  # two forests, the seeds, one curve
    assert all(drawn)
    assert all(attrs.get("scope") in ("col", "row") for tag, attrs in read.found if tag == "th")


def test_names_are_escaped() -> None:
    evil = "<script>alert('x')</script>"
    text = page(
        ["dtml", evil],
        benchmark=BENCHMARK | {"title": evil, "device": evil},
        curves={evil: curve()},
    )
    Reader(text := without_script(text))
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_every_row_and_every_member_has_its_mark() -> None:
    members = random_members(["dtml", "lstm"])
    drawn = seeds_chart(members)
    assert len(drawn.data["rows"]) == len(members)
    rows = score_rows(random_scores(["dtml", "lstm"]))["all"]
    found = forest(rows, "all stock-days")
    assert found.data["rows"]["predictor"].tolist() == [named(row["predictor"]) for row in rows]
    assert found.svg.count('aria-hidden="true"') == 1
    text = page(["dtml", "lstm"], seed_scores=members)
    assert text.count('<figure class="chart">') == 3  # two forests, the seeds


def test_the_page_shows_what_there_is() -> None:
    nothing = random_members(["dtml"]).iloc[:0]
    scores = pd.DataFrame(
        [score_row("dtml", "published"), score_row("index_reversal", "published")]
    )
    text = without_script(
        benchmark_page(benchmark=BENCHMARK | {"seconds": None}, scores=scores, seed_scores=nothing)
    )
    read = Reader(text)
    assert "Every seed" not in read.seen
    assert "Calibration" not in read.seen.replace("Brier, calibration", "")
    assert "trained onNVIDIA H100\n" in read.seen
    assert "in this store" not in read.seen
    told = BENCHMARK | {"config": {"data": ["94 stocks", "no close"]}}
    read = Reader(shown(["dtml"], benchmark=told, number=2))
    assert "data94 stocks; no close\n" in read.seen
    assert re.search("benchmark 2 .*kdd17.*2 times", read.seen)
    assert readme_table(told, small_scores()).endswith("94 stocks; no close.")
    no_epochs = random_members(["dtml"]).assign(best_epoch=None, validation_acc=None)
    assert "window 15, hidden 65" in Reader(shown(["dtml"], seed_scores=no_epochs)).seen


@pytest.mark.slow
def test_the_page_of_a_whole_grid_stays_small() -> None:
    predictors = ["dtml", *(f"predictor_{i}" for i in range(10))]
    text = page(
        predictors,
        seed_scores=random_members(predictors, 24, 10),
        curves={name: curve() for name in predictors},
    )
    assert len(without_script(text).encode()) < 700_000


def test_the_readme_table_is_exact() -> None:
    columns = (
        "| model | ACC, mean ± sd (published) | ACC ensemble [95 %] | gain over rule [95 %] "
        "| MCC, mean ± sd (published) | MCC ensemble [95 %] | within-day AUC [95 %] | same "
        "direction |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
    )
    span = (
        "2016-01-04 to 2016-12-30, 50 stocks, 252 days, 7,398 stock-days, 3,788 of them rises.\n\n"
    )
    assert readme_table(BENCHMARK, small_scores()) == (
        f"**kdd17, the published labels**: {span}{columns}"
        "| dtml | .5353 ± .0075 (.5353 ± .0075) | .5401 [.512, .561] | -.0109 [-.043, +.017] | "
        ".0700 ± .0200 (-) "
        "| -.0120 [-.053, .027] | .5070 [.498, .516] | 96.4 % |\n"
        "| index_reversal (strongest rule) | - | .5510 [.510, .590] | - | - | .1080 | - | "
        "100.0 % |\n"
        f"\n**kdd17, all stock-days**: {span}{columns}"
        "| dtml | .5000 (-) | 1.0000 | - | - | - | - | 96.4 % |"
    )


def test_the_console_prints_the_same_in_120_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import console, text_tables
    from flows.studies.printed import benchmark_parts

    printed = Console(file=io.StringIO(), width=120)
    for module in (text_tables, console):
        monkeypatch.setattr(module, "out", printed)
    row = BENCHMARK | {"config": {"data": ["50 stocks"]}}
    found = SimpleNamespace(row=row, scores=small_scores(), number=3, page="page.html")
    for part in benchmark_parts(found):
        console.say(part)
    assert isinstance(printed.file, io.StringIO)
    tables, sentence = printed.file.getvalue().split("Against the naive rule")
    assert max(len(line) for line in tables.splitlines()) <= 120
    for said in (
        "53.5 %±0.8",
        "(53.5 %±0.8)",
        "54.0 %",
        "[51.2, 56.1]",
        "-1.1 points",
        "[-4.3, +1.7]",
        "(strongest rule)",
        "kdd17, all stock-days: 252",
    ):
        assert said in tables
    assert "does not differ" in " ".join(sentence.split())
    assert re.search("50 stocks\n.*benchmark 3 of", sentence, re.MULTILINE)


def test_an_axis_holds_its_values() -> None:
    axis = probability_axis([0.47, NAN, 0.58])
    assert axis.low < 0.42
    assert axis.high > 0.58
    assert (axis.at(axis.low), axis.at(axis.high)) == ("0", "100")
    assert (probability_axis([]).at(0.5), probability_axis([0.5]).at(0.5)) == ("50", "50")
