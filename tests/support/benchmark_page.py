"""The rows that the page and the console's table of a benchmark are made of."""

from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pandas as pd

from tests.support.benchmark_rows import benchmark
from tests.support.pages import NAN

RULES = ("always_up", "index_reversal")
BENCHMARK = benchmark(
    "kdd17-1a2b3c4d",
    market="kdd17",
    title="KDD17 on the paper's spans",
    config={"window": [10, 15], "note": "<script>alert(1)</script>"},
    stocks=50,
    test_first=date(2016, 1, 4),
    test_last=date(2016, 12, 30),
    seconds=7512.3,
    device="NVIDIA H100",
    test_read_at=datetime(2026, 1, 20, 8, 12, 33, tzinfo=UTC),
)
SPREADS = ("acc_mean", "acc_sd", "mcc_mean", "mcc_sd")
ENSEMBLE, GAINS, SKILL = (
    tuple(f"{name}{end}" for name in names for end in ("", "_low", "_high"))
    for names in (("acc", "mcc"), ("acc_gain", "mcc_gain"), ("brier", "auc", "rank_ic"))
)
PUBLISHED = ("published_acc", "published_acc_sd", "published_mcc", "published_mcc_sd")
OF_MODELS = (*SPREADS, *SKILL, "calibration_slope", "calibration_intercept", *PUBLISHED)
FIGURES = (*ENSEMBLE, *GAINS, *OF_MODELS)


def score_row(predictor: str, protocol: str, **known: Any) -> dict[str, Any]:
    rule = predictor in RULES
    row = {
        "predictor": predictor,
        "is_rule": rule,
        "protocol": protocol,
        "days": 252,
        "n": 7398,
        "rises": 3788,
    }
    row |= {
        "seeds": NAN if rule else 10,
        "configurations": NAN if rule else 24,
        "same_direction": 1.0 if rule else 0.964,
    }
    return row | dict.fromkeys(FIGURES, NAN) | known


def random_scores(predictors: list[str]) -> pd.DataFrame:
    """Every figure of a model another one; a rule's as they can be."""
    generator = np.random.default_rng(7)
    rows = []
    for protocol in ("published", "all"):
        for predictor in [*predictors, *RULES]:
            gains = () if predictor == "index_reversal" else GAINS
            names = (*ENSEMBLE, *gains, *(() if predictor in RULES else OF_MODELS))
            known = {
                name: float(value)
                for name, value in zip(names, generator.random(len(names)), strict=True)
            }
            rows.append(score_row(predictor, protocol, **known))
    return pd.DataFrame(rows)


def random_members(predictors: list[str], configurations: int = 3, seeds: int = 4) -> pd.DataFrame:
    generator = np.random.default_rng(11)
    rows = [
        {
            "predictor": predictor,
            "configuration": configuration,
            "seed": seed,
            "kept": configuration == 1,
        }
        | {
            "settings": {"window": 15, "hidden": 64 + configuration},
            "best_epoch": 31,
            "validation_loss": NAN,
        }
        | {"validation_acc": 0.53, "acc": 0.5 + 0.1 * generator.random(), "mcc": 0.02}
        for predictor in predictors
        for configuration in range(configurations)
        for seed in range(seeds)
    ]
    return pd.DataFrame(rows)
