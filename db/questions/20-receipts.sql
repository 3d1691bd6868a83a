-- Which wrong predictions were the most confident, were they made in time, and how can they be made again?
--
-- `dtml replay RECEIPT` makes a prediction again, to the last bit. `minutes_after_prices` counts
-- from the time at which the prices became known, and leaves out whole days. `before_its_day` is
-- 'no' for a prediction that was made on or after the day it predicts, as in a night that was run
-- later.
with wrong as (
    select
        h.receipt, h.probability, h.realised_return, m.train_last,
        case when h.made_at < h.target then 'yes' else 'no' end as before_its_day,
        cast(substr(cast(h.known_at as varchar), 12, 2) as integer) * 60
            + cast(substr(cast(h.known_at as varchar), 15, 2) as integer) as known_minute,
        cast(substr(cast(h.made_at as varchar), 12, 2) as integer) * 60
            + cast(substr(cast(h.made_at as varchar), 15, 2) as integer) as made_minute
    from prediction_history h
    join run_log m on m.run_id = h.run_id
    where h.market = 'simulated' and h.kind = 'nightly' and h.correct = 0
    order by abs(h.probability - 0.5) desc, h.receipt
    limit 10
)
select
    receipt, round(cast(probability as numeric), 3) as probability,
    round(cast(100 * realised_return as numeric), 2) as return_percent, train_last,
    (made_minute - known_minute + 1440) % 1440 as minutes_after_prices, before_its_day
from wrong
order by abs(probability - 0.5) desc, receipt
