"""Laws of the tables on the console: nothing in them is broken."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from sqlalchemy import Engine

from db.views import views
from dtml.pages.benchmark import PROTOCOL_WORDS
from flows import console, text_tables
from flows.commands import history, nightly, questions, status
from flows.commands.answers import show
from flows.commands.query import query
from flows.console import ConsoleTable, as_json_values, say, score_tables
from flows.nightly.context import MarketContext
from flows.nightly.night import run_night
from flows.service.status import market_status
from flows.studies.printed import benchmark_parts
from flows.text_tables import Column, column, print_table
from tests.support.benchmark_page import BENCHMARK, small_scores
from tests.support.nights import AS_OF, BARS, FrameSource, after_nights, without
from tests.support.stores import fill

NARROW = 80
WIDE = 200
LONGEST_ID = "simulated-2026-11-20-1a2b3c4d-rankers"


@dataclass
class Printed:
    """What was printed as tables, and their columns."""

    width: int
    out: io.StringIO = field(default_factory=io.StringIO)
    columns: list[Column] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.out.getvalue().splitlines()]


@pytest.fixture
def printing(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Printed]:
    """Print from now on to a console of a width."""

    def begin(width: int) -> Printed:
        printed = Printed(width)
        to = Console(file=printed.out, width=width)
        for module in (text_tables, console):
            monkeypatch.setattr(module, "out", to)

        def recorded(columns: list[Column], title: str | None = None) -> None:
            printed.columns += columns
            print_table(columns, title)

        monkeypatch.setattr(console, "print_table", recorded)
        monkeypatch.setattr(text_tables, "print_table", recorded)
        return printed

    return begin


def broken_cells(printed: Printed) -> list[str]:
    """The lines of cells that stand on no line whole, of the columns that were printed."""
    return [
        part
        for each in printed.columns
        for cell in each.cells
        for part in (cell.split() if each.is_prose else cell.split("\n"))
        if not any(part in line for line in printed.lines)
    ]


def require_whole(printed: Printed) -> None:
    assert printed.columns
    assert broken_cells(printed) == []


def columns_of_every_kind() -> list[Column]:
    return [
        column("run", [LONGEST_ID, LONGEST_ID]),
        column("session", ["2026-11-20", "2026-11-23"]),
        column("at", ["2026-11-20 22:30 UTC", "2026-11-23 22:30 UTC"]),
        column("ACC", ["53.5 % [51.2, 56.1]", "-"]),
        column("n", [1_234_567, None], is_number=True),
        column(
            "reason",
            ["refused: the index has no bar of 2026-11-20, ask again", None],
            is_prose=True,
        ),
    ]


def test_a_table_that_fits_is_one_and_another_a_block_for_each_row(
    printing: Callable[[int], Printed],
) -> None:
    wide = printing(WIDE)
    text_tables.print_table(columns_of_every_kind(), "a title")
    require_whole(wide)
    assert wide.lines[0] == "a title"
    assert len(wide.lines) == 4
    narrow = printing(NARROW)
    text_tables.print_table(columns_of_every_kind())
    require_whole(narrow)
    assert sum(line.startswith("session  2026-11-2") for line in narrow.lines) == 2
    assert "" in narrow.lines  # between two rows


def test_prose_is_broken_between_words_before_a_table_becomes_blocks(
    printing: Callable[[int], Printed],
) -> None:
    printed = printing(120)
    text_tables.print_table(columns_of_every_kind())
    require_whole(printed)
    assert len(printed.lines) > 3
    assert max(map(len, printed.lines)) <= 120


def test_whole_numbers_stay_whole_beside_a_missing_one(printing: Callable[[int], Printed]) -> None:
    printed = printing(NARROW)
    frame = pd.DataFrame({"label": [0.0, 1.0, None], "share": [0.0, 0.25, None]})
    ConsoleTable(frame).print()
    assert [line.split() for line in printed.lines[1:]] == [["0", "0.0"], ["1", "0.25"], ["-", "-"]]


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_every_view_and_every_list_fits_the_console(
    engine: Engine,
    width: int,
    printing: Callable[[int], Printed],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(engine)
    monkeypatch.setattr(history, "_own_markets", list)  # the store's has no whole file
    for name in views():
        printed = printing(width)
        query(f"select * from {name} limit 2", as_json=False, as_csv=False)
        require_whole(printed)
    for command in (
        lambda: history.list_runs(None),
        history.list_markets,
        lambda: history.history("A", None, 30),
        lambda: questions.show_questions(None),
    ):
        printed = printing(width)
        command()
        require_whole(printed)


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_what_a_night_prints_fits_the_console(
    context: MarketContext, width: int, printing: Callable[[int], Printed]
) -> None:
    after_nights(context, AS_OF)
    broken = replace(context, source=FrameSource(without(BARS, ["F01A"], date(2024, 7, 2))))
    night = run_night(broken, date(2024, 7, 2))
    printed = printing(width)
    show(nightly._answer(context, [night]))
    require_whole(printed)

    found = market_status(context.engine, "simulated", context.market, night.row["started_at"])
    for row in (status._night(found), status._model(found)):
        printed = printing(width)
        ConsoleTable(pd.DataFrame([row]), prose=status.PROSE).print()
        require_whole(printed)
        assert {"market", "age"} <= {each.heading for each in printed.columns}


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_studies_fit_the_console(width: int, printing: Callable[[int], Printed]) -> None:
    printed = printing(width)
    found = SimpleNamespace(
        row=BENCHMARK | {"config": {}}, scores=small_scores(), number=1, page="page.html"
    )
    for part in benchmark_parts(found):
        say(part)
    require_whole(printed)
    assert len(PROTOCOL_WORDS) == 2
    scores = pd.DataFrame(
        {
            "protocol": "all",
            "predictor": ["dtml", "index_below_mean20"],
            "nights": 252,
            "n": 1_234_567,
        }
    )
    figures = [f"{name}{end}" for name in ("acc", "mcc") for end in ("", "_low", "_high")]
    for table in score_tables(scores.assign(**dict.fromkeys(figures, 0.5))):
        table.print()
    require_whole(printed)


def test_a_value_of_numpy_that_is_not_finite_is_null_in_json() -> None:
    frame = pd.DataFrame({"share": np.array([0.5, np.nan, np.inf], dtype=np.float32)})
    values = [*frame["share"].to_numpy(), np.int64(3), np.bool_(True)]
    assert as_json_values(values) == [0.5, None, None, 3, True]
    assert json.dumps(as_json_values(frame)) == '[{"share": 0.5}, {"share": null}, {"share": null}]'
