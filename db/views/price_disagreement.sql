-- Where stored bars and those of the market's second source differ beyond a tolerance: one row per value and version.
--
-- market        text       Name of the market.
-- symbol        text       The market's own symbol.
-- session       date       The session the bar belongs to.
-- field         text       'open', 'high', 'low', 'close', 'adj_close', 'volume', 'dividend' or 'split'; 'scale' where all prices differ by one factor; 'bar' where only one of the two has the bar.
-- first_value   number     Stored value; of 'scale' and 'bar' the close, of 'adj_close' the ratio of adj_close / close to that of the bar before; missing when not stored.
-- second_value  number     The same of the second source; missing when it has none.
-- difference    number     second_value / first_value - 1; missing when a value is missing or the first is 0.
-- settled_by    text       Where the values agree again, who changed: 'first' (the store), 'second' or 'both'; missing while they differ.
-- source        text       Name of the second source.
-- known_at      timestamp  When the comparison found these values, UTC.
-- known_until   timestamp  When a later comparison found others, UTC; missing for the newest version.
select
    i.market, i.symbol, d.session, d.field, d.first_value, d.second_value, d.difference, d.settled_by,
    d.source, d.known_at, (
        select min(later.known_at)
        from bar_disagreement later
        where later.instrument_id = d.instrument_id and later.session = d.session
            and later.field = d.field and later.known_at > d.known_at
    ) as known_until
from bar_disagreement d
join instrument i on i.id = d.instrument_id
