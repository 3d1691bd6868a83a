-- Which stocks get the most attention?
--
-- The answer covers the last 20 nights. For each stock, the store keeps the few other stocks to
-- which it attends most. `stocks` counts the stocks that attend to this one, `looks_first` how
-- often it comes first, and `percent_of_weight` is its share of the stored weight.
with nights as (
    select run_id, target
    from night_log
    where market = 'simulated' and predictions > 0
    order by target desc
    limit 20
), looks as (
    select
        a.source, a.symbol, a.weight,
        row_number() over (partition by a.target, a.symbol order by a.weight desc, a.source) as place
    from attention a
    join nights n on n.run_id = a.run_id and n.target = a.target
    where a.market = 'simulated' and a.source <> a.symbol
)
select
    source, count(distinct symbol) as stocks, count(*) as looks,
    sum(case when place = 1 then 1 else 0 end) as looks_first,
    round(cast(avg(weight) as numeric), 3) as mean_weight,
    round(cast(100 * sum(weight) / sum(sum(weight)) over () as numeric), 1) as percent_of_weight
from looks
group by source
order by percent_of_weight desc, source
limit 10
