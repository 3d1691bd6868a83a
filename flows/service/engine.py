"""Run Prefect's engine for one run of `dtml serve` in a new process.

This is for machines where runs cannot be forked. The modules of the flows are imported first:
Prefect's engine would look for them in the working folder before it looks elsewhere.
"""

import os
import runpy

from flows.log_lines import set_up_logging
from flows.service import flows as _flows  # noqa: F401 - a run imports it
from flows.translating import flow as _flow  # noqa: F401 - as above
from translation.environment import prepare_output

if __name__ == "__main__":
    prepare_output()
    set_up_logging(debug=bool(os.environ.get("DTML_DEBUG")), attended=False)
    runpy.run_module("prefect.engine", run_name="__main__")
