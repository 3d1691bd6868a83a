"""The commands that change something: they run as flows, or as plain calls where a flow would add nothing."""

from dataclasses import asdict, replace
from datetime import date

import numpy as np
import pandas as pd

from db.connection.locks import market_lock
from db.engine import location, reading
from db.rows import calibration, predictions, runs
from db.rows import scores as stored_scores
from dtml.errors import DtmlError
from dtml.evaluation.calibration import called, coverage
from dtml.prices.sessions import sessions_up_to
from flows.console import announce, night_summary, print_frame, print_json, print_night, print_scores, without_adjusted
from flows.nightly.calibration import threshold_at
from flows.nightly.catch_up import missed_nights
from flows.nightly.context import Desk, Order, choose_as_of, open_desk, open_stored_desk
from flows.nightly.fetch import Catch, fetch_bars
from flows.nightly.night import Night, finished_night, run_night
from flows.nightly.score import score_market
from flows.service.prefect_server import require_server
from flows.settings import err, out


def run_nights(order: Order, asked: date | None, nights: int, *, as_json: bool) -> None:
    """Run the last `nights` nights up to a session, in order, and print the last one."""
    desk = open_desk(order)
    last = choose_as_of(desk, asked)
    days = [day.date() for day in sessions_up_to(desk.market.calendar, last, nights)]
    announce(desk)
    night: Night | None = None
    for day in days:
        night = _night(desk, order, day)
    assert night is not None
    _show_night(desk, night, as_json=as_json)


def catch_up_market(order: Order, asked: date | None, *, as_json: bool) -> None:
    """Run every missed night up to a session, in order, and print the last one; raises for those refused."""
    desk = open_desk(order)
    last = choose_as_of(desk, asked)
    days = missed_nights(desk, last)
    announce(desk)
    if not days:
        err.print("no night was missed")
        return _show_night(desk, run_night(desk, last), as_json=as_json)
    err.print(f"{len(days)} night{'s'[: len(days) > 1]} missed: {', '.join(map(str, days))}")
    require_server()
    from flows.service.flows import missed

    done = missed(replace(order, attended=True), last)
    if done.nights:
        _show_night(desk, done.nights[-1], as_json=as_json)
    if done.refused:
        raise DtmlError(done.reason)
    return None


def _night(desk: Desk, order: Order, day: date) -> Night:
    """A night as a flow; one that is complete already needs none."""
    if finished_night(desk, day) is not None:
        return run_night(desk, day)
    require_server()
    from flows.service.flows import nightly

    err.print(f"night of {day}")
    night: Night = nightly(replace(order, attended=True), day)
    return night


def predict_market(order: Order, asked: date | None, *, as_json: bool) -> None:
    """Predict from what is stored and print the night."""
    desk = open_stored_desk(order)
    _show_night(desk, run_night(desk, choose_as_of(desk, asked), only_stored=True), as_json=as_json)


def fetch_market(order: Order, asked: date | None, *, whole: bool, as_json: bool) -> None:
    """Fetch what is missing, or the `whole` history anew, and print what came; failed symbols are named."""
    desk = open_desk(order)
    as_of = choose_as_of(desk, asked)
    announce(desk)
    with market_lock(desk.engine, desk.name), err.status(f"fetching {desk.name} up to {as_of}"):
        catch = fetch_bars(desk, as_of, whole=whole)
    if as_json:
        print_json({"as_of": as_of} | asdict(catch) | {"outcomes": catch.failures})
    else:
        _print_catch(desk, as_of, catch)
    index, failed = desk.market.index.symbol, catch.failures
    for status in failed.loc[(failed["symbol"] == index) & (failed["status"] != "no_data"), "status"]:
        raise DtmlError(f"the index {index} is missing ({status}), and no night can be without it: fetch again")


def _print_catch(desk: Desk, as_of: date, catch: Catch) -> None:
    out.print(
        f"{desk.name} up to {as_of}: {catch.asked} symbols asked for, {catch.fetched} bars fetched, "
        f"{catch.stored} new or restated, {len(catch.refused)} refused{without_adjusted(catch)}"
    )
    if catch.restated:
        out.print(f"restated, fetched anew: {', '.join(catch.restated)}")
    if len(catch.failures):
        print_frame(catch.failures, "not answered")
    if len(catch.refused):
        print_frame(catch.refused["reason"].value_counts().rename("bars").reset_index(), "refused")


def train_market(order: Order, asked: date | None, *, as_json: bool) -> None:
    """Train as a flow and print the run."""
    desk = open_stored_desk(order)
    as_of = choose_as_of(desk, asked)
    require_server()
    from flows.service.flows import train

    model = train(replace(order, attended=True), as_of)
    with reading(desk.engine) as conn:
        run = runs.run(conn, model.run_id)
    if as_json:
        return print_json(run)
    out.print(f"{run['id']}: trained on {run['train_first']} .. {run['train_last']}, SHA-256 {run['checkpoint_hash']}")
    members = [
        {"seed": member["seed"], "best epoch": member["best_epoch"]} | member["epochs"][member["best_epoch"] - 1]
        for member in run["losses"]
    ]
    print_frame(
        pd.DataFrame(members).drop(columns="number"),
        formats={"loss": ".4f", "validation_loss": ".4f", "validation_acc": ".4f"},
    )
    return None


def score_predictions(order: Order, asked: date | None, *, as_json: bool) -> None:
    """Score what can be scored and print the scores."""
    desk = open_stored_desk(order)
    as_of = choose_as_of(desk, asked)
    scored = score_market(desk, as_of)
    with reading(desk.engine) as conn:
        scores = stored_scores.scores(conn, desk.name, last=as_of)
    if as_json:
        return print_json(
            {
                "new_outcomes": scored.outcomes,
                "unresolved": scored.unresolved,
                "nights": scored.nights,
                "scores": scores,
            }
        )
    out.print(
        f"{desk.name}: {scored.outcomes} new outcomes, {len(scored.nights)} nights scored anew, "
        f"{scored.unresolved} predictions without an outcome for want of a good bar"
    )
    if scores.empty:
        out.print("no prediction of this market has an outcome yet")
    else:
        print_scores(scores[(scores["span"] == "running") & (scores["target"] == scores["target"].max())])
    return None


def _show_night(desk: Desk, night: Night, *, as_json: bool) -> None:
    row, level = night.row, desk.market.level
    with reading(desk.engine) as conn:
        made = predictions.night_calls(conn, desk.name, row["as_of"])
        scores = stored_scores.scores(conn, desk.name, last=row["as_of"], span="running")
        bands = calibration.bands(conn, row["run_id"])
        counts = calibration.band_counts(conn, desk.name, row["as_of"])
    latest = scores[scores["target"] == scores["target"].max()]
    said = made.assign(call=calls_at(made["calibrated"], bands, level))
    kept = coverage(counts[counts["level"] == level])
    if as_json:
        print_json(night_summary(night, said, latest, kept))
    else:
        print_night(night, said, latest, kept, location(desk.engine))


def calls_at(calibrated: "pd.Series[float]", bands: pd.DataFrame, level: float) -> "pd.Series[str]":
    """What is called at a level, 'rise', 'fall' or 'none'; None where the model was not calibrated."""
    threshold = threshold_at(bands, level)
    if threshold is None:
        return pd.Series(None, index=calibrated.index, dtype=object)
    said = called(calibrated.to_numpy(), threshold)
    return pd.Series(np.select([said == 1, said == 0], ["rise", "fall"], "none"), index=calibrated.index)
