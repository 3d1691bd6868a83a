-- Last stored session of each symbol of a market, even if its bar was withdrawn.
--
-- symbol  text  The symbol.
-- last    date  Its last session; missing without a bar.
select i.symbol, (select max(p.session) from price p where p.instrument_id = i.id) as last
from instrument i
where i.market = :market
order by i.symbol
