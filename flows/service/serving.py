"""Which markets a running `dtml serve` of this data folder serves, and when their nights are due.

The service writes it when it starts and holds a lock until it ends, whatever ends it.
"""

import fcntl
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from flows.settings import data_folder

LOCK = "serve.lock"
SERVED = "served.json"


@dataclass(frozen=True)
class Serving:
    """Hold the markets that are served, and the time from the usual close to their nights.

    `cron` is that of all nights, None for those of the exchanges.
    """

    markets: tuple[str, ...]
    delay: timedelta
    cron: str | None


def write_serving(folder: Path, markets: Iterable[str], delay: timedelta, cron: str | None) -> None:
    """Write what the service of a folder serves, while it holds the folder's lock."""
    document = {
        "markets": list(markets),
        "delay_minutes": delay // timedelta(minutes=1),
        "cron": cron,
    }
    (folder / SERVED).write_text(json.dumps(document), encoding="utf-8")


def serving() -> Serving | None:
    """Return what the running service of this data folder serves; None where none runs.

    None also while the service starts, and where the folder may not be read.
    """
    folder = data_folder() / "prefect"
    try:
        if not _is_locked(folder / LOCK):
            return None
        document = json.loads((folder / SERVED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return Serving(
        markets=tuple(document["markets"]),
        delay=timedelta(minutes=document["delay_minutes"]),
        cron=document["cron"],
    )


def serving_of(market: str) -> Serving | None:
    """Return what the running service serves; None where it does not serve this market."""
    served = serving()
    return served if served is not None and market in served.markets else None


def _is_locked(file: Path) -> bool:
    """Return whether a process holds the lock of a file, without waiting for it.

    A free lock is shared for an instant, for which `dtml serve` waits when it starts.
    """
    with file.open("rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
