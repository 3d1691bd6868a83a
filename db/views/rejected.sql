-- Bars that failed a check: one row per bar and check; they are in no price and no window.
--
-- market          text       Name of the market.
-- symbol          text       The market's own symbol.
-- session         date       The session the bar belongs to.
-- source          text       Who reported the bar.
-- reason          text       The check it failed, such as high_below_low.
-- value           text       What was found, in words, such as open=0.0.
-- first_known_at  timestamp  When it was first fetched and rejected, UTC.
select i.market, i.symbol, b.session, b.source, b.reason, b.value, b.first_known_at
from rejected_bar b
join instrument i on i.id = b.instrument_id
