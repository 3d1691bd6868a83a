-- How often does a call turn from one night to the next, and what is a turned call worth?
--
-- Turned calls are what a follower pays commission for; `mean_gain_percent` is the mean move in the direction of the
-- call, before cost.
with steps as (
    select
        call, hit, move, lag(call) over (partition by symbol order by target) as call_before
    from prediction_history
    where market = 'simulated' and kind = 'nightly'
)
select
    case when call = call_before then 'kept' else 'turned' end as step, call, count(*) as calls,
    round(100.0 * count(*) / sum(count(*)) over (), 1) as percent_of_calls, round(avg(hit), 3) as acc,
    round(cast(100 * avg(case when call = 'rise' then move else -move end) as numeric), 3) as mean_gain_percent
from steps
where call_before is not null and hit is not null
group by case when call = call_before then 'kept' else 'turned' end, call
order by step, call
