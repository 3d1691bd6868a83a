-- Results of each request to a price source: one row per market and fetch.
--
-- market    text       Name of the market.
-- as_of     date       Session up to which bars were requested.
-- source    text       Price source: yahoo, files, simulated, or the name of a user's own feed.
-- asked     integer    Symbols requested.
-- fetched   integer    Bars the source returned.
-- stored    integer    Bars that were new or restated.
-- rejected  integer    Failed checks; a bar that fails two checks counts twice.
-- restated  json       Symbols whose whole history was fetched again, a JSON list.
-- failures  json       Symbols without an answer, a JSON list of {symbol, status, detail}.
-- known_at  timestamp  When its bars became known, UTC; later than every fetch before it.
select market, as_of, source, asked, fetched, stored, rejected, restated, failures, known_at
from price_fetch
