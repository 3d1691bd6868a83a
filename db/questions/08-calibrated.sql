-- Are the probabilities calibrated?
--
-- `said` is the mean probability and `risen` the share of stocks that rose. If `gap` is above 0 at
-- probabilities below one half, and below 0 at those above, the model is overconfident.
with tenth(low, high) as (
    values (0.0, 0.1), (0.1, 0.2), (0.2, 0.3), (0.3, 0.4), (0.4, 0.5),
        (0.5, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1.0)
), found as (
    select
        t.low, t.high, count(distinct c.target) as nights, sum(c.n) as predictions,
        sum(c.n * c.mean_probability) / sum(c.n) as said, sum(c.n * c.share_risen) / sum(c.n) as risen
    from tenth t
    join calibration c on c.bin_low >= t.low and c.bin_low < t.high
    where c.market = 'simulated' and c.kind = 'nightly'
    group by t.low, t.high
)
select
    low as probability_from, high as probability_to, nights, predictions, round(cast(said as numeric), 3) as said,
    round(cast(risen as numeric), 3) as risen, round(cast(risen - said as numeric), 3) as gap
from found
order by low
