"""Run every benchmark in turn (`make bench`); those that need the shared data
are left out without it.
"""

from benchmarks import (
    acl18_controls,
    backtest_folds,
    backtest_kills,
    bootstrap_speed,
    chaos,
    dashboard_load,
    dashboard_siege,
    data_axis,
    feature_windows,
    interval_coverage,
    layer_cost,
    long_history,
    nightly_overhead,
    service_schedules,
    store_loading,
    training_speed,
    translation_engines,
    translation_kills,
    translation_search_speed,
    translation_training_speed,
    view_latency,
)
from benchmarks.shared_data import SHARED

# The kills come last, as they end the process with their result.
STORED = (view_latency, long_history, dashboard_load, dashboard_siege, chaos, service_schedules)
TRANSLATION = (
    translation_search_speed,
    translation_training_speed,
    translation_engines,
    layer_cost,
    translation_kills,
)


def main() -> None:
    """Run them all, the quick ones first."""
    if (SHARED / "prices").is_dir():
        for benchmark in (
            feature_windows,
            store_loading,
            nightly_overhead,
            backtest_folds,
            acl18_controls,
        ):
            print(f"\n{(benchmark.__doc__ or '').splitlines()[0]}", flush=True)
            benchmark.main()
    else:
        print(f"no shared data at {SHARED}: what needs it is left out")
    for benchmark in (
        training_speed,
        bootstrap_speed,
        backtest_kills,
        interval_coverage,
        data_axis,
        *STORED,
        *TRANSLATION,
    ):
        print(f"\n{(benchmark.__doc__ or '').splitlines()[0]}", flush=True)
        benchmark.main()


if __name__ == "__main__":
    main()
