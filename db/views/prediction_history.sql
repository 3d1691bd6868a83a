-- Every prediction beside what came of it: one row per model, session predicted and stock.
--
-- market              text       Name of the market.
-- symbol              text       The market's own symbol.
-- as_of               date       Last session the model saw; always before target.
-- target              date       Session predicted.
-- probability         number     Probability of a rise, 0 to 1; mean of the seeds.
-- probability_std     number     Standard deviation over the seeds; 0 with one, missing if not kept.
-- calibrated          number     The probability as calibrated on validation; missing if not kept.
-- direction           text       'rise' when the probability is above 0.5, else 'fall': what the scores count; band_direction has the directions at a level.
-- realised_return     number     Adjusted close over the one before, minus 1; missing until the target's bar is known.
-- label               integer    The paper's label of the return: 1, 0 or -1; missing with it.
-- correct             integer    1 when the direction was right (a rise is a realised_return above 0), else 0; missing with the realised_return.
-- always_up           text       What the rule 'every stock rises' predicted; missing if not kept, like the next two.
-- index_reversal      text       What 'rises after a fall of the index, else falls' predicted; missing without history.
-- index_below_mean20  text       What 'rises while the index is below its mean of 20 sessions, else falls' predicted.
-- place               integer    Place in the night's order of the stocks, 1 is the best; missing where they were not ordered.
-- leg                 text       Return by which they were ordered, such as next_close; missing with place.
-- kind                text       Purpose of the model: 'nightly', 'backtest' or 'benchmark'.
-- run_id              text       The model that predicted: a row of run.
-- known_at            timestamp  Latest known_at of the prices it saw, UTC.
-- made_at             timestamp  When it was computed, UTC.
-- receipt             text       What `dtml replay` takes: run, symbol and session predicted.
select
    i.market, i.symbol, p.as_of, p.target, p.probability, p.probability_std, p.calibrated,
    case when p.probability > 0.5 then 'rise' else 'fall' end as direction,
    o.realised_return, o.label,
    case when o.rise is null then null when (p.probability > 0.5) = o.rise then 1 else 0 end as correct,
    case when c.always_up then 'rise' when not c.always_up then 'fall' end as always_up,
    case when c.index_reversal then 'rise' when not c.index_reversal then 'fall' end as index_reversal,
    case when c.index_below_mean20 then 'rise' when not c.index_below_mean20 then 'fall' end as index_below_mean20,
    (
        select s.place
        from stock_rank s
        join ranker k on k.id = s.ranker_id and k.chosen = s.predictor
        where r.kind = 'nightly' and s.instrument_id = p.instrument_id and s.target = p.target
        order by s.made_at desc, s.ranker_id desc
        limit 1
    ) as place,
    (
        select k.leg
        from stock_rank s
        join ranker k on k.id = s.ranker_id and k.chosen = s.predictor
        where r.kind = 'nightly' and s.instrument_id = p.instrument_id and s.target = p.target
        order by s.made_at desc, s.ranker_id desc
        limit 1
    ) as leg,
    r.kind, p.run_id, p.known_at, p.made_at,
    p.run_id || '/' || i.symbol || '/' || cast(p.target as varchar) as receipt
from prediction p
join instrument i on i.id = p.instrument_id
join run r on r.id = p.run_id
left join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
left join rule_direction c on c.market = i.market and c.target = p.target
