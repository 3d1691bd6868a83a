"""Fork the runs of `dtml serve` from a process that has imported their modules.

Prefect's runner starts `python -m prefect.engine` for each run, and its imports take longer than
the work of most runs. Here the engine runs in a fork of a process that has imported the modules and
has neither threads nor connections.
"""

import atexit
import gc
import logging
import os
import runpy
import sys
from collections.abc import Mapping
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.forkserver import ensure_running
from typing import Any

import anyio
from anyio import CancelScope, to_thread

from flows.log_lines import set_up_logging
from flows.signals import SERVICE, end_with_parent

ENGINE = "prefect.engine"
PRELOADED = (
    "flows",  # first: it keeps Prefect from reading files in the working folder
    "__main__",
    "prefect.flow_engine",
    "prefect.task_engine",
    "flows.service.flows",
    "flows.translating.flow",
)
END_S = 30.0  # for a run to end after SIGTERM

log = logging.getLogger(__name__)


def fork_runs() -> None:
    """Make Prefect's runner fork its runs from now on.

    Where it cannot fork, it starts `flows.service.engine`. Call this after the environment
    variables have the values that the runs need: some modules read them when they are imported.
    """
    forks = get_context("forkserver")
    # The last two are imported by some functions only, when these are called.
    forks.set_forkserver_preload([*PRELOADED, "pyarrow.dataset", "vl_convert"])
    starter: Any = import_module("prefect.runner._starter_engine")
    run_ordinary_process = starter.run_process
    can_fork = True
    try:
        ensure_running()
    except OSError as error:  # such as a path too long for a socket
        log.info("each run starts a new process instead of a fork: %s", error)
        can_fork = False

    async def run_process(command: list[str], **options: Any) -> Any:
        """Take the place of Prefect's function of this name: start a run, and wait for its end.

        `options` has the keywords of Prefect's function, of which a fork needs three: `env`, the
        environment variables of the run, and `task_status` with `task_status_handler`, by which the
        runner gets the process once it has started. The process that is returned after its end is
        one of `multiprocessing`, of which the runner reads `exitcode`.
        """
        python, *arguments = command
        if arguments != ["-m", ENGINE]:  # not the command of a run as it is known here
            return await run_ordinary_process(command, **options)
        if not can_fork:
            engine_command = [python, "-P", "-m", "flows.service.engine"]
            return await run_ordinary_process(engine_command, **options)
        process = forks.Process(target=_run_engine, args=(options["env"],))
        await to_thread.run_sync(process.start)  # in a thread: it waits for the imports
        try:
            status_of = options["task_status_handler"]
            options["task_status"].started(status_of(process))
            await anyio.wait_readable(process.sentinel)  # until the process ends
        finally:
            with CancelScope(shield=True):  # also where the runner is cancelled
                await to_thread.run_sync(_end, process)
        return process

    starter.run_process = run_process


def _end(process: Any) -> None:
    """End a run; kill it if it does not end by itself within END_S."""
    if process.is_alive():
        process.terminate()
        process.join(END_S)
        process.kill()  # does nothing if it has ended
    process.join()


def _run_engine(environment: Mapping[str, str]) -> None:
    """Run Prefect's engine in this fork, with the environment variables of its run."""
    end_with_parent()
    os.environ.clear()
    os.environ.update(environment)
    # Without this variable, `end_with_service` does nothing. It expects the service to be the
    # parent of the process, but the parent of a fork is the fork server; and `end_with_parent`
    # watches the service already.
    del os.environ[SERVICE]
    set_up_logging(debug=bool(os.environ.get("DTML_DEBUG")), attended=False)
    gc.freeze()  # the imported modules are no garbage
    gc.set_threshold(20_000, 20, 20)  # as in `flows.cli.main`
    sys.argv = [ENGINE]  # the engine would read an argument as the number of a run
    engine_file = str(import_module(ENGINE).__file__)
    try:
        runpy.run_path(engine_file, run_name="__main__")
    finally:
        # A fork skips the exit functions, in which Prefect sends its last events.
        atexit._run_exitfuncs()
