-- Which nights were the worst, and what happened then?
--
-- If `acc` is far below one half and `predicted_rise` is near 0 or 1, the night was a single bet on
-- the whole market, and it lost.
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
