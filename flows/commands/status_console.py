"""What `dtml status` prints."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from db.engine import open_engine, open_reader
from dtml.pages.figures import between, figure
from flows.console import print_frame, print_json
from flows.service.alerts import watch_markets
from flows.service.prefect_server import warning_of_open_server
from flows.service.status import REFUSED_SESSIONS, ModelAge, Skill, Standing, moment, named_markets, standing_of
from flows.settings import err, out


def show_status(names: Sequence[str], files: Sequence[Path], *, check: bool, as_json: bool) -> bool:
    """Print how markets stand; whether all is well. `check` also raises and sends what is not."""
    engine = open_reader()  # a store that is not there is not made by asking
    markets = named_markets(engine, names, files)
    if check:
        found = watch_markets(open_engine(), markets)
    else:
        now = datetime.now(UTC)
        found = [standing_of(engine, name, market, now) for name, market in markets.items()]
    if as_json:
        print_json([asdict(each) | {"problem": each.problem} for each in found])
    elif found:
        print_frame(pd.DataFrame([_night(each) for each in found]))
        out.print()
        print_frame(pd.DataFrame([_model(each) for each in found]))
    else:
        out.print("the store has no night and no fetch of any market yet")
    notes = [f"note: {each.market}: {each.note}" for each in found if each.note]
    problems = [each.problem for each in found if each.problem] if check else []
    for line in (*notes, *problems, *filter(None, [warning_of_open_server()])):
        err.print(line, markup=False, soft_wrap=True)
    return not problems


def _night(each: Standing) -> dict[str, Any]:
    late = "" if not each.is_late else ", late"
    return {
        "market": each.market,
        "last night": each.as_of,
        "outcome": f"{_outcome(each)}{late}",
        "age": each.age,
        "next run": moment(each.next_run) if each.next_run else None,
        f"bars refused in {REFUSED_SESSIONS} sessions": each.refused_bars,
        "alerts not sent": each.alerts_not_sent,
    }


def _outcome(each: Standing) -> str:
    begun = moment(each.started_at) if each.started_at else ""
    words = {
        None: "no night yet",
        "complete": "complete",
        "complete_with_gaps": f"complete with {each.gaps} gaps",
        "refused": f"refused: {each.reason}",
        "running": f"running since {begun}",
        "interrupted": f"interrupted, begun {begun}: run it again",
    }
    return words[each.outcome]


def _model(each: Standing) -> dict[str, Any]:
    return {
        "market": each.market,
        "model": each.model.run_id if each.model else "none",
        "age": each.model.age if each.model else None,
        "next model": _next_model(each.model),
        "nights scored": each.scored_nights,
        "ACC": _skill(each.acc),
        "best rule": _rule(each.acc),
        "MCC": _skill(each.mcc),
        "best rule ": _rule(each.mcc),
    }


def _next_model(model: ModelAge | None) -> str | None:
    if model is None:
        return None
    if model.due_in is None:
        return {"never": "never", "missing": "if this one is lost"}.get(str(model.policy))
    return f"in {model.due_in} sessions" if model.due_in else "next night"


def _skill(skill: Skill | None) -> str | None:
    return None if skill is None else f"{figure(skill.value)} {between(skill.low, skill.high)}".strip()


def _rule(skill: Skill | None) -> str | None:
    return None if skill is None or skill.rule is None else f"{skill.rule} {figure(skill.rule_value)}"
