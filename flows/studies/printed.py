"""What the commands over years of history say: a benchmark, a backtest, an audit."""

from collections.abc import Iterator

import pandas as pd

from dtml.lookahead import audit as look_ahead
from dtml.pages import backtest as backtest_pages
from dtml.pages import benchmark as benchmark_pages
from dtml.pages.figures import PROTOCOL_WORDS, Table
from dtml.pages.rendering import said
from dtml.pages.survivorship import of_study
from flows.audit import SESSIONS, STOCKS
from flows.console import ConsoleTable, Part, rendered, score_tables, styled
from flows.settings import page_of
from flows.studies.backtest import Result
from flows.studies.published import Benchmark

HEADINGS = (  # of the columns that `result_cells` makes; in two lines they fit into 120 columns
    "model",
    "ACC, mean±sd\n(published)",
    "ACC ensemble\n[95 %]",
    "gain over rule\n[95 %]",
    "MCC, mean±sd\n(published)",
    "MCC ensemble\n[95 %]",
    "within-day\nAUC [95 %]",
    "same\ndirection",
)
ASK_MORE = (
    'ask more  dtml query "select portfolio, annual_return, sharpe, max_drawdown '
    "from backtest_summary where backtest_id = '{id}'\" "
)


def benchmark_parts(result: Benchmark) -> Iterator[Part]:
    """Yield the scores of each protocol, whether DTML beats the strongest rule, and notes.

    On the data beside the paper's, survivors, and how often the test span was read.
    """
    benchmark, scores = result.row, result.scores
    for protocol, rows in benchmark_pages.score_rows(scores).items():
        cells = benchmark_pages.brief_results(rows, is_for_print=False).cells
        lines = [[_in_lines(cell) for cell in row] for row in cells]
        title = f"{benchmark['market']}, {PROTOCOL_WORDS[protocol]}: {said('sample', rows[0])}"
        yield ConsoleTable(pd.DataFrame(lines, columns=HEADINGS), title, prose=HEADINGS[:1])
    yield benchmark_pages.verdict(benchmark, scores)
    for name, words in (
        ("data", benchmark_pages.on_data(benchmark)),
        ("list", of_study(benchmark)),
        ("reading", said("on_reading", benchmark, result.number)),
    ):
        if words:
            yield f"{name:10}{words}"
    yield f"page      {page_of('benchmark', benchmark)}"


def _in_lines(cell: str) -> str:
    """Return a cell with what is in brackets on its second line."""
    return cell.replace(" ± ", "±").replace(" (", "\n(").replace(" [", "\n[")


def backtest_parts(result: Result) -> Iterator[Part]:
    """Yield what was run, scores and portfolios over all folds, and what the backtest shows."""
    row = result.row
    yield styled(
        "backtest.txt",
        row=row,
        folds=result.folds,
        survivorship=of_study(row),
        vintage=said("vintage", row),
    )
    scores = result.scores[result.scores["slice"] == "all"]
    yield from score_tables(scores.rename(columns={"days": "nights"}))
    columns = {**backtest_pages.BRIEF_PORTFOLIOS, "portfolio": "portfolio"}
    yield ConsoleTable(
        Table.of(result.portfolios, columns).frame,
        f"portfolios after costs; a year has {row['config']['sessions_a_year']} sessions",
        prose=("portfolio",),
    )
    yield said("settlements", backtest_pages.ordered(result.portfolios)) or None
    yield backtest_pages.verdict(row, result.scores, result.portfolios)
    yield f"page      {page_of('backtest', row)}"
    yield ASK_MORE.format(**row)


def audit_parts(findings: pd.DataFrame) -> Iterator[Part]:
    """Yield every finding, then how much data the audit used."""
    words = {True: "passed", False: "FAILED", None: "cannot tell"}
    verdicts = pd.Series([words[passed] for passed in findings["passed"]])
    shown = findings.assign(passed=verdicts, at=findings["at"].dt.date)
    yield ConsoleTable(shown, "what was checked", prose=("audited", "check", "detail"))
    yield rendered(
        "audit.txt",
        verdicts=verdicts,
        stocks=STOCKS,
        sessions=SESSIONS,
        checks=look_ahead,  # the module, for its constants
    )
