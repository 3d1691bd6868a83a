-- Results of each request to a price source: one row per market and fetch.
--
-- market    text       Name of the market.
-- as_of     date       Session up to which bars were requested.
-- source    text       Price source: yahoo, files or simulated.
-- asked     integer    Number of symbols requested.
-- fetched   integer    Bars the source returned.
-- stored    integer    Bars that were new or restated.
-- rejected  integer    Number of failed checks; a bar that fails two checks counts twice.
-- restated  json       Symbols whose whole history was fetched again, a JSON list.
-- failures  json       Symbols without an answer, a JSON list of {symbol, status, detail}.
-- known_at  timestamp  When the fetch's bars became known, UTC; later than every earlier fetch of the market.
select market, as_of, source, asked, fetched, stored, rejected, restated, failures, known_at
from price_fetch
