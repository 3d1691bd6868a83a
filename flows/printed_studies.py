"""What the commands over years of history print: a benchmark, a backtest, an audit."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from dtml.lookahead import audit as look_ahead
from dtml.pages import backtest as backtest_pages
from dtml.pages import benchmark as benchmark_pages
from dtml.pages.figures import PROTOCOL_WORDS, Table
from dtml.pages.rendering import said
from dtml.pages.survivorship import of_study
from flows.audit import SESSIONS, STOCKS
from flows.backtest.walk import Result
from flows.console import print_frame, print_scores, rendered
from flows.settings import out

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


def print_benchmark(benchmark: Mapping[str, Any], scores: pd.DataFrame, number: int = 1) -> None:
    """Print the scores of each protocol that has any, and whether DTML beats the strongest rule.

    Then print, as far as they are known, how the data compare with the paper's and whether the list
    of stocks names survivors alone. `number` is the place of the benchmark among those of its set
    in the store, from 1: from the second on, print that the test span was read so many times.
    """
    for protocol, rows in benchmark_pages.score_rows(scores).items():
        cells = benchmark_pages.brief_results(rows, is_for_print=False).cells
        print_frame(
            pd.DataFrame([[_in_lines(cell) for cell in row] for row in cells], columns=HEADINGS),
            f"{benchmark['market']}, {PROTOCOL_WORDS[protocol]}: {said('sample', rows[0])}",
            importance=HEADINGS,
            prose=HEADINGS[:1],
        )
    out.print(benchmark_pages.verdict(benchmark, scores), markup=False)
    for name, words in (
        ("data", benchmark_pages.on_data(benchmark)),
        ("list", of_study(benchmark)),
        ("reading", said("on_reading", benchmark, number)),
    ):
        if words:
            out.print(f"{name:10}{words}", markup=False)


def _in_lines(cell: str) -> str:
    """Return a cell with what is in brackets on its second line."""
    return cell.replace(" ± ", "±").replace(" (", "\n(").replace(" [", "\n[")


def print_backtest(result: Result) -> None:
    """Print a backtest: what was run, and the scores and portfolios over all folds.

    The page has the scores by fold, year and stock too. Then print how many positions met an
    unexplained move, what the backtest shows, the path of the page, and a query for more.
    """
    row = result.row
    text = rendered(
        "backtest.txt",
        row=row,
        folds=result.folds,
        survivorship=of_study(row),
        vintage=backtest_pages.vintage(row),
    )
    out.print(text, end="")
    scores_of_all = result.scores[result.scores["slice"] == "all"]
    print_scores(scores_of_all.rename(columns={"days": "nights"}))  # the name that it expects
    columns = {**backtest_pages.BRIEF_PORTFOLIOS, "portfolio": "portfolio"}
    print_frame(
        Table.of(result.portfolios, columns).frame,
        f"portfolios after costs; a year has {row['config']['sessions_a_year']} sessions",
        importance=(
            "portfolio",
            "return a year, net",
            "Sharpe [95 %]",
            "drawdown",
            "turnover a day",
        ),
        prose=("portfolio",),
    )
    settled_in_words = backtest_pages.settlements(result.portfolios)
    if settled_in_words:
        out.print(settled_in_words, markup=False)
    out.print(backtest_pages.verdict(row, result.scores, result.portfolios), markup=False)
    out.print(f"page      {result.page}", markup=False, soft_wrap=True)
    out.print(ASK_MORE.format(**row), markup=False, soft_wrap=True)


def print_audit(findings: pd.DataFrame) -> None:
    """Print every finding, then how much data the audit used."""
    words = {True: "passed", False: "FAILED", None: "cannot tell"}
    verdicts = pd.Series([words[passed] for passed in findings["passed"]])
    shown = findings.assign(passed=verdicts, at=findings["at"].dt.date)
    print_frame(
        shown,
        "what was checked",
        importance=("audited", "check", "passed", "at", "detail"),
        prose=("audited", "check", "detail"),
    )
    text = rendered(
        "audit.txt",
        verdicts=verdicts,
        stocks=STOCKS,
        sessions=SESSIONS,
        checks=look_ahead,  # the module, for its constants
    )
    out.print(text, end="")
