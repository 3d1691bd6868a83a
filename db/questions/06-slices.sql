-- Is it better in some month, in some sector, on some weekday?
--
-- Compare `gain`, not `acc`: in a month in which most stocks rose, predicting rises was no art. Of many slices some
-- are lucky.
with predictions as (
    select
        symbol, correct, case when realised_return > 0 then 1 else 0 end as rose,
        substr(cast(target as varchar), 1, 7) as month,
        cast(substr(cast(target as varchar), 1, 4) as integer) as y,
        cast(substr(cast(target as varchar), 6, 2) as integer) as m,
        cast(substr(cast(target as varchar), 9, 2) as integer) as d
    from prediction_history
    where market = 'simulated' and kind = 'nightly' and correct is not null
), dated as (
    -- Days as astronomers number them: every Monday's number can be divided by 7.
    select
        symbol, correct, rose, month,
        (1461 * (y + 4800 + (m - 14) / 12) / 4 + 367 * (m - 2 - (m - 14) / 12 * 12) / 12
            - 3 * ((y + 4900 + (m - 14) / 12) / 100) / 4 + d - 32075) % 7 + 1 as weekday
    from predictions
), sectors as (
    select symbol, sector from latest_prediction where market = 'simulated'
), slices as (
    select 'month' as slice, month as value, correct, rose from dated
    union all
    select 'sector', coalesce(s.sector, 'unknown'), d.correct, d.rose
    from dated d
    left join sectors s on s.symbol = d.symbol
    union all
    select 'weekday', substr('1 Mon2 Tue3 Wed4 Thu5 Fri6 Sat7 Sun', 5 * weekday - 4, 5), correct, rose from dated
)
select
    slice, value, count(*) as predictions, round(avg(correct), 3) as acc, round(avg(rose), 3) as always_up,
    round(avg(correct - rose), 3) as gain
from slices
group by slice, value
order by slice, value
