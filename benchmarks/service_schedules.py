"""Serve a small market every minute for an hour: what became of each run, what memory the service
keeps, what is left.

`python -m benchmarks.service_schedules [MINUTES] [URL of a store, by default an SQLite file]`
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import mean

from benchmarks.backtest_kills import MARKET

RUN = re.compile(r"^\S+ \S+ small night (\w+)(?:: (.*))?$", re.MULTILINE)
PATIENCE_S = 300
WELL = ("done", "skipped")


def main() -> None:
    """Serve so many minutes and print a row a minute."""
    minutes = int(sys.argv[1]) if sys.argv[1:] else 60
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "small.toml").write_text(MARKET)
        said = folder / "said"
        command = [
            Path(sys.executable).with_name("dtml"),
            "serve",
            "--market-file",
            "small.toml",
            "--cron",
            "* * * * *",
        ]
        environment = os.environ | {"DTML_DATA": str(folder / "data"), "OMP_NUM_THREADS": "1"}
        if sys.argv[2:]:
            environment["DTML_DATABASE_URL"] = sys.argv[2]
        with (
            said.open("wb") as log,
            subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=log
            ) as service,
        ):
            try:
                samples = _sample(service, said, folder, minutes)
            finally:
                service.send_signal(signal.SIGTERM)
        _conclude(samples, said.read_text(), minutes)
        _require_none_left(folder)


def _sample(
    service: "subprocess.Popen[bytes]", said: Path, folder: Path, minutes: int
) -> list[tuple[float, float]]:
    deadline = time.monotonic() + PATIENCE_S
    while "Ctrl-C ends it" not in said.read_text():
        if service.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"it does not serve: {said.read_text()}")
        time.sleep(0.5)
    print("minute  service MB  server MB  Prefect's store MB  runs so far", flush=True)
    samples: list[tuple[float, float]] = []
    for minute in range(1, minutes + 1):
        time.sleep(60)
        if service.poll() is not None:
            raise SystemExit(f"it ended with {service.returncode}: {said.read_text()}")
        runs = Counter(state for state, _ in RUN.findall(said.read_text()))
        samples.append((_memory(service.pid), _memory(_server_of(service.pid))))
        store = (folder / "data" / "prefect" / "prefect.db").stat().st_size / 2**20
        counted = ", ".join(f"{count} {state}" for state, count in sorted(runs.items()))
        print(
            f"{minute:6d}  {samples[-1][0]:10.0f}  {samples[-1][1]:9.0f}  {store:18.1f}  {counted}",
            flush=True,
        )
    return samples


def _conclude(samples: list[tuple[float, float]], said: str, minutes: int) -> None:
    runs = RUN.findall(said)
    others = [f"{state}: {reason}" for state, reason in runs if state not in WELL or not reason]
    well = len(runs) >= minutes and not others
    span = min(10, max(1, len(samples) // 2))
    print(
        f"every run done or skipped with a reason: {'yes' if well else 'no'} ({len(runs)} runs in "
        f"{minutes} minutes)"
    )
    for each in others:
        print(f"  {each}")
    for number, name in enumerate(("service", "server")):
        sizes = [sample[number] for sample in samples]
        first, last = mean(sizes[:span]), mean(sizes[-span:])
        print(f"memory of the {name}, first and last {span} minutes: {first:.0f} {last:.0f} MB")
    if not well:
        raise SystemExit(1)


def _require_none_left(folder: Path) -> None:
    """Fail when a process of the service is left: its server, a run."""
    mine, left = f"DTML_DATA={folder / 'data'}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mine in (process / "environ").read_bytes().split(b"\0"):
                left.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has ended, or is another user's
    print(f"processes left: {len(left)}")
    if left:
        raise SystemExit("\n".join(left))


def _server_of(parent: int) -> int:
    """The server that a service started."""
    for status in Path("/proc").glob("[0-9]*/status"):
        pid = int(status.parent.name)
        try:
            if (
                f"PPid:\t{parent}\n" in status.read_text()
                and b"flows.service.guarded_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ):
                return pid
        except OSError:
            continue
    raise SystemExit("the service has no server")


def _memory(pid: int) -> float:
    """Resident MB of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


if __name__ == "__main__":
    main()
