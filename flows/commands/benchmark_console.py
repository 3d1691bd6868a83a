"""What a benchmark prints: a table a protocol, then one sentence."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from dtml.pages.benchmark import PROTOCOL_WORDS, on_data, on_reading, result_cells, sample, score_rows, verdict
from flows.console import print_frame
from flows.settings import out

HEADINGS = (  # of the columns that `result_cells` makes; in two lines they fit into 120 columns
    "model",
    "ACC, mean±sd\n(published)",
    "ACC ensemble\n[95 %]",
    "gain over rule\n[95 %]",
    "MCC, mean±sd\n(published)",
    "MCC ensemble\n[95 %]",
    "within-day\nAUC [95 %]",
    "same\ncall",
)


def print_benchmark(benchmark: Mapping[str, Any], scores: pd.DataFrame, number: int = 1) -> None:
    """Print each protocol's results, what is in brackets on a second line, and whether DTML beats the best rule.

    Then what the data are, and that this is the `number`-th benchmark of its set in the store.
    """
    for protocol, words in PROTOCOL_WORDS.items():
        rows = [row for row in score_rows(scores) if row["protocol"] == protocol]
        if rows:
            cells = [["\n".join(cell).replace(" ± ", "±") for cell in result_cells(benchmark, row)] for row in rows]
            print_frame(pd.DataFrame(cells, columns=HEADINGS), f"{benchmark['market']}, {words}: {sample(rows[0])}")
    out.print(verdict(benchmark, scores), markup=False)
    for name, words in (("data", on_data(benchmark)), ("reading", on_reading(benchmark, number))):
        if words:
            out.print(f"{name:10}{words}", markup=False)
