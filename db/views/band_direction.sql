-- The direction predicted at each level of the abstention band: 'none' where the calibrated probability is inside the band. One row per prediction and level.
--
-- market           text     Name of the market.
-- symbol           text     The market's own symbol.
-- as_of            date     Last session the model saw; always before target.
-- target           date     Session predicted.
-- level            number   Nominal coverage: the share of outcomes that the band should cover, 0 to 1.
-- is_default       integer  1 at the market's default level, which the night's page and latest_prediction use; else 0.
-- calibrated       number   Probability of a rise after calibration on validation, 0 to 1.
-- low              number   Below this probability a fall is predicted.
-- high             number   Above this probability a rise is predicted; between low and high the model abstains.
-- direction        text     'rise', 'fall' or 'none'.
-- realised_return  number   Adjusted close divided by the previous one, minus 1; missing until the stock has traded in the target.
-- covered          integer  1 when there is no direction or it is correct, 0 when it is wrong; missing when realised_return is.
-- kind             text     Purpose of the model: 'nightly', 'backtest' or 'benchmark'.
-- run_id           text     The model that predicted: a row of run.
select
    i.market, i.symbol, p.as_of, p.target, b.level,
    case when b.is_default then 1 else 0 end as is_default, p.calibrated, 1 - b.threshold as low, b.threshold as high,
    case
        when p.calibrated > b.threshold then 'rise'
        when p.calibrated < 1 - b.threshold then 'fall'
        else 'none'
    end as direction,
    o.realised_return,
    case
        when o.rise is null then null
        when p.calibrated > b.threshold and not o.rise or p.calibrated < 1 - b.threshold and o.rise then 0
        else 1
    end as covered,
    r.kind, p.run_id
from prediction p
join instrument i on i.id = p.instrument_id
join run r on r.id = p.run_id
join abstention_band b on b.run_id = p.run_id
left join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
where p.calibrated is not null
