-- Every ranking of every night with its outcomes: one row per predictor, session and stock.
--
-- market           text       Name of the market.
-- symbol           text       The market's own symbol.
-- name             text       Name of the company; missing when unknown.
-- sector           text       Sector; missing when unknown.
-- as_of            date       Last session seen; always before target.
-- target           date       Session for which the stocks were ranked.
-- leg              text       Return that the ranking predicts, such as next_close.
-- predictor        text       Name of the ranker: ridge, boosting, blend, dtml, own, blend_relative, or a relative network such as dtml_relative.
-- chosen           integer    1 for the predictor whose ranking the market showed, else 0.
-- place            integer    Place in the ranking, 1 is the best.
-- score            number     Score that the stocks were ranked by; its scale has no meaning.
-- probability      number     Probability of a return above the day's median, 0 to 1; missing for dtml.
-- realised_return  number     Adjusted close divided by the previous one, minus 1; missing until the stock has traded in the target.
-- ranker_id        text       The trained rankers: a row of ranker.
-- known_at         timestamp  Latest known_at of the prices that the rankers saw, UTC.
-- made_at          timestamp  When the ranking was computed, UTC.
select
    r.market, i.symbol, i.name, i.sector, s.as_of, s.target, r.leg, s.predictor,
    case when s.chosen then 1 else 0 end as chosen,
    s.place, s.score, s.probability, o.realised_return, s.ranker_id, s.known_at, s.made_at
from stock_rank s
join ranker r on r.id = s.ranker_id
join instrument i on i.id = s.instrument_id
left join outcome o on o.instrument_id = s.instrument_id and o.session = s.target
