"""The SQL views of the benchmark and what each column means."""

from types import MappingProxyType
from typing import Final

from db.tables.columns import meaning

RUN_SCORE = """
create view run_score as
select
    b.market, s.benchmark_id, s.predictor, s.protocol, b.test_first, b.test_last, s.days, s.n, s.seeds,
    s.configurations, s.acc_mean, s.acc_sd, s.acc, s.acc_low, s.acc_high, s.mcc_mean, s.mcc_sd, s.mcc, s.mcc_low,
    s.mcc_high, s.acc_gain, s.acc_gain_low, s.acc_gain_high, s.mcc_gain, s.mcc_gain_low, s.mcc_gain_high, s.auc,
    s.auc_low, s.auc_high, s.brier, s.same_call,
    case when s.is_rule then 1 else 0 end as is_rule,
    case when s.is_rule and s.predictor = b.best_rule then 1 else 0 end as is_best_rule,
    s.published_acc, s.published_mcc, s.run_id, b.test_read_at
from benchmark_score s
join benchmark b on b.id = s.benchmark_id
"""

BENCHMARK_CONFIGURATION = """
create view benchmark_configuration as
select
    b.market, c.benchmark_id, c.predictor, c.configuration, m.settings,
    case when m.kept then 1 else 0 end as kept,
    c.seeds, c.validation_acc, c.acc_mean, c.acc_min, c.acc_max, c.mcc_mean, c.mcc_min, c.mcc_max
from (
    select
        benchmark_id, predictor, configuration, min(seed) as first_seed, count(*) as seeds,
        avg(validation_acc) as validation_acc, avg(acc) as acc_mean, min(acc) as acc_min, max(acc) as acc_max,
        avg(mcc) as mcc_mean, min(mcc) as mcc_min, max(mcc) as mcc_max
    from benchmark_member
    group by benchmark_id, predictor, configuration
) as c
join benchmark_member m on m.benchmark_id = c.benchmark_id and m.predictor = c.predictor
    and m.configuration = c.configuration and m.seed = c.first_seed
join benchmark b on b.id = c.benchmark_id
"""

BENCHMARK_VIEW_SQL: Final = MappingProxyType(
    {"run_score": RUN_SCORE, "benchmark_configuration": BENCHMARK_CONFIGURATION}
)

_NAMED = {
    **meaning("market"),
    "benchmark_id": "The benchmark: a row of benchmark.",
}

BENCHMARK_VIEW_COLUMNS: Final = MappingProxyType(
    {
        "run_score": {
            **_NAMED,
            "predictor": "Name of the model or of the naive rule.",
            **meaning("protocol"),
            "test_first": "First session of the test.",
            "test_last": "Last session of the test.",
            "days": "Sessions scored.",
            "n": "Stock-days scored.",
            "seeds": "Seeds of the ensemble; missing for a naive rule.",
            "configurations": "Configurations tried on validation; missing for a naive rule.",
            "acc_mean": "Mean over the seeds of the share of right calls; missing for a rule.",
            "acc_sd": "Its standard deviation; missing for a rule and for one seed.",
            "acc": "Share of right calls of the ensemble or rule, 0 to 1; missing when n is 0.",
            "acc_low": "Lower end of its day-resampled 95 % interval; missing with too few days.",
            "acc_high": "Upper end of that interval; missing with too few days.",
            "mcc_mean": "Mean over the seeds of the Matthews correlation; missing for a rule.",
            "mcc_sd": "Its standard deviation; missing for a rule and for one seed.",
            "mcc": "Matthews correlation of the ensemble or rule, -1 to 1; missing when n is 0.",
            "mcc_low": "Lower end of its day-resampled 95 % interval; missing with too few days.",
            "mcc_high": "Upper end of that interval; missing with too few days.",
            "acc_gain": "acc minus that of the best rule on the same days; missing for the best rule itself.",
            "acc_gain_low": "Lower end of its paired 95 % interval; missing with acc_gain.",
            "acc_gain_high": "Upper end of that interval; missing with acc_gain.",
            "mcc_gain": "mcc minus that of the best rule on the same days; missing for the best rule itself.",
            "mcc_gain_low": "Lower end of its paired 95 % interval; missing with mcc_gain.",
            "mcc_gain_high": "Upper end of that interval; missing with mcc_gain.",
            "auc": "Within-day skill: share of same-day pairs (riser, faller) in which the riser got the higher"
            " probability, 0.5 is none; missing for a rule.",
            "auc_low": "Lower end of its day-resampled 95 % interval; missing with auc.",
            "auc_high": "Upper end of that interval; missing with auc.",
            "brier": "Mean squared error of the probability, 0 to 1; missing for a rule.",
            "same_call": "Mean over days of the larger share of stocks called one way, 0.5 to 1; missing when n is 0.",
            "is_rule": "1 for a naive rule, 0 for a trained model.",
            "is_best_rule": "1 for the naive rule chosen on the training span alone, else 0.",
            "published_acc": "acc_mean in print (Yoo et al., KDD 2021, table 2), of 10 seeds; missing when not there.",
            "published_mcc": "mcc_mean in print, the same; missing when not there.",
            "run_id": "The ensemble scored: a row of run; missing for a naive rule.",
            "test_read_at": "When the test span was read, UTC: once.",
        },
        "benchmark_configuration": {
            **_NAMED,
            "predictor": "Name of the model.",
            "configuration": "Number of the configuration.",
            "settings": "What this configuration sets, as JSON.",
            "kept": "1 when this configuration was chosen on validation, else 0.",
            "seeds": "Seeds trained.",
            "validation_acc": "Mean over the seeds of the share of right calls on validation; missing if not scored.",
            "acc_mean": "The same on the test, paper protocol, for every seed alike; missing if not scored.",
            "acc_min": "Smallest of the seeds; missing if not scored.",
            "acc_max": "Largest of the seeds; missing if not scored.",
            "mcc_mean": "Mean over the seeds of the Matthews correlation on the test; missing if not scored.",
            "mcc_min": "Smallest of the seeds; missing if not scored.",
            "mcc_max": "Largest of the seeds; missing if not scored.",
        },
    }
)
