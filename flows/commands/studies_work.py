"""The commands over years of history: they run as flows unless what they would find is stored."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date

from db.engine import reading
from db.rows import markets
from dtml.errors import DtmlError, UsageError
from dtml.pages.backtest import readme_lines
from dtml.pages.benchmark import readme_table
from dtml.prices.sessions import previous_session
from dtml.published import SETS, PaperSet, require_set, shortened
from flows.audit import audit_market
from flows.backtest.folds import Plan, open_backtest
from flows.backtest.results import run_backtest, stored_backtest
from flows.benchmark.results import Benchmark, stored_benchmark
from flows.benchmark.train import Study
from flows.commands.audit_console import print_audit
from flows.commands.backtest_console import print_backtest
from flows.commands.benchmark_console import print_benchmark
from flows.console import announce, print_json
from flows.nightly.context import Desk, Order, choose_as_of, open_desk, open_store, open_stored_desk, read_market
from flows.nightly.fetch import fetch_bars
from flows.service.prefect_server import require_server
from flows.settings import err, out


class LookAheadError(DtmlError):
    """A prediction depends on what came after it was made."""


def run_paper(
    order: Order, seeds: int, epochs: int | None, *, with_grid: bool, as_json: bool, as_markdown: bool
) -> None:
    """Run the published experiment on a set and print its scoreboard; one that is stored is printed from there."""
    if order.market not in SETS:
        raise UsageError(f"there is a published experiment on {', '.join(SETS)}; got {order.market}")
    _require_one_form(order, as_json=as_json, as_markdown=as_markdown)
    if order.source or order.prices:
        _fetch_set(order)
    found = _benchmark(order, tuple(range(seeds)), epochs, with_grid=with_grid)
    if as_json:
        return print_json(
            {"benchmark": found.row, "scores": found.scores, "members": found.members, "number": found.number}
        )
    if as_markdown:
        return print(readme_table(found.row, found.scores))  # noqa: T201 - Markdown is for a file
    print_benchmark(found.row, found.scores, found.number)
    out.print(f"page      {found.page}")
    return None


def _benchmark(order: Order, seeds: tuple[int, ...], epochs: int | None, *, with_grid: bool) -> Benchmark:
    """A benchmark as a flow; one that is stored already needs none."""
    paper = shortened(SETS[order.market], epochs)
    _require_stored(order, f"name its files, as in `dtml benchmark {paper.market} --prices FILE --index FILE`")
    desk = open_stored_desk(order)
    require_set(desk.market, paper)
    study = Study(desk, paper, seeds, with_grid)
    study.require_test_span()
    if (stored := stored_benchmark(desk.engine, study.id)) is not None:
        err.print(f"stored on {stored.row['test_read_at']:%Y-%m-%d}: nothing was trained")
        return stored
    require_server()
    from flows.benchmark.flow import benchmark

    found: Benchmark = benchmark(replace(order, attended=True), seeds, epochs, with_grid)
    return found


def _require_stored(order: Order, advice: str) -> None:
    market = read_market(order.market, order.market_file).name
    with reading(open_store()) as conn:
        if markets.memberships(conn, market).empty:
            raise UsageError(f"nothing of {market} is stored: {advice}")


def _fetch_set(order: Order) -> None:
    """Bring the prices of a published set into the store, after a look at whether they are its own."""
    desk, paper = open_desk(order), SETS[order.market]
    require_set(desk.market, paper)
    if order.prices:
        _require_index(desk, paper)
    announce(desk)
    with err.status(f"fetching {desk.name}"):
        catch = fetch_bars(desk, choose_as_of(desk, None))
    if not catch.asked:
        err.print(f"note: the store's bars of {desk.name} are used: nothing was asked of the files")


def _require_index(desk: Desk, paper: PaperSet) -> None:
    index = desk.market.index.symbol
    answer = desk.source.fetch({index: paper.validation[0]}, paper.validation[1]).outcomes.iloc[0]
    if answer["status"] != "ok":
        raise UsageError(f"the index {index}: {answer['detail']}: give --index FILE")


def _require_one_form(order: Order, *, as_json: bool, as_markdown: bool) -> None:
    if as_json and as_markdown:
        raise UsageError("--json and --markdown are two forms of one answer: choose one")
    if order.index and not order.prices:
        raise UsageError("--index is read beside --prices: name both")


@dataclass(frozen=True)
class Where:
    """Where the folds of a backtest run: so many processes here, or the Dask cluster of a scheduler."""

    workers: int = 1
    cluster: str | None = None

    def __post_init__(self) -> None:
        if self.workers > 1 and self.cluster is not None:
            raise UsageError("--workers are processes of this machine, --cluster is another's: choose one")
        if self.cluster is not None and not re.fullmatch(r"[a-z]+://\S+:\d+", self.cluster):
            raise UsageError(
                f"--cluster {self.cluster!r} is no scheduler's address: give one such as tcp://scheduler:8786"
            )


def backtest_market(
    order: Order, plan: Plan, attention_on: Sequence[date], where: Where, *, as_json: bool, as_markdown: bool
) -> None:
    """Run a backtest and print it; one that is stored is printed from there."""
    _require_one_form(order, as_json=as_json, as_markdown=as_markdown)
    if (order.overrides or {}).get("warm_start") and where != Where():
        raise UsageError("--warm-start trains each fold from the one before: without --workers and --cluster")
    _fetch_named(order, plan.first)
    _require_stored(order, "say where its prices come from: --source yahoo, --source simulated or --prices FILE")
    found = open_backtest(order, plan)
    if stored_backtest(found.desk.engine, found.id) is None:
        require_server()
        from flows.backtest.flow import backtest_flow

        attended = replace(order, attended=True)
        result = backtest_flow(attended, plan, attention_on, workers=where.workers, cluster=where.cluster)
    else:
        err.print(f"{found.id} was done before: nothing is trained, no prediction is added")
        result = run_backtest(found, attention_on=attention_on)
    if as_json:
        return print_json({name: getattr(result, name) for name in ("row", "folds", "scores", "portfolios")})
    if as_markdown:
        return print(readme_lines(result.row, result.scores, result.portfolios))  # noqa: T201 - Markdown is for a file
    print_backtest(result)
    return None


def _fetch_named(order: Order, first: date) -> None:
    """Bring the store up to date from the prices that the user names, if any, with what a training at `first` reads."""
    if order.source or order.prices:
        desk = open_desk(order)
        announce(desk)
        with err.status(f"fetching {desk.name}"):
            for day in (previous_session(desk.market.calendar, first), choose_as_of(desk, None)):
                fetch_bars(desk, day)


def audit_stored(order: Order, asked: date | None, *, as_json: bool) -> None:
    """Audit a market and print what was found; raises LookAheadError when that is anything."""
    desk = open_stored_desk(order)
    as_of = choose_as_of(desk, asked)
    with err.status("auditing") as status:
        found = audit_market(desk, as_of, lambda step: status.update(f"auditing {step}"))
    if as_json:
        print_json({"as_of": as_of, "passed": found.passed, "findings": found.findings, "leaks": found.proof})
    else:
        print_audit(found)
    if not found.passed:
        raise LookAheadError(f"the audit of {desk.name} as of {as_of} found look-ahead, or missed a planted leak")
