-- Which nights were the worst, and what happened then?
--
-- A night far below one half on which `predicted_rise` is near 0 or 1 was one bet on the whole market, and lost.
select
    target, count(*) as predictions, round(avg(correct), 3) as acc,
    round(avg(case when direction = 'rise' then 1.0 else 0.0 end), 3) as predicted_rise,
    round(avg(case when realised_return > 0 then 1.0 else 0.0 end), 3) as rose,
    round(cast(100 * avg(realised_return) as numeric), 2) as mean_return_percent,
    max(index_reversal) as index_reversal, max(index_below_mean20) as index_below_mean20
from prediction_history
where market = 'simulated' and kind = 'nightly' and correct is not null
group by target
order by acc, target
limit 10
