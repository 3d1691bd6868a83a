-- Stored folds of a backtest.
--
-- first       date       First session predicted.
-- last        date       Last session predicted.
-- seconds     number     Time that the fold took.
-- created_at  timestamp  When the training of its model ended.
select f.first, f.last, f.seconds, r.created_at
from backtest_fold f
join run_log r on r.run_id = f.run_id
where f.backtest_id = :backtest
order by f.number
