"""The works that faults are tried on: the product's own commands in small, without Prefect's server."""

from dataclasses import replace
from datetime import date

from fault_runs import Work
from made_nights import AS_OF, BARS, SIMULATED, SMALL, FrameSource

from dtml.experiments import nightly_of, vary
from dtml.markets import load_market
from dtml.sessions import next_session
from flows.desk import Desk, open_store
from flows.night import run_night

NEXT = next_session("XNYS", AS_OF)


def desk() -> Desk:
    """A desk of the small market, on the store of the environment."""
    market = load_market("simulated").with_symbols(sorted(SIMULATED.market.symbols))
    experiment = vary(nightly_of(market.model, z_close="adjusted", returns="adj_close", max_move=0.35), SMALL)
    return Desk(market, FrameSource(BARS), open_store(), experiment, "cpu", None)


def night(as_of: date, members: int = 2) -> None:
    """A night of it."""
    there = desk()
    run_night(replace(there, experiment=vary(there.experiment, {"members": members})), as_of)


WORKS = {
    work.name: work
    for work in (
        Work("first night", prepare=lambda _: open_store(), steps=[lambda _: night(AS_OF)]),
        Work("night", prepare=lambda _: night(AS_OF), steps=[lambda _: night(NEXT)], warm=lambda: night(NEXT)),
    )
}
