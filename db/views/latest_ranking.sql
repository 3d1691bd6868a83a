-- The order of the stocks in the next session of each market, best first: one row per stock, of the newest night.
--
-- market       text       Name of the market.
-- place        integer    Place in the order of the day, 1 is the best.
-- symbol       text       The market's own symbol.
-- name         text       Name of the company; missing when unknown.
-- sector       text       Sector; missing when unknown.
-- as_of        date       Last session seen; always before target.
-- target       date       Session whose stocks are ordered.
-- leg          text       Return by which they are ordered, such as next_close.
-- predictor    text       Whose order the market's file asks for: ridge, boosting, blend or dtml.
-- score        number     What orders the stocks of the day; its size means nothing.
-- probability  number     Probability of a return above the day's median, 0 to 1; missing for dtml.
-- ranker_id    text       The rankers that were asked: a row of ranker.
-- known_at     timestamp  Latest known_at of the prices they saw, UTC.
-- made_at      timestamp  When it was computed, UTC.
with newest as (
    select r.market, max(s.made_at) as made_at
    from ranker r
    join stock_rank s on s.ranker_id = r.id and s.predictor = r.chosen
    where s.target = (
        select max(x.target) from stock_rank x join ranker xr on xr.id = x.ranker_id where xr.market = r.market
    )
    group by r.market
)
select
    r.market, s.place, i.symbol, i.name, i.sector, s.as_of, s.target, r.leg, s.predictor, s.score, s.probability,
    s.ranker_id, s.known_at, s.made_at
from newest n
join ranker r on r.market = n.market
join stock_rank s on s.ranker_id = r.id and s.predictor = r.chosen and s.made_at = n.made_at
join instrument i on i.id = s.instrument_id
