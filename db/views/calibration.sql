-- How often the stocks rose that were given a probability: one row per model, session and bin of probability.
--
-- market            text     Name of the market.
-- kind              text     Purpose of the model: 'nightly', 'backtest' or 'benchmark'.
-- run_id            text     The model that predicted: a row of run.
-- target            date     Session predicted.
-- bin_low           number   Lower edge of a whole percent of the probability before calibration, 0 to 0.99.
-- bin_high          number   Its upper edge, left out; 1 belongs to the last.
-- n                 integer  Predictions in it whose outcome is known; add nights up with these weights.
-- mean_probability  number   Mean probability of a rise that they gave, before calibration, 0 to 1.
-- share_risen       number   Share of them that rose, 0 to 1.
select
    r.market, r.kind, b.run_id, b.target, b.bin / 100.0 as bin_low, (b.bin + 1) / 100.0 as bin_high, b.n,
    b.probability_sum / b.n as mean_probability, cast(b.rises as double precision) / b.n as share_risen
from run r
join calibration_bin b on b.run_id = r.id
