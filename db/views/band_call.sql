-- What each prediction calls at each level, where the probability must lie outside the band of no call.
--
-- market      text       Name of the market.
-- symbol      text       The market's own symbol.
-- as_of       date       Last session the model saw; always before target.
-- target      date       Session predicted.
-- level       number     Nominal share of outcomes that are to be covered, 0 to 1.
-- calibrated  number     Probability of a rise after calibration on validation, 0 to 1.
-- low         number     A fall is called below it.
-- high        number     A rise is called above it; no call is made between the two.
-- call        text       'rise', 'fall' or 'none'.
-- move        number     Adjusted close over the one before, minus 1; missing until the target's bar is known.
-- covered     integer    1 without a call or with a right one, 0 with a wrong one; missing with the move.
-- kind        text       Purpose of the model: 'nightly', 'backtest' or 'paper'.
-- run_id      text       The model that predicted: a row of run.
select
    i.market, i.symbol, p.as_of, p.target, b.level, p.calibrated, 1 - b.threshold as low, b.threshold as high,
    case
        when p.calibrated > b.threshold then 'rise'
        when p.calibrated < 1 - b.threshold then 'fall'
        else 'none'
    end as call,
    o.move,
    case
        when o.rise is null then null
        when p.calibrated > b.threshold and not o.rise or p.calibrated < 1 - b.threshold and o.rise then 0
        else 1
    end as covered,
    r.kind, p.run_id
from prediction p
join instrument i on i.id = p.instrument_id
join run r on r.id = p.run_id
join band b on b.run_id = p.run_id
left join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
where p.calibrated is not null
