"""The commands that only read, and the upgrade of the store; none of them needs Prefect or torch."""

import sys
from collections.abc import Mapping

from db import queries, schema
from db.engine import location, open_engine, open_reader, reading
from db.engine import upgrade as upgrade_engine
from db.views import VIEW_COLUMNS
from dtml.markets import load_market, market_names
from flows.console import print_frame, print_json
from flows.settings import out


def show_history(symbol: str, market: str | None, limit: int, *, as_json: bool) -> None:
    """Print what was predicted of a stock and what happened, the newest last."""
    with reading(open_reader()) as conn:
        rows = queries.prediction_history(conn, market=market, symbol=symbol).tail(limit)
    if as_json:
        return print_json(rows)
    shown = rows[["market", "as_of", "target", "probability", "spread", "call", "move", "hit", "run_id"]]
    print_frame(shown, symbol, formats={"probability": ".3f", "spread": ".3f", "move": "+.4f"})
    return None


def show_runs(market: str | None, *, as_json: bool) -> None:
    """Print the trained models, newest last."""
    with reading(open_reader()) as conn:
        rows = queries.runs(conn, market)
    if as_json:
        return print_json(rows)
    told = ["id", "kind", "model", "train_first", "train_last", "seeds"]
    shown = rows[[*told, "code_version", "checkpoint_hash", "created_at"]]
    shown = shown.assign(
        checkpoint_hash=shown["checkpoint_hash"].str.slice(0, 12),
        created_at=shown["created_at"].dt.strftime("%Y-%m-%d %H:%M UTC"),
    )
    print_frame(shown)
    return None


def show_markets(*, as_json: bool) -> None:
    """Print the markets that can be named."""
    rows = []
    for name in market_names():
        market = load_market(name)
        listed = f"{len(market.symbols)} of {market.constituents_as_of}" if market.constituents else "from a file"
        rows.append(
            {
                "market": name,
                "title": market.title,
                "index": market.index.symbol,
                "calendar": market.calendar,
                "source": market.source,
                "constituents": listed,
                "retrain": str(market.retrain),
            }
        )
    import pandas as pd

    if as_json:
        return print_json(rows)
    print_frame(pd.DataFrame(rows))
    return None


def answer(sql: str, *, as_json: bool, as_csv: bool) -> None:
    """Print the answer to one SQL statement, run where nothing can be written."""
    rows = queries.select(open_reader(), sql)
    if as_json:
        print_json(rows)
    elif as_csv:
        rows.to_csv(sys.stdout, index=False)
    else:
        print_frame(rows)


def data_dictionary() -> str:
    """Every view and table with the meaning of each column, as Markdown."""
    parts = []
    for view, columns in VIEW_COLUMNS.items():
        parts += [f"**`{view}`** (view)", "", *_meanings(columns), ""]
    for table in schema.metadata.sorted_tables:
        columns = {column.name: column.comment or "" for column in table.columns}
        parts += [f"**`{table.name}`** (table): {table.comment}", "", *_meanings(columns), ""]
    return "\n".join(parts)


def _meanings(columns: Mapping[str, str]) -> list[str]:
    return ["| column | meaning |", "| --- | --- |", *(f"| `{name}` | {said} |" for name, said in columns.items())]


def upgrade_store() -> None:
    """Bring the schema up to date."""
    engine = open_engine()
    upgrade_engine(engine)
    out.print(f"{location(engine)} has the schema of this program")
