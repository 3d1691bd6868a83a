-- Comparisons of the stored bars with those of the market's second source: one row per night.
--
-- market     text       Name of the market.
-- as_of      date       Last session compared.
-- known_at   timestamp  When it was made, UTC.
-- source     text       Name of the second source.
-- symbols    integer    Symbols compared.
-- bars       integer    Bars that both have.
-- differing  integer    Values that differ.
-- failures   json       Symbols that the second source did not answer, a list of {symbol, status, detail}.
-- failure    text       Why it failed or ended early; missing when it did not.
select market, as_of, known_at, source, symbols, bars, differing, failures, failure
from price_comparison
