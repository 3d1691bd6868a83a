"""Figures of ours beside those of a published table on the same task."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dtml.pages.figures import figure, markdown, percent, with_interval

FIGURES = ("rank_ic", "rank_icir", "ic", "icir")
COLUMNS = (
    "model",
    "rank IC [95 %]",
    "rank ICIR [95 %]",
    "IC [95 %]",
    "ICIR [95 %]",
    "excess a year [95 %]",
    "information ratio [95 %]",
)


@dataclass(frozen=True)
class PublishedTable:
    """A table with our models, rules and the published models, the lowest rank IC first.

    `cells` are below `columns`; `differences` say what differs from the published task.
    """

    sentence: str
    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    differences: tuple[str, ...]

    @classmethod
    def of(cls, row: Mapping[str, Any], table: Mapping[str, Any], days: int) -> "PublishedTable":
        """Return the table of a stored ranking, from its `table` in the column `config`.

        `columns` of `table` has the figures of each of our models and rules, `published` those of
        each published model; `trained` has the first and the last close of our training.
        """
        first, last = table["trained"]
        sentence = (
            f"{days} closes from {row['first']} to {row['last']}, each ranked by the return from "
            f"the next close to the one after; ours are trained once, on closes from {first} to "
            f"{last}. "
            "Excess is the return over the index of the best 50 stocks, of which 5 are exchanged a "
            "day, after .05 % of each purchase and .15 % of each sale; 238 days are a year. "
            "Published figures have no interval."
        )
        rows = sorted(
            [*table["columns"], *table["published"]], key=lambda each: float(each["rank_ic"])
        )
        return cls(
            sentence=sentence,
            columns=COLUMNS,
            cells=tuple(_cells(each) for each in rows),
            differences=tuple(table["differences"]),
        )

    @property
    def markdown(self) -> str:
        """Return the table in Markdown, with its sentence and the differences."""
        lines = [
            markdown(self.columns),
            markdown("---" for _ in self.columns),
            *(markdown(cells) for cells in self.cells),
        ]
        differences = [f"- {each}" for each in self.differences]
        return "\n".join([self.sentence, "", *lines, "", *differences])


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    source = row.get("source")
    name = f"{row['model']} (published: {source})" if source else str(row["model"])
    return (name, *_figures(row))


def _figures(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the cells of a row's figures, with intervals where there are any."""
    for name in FIGURES:
        yield _cell(row, name, 4)
    excess = percent(row["excess"])
    if not pd.isna(row.get("excess_low")):
        excess += f" [{percent(row['excess_low'])}, {percent(row['excess_high'])}]"
    yield excess
    yield _cell(row, "ratio", 2)


def _cell(row: Mapping[str, Any], name: str, digits: int) -> str:
    if pd.isna(row.get(f"{name}_low")):
        return figure(row[name], digits)
    return with_interval(row, name, digits)
