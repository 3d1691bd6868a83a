-- Predictions of a backtest's finished folds.
--
-- run_id           text    The model.
-- as_of            date    Last session seen.
-- target           date    Session predicted.
-- symbol           text    The stock.
-- probability      number  Probability of a rise.
-- probability_std  number  Standard deviation of the seeds' probabilities.
select p.run_id, p.as_of, p.target, i.symbol, p.probability, p.probability_std
from backtest_fold f
join prediction p on p.run_id = f.run_id and p.target between f.first and f.last
join instrument i on i.id = p.instrument_id
where f.backtest_id = :backtest
order by p.target, i.symbol
