-- What drives the stock that the model predicts best?
--
-- A source drives the stock if the stock rose more often after the source's rise than after its
-- fall. The model uses this driver if it, too, predicted a rise more often after the source's rise
-- than after its fall.
with best as (
    select symbol
    from symbol_score
    where market = 'simulated' and kind = 'nightly'
    order by round(cast(mcc as numeric), 6) desc, symbol
    limit 1
), nights as (
    select run_id, target
    from night_log
    where market = 'simulated' and predictions > 0
    order by target desc
    limit 60
), looks as (
    select a.run_id, a.as_of, a.target, a.symbol, a.source, a.weight
    from best b
    cross join nights n
    join attention a on a.run_id = n.run_id and a.target = n.target and a.symbol = b.symbol
    where a.market = 'simulated' and a.source <> a.symbol
), beside as (
    select
        l.symbol, l.source, l.weight, case when s.realised_return > 0 then 'rise' else 'fall' end as source_went,
        case when h.realised_return > 0 then 1.0 else 0.0 end as rose,
        case when h.direction = 'rise' then 1.0 else 0.0 end as decided
    from looks l
    join prediction_history h on h.market = 'simulated' and h.symbol = l.symbol and h.target = l.target
        and h.run_id = l.run_id
    join prediction_history s on s.market = 'simulated' and s.symbol = l.source and s.target = l.as_of
        and s.kind = 'nightly'
    where h.realised_return is not null and s.realised_return is not null
)
select
    symbol, source, count(*) as nights, round(cast(sum(weight) as numeric), 2) as weight,
    round(avg(case when source_went = 'rise' then rose end), 3) as rose_after_rise,
    round(avg(case when source_went = 'fall' then rose end), 3) as rose_after_fall,
    round(avg(case when source_went = 'rise' then decided end), 3) as predicted_after_rise,
    round(avg(case when source_went = 'fall' then decided end), 3) as predicted_after_fall
from beside
group by symbol, source
order by weight desc, source
limit 10
