-- Predictions with an outcome of a backtest's finished folds.
--
-- run_id       text     The model.
-- target       date     Session predicted.
-- probability  number   Probability of a rise.
-- calibrated   number   Calibrated probability; missing if not stored.
-- rise         boolean  Whether the stock rose.
select p.run_id, p.target, p.probability, p.calibrated, o.rise
from backtest_fold f
join prediction p on p.run_id = f.run_id and p.target between f.first and f.last
join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
where f.backtest_id = :backtest
order by p.target, p.instrument_id
