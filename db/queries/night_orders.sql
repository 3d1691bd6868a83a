-- What the paper account is to hold from the open of a session (:target) on, and what it trades for that. No rows without an order for :target.
--
-- symbol  text     The market's own symbol.
-- weight  number   Share of equity to hold, 0 to hold it no longer.
-- held    number   Share of equity held since the open of the night before, that of :before; missing without.
-- action  text     'sell' for a stock to hold no longer, 'buy' for one that is not held, 'keep' for one that the account keeps as it is or whose weight changes by less than :smallest, else 'adjust'.
with orders as (
    select symbol, coalesce(max(weight), 0) as weight, coalesce(max(kept), 0) as kept, max(held) as held
    from (
        select symbol, weight, kept, null as held from paper_order where market = :market and target = :target
        union all
        select symbol, null, null, held from paper_order
        where market = :market and target = :before and held is not null
            and exists (select 1 from paper_order where market = :market and target = :target)
    ) as both_nights
    group by symbol
)
select
    symbol, weight, held,
    case
        when weight = 0 then 'sell' when held is null then 'buy'
        when kept = 1 or abs(weight - held) < :smallest then 'keep' else 'adjust'
    end as action
from orders
