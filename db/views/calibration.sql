-- Predicted probabilities against the share of stocks that rose: one row per model, session and probability bin.
--
-- market            text     Name of the market.
-- kind              text     Purpose of the model: 'nightly', 'backtest' or 'benchmark'.
-- run_id            text     The model that predicted: a row of run.
-- target            date     Session predicted.
-- bin_low           number   Lower edge of the bin, 0 to 0.99; the bins divide the probability before calibration into steps of 0.01.
-- bin_high          number   Upper edge of the bin, exclusive; a probability of 1 is in the last bin.
-- n                 integer  Predictions in the bin whose outcome is known; use it as the weight when averaging over nights.
-- mean_probability  number   Mean predicted probability of a rise in the bin, before calibration, 0 to 1.
-- share_risen       number   Share of these predictions whose stock rose, 0 to 1.
select
    r.market, r.kind, b.run_id, b.target, b.bin / 100.0 as bin_low, (b.bin + 1) / 100.0 as bin_high, b.n,
    b.probability_sum / b.n as mean_probability, cast(b.rises as double precision) / b.n as share_risen
from run r
join calibration_bin b on b.run_id = r.id
