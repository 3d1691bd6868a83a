-- Predictions of a market's nights with an outcome, targets :first to :last, counted by night, direction and outcome.
--
-- as_of      date     Last session seen.
-- target     date     Session predicted.
-- predicted  boolean  Whether the probability is above 0.5.
-- rise       boolean  Whether the stocks rose.
-- labelled   boolean  Whether the published protocol labels the outcome as a rise or a fall.
-- n          integer  Predictions.
select p.as_of, p.target, p.probability > 0.5 as predicted, o.rise, o.label <> 0 as labelled, count(*) as n
from night n
join prediction p on p.run_id = n.run_id and p.target = n.target and p.as_of = n.as_of
join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
where n.market = :market and n.target between :first and :last
group by p.as_of, p.target, p.probability > 0.5, o.rise, o.label <> 0
order by p.target
