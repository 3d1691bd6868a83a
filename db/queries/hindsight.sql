-- Complete nights of a market up to :last, and those that ended too late to trade: on a later day, in UTC, than the session that they predict.
--
-- complete  integer  Nights.
-- late      integer  Nights that ended too late.
select count(*) as complete, coalesce(sum(case when date(finished_at) > target then 1 else 0 end), 0) as late
from night_log
where market = :market and as_of <= :last and status in ('complete', 'complete_with_gaps')
