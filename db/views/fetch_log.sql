-- What each request to a price source brought: one row per market and fetch.
--
-- market    text       Name of the market.
-- as_of     date       Session up to which the store was to be brought.
-- source    text       Who was asked: yahoo, files, simulated.
-- asked     integer    Symbols asked for.
-- fetched   integer    Bars the source returned.
-- stored    integer    Bars that were new or restated.
-- rejected  integer    Findings against bars, one for each check failed.
-- restated  json       Symbols whose whole history was fetched anew, a JSON list.
-- failures  json       Symbols without an answer, a JSON list of {symbol, status, detail}.
-- known_at  timestamp  When its bars were known, UTC; later than the fetch before.
select market, as_of, source, asked, fetched, stored, rejected, restated, failures, known_at
from price_fetch
