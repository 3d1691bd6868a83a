"""A night for a notebook: run in the notebook's process, without a server, and shown as a table."""

from datetime import date
from pathlib import Path

import pandas as pd

from db.engine import reading
from db.rows import rankings
from flows.markets.opened import RunRequest, choose_as_of
from flows.nightly import night
from flows.nightly.context import open_context


class Night:
    """Run the night of a market, unless it is complete already, and hold its results.

    `market` is a name or a TOML file, `as_of` a session (None: the last closed one), `prices` and
    `index` are files. `row` is the night's in the store, `report` its page, `ranking` a row a
    stock, best first. The store is that of `DTML_DATABASE_URL` and `DTML_DATA`. Raises DtmlError
    for a refused night.
    """

    def __init__(
        self,
        market: str | Path,
        as_of: str | date | None = None,
        *,
        prices: str | Path | None = None,
        index: str | Path | None = None,
    ) -> None:
        market_file = None
        if str(market).endswith(".toml"):
            market_file = Path(market)
        request = RunRequest(
            market=Path(market).stem,
            market_file=market_file,
            prices=Path(prices) if prices else None,
            index=Path(index) if index else None,
        )
        day = None if as_of is None else pd.Timestamp(as_of).date()
        context = open_context(request)
        result = night.run_night(context, choose_as_of(context, day))
        self.row = result.row
        self.report = result.report
        with reading(context.engine) as conn:
            self.ranking = rankings.night_ranking(conn, context.name, self.row["target"])

    def __repr__(self) -> str:
        first_line = "{market}: {status}, {predictions} stocks for {target}".format_map(self.row)
        reason = self.row["reason"] or ""
        return f"{first_line}\n{reason}".strip()

    def _repr_html_(self) -> str:
        return f"<p>{self}</p>{self.ranking.to_html(index=False)}"
