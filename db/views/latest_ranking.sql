-- The ranking that each market showed on its newest night, best stock first: one row per stock.
--
-- market       text       Name of the market.
-- place        integer    Place in the ranking, 1 is the best.
-- symbol       text       The market's own symbol.
-- name         text       Name of the company; missing when unknown.
-- sector       text       Sector; missing when unknown.
-- as_of        date       Last session seen; always before target.
-- target       date       Session for which the stocks are ranked.
-- leg          text       Return that the ranking predicts, such as next_close.
-- predictor    text       Ranker whose ranking the market shows: ridge, boosting, blend, dtml, own, blend_relative, or a relative network such as dtml_relative.
-- score        number     Score that the stocks are ranked by; its scale has no meaning.
-- probability  number     Probability of a return above the day's median, 0 to 1; missing for dtml.
-- ranker_id    text       The trained rankers: a row of ranker.
-- known_at     timestamp  Latest known_at of the prices that the rankers saw, UTC.
-- made_at      timestamp  When the ranking was computed, UTC.
with newest as (
    select market, max(target) as target
    from (
        select r.market, (
            select max(s.target) from stock_rank s where s.ranker_id = r.id and s.predictor = r.chosen
        ) as target
        from ranker r
    ) as by_ranker
    group by market
)
select
    r.market, s.place, i.symbol, i.name, i.sector, s.as_of, s.target, r.leg, s.predictor, s.score, s.probability,
    s.ranker_id, s.known_at, s.made_at
from newest n
join ranker r on r.market = n.market
join stock_rank s on s.ranker_id = r.id and s.target = n.target and s.chosen
join instrument i on i.id = s.instrument_id
where not exists (
    select 1
    from ranker lr
    join stock_rank later on later.ranker_id = lr.id and later.chosen and later.target = s.target
        and later.instrument_id = s.instrument_id
    where lr.market = r.market and later.made_at > s.made_at
)
