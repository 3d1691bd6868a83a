-- Predictions of a market's nights with an outcome, targets :first to :last.
--
-- run_id       text     The model.
-- target       date     Session predicted.
-- probability  number   Probability of a rise.
-- calibrated   number   Calibrated probability; missing if not stored.
-- rise         boolean  Whether the stock rose.
select p.run_id, p.target, p.probability, p.calibrated, o.rise
from night n
join prediction p on p.run_id = n.run_id and p.target = n.target and p.as_of = n.as_of
join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
where n.market = :market and n.target between :first and :last
order by p.target, p.instrument_id
