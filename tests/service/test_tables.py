"""Laws of the tables on the console: they fit it, and nothing in them is broken."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from sqlalchemy import Engine

from db.views import views
from dtml.pages.benchmark import PROTOCOL_WORDS
from flows import printed_studies, text_tables
from flows.commands import history, nightly, questions, ranking, status
from flows.commands.query import query
from flows.console import as_json_values, print_frame, print_scores
from flows.nightly.context import MarketContext
from flows.nightly.night import run_night
from flows.nightly.paper import Orders
from flows.service.status import market_status
from flows.text_tables import Column, print_table
from tests.support.benchmark_page import BENCHMARK, small_scores
from tests.support.nights import AS_OF, BARS, FrameSource, after_nights, without
from tests.support.stores import fill

NARROW = 80
WIDE = 200
LONGEST_ID = "simulated-2026-11-20-1a2b3c4d-rankers"


@dataclass
class Printed:
    """What was printed as tables, the notes beside it, and the columns that were measured."""

    width: int
    out: io.StringIO = field(default_factory=io.StringIO)
    err: io.StringIO = field(default_factory=io.StringIO)
    columns: list[Column] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.out.getvalue().splitlines()]

    @property
    def left_out(self) -> set[str]:
        names: set[str] = set()
        for note in self.err.getvalue().splitlines():
            assert note.startswith("note: columns left out")
            names.update(note.split(": ", 2)[2].split("; "))
        return names


@pytest.fixture
def printing(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Printed]:
    """Print the tables from now on to a console of a width."""

    def begin(width: int) -> Printed:
        printed = Printed(width)
        monkeypatch.setattr(text_tables, "out", Console(file=printed.out, width=width))
        monkeypatch.setattr(text_tables, "err", Console(file=printed.err, width=4000))
        measure = text_tables._Fitted

        def recorded(column: Column, cells: list[str], least: int, greatest: int) -> object:
            printed.columns.append(column)
            return measure(column=column, cells=cells, least=least, greatest=greatest)

        monkeypatch.setattr(text_tables, "_Fitted", recorded)
        return printed

    return begin


def broken_cells(printed: Printed) -> list[str]:
    """The lines of cells that stand on no line whole, of the columns that were printed."""
    found = []
    for column in printed.columns:
        if " ".join(column.name.split()) in printed.left_out or column.is_prose:
            continue
        for cell in column.cells:
            for part in cell.split("\n"):
                words = part.split() if len(part) > printed.width - 2 else [part]
                found += [w for w in words if not any(w in line for line in printed.lines)]
    return found


def require_whole(printed: Printed) -> None:
    assert printed.columns
    too_long = [line for line in printed.lines if len(line) > printed.width and " " in line.strip()]
    assert too_long == []
    assert broken_cells(printed) == []


def columns_of_every_kind() -> list[Column]:
    return [
        Column("run", [LONGEST_ID, LONGEST_ID], is_number=False),
        Column("session", ["2026-11-20", "2026-11-23"], is_number=False),
        Column("at", ["2026-11-20 22:30 UTC", "2026-11-23 22:30 UTC"], is_number=False),
        Column("ACC", ["53.5 % [51.2, 56.1]", "-"], is_number=False),
        Column("n", [1_234_567, None], is_number=True),
        Column(
            "reason",
            ["refused: the index has no bar of 2026-11-20, ask again", None],
            is_number=False,
            is_prose=True,
        ),
    ]


def test_what_does_not_fit_is_left_out_from_the_least_important_on_and_named(
    printing: Callable[[int], Printed],
) -> None:
    printed = printing(NARROW)
    print_table(columns_of_every_kind(), "a title", importance=("session", "reason", "run"))
    require_whole(printed)
    assert printed.left_out == {"at", "ACC", "n"}
    assert printed.lines[0] == "a title"
    assert {"session", "reason", "run"} <= set(printed.lines[1].split())
    wide = printing(WIDE)
    print_table(columns_of_every_kind(), importance=("session",))
    require_whole(wide)
    assert wide.err.getvalue() == ""
    assert len(wide.lines) == 3


def test_the_columns_that_a_user_asked_for_are_all_printed_as_blocks_if_need_be(
    printing: Callable[[int], Printed],
) -> None:
    printed = printing(NARROW)
    print_table(columns_of_every_kind())
    require_whole(printed)
    assert printed.err.getvalue() == ""
    assert sum(line.startswith("session  2026-11-2") for line in printed.lines) == 2
    assert "" in printed.lines  # between two rows


def test_a_column_so_narrow_that_only_one_fits_keeps_it(
    printing: Callable[[int], Printed],
) -> None:
    printed = printing(40)
    print_table(columns_of_every_kind(), importance=("run", "session"))
    require_whole(printed)
    assert printed.left_out == {"session", "at", "ACC", "n", "reason"}


def test_whole_numbers_stay_whole_beside_a_missing_one(printing: Callable[[int], Printed]) -> None:
    printed = printing(NARROW)
    frame = pd.DataFrame({"label": [0.0, 1.0, None], "share": [0.0, 0.25, None]})
    print_frame(frame, importance=("label",))
    assert [line.split() for line in printed.lines[1:]] == [["0", "0.0"], ["1", "0.25"], ["-", "-"]]


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_every_view_and_every_list_fits_the_console(
    engine: Engine,
    store_url: str,
    width: int,
    printing: Callable[[int], Printed],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(engine)
    monkeypatch.setenv("DTML_DATABASE_URL", store_url)
    monkeypatch.setattr(history, "_own_markets", list)  # the store's has no whole file
    for name in views():
        printed = printing(width)
        query(f"select * from {name} limit 2", as_json=False, as_csv=False)
        require_whole(printed)
        assert printed.err.getvalue() == ""
    for show in (
        lambda: history.list_runs(None, as_json=False),
        lambda: history.list_markets(as_json=False),
        lambda: history.history("A", None, 30, as_json=False),
        lambda: questions._list(as_json=False),
    ):
        printed = printing(width)
        show()
        require_whole(printed)
        assert width == NARROW or printed.left_out == set()


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_what_a_night_prints_fits_the_console(
    context: MarketContext, width: int, printing: Callable[[int], Printed]
) -> None:
    after_nights(context, AS_OF)
    broken = replace(context, source=FrameSource(without(BARS, ["F01A"], date(2024, 7, 2))))
    night = run_night(broken, date(2024, 7, 2))
    printed = printing(width)
    nightly._show_nights(context, [night], as_json=False)
    require_whole(printed)
    assert width == NARROW or printed.left_out == set()

    found = market_status(context.engine, "simulated", context.market, night.row["started_at"])
    for rows, importance in (
        ([status._night(found)], status.NIGHT_COLUMNS),
        ([status._model(found)], status.MODEL_COLUMNS),
    ):
        printed = printing(width)
        print_frame(pd.DataFrame(rows), importance=importance, prose=status.PROSE)
        require_whole(printed)
        assert {"market", "age"} <= {column.name for column in printed.columns}
        assert not {"market", "age"} & printed.left_out
        assert width == NARROW or printed.left_out == set()


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_studies_and_orders_fit_the_console(width: int, printing: Callable[[int], Printed]) -> None:
    printed = printing(width)
    printed_studies.print_benchmark(BENCHMARK | {"config": {}}, small_scores())
    require_whole(printed)
    assert len(PROTOCOL_WORDS) == 2
    order = {
        "symbol": "005930.KS",
        "side": "sell",
        "shares": 1_250.0,
        "price": 71_500.0,
        "value": 89_375_000.0,
        "cost": 187_687.5,
        "weight": 0.0512,
    }
    found = Orders(target=date(2026, 11, 23), rows=pd.DataFrame([order] * 2), cash=1.5)
    ranking.print_orders(found, "orders for the open of 2026-11-23, KRW")
    scores = pd.DataFrame(
        {
            "protocol": "all",
            "predictor": ["dtml", "index_below_mean20"],
            "nights": 252,
            "n": 1_234_567,
        }
    )
    figures = [f"{name}{end}" for name in ("acc", "mcc") for end in ("", "_low", "_high")]
    print_scores(scores.assign(**dict.fromkeys(figures, 0.5)))
    require_whole(printed)
    assert width == NARROW or printed.left_out == set()


def test_a_value_of_numpy_that_is_not_finite_is_null_in_json() -> None:
    frame = pd.DataFrame({"share": np.array([0.5, np.nan, np.inf], dtype=np.float32)})
    values = [*frame["share"].to_numpy(), np.int64(3), np.bool_(True)]
    assert as_json_values(values) == [0.5, None, None, 3, True]
    assert json.dumps(as_json_values(frame)) == '[{"share": 0.5}, {"share": null}, {"share": null}]'
