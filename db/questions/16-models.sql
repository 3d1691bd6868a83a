-- How do two models compare on the same stock-days?
--
-- Only stock-days that both models predicted count. The better model is the one that is more often
-- right when the other is wrong. Two models that always predict the same directions are in effect
-- one.
with predictions as (
    select run_id, symbol, target, direction, correct
    from prediction_history
    where market = 'simulated' and correct is not null
)
select
    a.run_id as one, b.run_id as other, min(a.target) as first, max(a.target) as last, count(*) as common_predictions,
    round(avg(case when a.direction = b.direction then 1.0 else 0.0 end), 3) as same_direction,
    round(avg(a.correct), 3) as acc_one,
    round(avg(b.correct), 3) as acc_other, sum(case when a.correct > b.correct then 1 else 0 end) as only_one_right,
    sum(case when a.correct < b.correct then 1 else 0 end) as only_other_right
from predictions a
join predictions b on b.symbol = a.symbol and b.target = a.target and b.run_id > a.run_id
group by a.run_id, b.run_id
order by common_predictions desc, one, other
limit 10
