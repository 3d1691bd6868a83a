-- Predictions of a market's night by the model that the night names.
--
-- run_id           text    The model.
-- as_of            date    Last session seen.
-- target           date    Session predicted.
-- symbol           text    The stock.
-- name             text    Its name.
-- sector           text    Its sector.
-- probability      number  Probability of a rise.
-- probability_std  number  Standard deviation of the seeds' probabilities.
-- calibrated       number  Calibrated probability.
-- lowest           number  Lowest probability of a seed.
-- highest          number  Highest probability of a seed.
-- rising_share     number  Share of the seeds that predict a rise.
select
    p.run_id, p.as_of, p.target, i.symbol, i.name, i.sector, p.probability, p.probability_std, p.calibrated, p.lowest,
    p.highest, p.rising_share
from night n
join prediction p on p.run_id = n.run_id and p.target = n.target
join instrument i on i.id = p.instrument_id
where n.market = :market and n.as_of = :as_of
order by i.symbol
