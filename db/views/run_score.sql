-- Results of each benchmark: one row per benchmark, label protocol and predictor.
--
-- market          text       Name of the market.
-- benchmark_id    text       The benchmark: a row of benchmark.
-- predictor       text       Name of the model or of the naive rule.
-- protocol        text       'published': only stock-days with a published label; 'all': every stock-day.
-- test_first      date       First session of the test.
-- test_last       date       Last session of the test.
-- days            integer    Sessions scored.
-- n               integer    Stock-days scored.
-- seeds           integer    Seeds of the ensemble; missing for a naive rule.
-- configurations  integer    Configurations tried on validation; missing for a naive rule.
-- acc_mean        number     Mean over the seeds of the share of correct directions; missing for a rule.
-- acc_sd          number     Standard deviation of that share over the seeds; missing for a rule and for one seed.
-- acc             number     Share of correct directions of the ensemble or rule, 0 to 1; missing when n is 0.
-- acc_low         number     Lower end of its day-resampled 95 % interval; missing with too few days.
-- acc_high        number     Upper end of that interval; missing with too few days.
-- mcc_mean        number     Mean over the seeds of the Matthews correlation; missing for a rule.
-- mcc_sd          number     Standard deviation of that correlation over the seeds; missing for a rule and for one seed.
-- mcc             number     Matthews correlation of the ensemble or rule, -1 to 1; missing when n is 0.
-- mcc_low         number     Lower end of its day-resampled 95 % interval; missing with too few days.
-- mcc_high        number     Upper end of that interval; missing with too few days.
-- acc_gain        number     acc minus that of the naive rule with the highest acc on the same days, chosen in hindsight; missing for that rule.
-- acc_gain_low    number     Lower end of its paired 95 % interval; missing when acc_gain is.
-- acc_gain_high   number     Upper end of that interval; missing when acc_gain is.
-- mcc_gain        number     mcc minus that of the naive rule with the highest mcc on the same days, chosen in hindsight; missing for that rule.
-- mcc_gain_low    number     Lower end of its paired 95 % interval; missing when mcc_gain is.
-- mcc_gain_high   number     Upper end of that interval; missing when mcc_gain is.
-- acc_gain_p      number     p-value of acc_gain, adjusted for all pairs of a predictor and a rule (Romano and Wolf, 2005); missing for that rule, and with too few days.
-- mcc_gain_p      number     p-value of mcc_gain, adjusted in the same way; missing when acc_gain_p is.
-- auc             number     Within-day skill: share of same-day pairs (riser, faller) in which the riser got the higher probability, 0.5 is no skill; missing for a rule.
-- auc_low         number     Lower end of its day-resampled 95 % interval; missing when auc is.
-- auc_high        number     Upper end of that interval; missing when auc is.
-- rank_ic         number     Mean over days of the rank correlation of probability and return within the day, -1 to 1, 0 is no skill; missing for a rule.
-- rank_ic_low     number     Lower end of its day-resampled 95 % interval; missing with too few days.
-- rank_ic_high    number     Upper end of that interval; missing with too few days.
-- brier           number     Mean squared error of the probability, 0 to 1; missing for a rule.
-- same_direction  number     Mean over days of the share of stocks given the day's more common direction, 0.5 to 1; missing when n is 0.
-- is_rule         integer    1 for a naive rule, 0 for a trained model.
-- is_best_rule    integer    1 for the naive rule chosen on the training span alone, else 0.
-- published_acc   number     acc_mean as published (Yoo et al., KDD 2021, table 2), from 10 seeds; missing if not published.
-- published_mcc   number     mcc_mean as published there; missing if not published.
-- run_id          text       The ensemble scored: a row of run; missing for a naive rule.
-- test_read_at    timestamp  When the test span was read, which happens once, UTC.
select
    b.market, s.benchmark_id, s.predictor, s.protocol, b.test_first, b.test_last, s.days, s.n, s.seeds,
    s.configurations, s.acc_mean, s.acc_sd, s.acc, s.acc_low, s.acc_high, s.mcc_mean, s.mcc_sd, s.mcc, s.mcc_low,
    s.mcc_high, s.acc_gain, s.acc_gain_low, s.acc_gain_high, s.mcc_gain, s.mcc_gain_low, s.mcc_gain_high,
    s.acc_gain_p, s.mcc_gain_p, s.auc,
    s.auc_low, s.auc_high, s.rank_ic, s.rank_ic_low, s.rank_ic_high, s.brier, s.same_direction,
    case when s.is_rule then 1 else 0 end as is_rule,
    case when s.is_rule and s.predictor = b.best_rule then 1 else 0 end as is_best_rule,
    s.published_acc, s.published_mcc, s.run_id, b.test_read_at
from benchmark_score s
join benchmark b on b.id = s.benchmark_id
