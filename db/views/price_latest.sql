-- The newest version of every bar that is not withdrawn: one row per stock and session.
--
-- market     text       Name of the market.
-- symbol     text       The market's own symbol.
-- session    date       The session the bar belongs to.
-- open       number     First price, in currency units; missing when not reported.
-- high       number     Highest price, in currency units; missing when not reported.
-- low        number     Lowest price, in currency units; missing when not reported.
-- close      number     Last price, in currency units.
-- adj_close  number     Close adjusted for splits and dividends; missing when not reported.
-- volume     number     Shares traded; missing when not reported.
-- dividend   number     Dividend per share on its ex-date, in currency units; missing when none.
-- split      number     New shares per old share on a split's day; missing when none.
-- source     text       Source of the bar: yahoo, files, simulated, or the name of a user's own feed.
-- known_at   timestamp  When this version, the newest, was fetched, UTC.
select
    i.market, i.symbol, p.session, p.open, p.high, p.low, p.close, p.adj_close, p.volume, p.dividend, p.split,
    p.source, p.known_at
from price p
join instrument i on i.id = p.instrument_id
where p.withdrawn is null and not exists (
    select 1
    from price later
    where later.instrument_id = p.instrument_id and later.session = p.session and later.known_at > p.known_at
)
