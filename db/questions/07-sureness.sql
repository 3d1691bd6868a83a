-- Is it right more often when it is surer?
--
-- Distance is that of the probability from one half, from the row's own step to the next; `acc` should climb from
-- row to row.
with predictions as (
    select
        abs(probability - 0.5) as distance, correct, realised_return,
        case when realised_return > 0 then 1 else 0 end as rose
    from prediction_history
    where market = 'simulated' and kind = 'nightly' and correct is not null
), stepped as (
    select
        predictions.*,
        case
            when distance < 0.02 then 0.0
            when distance < 0.05 then 0.02
            when distance < 0.1 then 0.05
            when distance < 0.2 then 0.1
            when distance < 0.3 then 0.2
            else 0.3
        end as distance_from
    from predictions
)
select
    distance_from, count(*) as predictions,
    round(100.0 * count(*) / sum(count(*)) over (), 1) as percent_of_predictions,
    round(avg(correct), 3) as acc, round(avg(rose), 3) as always_up,
    round(cast(100 * avg(abs(realised_return)) as numeric), 2) as mean_size_percent
from stepped
group by distance_from
order by distance_from
