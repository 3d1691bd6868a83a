-- How many predictions had a correct direction, a wrong one or none at each level of the abstention band: one row per model, session and level.
--
-- market           text     Name of the market.
-- kind             text     Purpose of the model: 'nightly', 'backtest' or 'benchmark'.
-- run_id           text     The model that predicted: a row of run.
-- target           date     Session predicted.
-- level            number   Nominal coverage: the share of outcomes that the band should cover, 0 to 1.
-- n                integer  Calibrated predictions whose outcome is known.
-- covered          integer  Predictions without a direction, plus those with a correct one; covered / n should reach the level.
-- decided          integer  Predictions with a direction at this level.
-- decided_correct  integer  Predictions with a correct direction.
select r.market, r.kind, b.run_id, b.target, b.level, b.n, b.covered, b.decided, b.decided_correct
from run r
join abstention_count b on b.run_id = r.id
