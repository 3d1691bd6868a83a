"""Serve a small market every minute for an hour, and count its runs, memory and processes.

Prints how each run ended, the memory of the service, and the processes that it leaves.

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
        log_file = folder / "said"
        dtml = Path(sys.executable).with_name("dtml")
        command = [dtml, "serve", "--market-file", "small.toml", "--cron", "* * * * *"]
        environment = os.environ | {"DTML_DATA": str(folder / "data"), "OMP_NUM_THREADS": "1"}
        if sys.argv[2:]:
            environment["DTML_DATABASE_URL"] = sys.argv[2]
        with (
            log_file.open("wb") as log,
            subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=log
            ) as service,
        ):
            try:
                samples = _sample(service, log_file, folder, minutes)
            finally:
                service.send_signal(signal.SIGTERM)
        _conclude(samples, log_file.read_text(), minutes)
        _require_none_left(folder)


def _sample(
    service: "subprocess.Popen[bytes]", log_file: Path, folder: Path, minutes: int
) -> list[tuple[float, float]]:
    """Print a row each minute; return the MB of memory of the service and its server then."""
    deadline = time.monotonic() + PATIENCE_S
    while "press Ctrl-C to stop" not in log_file.read_text():
        if service.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"it does not serve: {log_file.read_text()}")
        time.sleep(0.5)
    print("minute  service MB  server MB  Prefect's store MB  runs so far", flush=True)
    samples: list[tuple[float, float]] = []
    for minute in range(1, minutes + 1):
        time.sleep(60)
        if service.poll() is not None:
            raise SystemExit(f"it ended with {service.returncode}: {log_file.read_text()}")
        runs = Counter(state for state, _ in RUN.findall(log_file.read_text()))
        service_mb = _memory_mb(service.pid)
        server_mb = _memory_mb(_server_of(service.pid))
        samples.append((service_mb, server_mb))
        store_mb = (folder / "data" / "prefect" / "prefect.db").stat().st_size / 2**20
        counts = ", ".join(f"{count} {state}" for state, count in sorted(runs.items()))
        print(
            f"{minute:6d}  {service_mb:10.0f}  {server_mb:9.0f}  {store_mb:18.1f}  {counts}",
            flush=True,
        )
    return samples


def _conclude(samples: list[tuple[float, float]], log: str, minutes: int) -> None:
    """Print whether all runs went well, and how memory changed; exit with 1 if any did not."""
    runs = RUN.findall(log)
    bad_runs = [f"{state}: {reason}" for state, reason in runs if state not in WELL or not reason]
    is_well = len(runs) >= minutes and not bad_runs
    span = min(10, max(1, len(samples) // 2))
    print(
        f"every run done or skipped with a reason: {'yes' if is_well else 'no'} ({len(runs)} runs "
        f"in {minutes} minutes)"
    )
    for bad_run in bad_runs:
        print(f"  {bad_run}")
    for number, name in enumerate(("service", "server")):
        sizes = [sample[number] for sample in samples]
        first = mean(sizes[:span])
        last = mean(sizes[-span:])
        print(f"memory of the {name}, first and last {span} minutes: {first:.0f} {last:.0f} MB")
    if not is_well:
        raise SystemExit(1)


def _require_none_left(folder: Path) -> None:
    """Fail when a process of the service is left, such as its server or a run."""
    data = folder / "data"
    marks = {f"DTML_DATA={data}".encode(), f"PREFECT_HOME={data / 'prefect'}".encode()}
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marks & set((process / "environ").read_bytes().split(b"\0")):
                command = (process / "cmdline").read_bytes()
                commands.append(command.replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has ended, or is another user's
    print(f"processes left: {len(commands)}")
    if commands:
        raise SystemExit("\n".join(commands))


def _server_of(parent: int) -> int:
    """Return the process of the server that a service started."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_child = f"PPid:\t{parent}\n" in (process / "status").read_text()
            if is_child and b"flows.service.guarded_server" in (process / "cmdline").read_bytes():
                return int(process.name)
        except OSError:
            continue
    raise SystemExit("the service has no server")


def _memory_mb(pid: int) -> float:
    """Return the resident MB of a process."""
    resident_kb = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(resident_kb[1]) / 1024 if resident_kb else 0.0


if __name__ == "__main__":
    main()
