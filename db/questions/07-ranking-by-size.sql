-- Does the ranking predict large moves or small ones?
--
-- The size of a move is the distance of a return from the mean of its day. `correct` is the share
-- of stocks that were ranked in the better half and ended above the mean, or in the worse half and
-- ended below it. If only small moves are ranked correctly, there is little to earn.
with ranked as (
    select target, symbol, predictor, place, realised_return,
        count(*) over (partition by target, predictor) as stocks,
        avg(realised_return) over (partition by target, predictor) as mean_return
    from ranking_history
    where market = 'simulated' and chosen = 1 and leg = 'next_close' and realised_return is not null
), moves as (
    select
        abs(realised_return - mean_return) as distance,
        case when (2 * place <= stocks + 1) = (realised_return > mean_return) then 1.0 else 0.0 end as correct
    from ranked
), stepped as (
    select
        distance, correct,
        case
            when distance < 0.0025 then 0.0
            when distance < 0.005 then 0.25
            when distance < 0.01 then 0.5
            when distance < 0.02 then 1.0
            when distance < 0.04 then 2.0
            else 4.0
        end as percent_from
    from moves
)
select
    percent_from, count(*) as stock_days, round(100.0 * count(*) / sum(count(*)) over (), 1) as percent_of_stock_days,
    round(avg(correct), 3) as correct, round(cast(100 * avg(distance) as numeric), 2) as mean_size_percent
from stepped
group by percent_from
order by percent_from
