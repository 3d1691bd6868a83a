"""The commands that run nights on schedule and show the state of markets and machine."""

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pandas as pd
import typer

from db.engine import open_engine, open_reader
from db.errors import StoreError
from dtml.pages.figures import ci, counted, named
from flows.commands.options import AsJson, MarketFiles, TestedDevice, with_request
from flows.console import print_frame, print_json
from flows.service.alerts import tell_of
from flows.service.prefect_server import warning_of_open_server
from flows.service.schedules import DELAY_MINUTES, serving, serving_of
from flows.service.status import (
    REJECTED_SESSIONS,
    MarketStatus,
    ModelAge,
    Skill,
    market_status,
    named_markets,
)
from flows.service.timeliness import moment
from flows.settings import err, make_data_folder, out

commands = typer.Typer()

REJECTED = f"bars rejected in {REJECTED_SESSIONS} sessions"
# Fields that only the dashboard shows.
OF_DASHBOARD = ("missing", "late_seconds", "scheduled_at", "opens_at", "finished_at")
NIGHT_COLUMNS = (
    "market",
    "last night",
    "outcome",
    "age",
    "next run",
    REJECTED,
    "alerts not sent",
    "ranked by",
)
PROSE = ("outcome", "ranked by", "second source", "next model", "best rule", "best rule ")
MODEL_COLUMNS = (
    "market",
    "model",
    "age",
    "MCC",
    "best rule ",
    "nights scored",
    "next model",
    "ACC",
)


@commands.command()
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
    as_json: AsJson = False,
) -> None:
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
            err.print(f"warning: no alert is stored or sent: {error}", markup=False, soft_wrap=True)
    # Without a service that runs it, no night has a next run.
    found = [each if serving_of(each.market) else replace(each, next_run=None) for each in found]
    if as_json:
        print_json([_document(each) for each in found])
    elif found:
        nights = pd.DataFrame([_night(each) for each in found])
        # Few markets have a second source.
        blank = [name for name in ("second source", "next run") if nights[name].isna().all()]
        nights = nights.drop(columns=blank)
        print_frame(nights, importance=NIGHT_COLUMNS, prose=PROSE)
        out.print()
        models = pd.DataFrame([_model(each) for each in found])
        print_frame(models, importance=MODEL_COLUMNS, prose=PROSE)
        if serving() is None:
            out.print("No service runs these nights: `dtml serve` starts one.")
    else:
        out.print("the store has no night and no fetch yet")
    notes = [f"note: {each.market}: {each.note}" for each in found if each.note]
    problems = [each.problem for each in found if each.problem] if check else []
    warning = warning_of_open_server()
    warnings = [] if warning is None else [warning]
    for line in (*notes, *problems, *warnings):
        err.print(line, markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)


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
            verdict = "well" if each.is_well else fault
            out.print(
                f"{verdict:<9} {each.part:<15} {each.said}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
    if as_json:
        print_json([asdict(each) for each in found])
    if any(each.needed and not each.is_well for each in found):
        raise typer.Exit(1)


def _document(each: MarketStatus) -> dict[str, Any]:
    document = asdict(each) | {"is_late": each.is_late, "problem": each.problem}
    return {name: value for name, value in document.items() if name not in OF_DASHBOARD}


def _sessions(age: int | None) -> str | None:
    return None if age is None else counted(age, "session")


def _night(each: MarketStatus) -> dict[str, Any]:
    late = ", late" if each.is_late else ""
    return {
        "market": each.market,
        "last night": each.as_of,
        "outcome": f"{_outcome(each)}{late}",
        "age": _sessions(each.age),
        "next run": moment(each.next_run) if each.next_run else None,
        REJECTED: each.rejected_bars,
        "alerts not sent": each.alerts_not_sent,
        "ranked by": _ranker(each.ranked_by),
        "second source": each.second_source,
    }


def _ranker(ranked_by: str | None) -> str | None:
    if ranked_by is None:
        return None
    name, since, day = ranked_by.partition(" since ")
    return f"{named(name)}{since}{day}"


def _outcome(each: MarketStatus) -> str:
    begun = moment(each.started_at) if each.started_at else ""
    words = {
        None: "no night yet",
        "complete": "complete",
        "complete_with_gaps": f"complete with {counted(each.gaps, 'gap')}",
        "refused": f"refused: {each.reason}",
        "running": f"running since {begun}",
        "interrupted": f"interrupted, started {begun}: run it again",
    }
    return words[each.outcome]


def _model(each: MarketStatus) -> dict[str, Any]:
    return {
        "market": each.market,
        "model": each.model.run_id if each.model else "none",
        "age": _sessions(each.model.age) if each.model else None,
        "next model": _next_model(each.model),
        "nights scored": each.scored_nights,
        "ACC": _skill("acc", each.acc),
        "best rule": _rule("acc", each.acc),
        "MCC": _skill("mcc", each.mcc),
        "best rule ": _rule("mcc", each.mcc),  # the blank makes it another key than the one above
    }


def _next_model(model: ModelAge | None) -> str | None:
    if model is None:
        return None
    if model.due_in is None:
        return {"never": "never", "missing": "if this one is lost"}.get(str(model.policy))
    return f"in {counted(model.due_in, 'session')}" if model.due_in else "next night"


def _skill(measure: str, skill: Skill | None) -> str | None:
    if skill is None:
        return None
    row = {measure: skill.value, f"{measure}_low": skill.low, f"{measure}_high": skill.high}
    return ci(row, measure)


def _rule(measure: str, skill: Skill | None) -> str | None:
    if skill is None or skill.rule is None:
        return None
    return f"{named(skill.rule)} {ci({measure: skill.rule_value}, measure)}"


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
    make_data_folder()
    # Imported here, because it imports torch, for which `dtml serve --help` must not wait.
    from flows.service.runner import serve_markets, service_of

    serve_markets(
        service_of(markets or [], market_file or [], request, timedelta(minutes=delay), cron)
    )
