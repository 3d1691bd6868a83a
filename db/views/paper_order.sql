-- What to hold from the open of each session on, by the order of the night before, and what the paper account then held.
--
-- market      text       Name of the market.
-- target      date       Session at whose open it is traded.
-- symbol      text       The stock.
-- name        text       Name of the company; missing when not known.
-- weight      number     Share of the equity to hold.
-- kept        integer    1 where a stock that is held already is left as it is, else 0.
-- held        number     Share of the equity that the paper account held after that open; missing before it, or where it could not be bought.
-- decided_at  timestamp  When it was decided, UTC.
select
    t.market, t.target, i.symbol, i.name, t.weight, case when t.kept then 1 else 0 end as kept, h.weight as held,
    t.decided_at
from target_position t
join instrument i on i.id = t.instrument_id
left join paper_position h on h.market = t.market and h.session = t.target and h.instrument_id = t.instrument_id
