-- Symbols whose prices are doubtful though every bar passed the checks: one row per symbol and reason.
--
-- market    text       Name of the market.
-- symbol    text       The market's own symbol.
-- reason    text       over_corrected_dividends, contradicted_dividend, undivided_split or shifted_dates.
-- value     text       What was found, in words.
-- known_at  timestamp  When the prices that show it were fetched, UTC.
select i.market, i.symbol, w.reason, w.value, w.known_at
from symbol_warning w
join instrument i on i.id = w.instrument_id
