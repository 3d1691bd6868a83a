-- Predictions of a market's nights :first to :last by the models that the nights name.
--
-- as_of            date    Last session seen.
-- run_id           text    The model.
-- symbol           text    The stock.
-- probability      number  Probability of a rise.
-- probability_std  number  Standard deviation of the seeds' probabilities.
-- calibrated       number  Calibrated probability.
-- lowest           number  Lowest probability of a seed.
-- highest          number  Highest probability of a seed.
-- rising_share     number  Share of the seeds that predict a rise.
select
    n.as_of, p.run_id, i.symbol, p.probability, p.probability_std, p.calibrated, p.lowest, p.highest, p.rising_share
from night n
join prediction p on p.run_id = n.run_id and p.target = n.target
join instrument i on i.id = p.instrument_id
where n.market = :market and n.as_of between :first and :last
order by n.as_of, i.symbol
