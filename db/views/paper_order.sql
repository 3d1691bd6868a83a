-- The weights to hold from each session's open, set by the night's ranking, and the weights that the paper account held after that open: one row per market, session and stock.
--
-- market      text       Name of the market.
-- target      date       Session at whose open the trade is made.
-- symbol      text       The stock.
-- name        text       Name of the company; missing when not known.
-- weight      number     Share of the equity to hold in the stock.
-- kept        integer    1 if an existing holding of the stock is to be kept as it is, else 0.
-- held        number     Share of the equity that the paper account held after that open; missing before that open, or if the stock could not be bought.
-- decided_at  timestamp  When the weight was decided, UTC.
select
    t.market, t.target, i.symbol, i.name, t.weight, case when t.kept then 1 else 0 end as kept, h.weight as held,
    t.decided_at
from target_position t
join instrument i on i.id = t.instrument_id
left join paper_position h on h.market = t.market and h.session = t.target and h.instrument_id = t.instrument_id
