-- Sessions of a predictor's lasting skill: those up to :last after the newest one whose running rank IC has no interval above 0.
--
-- since  date  First of these sessions; missing without any.
with running as (
    select target, rank_ic_low
    from rank_score_log
    where market = :market and span = 'running' and leg = :leg and predictor = :predictor and target <= :last
)
select min(target) as since
from running
where target > coalesce((select max(target) from running where coalesce(rank_ic_low, 0) <= 0), '0001-01-01')
