"""What Prefect must find in the environment before it is imported, and where a night keeps its files."""

import logging
import os
import sys
from pathlib import Path

OWN_LOGGERS = ("dtml", "flows", "db", "translation")

PREFECT_DEFAULTS = {
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",  # a first start migrates: over 20 s
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # Written one by one, the records of task runs keep Prefect's SQLite busy until flows stall.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",  # our loggers also speak outside flows
    "PREFECT_LOGGING_EXTRA_LOGGERS": ",".join(OWN_LOGGERS),
}


def data_folder() -> Path:
    """Where models and, by default, the database lie: `DTML_DATA`, or `data` below the current folder."""
    return Path(os.environ.get("DTML_DATA", "data")).absolute()


def reports_folder() -> Path:
    """Where the HTML reports lie: `DTML_REPORTS`, or `reports` below the current folder."""
    return Path(os.environ.get("DTML_REPORTS", "reports")).absolute()


def prepare_prefect(*, quiet: bool) -> None:
    """Set what Prefect needs, leaving what the user has set; call it before the first import of prefect."""
    defaults = PREFECT_DEFAULTS | {"PREFECT_HOME": str(data_folder() / "prefect")}
    if quiet:
        # Prefect keeps every line; the console shows what the command itself has to say.
        defaults |= {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL", "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL"}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def set_up_logging(*, debug: bool) -> None:
    """Send our own lines to standard error: all of them to a terminal, warnings alone into a pipe or a cron mail.

    Prefect's own lines go to its server; they are shown with `debug`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    if debug:
        handler.setLevel(logging.DEBUG)
    else:
        handler.setLevel(logging.INFO if sys.stderr.isatty() else logging.WARNING)
        handler.addFilter(lambda record: record.name.split(".")[0] in OWN_LOGGERS)
    logging.getLogger().addHandler(handler)
    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(logging.INFO)
