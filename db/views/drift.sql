-- Whether inputs, skill and coverage of each night are still what its model was trained on.
--
-- market    text     Name of the market.
-- as_of     date     The night.
-- measure   text     Name of a feature, 'stock-day', 'rank IC' or 'coverage'.
-- value     number   Its mean now: of 20 sessions for inputs, in units of the training's, of a year for the others.
-- expected  number   What it was in training, or before; the level of the band for coverage.
-- evidence  number   Standard deviations from that for inputs, what a fair bet of 1 has become for the others.
-- needed    number   What the evidence must reach.
-- drifted   integer  1 if it has, else 0.
select
    market, as_of, measure, value, expected, evidence, needed, case when drifted then 1 else 0 end as drifted
from night_drift
