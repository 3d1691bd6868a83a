-- Drift tests: whether the inputs, skill and coverage of each night still match the model's training. One row per night and measure.
--
-- market    text     Name of the market.
-- as_of     date     The night.
-- measure   text     Name of a feature, 'stock-day', 'rank IC' or 'coverage'.
-- value     number   Recent mean: over 20 sessions for inputs, in units of the training's scale; over a year for the others.
-- expected  number   Mean in training, or before the recent year; for coverage, the level of the band.
-- evidence  number   For inputs, standard deviations from the expected value; for the others, wealth of a fair bet that started at 1.
-- needed    number   Evidence at which drift is reported.
-- drifted   integer  1 if the evidence reached it, else 0.
select
    market, as_of, measure, value, expected, evidence, needed, case when drifted then 1 else 0 end as drifted
from night_drift
