"""What the pages of the dashboard show, from what its reads give: one function a page, one a table that is computed.

A page is a mapping that its template of the same name prints. What is missing, NaN or None, is printed as "-".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db.connection.frames import head
from db.rows import calibration, markets, nights, predictions, prices, runs
from db.rows import scores as stored_scores
from dtml.baselines.naive_rules import MODEL, NAIVE_RULES, beside_rules, best_at
from dtml.errors import DtmlError, UsageError
from dtml.evaluation.metrics import told_apart
from dtml.markets.definition import LEVELS
from dtml.pages.charts import Axis, Chart, probability_axis, session_chart
from dtml.pages.figures import records

STOCKS = 2000  # of a market, on one page
NIGHTS = 30  # in the table of a market
SCORED = 250  # nights of a chart of running scores
SORTS = ("symbol", "name", "sector", "probability", "calibrated", "spread", "rising_share", "call", "move", "hit")
FIGURES = ("acc", "mcc")
ENDS = ("", "_low", "_high")

Row = Mapping[str, Any]


class NotThereError(DtmlError):
    """What a page was asked about is not in the store."""


@dataclass(frozen=True)
class Sort:
    """A column that a table is sorted by, as the address says it: `spread`, or `-spread` for the largest first."""

    column: str
    is_descending: bool

    @classmethod
    def read(cls, text: str) -> "Sort":
        """Raises UsageError, which lists the columns, for another one."""
        if text.removeprefix("-") not in SORTS:
            raise UsageError(f"sort={text!r} is none of {', '.join(SORTS)}, or one of them after a minus")
        return cls(text.removeprefix("-"), text.startswith("-"))

    def after(self, column: str) -> str:
        """What the head of a column leads to: the other way round for the one sorted by; large numbers first."""
        if column == self.column:
            return column if self.is_descending else f"-{column}"
        return column if column in ("symbol", "name", "sector", "call") else f"-{column}"

    def said(self, column: str) -> str:
        """How a column is sorted, in the terms of aria-sort; nothing for the others."""
        return "" if column != self.column else "descending" if self.is_descending else "ascending"

    def rows(self, calls: pd.DataFrame) -> pd.DataFrame:
        """The calls in that order, those without a value last, of equals by symbol."""
        by_name = calls.sort_values("symbol", kind="stable")
        return by_name.sort_values(self.column, ascending=not self.is_descending, kind="stable", na_position="last")


def markets_page(conn: Connection, today: date) -> dict[str, Any]:
    """Every market of the store, how its last night went and how good its calls were."""
    rows = market_rows(conn, today)
    drawn = rows.reindex(columns=["mcc", "mcc_low", "mcc_high", "mcc_rule"]).to_numpy(dtype=float).ravel()
    return {"rows": records(rows), "axis": Axis.over([0.0, *drawn])}


def market_rows(conn: Connection, today: date) -> pd.DataFrame:
    """A row a market: its last night, its newest calls counted, its model, and its running scores."""
    counted = predictions.newest_call_counts(conn)
    rows = []
    for market in markets.all_markets(conn):
        night = nights.logged_night(conn, market)
        run = runs.latest_model(conn, market)
        said = {name: None if night is None else night[name] for name in ("as_of", "target", "status")}
        said["days_since"] = None if night is None else (today - night["as_of"]).days
        said |= {call: counted.get((market, call), 0) for call in ("rise", "fall")}
        said |= {"run_id": None if run is None else run["run_id"]}
        said["trained"] = None if run is None else run["train_last"]
        rows.append({"market": market} | said | _skill(stored_scores.last_running_scores(conn, market)))
    return pd.DataFrame(rows)


def _skill(scores: pd.DataFrame) -> dict[str, Any]:
    """The model's running figures, each beside the naive rule that is best at it over as many nights.

    Of acc and mcc: the figure, _low, _high, the same of the rule as _rule, ..., its _rule_name, and the _verdict.
    """
    found: dict[str, Any] = dict.fromkeys(("scored_until", "nights", "n", *(n for f in FIGURES for n in _SKILL[f])))
    pair = beside_rules(scores, "running_nights")
    if pair is None:
        return found
    row, others = pair
    found |= {"scored_until": row["target"].date(), "nights": row["running_nights"], "n": row["running_n"]}
    for figure in FIGURES:
        best = best_at(others, f"running_{figure}")
        found |= {f"{figure}{end}": row[f"running_{figure}{end}"] for end in ENDS}
        if best is not None:
            found |= {f"{figure}_rule{end}": best[f"running_{figure}{end}"] for end in ENDS}
            found |= {f"{figure}_rule_name": best["predictor"]}
            found |= {f"{figure}_verdict": verdict(found, figure)}
    return found


_SKILL = {
    each: [*(f"{each}{of}{end}" for of in ("", "_rule") for end in ENDS), f"{each}_rule_name", f"{each}_verdict"]
    for each in FIGURES
}


def verdict(found: Row, figure: str) -> str | None:
    """How the model stands to the rule: told apart when their intervals do not meet; None without intervals."""
    ends, others = ((found[f"{figure}{of}_low"], found[f"{figure}{of}_high"]) for of in ("", "_rule"))
    return told_apart(ends, others)


def market_page(conn: Connection, market: str, as_of: date | None, level: float | None, sort: str) -> dict[str, Any]:
    """One night of a market: its calls at a level, what was left out, and the scores up to it."""
    order = Sort.read(sort)
    require_level(level)
    require_market(conn, market)
    night = night_of(conn, market, as_of)
    common = {"market": market, "night": night, "level": level, "levels": LEVELS, "sort": order}
    if night is None:
        return common | {"models": records(head(conn, runs.models(market), NIGHTS))}
    before, after = nights.neighbours(conn, market, night["as_of"])
    calls = night_calls(conn, night, level)
    scored = head(conn, stored_scores.daily_scores(market, night["target"]), SCORED * 2 * (1 + len(NAIVE_RULES)))
    every = scored[scored["protocol"] == "all"]
    return common | {
        "before": before,
        "after": after,
        "run": None if night["run_id"] is None else runs.model(conn, night["run_id"]),
        "calls": records(order.rows(calls)),
        "counts": {call: int((calls["call"] == call).sum()) for call in ("rise", "fall", "none")},
        "rule_calls": {} if calls.empty else {rule: calls[rule].iloc[0] for rule in NAIVE_RULES},
        "axis": probability_axis(calls[["probability", "lowest", "highest"]].to_numpy().ravel()),
        "coverage": None if level is None else calibration.coverage(conn, market, level, night["target"]),
        "scores": records(_at_last(scored)),
        "skill": _skill(_at_last(every)),
        "charts": {figure: running_chart(every, figure) for figure in FIGURES},
        "gaps": records(gaps_of(night)),
        "refused": records(head(conn, prices.refused_on(market, night["as_of"]), STOCKS)),
        "nights": night_rows(conn, market, night["as_of"], every),
        "stocks": [row["symbol"] for row in records(calls)],
    }


def require_market(conn: Connection, market: str) -> None:
    """Raise NotThereError, which says which there are, for a market without a night, a fetch or a model."""
    stored = markets.all_markets(conn)
    if market not in stored:
        held = f"it has {', '.join(stored[:12])}" if stored else "it has none yet"
        raise NotThereError(f"no market {market!r} in the store: {held}")


def require_level(level: float | None) -> None:
    """Raise UsageError, which lists them, for a level that no band has; None asks for none."""
    if level is not None and level not in LEVELS:
        raise UsageError(f"level {level} is none of {', '.join(map(str, LEVELS))}")


def night_of(conn: Connection, market: str, as_of: date | None) -> dict[str, Any] | None:
    """The night that saw this session last, by default the newest; None for a market without nights.

    Raises NotThereError, which names the nights around it, for a day that none saw last.
    """
    night = nights.logged_night(conn, market, as_of)
    if night is None and as_of is not None:
        around = [str(day) for day in nights.neighbours(conn, market, as_of) if day is not None]
        near = f": the nearest are of {' and '.join(around)}" if around else ": it has none"
        raise NotThereError(f"no night of {market} saw {as_of} last{near}")
    return night


def night_calls(conn: Connection, night: Row, level: float | None) -> pd.DataFrame:
    """The calls of a night, at a level where one is asked for: a row a stock, no row for a night without a model.

    Columns: those of the view prediction_history, name and sector of the stocks that the newest night has, lowest,
    highest and rising_share of the members, and `low` and `high`, between which nothing is called. `call` is 'none'
    there, and missing where the model has no band; `hit` is that of the call.
    """
    market, run_id, target = night["market"], night["run_id"], night["target"]
    if run_id is None:
        return head(conn, predictions.session_calls(market, "", target), 0).reindex(columns=[*_CALL_COLUMNS])
    calls = head(conn, predictions.session_calls(market, run_id, target), STOCKS)
    named = head(conn, predictions.newest_calls(market), STOCKS)[["symbol", "name", "sector"]]
    agreed = head(conn, predictions.disagreement(market, run_id, target), STOCKS)
    calls = calls.merge(named, on="symbol", how="left")
    calls = calls.merge(agreed[["symbol", "lowest", "highest", "rising_share"]], on="symbol", how="left")
    calls = calls.assign(low=np.nan, high=np.nan)
    if level is None:
        return calls.reindex(columns=[*_CALL_COLUMNS])
    own = ["low", "high", "call"]
    banded = head(conn, predictions.band_calls(market, run_id, target, level), STOCKS)
    calls = calls.drop(columns=own).merge(banded[["symbol", *own]], on="symbol", how="left")
    right = (calls["call"] == "rise") == (calls["move"] > 0)
    is_called = calls["call"].isin(["rise", "fall"]) & calls["move"].notna()
    return calls.assign(hit=right.astype("Int64").where(is_called)).reindex(columns=[*_CALL_COLUMNS])


_CALL_COLUMNS = (
    *("symbol", "name", "sector", "probability", "lowest", "highest", "rising_share", "calibrated", "low", "high"),
    *("spread", "call", "move", "hit", *NAIVE_RULES, "run_id", "made_at", "receipt"),
)


def gaps_of(night: Row) -> pd.DataFrame:
    """Stocks that a night left out: symbol, reason."""
    return pd.DataFrame(night["gaps"] or [], columns=["symbol", "reason"])


def night_rows(conn: Connection, market: str, last: date, scores: pd.DataFrame) -> list[dict[str, Any]]:
    """The newest nights up to one, the newest first, with the ACC of their own calls."""
    shown = head(conn, nights.night_log(market, last), NIGHTS)
    own = scores.loc[scores["predictor"] == MODEL, ["target", "acc", "mcc"]]
    return records(shown.merge(own, on="target", how="left"))


def _at_last(scores: pd.DataFrame) -> pd.DataFrame:
    """The rows of the last session scored, the model before the rules."""
    last: pd.DataFrame = scores[scores["target"] == scores["target"].max()]
    return last.assign(rule=last["predictor"] != MODEL).sort_values(["protocol", "rule", "predictor"])


def running_chart(scores: pd.DataFrame, figure: str) -> Chart | None:
    """A line a predictor over the nights, the model with its 95 % band; None below two nights."""
    lines = {str(name): rows.set_index("target").sort_index() for name, rows in scores.groupby("predictor")}
    rules = [name for name in lines if name != MODEL]
    kinds = {name: f"s{number} d{number}" for number, name in enumerate(rules, start=1)} | {MODEL: "s0 model"}
    ends = {"low": f"running_{figure}_low", "high": f"running_{figure}_high"}
    band = {end: lines[MODEL][column] for end, column in ends.items()} if MODEL in lines else {}
    series = {name: rows[f"running_{figure}"] for name, rows in lines.items()}
    ordered = {name: series[name] for name in (*([MODEL] if MODEL in lines else []), *rules)}
    bands = {MODEL: pd.DataFrame(band)} if band else {}
    return session_chart(ordered, kinds, bands, baseline=0.5 if figure == "acc" else 0.0)
