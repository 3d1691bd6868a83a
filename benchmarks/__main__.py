"""Run every benchmark in turn (`make bench`), without the shared data only those without it."""

from types import ModuleType

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
    pruned_year,
    service_schedules,
    store_growth,
    store_loading,
    training_speed,
    translation_engines,
    translation_kills,
    translation_search_speed,
    translation_training_speed,
    view_latency,
)
from benchmarks.shared_data import SHARED

WITH_SHARED_DATA = (
    feature_windows,
    store_loading,
    nightly_overhead,
    backtest_folds,
    acl18_controls,
)
WITHOUT_SHARED_DATA = (
    training_speed,
    bootstrap_speed,
    backtest_kills,
    interval_coverage,
    data_axis,
    view_latency,
    long_history,
    store_growth,
    pruned_year,
    dashboard_load,
    dashboard_siege,
    chaos,
    service_schedules,
    translation_search_speed,
    translation_training_speed,
    translation_engines,
    layer_cost,
    translation_kills,
)


def main() -> None:
    """Run them all, those with shared data first."""
    benchmarks: list[ModuleType] = []
    if (SHARED / "prices").is_dir():
        benchmarks += WITH_SHARED_DATA
    else:
        print(f"no shared data at {SHARED}: what needs it is left out")
    benchmarks += WITHOUT_SHARED_DATA
    for benchmark in benchmarks:
        title = (benchmark.__doc__ or "").splitlines()[0]
        print(f"\n{title}", flush=True)
        benchmark.main()


if __name__ == "__main__":
    main()
