-- Where do the seeds disagree, and are they correct less often there?
--
-- Predictions are sorted into four groups of equal size by the distance between the smallest and
-- the largest probability of a seed. The seeds of a prediction are divided if some give a
-- probability above 0.5 and others do not.
with predictions as (
    select
        d.highest - d.lowest as width, d.unanimous, h.correct,
        ntile(4) over (order by d.highest - d.lowest, d.target, d.symbol) as quarter
    from disagreement d
    join prediction_history h on h.run_id = d.run_id and h.symbol = d.symbol and h.target = d.target
    where d.market = 'simulated' and d.kind = 'nightly' and h.market = 'simulated' and h.correct is not null
)
select
    quarter, count(*) as predictions, round(cast(min(width) as numeric), 3) as narrowest,
    round(cast(max(width) as numeric), 3) as widest, round(avg(unanimous), 3) as unanimous,
    round(avg(correct), 3) as acc, round(avg(case when unanimous = 1 then correct end), 3) as acc_unanimous,
    round(avg(case when unanimous = 0 then correct end), 3) as acc_divided
from predictions
group by quarter
order by quarter
