-- Every configuration that a benchmark tried, aggregated over seeds: one row per predictor and configuration.
--
-- market          text     Name of the market.
-- benchmark_id    text     The benchmark: a row of benchmark.
-- predictor       text     Name of the model.
-- configuration   integer  Number of the configuration.
-- settings        json     Settings of this configuration, as JSON.
-- kept            integer  1 when this configuration was chosen on validation, else 0.
-- seeds           integer  Seeds trained.
-- validation_acc  number   Mean over the seeds of the share of correct directions on validation; missing if not scored.
-- acc_mean        number   Mean over the seeds of the share of correct directions on the test, published labels; missing if not scored.
-- acc_min         number   Smallest such share among the seeds; missing if not scored.
-- acc_max         number   Largest such share among the seeds; missing if not scored.
-- mcc_mean        number   Mean over the seeds of the Matthews correlation on the test; missing if not scored.
-- mcc_min         number   Smallest such correlation among the seeds; missing if not scored.
-- mcc_max         number   Largest such correlation among the seeds; missing if not scored.
select
    b.market, c.benchmark_id, c.predictor, c.configuration, m.settings,
    case when m.kept then 1 else 0 end as kept,
    c.seeds, c.validation_acc, c.acc_mean, c.acc_min, c.acc_max, c.mcc_mean, c.mcc_min, c.mcc_max
from (
    select
        benchmark_id, predictor, configuration, min(seed) as first_seed, count(*) as seeds,
        avg(validation_acc) as validation_acc, avg(acc) as acc_mean, min(acc) as acc_min, max(acc) as acc_max,
        avg(mcc) as mcc_mean, min(mcc) as mcc_min, max(mcc) as mcc_max
    from benchmark_seed
    group by benchmark_id, predictor, configuration
) as c
join benchmark_seed m on m.benchmark_id = c.benchmark_id and m.predictor = c.predictor
    and m.configuration = c.configuration and m.seed = c.first_seed
join benchmark b on b.id = c.benchmark_id
