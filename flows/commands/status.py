"""The commands that run nights on schedule and show the state of markets and machine."""

import os
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pandas as pd
import typer

from db.engine import open_engine, open_reader
from db.errors import StoreError
from dtml.pages.figures import ci, counted, named
from flows.commands.answers import Answer, answering
from flows.commands.options import AsJson, MarketFiles, TestedDevice, with_request
from flows.console import ConsoleTable, Part, print_json, say
from flows.service.alerts import tell_of
from flows.service.prefect_server import warning_of_open_server
from flows.service.schedules import DELAY_MINUTES, serving, serving_of
from flows.service.status import (
    REJECTED_SESSIONS,
    MarketStatus,
    market_status,
    named_markets,
)
from flows.service.timeliness import moment
from flows.settings import tell

commands = typer.Typer()

# Fields that only the dashboard shows.
OF_DASHBOARD = ("missing", "late_seconds", "scheduled_at", "opens_at", "finished_at")
PROSE = ("outcome", "ranked by", "second source", "next model", "best rule", "best rule ")


@commands.command()
@answering("json")
def status(
    markets: Annotated[
        list[str] | None, typer.Argument(help="Markets; by default all markets of the store.")
    ] = None,
    market_file: MarketFiles = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Send alerts about late or refused nights of markets that `dtml serve` runs or "
            "that had a night in the last 31 days, and exit with 1 if there are any.",
        ),
    ] = False,
) -> Answer:
    """Show each market's last night, age, next run, model, scores and unsent alerts.

    A next run is shown where `dtml serve` runs the nights.

    Example: dtml status --check
    """
    engine = open_reader()  # opened to write, a missing store would be made
    chosen = named_markets(engine, markets or [], market_file or [])
    now = datetime.now(UTC)
    found = [market_status(engine, name, market, now) for name, market in chosen.items()]
    if check:
        try:
            tell_of(open_engine(), found)
        except StoreError as error:  # such as a read-only mount or role
            tell(f"warning: no alert is stored or sent: {error}")
    # Without a service that runs it, no night has a next run.
    found = [each if serving_of(each.market) else replace(each, next_run=None) for each in found]
    problems = [each.problem for each in found if each.problem] if check else []
    notes = [f"note: {each.market}: {each.note}" for each in found if each.note]
    for line in filter(None, (*notes, *problems, warning_of_open_server())):
        tell(line)
    failure = typer.Exit(1) if problems else None
    if not found:
        return Answer(["the store has no night and no fetch yet"], [])
    nights = pd.DataFrame(map(_night, found))
    # Few markets have a second source.
    blank = [name for name in ("second source", "next run") if nights[name].isna().all()]
    unserved = "No service runs these nights: `dtml serve` starts one."
    parts: list[Part] = [
        ConsoleTable(nights.drop(columns=blank), prose=PROSE),
        "",
        ConsoleTable(pd.DataFrame(map(_model, found)), prose=PROSE),
        None if serving() else unserved,
    ]
    documents = [
        asdict(each) | {"is_late": each.is_late, "problem": each.problem} for each in found
    ]
    for name in OF_DASHBOARD:
        for document in documents:
            del document[name]
    return Answer(parts, documents, failure=failure)


@commands.command()
def doctor(device: TestedDevice = "auto", as_json: AsJson = False) -> None:
    """Check whether this machine can run nights, and say what to do if it cannot.

    It checks packages, folders, database, clock, Prefect, Yahoo and your own feeds, and trains for
    a few seconds on the device, by default on every device. The exit code is 1 if a night could not
    run.

    Example: dtml doctor
    """
    # Imported here: it imports the networks, for which `dtml status` must not wait.
    from flows.upkeep.doctor import examined

    found = []
    for each in examined(device):
        found.append(each)
        if not as_json:
            fault = "NOT WELL" if each.needed else "missing"  # a part that no night needs
            say(f"{'well' if each.is_well else fault:<9} {each.part:<15} {each.said}")
    if as_json:
        print_json(list(map(vars, found)))
    if any(each.needed and not each.is_well for each in found):
        raise typer.Exit(1)


def _night(each: MarketStatus) -> dict[str, Any]:
    begun = moment(each.started_at) if each.started_at else ""
    outcomes = {
        None: "no night yet",
        "complete": "complete",
        "complete_with_gaps": f"complete with {counted(each.gaps, 'gap')}",
        "refused": f"refused: {each.reason}",
        "running": f"running since {begun}",
        "interrupted": f"interrupted, started {begun}: run it again",
    }
    ranker, since, day = (each.ranked_by or "").partition(" since ")
    return {
        "market": each.market,
        "last night": each.as_of,
        "outcome": f"{outcomes[each.outcome]}{', late' if each.is_late else ''}",
        "age": None if each.age is None else counted(each.age, "session"),
        "next run": moment(each.next_run) if each.next_run else None,
        f"bars rejected in {REJECTED_SESSIONS} sessions": each.rejected_bars,
        "alerts not sent": each.alerts_not_sent,
        "ranked by": f"{named(ranker)}{since}{day}" if ranker else None,
        "second source": each.second_source,
    }


def _model(each: MarketStatus) -> dict[str, Any]:
    model = each.model
    age = due = None
    if model:
        age = None if model.age is None else counted(model.age, "session")
        due = {"never": "never", "missing": "if this one is lost"}.get(str(model.policy))
        if model.due_in is not None:
            due = f"in {counted(model.due_in, 'session')}" if model.due_in else "next night"
    row = {
        "market": each.market,
        "model": model.run_id if model else "none",
        "age": age,
        "next model": due,
        "nights scored": each.scored_nights,
    }
    # The blank makes the rule of MCC another key than that of ACC.
    for measure, skill, rule in (("acc", each.acc, "best rule"), ("mcc", each.mcc, "best rule ")):
        row[measure.upper()] = row[rule] = None
        if skill:
            ends = {f"{measure}_low": skill.low, f"{measure}_high": skill.high}
            row[measure.upper()] = ci({measure: skill.value, **ends}, measure)
        if skill and skill.rule:
            row[rule] = f"{named(skill.rule)} {ci({measure: skill.rule_value}, measure)}"
    return row


@commands.command()
@with_request("source", "prices", "index", "universe", "seeds", "epochs", "device")
def serve(
    request: Any,
    markets: Annotated[
        list[str] | None,
        typer.Argument(help="Markets; by default all markets with a stored night."),
    ] = None,
    market_file: MarketFiles = None,
    delay: Annotated[
        int,
        typer.Option(
            min=30, max=720, help="Minutes between the usual close and the start of the night."
        ),
    ] = DELAY_MINUTES,
    cron: Annotated[
        str | None,
        typer.Option(help="A cron expression for the nights, in the exchange's time zone."),
    ] = None,
) -> None:
    """Run nights, trainings and refetches on schedule, starting with missed nights.

    A night runs after each session, a training every week and a refetch of all prices every month.
    Stop it with Ctrl-C.

    Example: dtml serve simulated kospi200
    """
    # Imported here, because it imports torch, for which `dtml serve --help` must not wait.
    from flows.service.runner import serve_markets, service_of

    serve_markets(
        service_of(markets or [], market_file or [], request, timedelta(minutes=delay), cron)
    )
    sys.stdout.flush()
    # At the end of Python, threads of Prefect would wait for a server without a limit.
    os._exit(0)
