-- What is predicted for the next session, and which directions remain at the 80 % level?
--
-- `direction_at_80` is 'none' where the calibrated probability is inside the abstention band.
-- `looks_at` is the other stock to which this stock attends most.
with tomorrow as (
    select * from latest_prediction where market = 'simulated'
), bands as (
    select b.run_id, b.symbol, b.direction
    from tomorrow t
    cross join band_direction b
    where b.market = 'simulated' and b.level = 0.8 and b.run_id = t.run_id and b.target = t.target
        and b.symbol = t.symbol
), looks as (
    select run_id, symbol, source, row_number() over (partition by run_id, symbol order by weight desc, source) as place
    from attention
    where market = 'simulated' and target = (select max(target) from tomorrow) and source <> symbol
)
select
    t.target, t.symbol, t.sector, round(cast(t.probability as numeric), 3) as probability,
    round(cast(t.calibrated as numeric), 3) as calibrated, t.direction, b.direction as direction_at_80,
    l.source as looks_at
from tomorrow t
left join bands b on b.run_id = t.run_id and b.symbol = t.symbol
left join looks l on l.run_id = t.run_id and l.symbol = t.symbol and l.place = 1
order by abs(t.probability - 0.5) desc, t.symbol
