-- What were the longest streaks of right and wrong directions?
--
-- If a coin toss chose the directions of 30 stocks over 60 nights, the longest streak of right
-- directions would last 8 to 13 nights in nine of ten cases.
with predictions as (
    select
        symbol, target, correct, row_number() over (partition by symbol order by target)
            - row_number() over (partition by symbol, correct order by target) as island
    from prediction_history
    where market = 'simulated' and kind = 'nightly' and correct is not null
), streaks as (
    select symbol, correct, min(target) as first, max(target) as last, count(*) as nights
    from predictions
    group by symbol, correct, island
), placed as (
    select streaks.*, row_number() over (partition by correct order by nights desc, symbol, first) as place
    from streaks
)
select case correct when 1 then 'right' else 'wrong' end as streak, place, symbol, nights, first, last
from placed
where place <= 5
order by streak, place
