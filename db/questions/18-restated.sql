-- Which prices were restated, and which predictions had used the older ones?
--
-- `predictions_before` counts the predictions of this stock that used the old bar, before its
-- restatement. `dtml replay --known-at` runs such a night with either version of the bar.
-- Predictions of other stocks that attend to this one used the old bar, too, but are not counted.
with restated as (
    select
        symbol, known_at, min(known_at_before) as known_before, min(session) as first, max(session) as last,
        count(*) as bars, max(abs(coalesce(adj_close / adj_close_before, close / close_before) - 1)) as change
    from price_restatement
    where market = 'simulated'
    group by symbol, known_at
    order by known_at desc, symbol
    limit 20
)
select
    r.symbol, r.known_at as restated_at, r.first, r.last, r.bars, round(cast(100 * r.change as numeric), 2) as percent,
    count(h.target) as predictions_before, min(h.target) as first_prediction, max(h.target) as last_prediction,
    round(avg(h.correct), 3) as acc
from restated r
left join prediction_history h on h.market = 'simulated' and h.symbol = r.symbol and h.kind = 'nightly'
    and h.as_of >= r.first and h.known_at >= r.known_before and h.known_at < r.known_at
group by r.symbol, r.known_at, r.first, r.last, r.bars, r.change
order by r.known_at desc, r.symbol
