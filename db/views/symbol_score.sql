-- Scores of each stock over all its predictions: one row per stock and purpose of the model.
--
-- market  text     Name of the market.
-- symbol  text     The market's own symbol.
-- kind    text     Purpose of the model: 'nightly', 'backtest' or 'benchmark'.
-- n       integer  Predictions whose outcome is known.
-- rises   integer  Predictions whose stock rose.
-- first   date     First session with an outcome.
-- last    date     Last session with an outcome.
-- acc     number   Share of correct directions, 0 to 1.
-- mcc     number   Matthews correlation of the directions, -1 to 1; 0 when one class is never predicted or never happens.
-- up_acc  number   Share of correct directions of 'every stock rises' on the same sessions, 0 to 1.
--
-- Counts before their ratios: a query for one stock reads that stock alone on either engine.
select
    c.market, c.symbol, c.kind, c.n, c.rises, c.first, c.last,
    cast(c.hits + c.passes as double precision) / c.n as acc,
    case
        when c.hits + c.alarms = 0 or c.hits + c.misses = 0 or c.passes + c.alarms = 0 or c.passes + c.misses = 0
        then 0.0
        else (cast(c.hits as double precision) * c.passes - cast(c.alarms as double precision) * c.misses)
            / sqrt(
                cast(c.hits + c.alarms as double precision) * (c.hits + c.misses)
                * cast(c.passes + c.alarms as double precision) * (c.passes + c.misses)
            )
    end as mcc,
    cast(c.rises as double precision) / c.n as up_acc
from (
    select
        i.market, i.symbol, r.kind, count(*) as n, min(p.target) as first, max(p.target) as last,
        sum(case when o.rise then 1 else 0 end) as rises,
        sum(case when p.probability > 0.5 and o.rise then 1 else 0 end) as hits,
        sum(case when p.probability > 0.5 and not o.rise then 1 else 0 end) as alarms,
        sum(case when p.probability <= 0.5 and o.rise then 1 else 0 end) as misses,
        sum(case when p.probability <= 0.5 and not o.rise then 1 else 0 end) as passes
    from instrument i
    join prediction p on p.instrument_id = i.id
    join run r on r.id = p.run_id
    join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
    group by i.market, i.symbol, r.kind
) as c
