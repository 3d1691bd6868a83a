-- Targets of a market's nights that have an outcome but no score.
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
        select 1 from score s where s.market = n.market and s.target = n.target and s.span = 'night'
    )
order by n.target
