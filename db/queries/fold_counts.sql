-- Rows of abstention_count of a backtest's finished folds.
--
-- run_id           text     The model.
-- target           date     Session predicted.
-- level            number   Nominal coverage.
-- n                integer  Predictions.
-- covered          integer  Predictions covered.
-- decided          integer  Predictions with a direction.
-- decided_correct  integer  Predictions with a correct direction.
select c.run_id, c.target, c.level, c.n, c.covered, c.decided, c.decided_correct
from backtest_fold f
join abstention_count c on c.run_id = f.run_id and c.target between f.first and f.last
where f.backtest_id = :backtest
order by c.target, c.level
