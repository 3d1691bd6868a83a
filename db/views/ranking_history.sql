-- Every order of a session's stocks beside what came of them: one row per predictor, session and stock.
--
-- market           text       Name of the market.
-- symbol           text       The market's own symbol.
-- name             text       Name of the company; missing when unknown.
-- sector           text       Sector; missing when unknown.
-- as_of            date       Last session seen; always before target.
-- target           date       Session whose stocks were ordered.
-- leg              text       Return whose order was learned, such as next_close.
-- predictor        text       ridge, boosting, their blend, or dtml.
-- chosen           integer    1 for the predictor whose order the market showed, else 0.
-- place            integer    Place in the order of the day, 1 is the best.
-- score            number     What ordered the stocks of the day; its size means nothing.
-- probability      number     Probability of a return above the day's median, 0 to 1; missing for dtml.
-- realised_return  number     Adjusted close over the one before, minus 1; missing until the target's bar is known.
-- ranker_id        text       The rankers that were asked: a row of ranker.
-- known_at         timestamp  Latest known_at of the prices they saw, UTC.
-- made_at          timestamp  When it was computed, UTC.
select
    r.market, i.symbol, i.name, i.sector, s.as_of, s.target, r.leg, s.predictor,
    case when s.speaks then 1 else 0 end as chosen,
    s.place, s.score, s.probability, o.realised_return, s.ranker_id, s.known_at, s.made_at
from stock_rank s
join ranker r on r.id = s.ranker_id
join instrument i on i.id = s.instrument_id
left join outcome o on o.instrument_id = s.instrument_id and o.session = s.target
