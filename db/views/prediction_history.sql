-- Every prediction with its outcome: one row per model, session predicted and stock.
--
-- market              text       Name of the market.
-- symbol              text       The market's own symbol.
-- as_of               date       Last session the model saw; always before target.
-- target              date       Session predicted.
-- probability         number     Probability of a rise, 0 to 1; mean of the seeds.
-- probability_std     number     Standard deviation over the seeds; 0 with one seed, missing if not stored.
-- calibrated          number     The probability as calibrated on validation; missing if not stored.
-- direction           text       'rise' when the probability is above 0.5, else 'fall'; the scores use this. band_direction has the directions at each level.
-- realised_return     number     Adjusted close divided by the previous one, minus 1; missing until the stock has traded in the target.
-- label               integer    Published label of the return: 1 for a rise, -1 for a fall, 0 between; missing when realised_return is.
-- correct             integer    1 when the direction was correct (a rise is a realised_return above 0), else 0; missing when realised_return is.
-- decision            text       'rise', 'fall' or 'none' at the model's default level, as on the night's page; without an abstention band, the direction.
-- decision_correct    integer    1 when the decision was correct, else 0; missing when it is 'none' or realised_return is missing.
-- always_up           text       Prediction of the rule 'every stock rises'; missing if not stored, as are the next two.
-- index_reversal      text       Prediction of the rule 'rises after a fall of the index, else falls'; missing without history.
-- index_below_mean20  text       Prediction of the rule 'rises while the index is below its mean of 20 sessions, else falls'.
-- place               integer    Place in the night's ranking, 1 is the best; missing if the stocks were not ranked.
-- leg                 text       Return that the ranking predicts, such as next_close; missing when place is.
-- kind                text       Purpose of the model: 'nightly', 'backtest' or 'benchmark'.
-- run_id              text       The model that predicted: a row of run.
-- known_at            timestamp  Latest known_at of the prices that the model saw, UTC.
-- made_at             timestamp  When the prediction was computed, UTC.
-- receipt             text       What `dtml replay` takes: run, symbol and session predicted.
select
    i.market, i.symbol, p.as_of, p.target, p.probability, p.probability_std, p.calibrated,
    case when p.probability > 0.5 then 'rise' else 'fall' end as direction,
    o.realised_return, o.label,
    case when o.rise is null then null when (p.probability > 0.5) = o.rise then 1 else 0 end as correct,
    case
        when d.threshold is null or p.calibrated is null then case when p.probability > 0.5 then 'rise' else 'fall' end
        when p.calibrated > d.threshold then 'rise'
        when p.calibrated < 1 - d.threshold then 'fall'
        else 'none'
    end as decision,
    case
        when o.rise is null then null
        when d.threshold is null or p.calibrated is null then case when (p.probability > 0.5) = o.rise then 1 else 0 end
        when p.calibrated > d.threshold then case when o.rise then 1 else 0 end
        when p.calibrated < 1 - d.threshold then case when o.rise then 0 else 1 end
    end as decision_correct,
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
left join abstention_band d on d.run_id = p.run_id and d.is_default
