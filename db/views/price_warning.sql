-- Symbols whose prices look wrong although every bar passed the checks: one row per symbol and reason.
--
-- market    text       Name of the market.
-- symbol    text       The market's own symbol.
-- reason    text       over_corrected_dividends, contradicted_dividend, undivided_split, shifted_dates, same_bars or rescaled_past.
-- value     text       A description of what was found.
-- known_at  timestamp  When the prices in question were fetched, UTC.
select i.market, i.symbol, w.reason, w.value, w.known_at
from symbol_warning w
join instrument i on i.id = w.instrument_id
