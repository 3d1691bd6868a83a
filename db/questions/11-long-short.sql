-- What would the ten likeliest risers have earned over the ten least likely, month by month?
--
-- Returns are in percent a night, from close to close, with equal weights and before any costs.
-- With fewer than twenty stocks, the two groups overlap and the difference shrinks.
with placed as (
    select
        target, realised_return, row_number() over (partition by target order by probability desc, symbol) as from_top,
        row_number() over (partition by target order by probability, symbol desc) as from_bottom
    from prediction_history
    where market = 'simulated' and kind = 'nightly' and realised_return is not null
), nights as (
    select
        substr(cast(target as varchar), 1, 7) as month,
        avg(case when from_top <= 10 then 100 * realised_return end) as top,
        avg(case when from_bottom <= 10 then 100 * realised_return end) as bottom
    from placed
    group by target
), months as (
    select
        month, count(*) as nights, avg(top) as top, avg(bottom) as bottom, sum(top - bottom) as earned,
        sum(case when top > bottom then 1 else 0 end) as nights_won, min(top - bottom) as worst_night
    from nights
    group by month
)
select
    month, nights, round(cast(top as numeric), 3) as top_ten, round(cast(bottom as numeric), 3) as bottom_ten,
    round(cast(top - bottom as numeric), 3) as difference, nights_won,
    round(cast(worst_night as numeric), 2) as worst_night, round(cast(earned as numeric), 2) as earned,
    round(cast(sum(earned) over (order by month) as numeric), 2) as earned_so_far
from months
order by month
