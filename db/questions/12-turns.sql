-- How often does a stock's direction turn from one night to the next, and what is a turn worth?
--
-- Whoever follows the directions pays commission for each turn. `mean_gain_percent` is the mean
-- return in the predicted direction, before costs.
with steps as (
    select
        direction, correct, realised_return,
        lag(direction) over (partition by symbol order by target) as direction_before
    from prediction_history
    where market = 'simulated' and kind = 'nightly'
)
select
    case when direction = direction_before then 'kept' else 'turned' end as step, direction, count(*) as predictions,
    round(100.0 * count(*) / sum(count(*)) over (), 1) as percent_of_predictions, round(avg(correct), 3) as acc,
    round(cast(100 * avg(case when direction = 'rise' then realised_return else -realised_return end) as numeric), 3)
        as mean_gain_percent
from steps
where direction_before is not null and correct is not null
group by case when direction = direction_before then 'kept' else 'turned' end, direction
order by step, direction
