-- Does a model get worse with age?
--
-- The first row covers the first ten nights of every model, the second row the next ten, and so on.
-- If `gain` falls with age, train more often.
with served as (
    select
        h.run_id, h.correct, case when h.realised_return > 0 then 1 else 0 end as rose, m.train_last, h.as_of,
        dense_rank() over (partition by h.run_id order by h.target) - 1 as age
    from prediction_history h
    join run_log m on m.run_id = h.run_id
    where h.market = 'simulated' and h.kind = 'nightly' and h.correct is not null and h.as_of >= m.train_last
)
select
    min(age) + 1 as first_night, max(age) + 1 as last_night, count(distinct run_id) as models, count(*) as predictions,
    round(avg(correct), 3) as acc, round(avg(rose), 3) as always_up, round(avg(correct - rose), 3) as gain
from served
group by age / 10
order by first_night
