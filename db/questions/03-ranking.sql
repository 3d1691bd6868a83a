-- Which predictor ranks a day's stocks best, and by which return?
--
-- Rank IC is the mean over nights of the correlation between place and return; 0 means no skill.
-- From 20 nights on, the interval is 1.96 standard errors either way, as if nights were
-- independent. For `five_days`, `ten_days` and `twenty_days`, whose returns overlap, it is too
-- narrow. Each interval is for one predictor alone: among ten predictors without skill, at least
-- one interval often excludes 0.
with nightly as (
    select leg, predictor, is_rule, rank_ic, acc, decile_spread
    from rank_score_log
    where market = 'simulated' and span = 'night' and rank_ic is not null
), means as (
    select
        leg, predictor, is_rule, count(*) as nights, avg(rank_ic) as rank_ic, avg(acc) as acc,
        avg(decile_spread) as spread,
        case when count(*) >= 20 then
            1.96 * sqrt((avg(rank_ic * rank_ic) - avg(rank_ic) * avg(rank_ic)) / (count(*) - 1))
        end as error
    from nightly
    group by leg, predictor, is_rule
)
select
    leg, predictor, case when is_rule = 1 then 'rule' else 'ranker' end as kind, nights,
    round(cast(rank_ic as numeric), 3) as rank_ic, round(cast(rank_ic - error as numeric), 3) as rank_ic_low,
    round(cast(rank_ic + error as numeric), 3) as rank_ic_high, round(cast(acc as numeric), 3) as above_or_below_median,
    round(cast(100 * spread as numeric), 2) as tenths_apart_percent
from means
order by leg, rank_ic desc, predictor
