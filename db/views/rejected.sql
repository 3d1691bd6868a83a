-- Bars that failed a check and are therefore never used: one row per bar and check.
--
-- market          text       Name of the market.
-- symbol          text       The market's own symbol.
-- session         date       The session the bar belongs to.
-- source          text       Source of the bar.
-- reason          text       The check that the bar failed, such as high_below_low.
-- value           text       The values that failed the check, such as open=0.0.
-- first_known_at  timestamp  When the bar was first fetched and rejected, UTC.
select i.market, i.symbol, b.session, b.source, b.reason, b.value, b.first_known_at
from rejected_bar b
join instrument i on i.id = b.instrument_id
