-- Drift tests: whether the inputs, skill and coverage of each night still match the model's training. One row per night and measure.
--
-- market    text     Name of the market.
-- as_of     date     The night's last closed session.
-- measure   text     Name of a feature; 'stock-day' for all features together; 'rank IC'; or 'coverage'.
-- value     number   Recent mean. For features: mean size over 20 sessions, relative to the size in training. For rank IC and coverage: mean over a year.
-- expected  number   For features, the mean in training; for rank IC, the mean before the recent year; for coverage, the level of the band.
-- evidence  number   For features, distance from the expected value in standard deviations; for the others, what a stake of 1, bet on a fall, has grown to.
-- needed    number   Evidence at which drift is reported.
-- drifted   integer  1 if the evidence reached `needed`, else 0.
select
    market, as_of, measure, value, expected, evidence, needed, case when drifted then 1 else 0 end as drifted
from night_drift
