"""`make bench`: every benchmark in turn; those that need the shared data say so when it is not there."""

from benchmarks import coverage, data_axis, night, panel, resampling, store, training
from benchmarks.panel import SHARED


def main() -> None:
    """Run them all, the quick ones first."""
    if (SHARED / "prices").is_dir():
        for benchmark in (panel, store, night):
            print(f"\n{(benchmark.__doc__ or '').splitlines()[0]}", flush=True)
            benchmark.main()
    else:
        print(f"no shared data at {SHARED}: the benchmarks of panel, store and night are left out")
    for benchmark in (training, resampling, coverage, data_axis):
        print(f"\n{(benchmark.__doc__ or '').splitlines()[0]}", flush=True)
        benchmark.main()


if __name__ == "__main__":
    main()
