"""Run Prefect's engine for one run of `dtml serve` in a process of its own.

That is done where runs cannot be forked. Prefect would look in the working folder first for the
modules of a flow; here they are imported before.
"""

import runpy

from flows.service import flows as _flows  # noqa: F401 - what a run imports
from flows.translating import flow as _flow  # noqa: F401 - as above

if __name__ == "__main__":
    runpy.run_module("prefect.engine", run_name="__main__")
