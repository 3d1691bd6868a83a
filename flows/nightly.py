"""The flows of a night and of a training: thin tasks around plain functions, for Prefect to run and log."""

from collections.abc import Callable
from datetime import date
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.desk import Order, open_desk, open_stored_desk
from flows.interrupts import signals_of
from flows.night import Night, run_night
from flows.progress import training_progress
from flows.train import Model, train_model


def as_task(name: str, work: Callable[[], Any]) -> Any:
    """Run one stage as a task of the flow around it."""
    return task(name=name, cache_policy=NO_CACHE)(work)()


@flow(name="nightly", flow_run_name="{order.market} {as_of}", persist_result=False)
def nightly(order: Order, as_of: date) -> Night:
    """One night of one market; see `flows.night.run_night`."""
    with signals_of(order.attended):
        return run_night(open_desk(order), as_of, stage=as_task)


@flow(name="train", flow_run_name="{order.market} {as_of}", persist_result=False)
def train(order: Order, as_of: date) -> Model:
    """One training of one market's model on what is stored; see `flows.train.train_model`."""
    desk = open_stored_desk(order)

    def work() -> Model:
        with training_progress(desk.experiment.seeds()) as on_epoch:
            return train_model(desk, as_of, on_epoch)

    with signals_of(order.attended):
        model: Model = as_task("train", work)
    return model
