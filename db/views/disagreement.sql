-- How far the seeds of an ensemble agree: one row per prediction for which the seeds' figures are stored.
--
-- market           text     Name of the market.
-- symbol           text     The market's own symbol.
-- as_of            date     Last session the model saw; always before target.
-- target           date     Session predicted.
-- probability      number   Probability of a rise, 0 to 1; mean of the seeds.
-- probability_std  number   Standard deviation over the seeds; 0 with one seed.
-- lowest           number   Smallest probability among the seeds.
-- highest          number   Largest probability among the seeds.
-- rising_share     number   Share of the seeds whose probability is above 0.5.
-- unanimous        integer  1 when all seeds predict the same direction, else 0.
-- kind             text     Purpose of the model: 'nightly', 'backtest' or 'benchmark'.
-- run_id           text     The model that predicted: a row of run.
select
    i.market, i.symbol, p.as_of, p.target, p.probability, p.probability_std, p.lowest, p.highest, p.rising_share,
    case when p.rising_share > 0 and p.rising_share < 1 then 0 else 1 end as unanimous, r.kind, p.run_id
from prediction p
join instrument i on i.id = p.instrument_id
join run r on r.id = p.run_id
where p.rising_share is not null
