"""Runs in Prefect's own database, as many as a service leaves."""

import sqlite3
import uuid
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

RUN = """
    insert into flow_run (id, name, flow_id, state_type, state_name, start_time, end_time)
    values (?, 'a night', ?, 'COMPLETED', 'Completed', ?, ?)
"""
STATE = "insert into flow_run_state (type, name, timestamp, flow_run_id) values (?, ?, ?, ?)"
TASK = """
    insert into task_run (name, task_key, dynamic_key, state_type, end_time, flow_run_id)
    values ('score', 'score', ?, 'COMPLETED', ?, ?)
"""
LOG = """
    insert into log (name, level, flow_run_id, message, timestamp)
    values ('prefect.flow_runs', 20, ?, ?, ?)
"""
EVENT = """
    insert into events (id, occurred, event, resource_id, resource, payload, received, recorded)
    values (?, ?, 'prefect.flow-run.Completed', ?, '{}', '{}', ?, ?)
"""
RESOURCE = """
    insert into event_resources (occurred, resource_id, resource_role, resource, event_id)
    values (?, ?, 'flow', '{}', ?)
"""
STATES = ("SCHEDULED", "PENDING", "RUNNING", "COMPLETED")
LINES = 10  # of a run's log


def add_runs(database: Path, count: int, ended: datetime) -> None:
    """Add so many finished runs, each with its states, a task, a log and its events."""
    with closing(sqlite3.connect(database)) as conn, conn:
        flow = str(uuid.uuid4())
        conn.execute("insert into flow (id, name) values (?, ?)", (flow, f"flow {flow}"))
        for number in range(count):
            _add_run(conn, flow, ended + timedelta(seconds=number))


def _add_run(conn: sqlite3.Connection, flow: str, ended: datetime) -> None:
    run = str(uuid.uuid4())
    moment = _text(ended)
    conn.execute(RUN, (run, flow, moment, moment))
    conn.execute(TASK, (run, moment, run))
    for place, state in enumerate(STATES, start=1):
        event = str(uuid.uuid4())
        resource = f"prefect.flow-run.{run}"
        entered = _text(ended - timedelta(milliseconds=len(STATES) - place))
        conn.execute(STATE, (state, state.title(), entered, run))
        conn.execute(EVENT, (event, moment, resource, moment, moment))
        conn.execute(RESOURCE, (moment, resource, event))
    for line in range(LINES):
        conn.execute(LOG, (run, f"line {line} of what a stage of the night said", moment))


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S.%f}"


def counts(database: Path) -> dict[str, int]:
    """The rows of each table that runs fill."""
    tables = ("flow_run", "flow_run_state", "task_run", "log", "events", "event_resources")
    with closing(sqlite3.connect(database)) as conn:
        return {
            table: conn.execute(f"select count(*) from {table}").fetchone()[0] for table in tables
        }
