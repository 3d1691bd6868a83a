"""The flows of a night, a training and a watch: thin tasks around plain functions, for Prefect to run and log."""

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from db.connection.locks import market_lock
from flows.nightly.context import Order, open_desk, open_store, open_stored_desk
from flows.nightly.night import Night, run_night
from flows.nightly.train import Model, train_with_progress
from flows.service.alerts import after_night, watch_markets
from flows.service.artifacts import leave_artifacts
from flows.service.schedules import DELAY
from flows.service.status import named_markets
from flows.signals import end_with_service, signals_of

MINUTE = timedelta(minutes=1)


def as_task(name: str, work: Callable[[], Any]) -> Any:
    """Run one stage as a task of the flow around it."""
    return task(name=name, cache_policy=NO_CACHE)(work)()


@flow(name="nightly", flow_run_name="{order.market} {as_of}", persist_result=False)
def nightly(order: Order, as_of: date) -> Night:
    """One night of one market, and what it has to tell; see `flows.nightly.night.run_night`."""
    with signals_of(order.attended):
        desk = open_desk(order)
        try:
            night = run_night(desk, as_of, stage=as_task)
        finally:
            after_night(desk.engine, desk.name, as_of)
        leave_artifacts(desk, night)
        return night


@flow(name="train", flow_run_name="{order.market} {as_of}", persist_result=False)
def train(order: Order, as_of: date) -> Model:
    """One training of one market's model on what is stored; see `flows.nightly.train.train_model`."""
    desk = open_stored_desk(order)
    with signals_of(order.attended), market_lock(desk.engine, desk.name):
        model: Model = as_task("train", lambda: train_with_progress(desk, as_of))
    return model


@flow(name="watch", persist_result=False)
def watch(
    markets: Sequence[str] = (), market_files: Sequence[Path] = (), delay_minutes: int = DELAY // MINUTE
) -> list[str]:
    """Raise what is late or refused of these markets, or of all in the store; see `flows.service.alerts.watch_markets`.

    A market that has had no night yet is passed over.
    """
    end_with_service()
    engine = open_store()
    known = named_markets(engine, (), market_files)
    asked = {name: market for name, market in known.items() if not markets or name in markets}
    found = watch_markets(engine, asked, delay=delay_minutes * MINUTE)
    return [each.problem for each in found if each.problem]
