"""A store for a notebook: opened read only by path or URL, its rows as frames."""

from datetime import date
from pathlib import Path

import pandas as pd

from db.connection.user_sql import select
from db.engine import URL_VARIABLE, location, open_engine, reading, require_current_schema
from db.read import read
from db.rows import predictions, prices, rankings, scores


class Store:
    """The rows of a store as frames; `dtml db dictionary` explains their columns.

    `where` is an SQLite file or a URL, by default as `DTML_DATABASE_URL`, else data/dtml.sqlite.
    Raises StoreUsageError where there is no store, or one of another schema.
    """

    def __init__(self, where: str | Path | None = None) -> None:
        url = None
        if where is not None:
            is_url = "://" in str(where)
            url = str(where) if is_url else f"sqlite:///{where}"
        self._engine = open_engine(url, read_only=True)
        if url is None:
            require_current_schema(self._engine)
            return
        # `dtml db upgrade` alone would upgrade the store of the environment.
        address = location(self._engine)  # without a password
        if self._engine.dialect.name == "sqlite":
            address = f"sqlite:///{address}"
        require_current_schema(self._engine, f"{URL_VARIABLE}={address} dtml db upgrade")

    def predictions(self, market: str, symbol: str | None = None) -> pd.DataFrame:
        """Return what nights predicted and what happened: the view prediction_history."""
        with reading(self._engine) as conn:
            return predictions.prediction_history(conn, market=market, symbol=symbol)

    def rankings(self, market: str) -> pd.DataFrame:
        """Return each predictor's rankings: stock_rank, with symbol for instrument_id."""
        with reading(self._engine) as conn:
            return read(
                conn, "stock_rank", market=market, order="target, made_at, predictor, place"
            )

    def scores(self, market: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the last running scores: daily_score, and of rankings rank_score_log."""
        with reading(self._engine) as conn:
            direction_scores = scores.last_running_scores(conn, market)
            rank_scores = rankings.last_rank_scores(conn, market, date.max)
        return direction_scores, rank_scores

    def prices(self, market: str) -> pd.DataFrame:
        """Return the newest version of every bar, and when it was fetched."""
        with reading(self._engine) as conn:
            return prices.prices(conn, market, date.min, date.max)

    def query(self, sql: str) -> pd.DataFrame:
        """Return the rows of one SQL statement that only reads; dates are text on SQLite."""
        return select(self._engine, sql)

    def _repr_html_(self) -> str:
        with reading(self._engine) as conn:
            last = read(conn, "night").groupby("market")[["as_of", "target", "status"]].last()
        return f"<p>store {location(self._engine)}</p>{last.to_html()}"
