-- In which years was the ranking of the stocks worth something?
--
-- Each ranker and rule is scored by year on the return that the market ranks by. Compare a ranker
-- with the best rule of the same year. From 20 nights on, the interval is 1.96 standard errors
-- either way, as if nights were independent.
with nightly as (
    select cast(substr(cast(target as varchar), 1, 4) as integer) as year, predictor, is_rule, rank_ic
    from rank_score_log
    where market = 'simulated' and span = 'night' and rank_ic is not null
        and leg = (select max(leg) from rank_score_log where market = 'simulated' and span = 'running')
), means as (
    select
        year, predictor, is_rule, count(*) as nights, avg(rank_ic) as rank_ic,
        case when count(*) >= 20 then
            1.96 * sqrt((avg(rank_ic * rank_ic) - avg(rank_ic) * avg(rank_ic)) / (count(*) - 1))
        end as error
    from nightly
    group by year, predictor, is_rule
)
select
    year, predictor, case when is_rule = 1 then 'rule' else 'ranker' end as kind, nights,
    round(cast(rank_ic as numeric), 3) as rank_ic, round(cast(rank_ic - error as numeric), 3) as rank_ic_low,
    round(cast(rank_ic + error as numeric), 3) as rank_ic_high
from means
order by year, rank_ic desc, predictor
