"""What the store knows of a night, for its page, dashboard, console, Prefect and alerts."""

from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import cached_property
from typing import Any

import pandas as pd
from sqlalchemy import Connection

from db import where
from db.read import query, read, read_row, read_rows
from db.rows import nights, rankings
from db.rows.calibration import night_counts
from db.rows.scores import running_scores
from dtml.pages.figures import Row


@dataclass(frozen=True)
class NightFacts:
    """A night, which reads each further fact when it is first asked for.

    `row` is of night_log; scores are of sessions up to `scored_until`. `directions`, `scores` and
    `band_counts` read tables, the others views.
    """

    conn: Connection
    row: Row
    scored_until: date

    @property
    def market(self) -> str:
        """Return the name of the market."""
        return str(self.row["market"])

    @property
    def as_of(self) -> date:
        """Return the last session that the night saw."""
        day: date = self.row["as_of"]
        return day

    @property
    def target(self) -> date:
        """Return the session that the night predicts, or the next day if its calendar ended."""
        target: date | None = self.row["target"]
        return target or self.as_of + timedelta(days=1)

    @cached_property
    def before(self) -> "NightFacts | None":
        """Return the complete night before this one; None for the first."""
        return night_facts(
            self.conn,
            self.market,
            settled=True,
            as_of=where.before(self.as_of),
            status=nights.COMPLETE,
        )

    @cached_property
    def champion(self) -> Row | None:
        """Return the row of the champion that holds in the session predicted."""
        return rankings.champion(self.conn, self.market, self.row["target"])

    @cached_property
    def drift(self) -> list[Row]:
        """Return the measures of the night's drift."""
        return read_rows(self.conn, "drift", market=self.market, as_of=self.as_of, order="measure")

    @property
    def new_drift(self) -> list[Row]:
        """Return the measures that have drifted, and had not in the night before."""
        drifted = [row for row in self.drift if row["drifted"]]
        earlier = self.before.drift if drifted and self.before else []
        drifted_before = {row["measure"] for row in earlier if row["drifted"]}
        return [row for row in drifted if row["measure"] not in drifted_before]

    @cached_property
    def ranking(self) -> pd.DataFrame:
        """Return the ranking of the session predicted; see `rankings.night_ranking`."""
        return rankings.night_ranking(self.conn, self.market, self.target)

    @cached_property
    def rank_scores(self) -> list[Row]:
        """Return the running scores of rankings; see `rankings.last_rank_scores`."""
        return rankings.last_rank_rows(self.conn, self.market, self.scored_until)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Return the running scores of directions at the last two scored sessions."""
        return running_scores(
            self.conn, self.market, targets=2, last=self.scored_until, protocol=None
        )

    @property
    def last_scores(self) -> pd.DataFrame:
        """Return those of `scores` that are of the last scored session."""
        last: pd.DataFrame = self.scores[self.scores["target"] == self.scores["target"].max()]
        return last

    @cached_property
    def band_counts(self) -> pd.DataFrame:
        """Return the counts of outcomes at each level (abstention_count)."""
        return night_counts(self.conn, "abstention_count", self.market, self.scored_until)

    def directions(self, level: float) -> pd.DataFrame:
        """Return the query `night_directions`, with `direction`, `low` and `high` at a level.

        `low` and `high` bound the band. All three are missing where the model has no band of that
        level.
        """
        banded = read(
            self.conn,
            "band_direction",
            columns="symbol, low, high, direction",
            run_id=self.row["run_id"],
            target=self.row["target"],
            level=level,
        )
        directions = query(self.conn, "night_directions", market=self.market, as_of=self.as_of)
        return directions.merge(banded, on="symbol", how="left")


def night_facts(
    conn: Connection, market: str, *, settled: bool = False, **which: Any
) -> NightFacts | None:
    """Return the newest night of a market under these conditions, or None.

    Its scores are those that it knew or, if `settled`, those with the session predicted.
    """
    row = read_row(conn, "night_log", market=market, order="-as_of", **which)
    if row is None:
        return None
    facts = NightFacts(conn, row, scored_until=row["as_of"])
    return replace(facts, scored_until=facts.target) if settled else facts


# The index and the columns of counts of directions.
KEY = ["protocol", "predictor", "target"]
CELLS = ["true_rises", "false_rises", "false_falls", "true_falls"]


def stored_counts(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the counts of days from which stored scores were computed.

    correct + rises + predicted rises - n = 2 TR.
    """
    correct = (scores["acc"].astype(float).fillna(0) * scores["n"]).round()
    predicted, rises = scores["predicted_rises"], scores["rises"]
    true_rises = (correct + rises + predicted - scores["n"]) // 2
    counts = scores[KEY].assign(
        true_rises=true_rises,
        false_rises=predicted - true_rises,
        false_falls=rises - true_rises,
        true_falls=correct - true_rises,
    )
    return counts.set_index(KEY).astype(int)
