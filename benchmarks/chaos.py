"""Run a year of nights through the real command while sources fail, processes die and disks fill.

`python -m benchmarks.chaos [--nights 365] [--workers 4] [--seed 0] [--engine sqlite]`: consecutive
sessions, split over so many stores that are run side by side. As root on Linux each store lies on a
small disk of its own, which can really be full; elsewhere a process with a full disk is one whose
files may not grow. What a seed draws is the same each time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from benchmarks.stores import ENGINES, database_on
from tests.support.chaos.nights import FIRST, Tally, nights_from, run

DISK = "size=256m"
PRIVATE = ["unshare", "--mount", "--propagation", "private"]


def main() -> None:
    """Run the nights, print what happened, and fail if a law was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=ENGINES, default="sqlite")
    # Only a worker gets these two.
    parser.add_argument("--first", type=date.fromisoformat, help=argparse.SUPPRESS)
    parser.add_argument("--mount", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first is not None:
        with database_on(options.engine) as database:
            # A store of SQLite lies on the worker's own disk.
            url = None if options.engine == "sqlite" else database
            _work(options.nights, options.seed, options.first, url, mount=options.mount)
        return
    start = time.monotonic()
    tally = _side_by_side(options.nights, options.workers, options.seed, options.engine)
    _show(tally, time.monotonic() - start)
    if tally.broken:
        sys.exit(1)


def _side_by_side(nights: int, workers: int, seed: int, engine: str) -> Tally:
    """Run a worker for each share of the nights; return the sum of their tallies.

    Each worker is a process, in a mount namespace of its own where that is allowed.
    """
    days = nights_from(FIRST, nights)
    command = [sys.executable, "-m", "benchmarks.chaos", "--engine", engine]
    if _may_mount():
        command = [*PRIVATE, *command, "--mount"]
    processes = []
    for number in range(workers):
        share = days[len(days) * number // workers : len(days) * (number + 1) // workers]
        if share:
            of_share = ["--nights", str(len(share)), "--first", str(share[0])]
            own_command = [*command, *of_share, "--seed", str(seed + number)]
            processes.append(subprocess.Popen(own_command, stdout=subprocess.PIPE, text=True))
    tally = Tally()
    for process in processes:
        output, _ = process.communicate()
        if process.returncode:
            tally.broken.append(f"a worker ended with {process.returncode}")
        else:
            tally += Tally.read(json.loads(output))
    return tally


def _may_mount() -> bool:
    """Return whether a disk can be mounted that no other process sees."""
    command = [*PRIVATE, "mount", "-t", "tmpfs", "-o", DISK, "none", tempfile.gettempdir()]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _work(nights: int, seed: int, first: date, url: str | None, *, mount: bool) -> None:
    """Run a worker's nights, print every tenth to stderr, and its tally as JSON to stdout."""
    done = 0

    def say(tally: Tally) -> None:
        nonlocal done
        done += 1
        if done % 10 == 0:
            words = (
                f"seed {seed}: {done} of {nights} nights, {tally.kills} kills, "
                f"{len(tally.broken)} laws broken"
            )
            print(words, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        if mount:
            subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "none", name], check=True)
        tally = run(Path(name), nights, seed, url=url, first=first, after_night=say)
        if mount:
            subprocess.run(["umount", "--lazy", name], check=True)
    print(json.dumps(vars(tally)))


def _show(tally: Tally, seconds: float) -> None:
    print(
        f"{tally.commands} commands, {tally.kills} killed, {tally.predictions} predictions in "
        f"{seconds / 60:.0f} min"
    )
    for title, counts in (("nights", tally.nights), ("faults", tally.faults)):
        print(f"\n{title}")
        for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            print(f"  {name:20} {count:5}")
    print()
    for law in tally.broken:
        print(f"broken: {law}")
    print(
        f"rows lost {tally.rows_lost}, duplicates {tally.duplicates}, mismatches {tally.mismatches}"
    )


if __name__ == "__main__":
    main()
