"""The command that tests what a model looks at: what is stored is printed, else it is tested now."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from db.engine import reading
from db.rows import attention
from dtml.attention.summary import words
from dtml.errors import UsageError
from flows.commands.options import AsJson, AsOf, day_of, of_a_market
from flows.console import print_json
from flows.explain import Trial, explain_run, latest_run
from flows.nightly.context import RunRequest, open_stored_context
from flows.settings import err, out

commands = typer.Typer()


@commands.command()
@of_a_market()
def explain(
    request: RunRequest,
    as_of: AsOf = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Networks trained on true labels; 4 by default.")] = None,
    shuffles: Annotated[
        int | None, typer.Option(min=1, help="Networks trained on labels of shuffled days; 8 by default.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of each training; 12 by default.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Repeat a test that is stored.")] = False,
    as_json: AsJson = False,
) -> None:
    """Test whether the latest model's attention explains anything.

    Its attention is compared with that of models trained on shuffled labels, and with what changes its predictions.

    Example: dtml explain simulated
    """
    wanted = {"seeds": seeds, "shuffles": shuffles, "epochs": epochs}
    asked = {name: value for name, value in wanted.items() if value is not None}
    context, trial = open_stored_context(request), Trial(**asked)
    run = latest_run(context, day_of(as_of))
    with reading(context.engine) as conn:
        row = attention.explanation(conn, run["id"])
    if row is not None and not again:
        _require_same(row, asked)
        err.print(f"tested on {row['made_at']:%Y-%m-%d}: nothing is trained (--again tests it anew)")
    else:
        with err.status(f"testing {run['id']}") as status:
            row = explain_run(context, run, trial, lambda step: status.update(f"testing {run['id']}: {step}"))
    if as_json:
        return print_json(row)
    out.print(f"[bold]{row['run_id']}[/bold], trained on sessions up to {row['as_of']}")
    return out.print(words(row))


def _require_same(row: Mapping[str, Any], asked: Mapping[str, int]) -> None:
    other = {name: row[name] for name, value in asked.items() if row[name] != value}
    if other:
        stored = " and ".join(f"{value} {name}" for name, value in other.items())
        raise UsageError(f"{row['run_id']} was tested with {stored}: add --again to test it anew")
