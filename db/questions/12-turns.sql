-- How often does a direction turn from one night to the next, and what is a turned direction worth?
--
-- Turned calls are what a follower pays commission for; `mean_gain_percent` is the mean realised_return in the direction of the
-- direction, before cost.
with steps as (
    select
        direction, correct, realised_return, lag(direction) over (partition by symbol order by target) as call_before
    from prediction_history
    where market = 'simulated' and kind = 'nightly'
)
select
    case when direction = call_before then 'kept' else 'turned' end as step, direction, count(*) as calls,
    round(100.0 * count(*) / sum(count(*)) over (), 1) as percent_of_calls, round(avg(correct), 3) as acc,
    round(cast(100 * avg(case when direction = 'rise' then realised_return else -move end) as numeric), 3) as mean_gain_percent
from steps
where call_before is not null and correct is not null
group by case when direction = call_before then 'kept' else 'turned' end, direction
order by step, direction
