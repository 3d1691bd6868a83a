-- Targets of a market's nights that have an outcome but no calibration counts: a benchmark stored the outcome before the night was scored.
--
-- target  date  Session predicted.
select n.target
from night n
where n.market = :market
    and exists (
        select 1
        from prediction p
        join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
        where p.run_id = n.run_id and p.target = n.target
    )
    and not exists (
        select 1 from calibration_bin c where c.run_id = n.run_id and c.target = n.target
    )
order by n.target
