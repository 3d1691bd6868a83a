-- Bars that failed a check, which are not used in any price or window: one row per bar and check.
--
-- market          text       Name of the market.
-- symbol          text       The market's own symbol.
-- session         date       The session the bar belongs to.
-- source          text       Source of the bar.
-- reason          text       The check it failed, such as high_below_low.
-- value           text       The values that failed it, such as open=0.0.
-- first_known_at  timestamp  When it was first fetched and rejected, UTC.
select i.market, i.symbol, b.session, b.source, b.reason, b.value, b.first_known_at
from rejected_bar b
join instrument i on i.id = b.instrument_id
