"""What a backtest prints: what was walked through, scores beside the rules, portfolios beside the index."""

import pandas as pd

from dtml.pages.backtest import PORTFOLIO_COLUMNS, portfolio_cells, survivorship, verdict
from dtml.pages.figures import records
from flows.backtest.results import Result
from flows.console import print_frame, print_scores
from flows.settings import out

ASK_MORE = """ask more  dtml query "select portfolio, annual_return, sharpe, max_drawdown from backtest_summary where \
backtest_id = '{id}'" """


def print_backtest(result: Result) -> None:
    """Print the whole; the page has it by fold, year and stock."""
    row, folds = result.row, result.folds
    out.print(f"[bold]{row['id']}: {row['first']} .. {row['last']}, {len(folds)} folds[/bold]")
    out.print(
        f"{folds['predictions'].sum()} predictions of {row['stocks']} stocks, trained anew every "
        f"{row['retrain_every']} sessions, seeds {row['seeds']}"
    )
    out.print(survivorship(row))
    whole = result.scores[result.scores["slice"] == "all"].rename(columns={"days": "nights"})
    print_scores(whole)
    cells = [portfolio_cells(each) for each in records(result.portfolios)]
    print_frame(
        pd.DataFrame(cells, columns=list(PORTFOLIO_COLUMNS)), "portfolios, after costs; a year has 252 sessions"
    )
    out.print(verdict(row, result.scores, result.portfolios), markup=False)
    out.print(f"page      {result.page}", markup=False, soft_wrap=True)
    out.print(ASK_MORE.format(**row), markup=False, soft_wrap=True)
