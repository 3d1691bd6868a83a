-- What was refused, left out, late or never received, and where do two sources differ?
--
-- The newest events come first. No window uses a rejected bar. A night that lost too many bars is
-- refused as a whole and gives the reason. 'not made before its day' means that a night ended only
-- after midnight UTC, when the day of the predicted session had begun. Either a missed night was run
-- later, or its market opens later that day. Sources differ where the second source has another
-- value (view price_disagreement), or is the only one with a bar.
select as_of as day, 'night refused' as what, null as symbol, reason as detail
from night_log
where market = 'simulated' and status = 'refused'
union all
select as_of, 'stocks left out', null, cast(gaps as varchar)
from night_log
where market = 'simulated' and status = 'complete_with_gaps'
union all
select as_of, 'not made before its day', null, 'for ' || cast(target as varchar)
from night_log
where market = 'simulated' and predictions > 0 and finished_at >= target
union all
select session, 'bar rejected', symbol, reason || ': ' || value
from rejected
where market = 'simulated'
union all
select as_of, 'no answer', null, cast(failures as varchar)
from fetch_log
where market = 'simulated' and cast(failures as varchar) <> '[]'
union all
select
    session, 'sources differ', case when count(*) = 1 then min(symbol) end,
    min(source) || ': ' || field || ', symbols: ' || cast(count(*) as varchar)
from price_disagreement
where market = 'simulated' and as_of = (select max(as_of) from comparison_log where market = 'simulated')
group by session, field
order by day desc, what, symbol, detail
limit 20
