-- Comparisons of the stored bars with those of the market's second source: one row per comparison.
--
-- market     text       Name of the market.
-- known_at   timestamp  When it was made, UTC.
-- as_of      date       Last session compared.
-- source     text       Name of the second source.
-- symbols    integer    Symbols compared.
-- bars       integer    Bars that both have.
-- differing  integer    Values that differ.
-- found      integer    Of these, values that did not differ before, or not in this way.
-- settled    integer    Values that differed before and agree now.
-- failures   json       Symbols that the second source did not answer, a list of {symbol, status, detail}.
-- failure    text       Why it failed or ended early; missing when it did not.
select market, known_at, as_of, source, symbols, bars, differing, found, settled, failures, failure
from price_comparison
