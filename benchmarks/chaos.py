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
from contextlib import nullcontext
from datetime import date
from pathlib import Path

from benchmarks.store_loading import postgresql
from tests.support.chaos.nights import FIRST, Tally, nights_from, run

DISK = "size=256m"
PRIVATE = ["unshare", "--mount", "--propagation", "private"]


def main() -> None:
    """Run the nights, print what happened, and fail if a law was broken."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--nights", type=int, default=365)
    asked.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1))
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--engine", choices=["sqlite", "postgresql"], default="sqlite")
    # given to a worker alone, as is
    asked.add_argument("--first", type=date.fromisoformat, help=argparse.SUPPRESS)
    asked.add_argument("--mount", action="store_true", help=argparse.SUPPRESS)
    options = asked.parse_args()
    if options.first is not None:
        with postgresql() if options.engine == "postgresql" else nullcontext() as server:
            url = None if server is None else server.render_as_string(hide_password=False)
            _work(options.nights, options.seed, options.first, url, mount=options.mount)
        return
    begun = time.monotonic()
    tally = _side_by_side(options.nights, options.workers, options.seed, options.engine)
    _show(tally, time.monotonic() - begun)
    sys.exit(int(bool(tally.broken)))


def _side_by_side(nights: int, workers: int, seed: int, engine: str) -> Tally:
    """The tallies of all stores together; each worker is a process in a mount
    namespace of its own, where it may.
    """
    days = nights_from(FIRST, nights)
    shares = [
        days[len(days) * i // workers : len(days) * (i + 1) // workers] for i in range(workers)
    ]
    private, mount = (PRIVATE, ["--mount"]) if _may_mount() else ([], [])
    command = [*private, sys.executable, "-m", "benchmarks.chaos", *mount, "--engine", engine]
    started = [
        subprocess.Popen(
            [
                *command,
                "--nights",
                str(len(share)),
                "--seed",
                str(seed + number),
                "--first",
                str(share[0]),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, share in enumerate(shares)
        if share
    ]
    tally = Tally()
    for worker in started:
        said, _ = worker.communicate()
        if worker.returncode:
            tally.broken.append(f"a worker ended with {worker.returncode}")
        else:
            tally += Tally.read(json.loads(said))
    return tally


def _may_mount() -> bool:
    """Whether a disk can be mounted that nobody else sees."""
    command = [*PRIVATE, "mount", "-t", "tmpfs", "-o", DISK, "none", tempfile.gettempdir()]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _work(nights: int, seed: int, first: date, url: str | None, *, mount: bool) -> None:
    """One worker: run its nights, say how far it is, print its tally as JSON."""
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
        for name, count in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
            print(f"  {name:20} {count:5}")
    print()
    for law in tally.broken:
        print(f"broken: {law}")
    print(
        f"rows lost {tally.rows_lost}, duplicates {tally.duplicates}, mismatches {tally.mismatches}"
    )


if __name__ == "__main__":
    main()
