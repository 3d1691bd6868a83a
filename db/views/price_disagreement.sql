-- Where stored bars and those of the market's second source differ beyond a tolerance: one row per night and value.
--
-- market        text       Name of the market.
-- symbol        text       The market's own symbol.
-- as_of         date       The night: last session of the comparison.
-- session       date       The session the bar belongs to.
-- field         text       'open', 'high', 'low', 'close', 'adj_close', 'volume', 'dividend' or 'split'; 'bar' where only one of the two has the bar.
-- first_value   number     Stored value; of 'bar' the close, of 'adj_close' the ratio of adj_close / close to that of the bar before; missing when not stored.
-- second_value  number     The same of the second source; missing when it has none.
-- difference    number     second_value / first_value - 1; missing when a value is missing or the first is 0.
-- source        text       Name of the second source.
-- known_at      timestamp  When the comparison found these values, UTC.
select
    i.market, i.symbol, d.as_of, d.session, d.field, d.first_value, d.second_value, d.difference, c.source, c.known_at
from bar_disagreement d
join instrument i on i.id = d.instrument_id
join price_comparison c on c.market = i.market and c.as_of = d.as_of
