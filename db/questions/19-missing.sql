-- What was refused, left out, late, or never came?
--
-- The newest first. A rejected bar is in no window; a night that lost too many is refused whole, and says why. A
-- night not made before the day of its session, which begins at midnight UTC, was made up, or made for a market that
-- opens later that day.
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
order by day desc, what, symbol, detail
limit 20
