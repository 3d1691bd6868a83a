"""Audit a market for look-ahead: its own bars, its own settings, its latest model, and leaks planted in all of them."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date

import pandas as pd

from db import queries
from db.engine import reading
from dtml.audit import audit, audit_model, prove
from dtml.leaks import History, Pipeline
from dtml.sessions import next_session, sessions_between, sessions_up_to
from flows.desk import Desk
from flows.train import load_model, stored_bars

STOCKS, SESSIONS = 50, 1000  # at most: a part of a market shows what the whole does, in a minute or two


@dataclass(frozen=True)
class Audit:
    """What was found: rows `audited, check, at, passed, detail`, and of the planted leaks which were caught by what."""

    findings: pd.DataFrame
    proof: pd.DataFrame

    @property
    def passed(self) -> bool:
        """Whether nothing was found in what is honest, and every planted leak."""
        return bool(self.findings["passed"].all() and (self.proof["caught"] == self.proof["planted"]).all())


def audit_market(desk: Desk, as_of: date, tell: Callable[[str], object], seed: int = 0) -> Audit:
    """Audit windows, training and predictions on the last stored sessions up to a day; nothing is written.

    `tell` is called with each step in words.
    """
    first = sessions_up_to(desk.market.calendar, as_of, SESSIONS)[0].date()
    bars, _ = stored_bars(desk, first, as_of)
    until = next_session(desk.market.calendar, as_of)
    history = History(bars, sessions_between(desk.market.calendar, bars["session"].min().date(), until), desk.market)
    part = history.cut(stocks=STOCKS, sessions=SESSIONS, seed=seed)
    tell("the pipeline: windows, spans, training, predictions")
    rows = [{"audited": "pipeline"} | asdict(each) for each in audit(Pipeline(desk.experiment), part, seed=seed)]
    with reading(desk.engine) as conn:
        trained = queries.latest_run(conn, desk.name, on_or_before=as_of) is not None
    if trained:
        model = load_model(desk, as_of)
        tell(f"the model {model.run_id}")
        rows += [{"audited": model.run_id} | asdict(each) for each in audit_model(model.ensemble, history, seed=seed)]
    tell("leaks planted on purpose")
    return Audit(pd.DataFrame(rows), prove(part, desk.experiment, seed=seed, dates=1))
