-- Where the model contradicts a rule, who is right?
--
-- Where they differ, exactly one of the two is right: a model that only repeats a rule differs seldom, and one that
-- adds to it has `model_right` above `rule_right`.
with rule(name) as (
    values ('always_up'), ('index_reversal'), ('index_below_mean20')
), predictions as (
    select
        r.name as rule, h.direction, h.correct,
        case r.name
            when 'always_up' then h.always_up
            when 'index_reversal' then h.index_reversal
            else h.index_below_mean20
        end as rule_direction
    from prediction_history h
    cross join rule r
    where h.market = 'simulated' and h.kind = 'nightly' and h.correct is not null
)
select
    rule, sum(case when direction = rule_direction then 1 else 0 end) as agreed,
    round(avg(case when direction = rule_direction then correct end), 3) as both_right,
    sum(case when direction <> rule_direction then 1 else 0 end) as contradicted,
    round(avg(case when direction <> rule_direction then correct end), 3) as model_right,
    round(avg(case when direction <> rule_direction then 1 - correct end), 3) as rule_right
from predictions
where rule_direction is not null
group by rule
order by rule
