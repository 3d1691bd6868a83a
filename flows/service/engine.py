"""Run Prefect's engine for one run of `dtml serve` in a new process.

This is for machines where runs cannot be forked. Prefect would look for the modules of a flow in
the working folder first; so they are imported here before.
"""

import os
import runpy

from flows.log_lines import set_up_logging
from flows.service import flows as _flows  # noqa: F401 - a run imports it
from flows.translating import flow as _flow  # noqa: F401 - as above

if __name__ == "__main__":
    set_up_logging(debug=bool(os.environ.get("DTML_DEBUG")), attended=False)
    runpy.run_module("prefect.engine", run_name="__main__")
