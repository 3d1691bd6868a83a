-- Targets of a market's nights that have an outcome, but no score or no calibration counts: a backtest or a benchmark stored the outcome first.
--
-- target   date     Session predicted.
-- scored   integer  1 if the night has a score, else 0.
-- counted  integer  1 if it has calibration counts, else 0.
select target, scored, counted
from (
    select n.target, n.run_id,
        case when exists (
            select 1 from score s where s.market = n.market and s.target = n.target and s.span = 'night'
        ) then 1 else 0 end as scored,
        case when exists (
            select 1 from calibration_bin c where c.run_id = n.run_id and c.target = n.target
        ) then 1 else 0 end as counted
    from night n
    where n.market = :market
) as d
where (scored = 0 or counted = 0) and exists (
    select 1
    from prediction p
    join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
    where p.run_id = d.run_id and p.target = d.target
)
order by target
