"""`make bench`: every benchmark in turn; those that need the shared data say so when it is not there."""

from benchmarks import (
    backtest,
    chaos,
    controls,
    coverage,
    dashboard_load,
    data_axis,
    history,
    kills,
    layer_cost,
    night,
    panel,
    resampling,
    serve,
    store,
    training,
    translation_engines,
    translation_kills,
    translation_search,
    translation_training,
)
from benchmarks.panel import SHARED

# The kills come last, as they end the process with their result.
STORED = (history, dashboard_load, chaos, serve)
TRANSLATION = (translation_search, translation_training, translation_engines, layer_cost, translation_kills)


def main() -> None:
    """Run them all, the quick ones first."""
    if (SHARED / "prices").is_dir():
        for benchmark in (panel, store, night, backtest, controls):
            print(f"\n{(benchmark.__doc__ or '').splitlines()[0]}", flush=True)
            benchmark.main()
    else:
        print(f"no shared data at {SHARED}: what needs it is left out")
    for benchmark in (training, resampling, kills, coverage, data_axis, *STORED, *TRANSLATION):
        print(f"\n{(benchmark.__doc__ or '').splitlines()[0]}", flush=True)
        benchmark.main()


if __name__ == "__main__":
    main()
