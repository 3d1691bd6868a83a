"""The test of an explanation as a command: what is stored is printed, else it is tested now."""

from collections.abc import Mapping
from datetime import date
from typing import Any

from dtml.attention.summary import words
from dtml.errors import UsageError
from flows.console import print_json
from flows.explain import Trial, explain_run, latest_run, stored_explanation
from flows.nightly.context import Order, open_stored_desk
from flows.settings import err, out


def explain_stored(order: Order, as_of: date | None, asked: Mapping[str, int], *, again: bool, as_json: bool) -> None:
    """Print what is known of the attention of a market's latest model, up to a day if one is named; test it if not.

    `asked` may name `members`, `shuffles` and `epochs`. Raises UsageError when others are stored, but for `again`.
    """
    desk, trial = open_stored_desk(order), Trial(**asked)
    run = latest_run(desk, as_of)
    row = stored_explanation(desk, run)
    if row is not None and not again:
        _require_same(row, asked)
        err.print(f"tested on {row['made_at']:%Y-%m-%d}: nothing is trained (--again tests it anew)")
    else:
        with err.status(f"testing {run['id']}") as status:
            row = explain_run(desk, run, trial, lambda step: status.update(f"testing {run['id']}: {step}"))
    if as_json:
        return print_json(row)
    out.print(f"[bold]{row['run_id']}[/bold], trained on sessions up to {row['as_of']}")
    return out.print(words(row))


def _require_same(row: Mapping[str, Any], asked: Mapping[str, int]) -> None:
    other = {name: row[name] for name, value in asked.items() if row[name] != value}
    if other:
        stored = " and ".join(f"{value} {name}" for name, value in other.items())
        raise UsageError(f"{row['run_id']} was tested with {stored}: add --again to test it anew")
