-- Which stocks does the model predict best, and which worst?
--
-- These are the first five and the last five stocks by MCC. `gain` is ACC minus that of 'every
-- stock rises' on the same sessions. Among many stocks, some stand out by luck alone.
with scored as (
    select
        symbol, n as predictions, round(cast(acc as numeric), 3) as acc, round(cast(mcc as numeric), 3) as mcc,
        round(cast(up_acc as numeric), 3) as always_up, round(cast(acc - up_acc as numeric), 3) as gain
    from symbol_score
    where market = 'simulated' and kind = 'nightly'
), placed as (
    select
        scored.*, row_number() over (order by mcc desc, symbol) as place,
        row_number() over (order by mcc, symbol desc) as from_below
    from scored
)
select place, symbol, predictions, acc, mcc, always_up, gain
from placed
where place <= 5 or from_below <= 5
order by place
