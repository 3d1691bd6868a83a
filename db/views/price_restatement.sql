-- Bars that were restated or withdrawn, with the previous version: one row per restatement or withdrawal.
--
-- market            text       Name of the market.
-- symbol            text       The market's own symbol.
-- session           date       The session the bar belongs to.
-- reason            text       'reported_anew' if the source restated the bar; if the bar was withdrawn, the check that it failed once a later bar was known, such as brief_jump.
-- close             number     Restated last price, in currency units; missing when withdrawn.
-- adj_close         number     Restated adjusted close; missing when withdrawn or not reported.
-- volume            number     Restated volume; missing when withdrawn or not reported.
-- source            text       Price source that restated the bar; 'checks' if it was withdrawn.
-- known_at          timestamp  When the new version was fetched, UTC.
-- close_before      number     Close of the previous version.
-- adj_close_before  number     Adjusted close of the previous version; missing when not reported.
-- volume_before     number     Volume of the previous version; missing when not reported.
-- known_at_before   timestamp  When the previous version was fetched, UTC.
--
-- A join that could go either way, PostgreSQL begins with the versions before, and pairs each with every later one.
select
    i.market, i.symbol, p.session, coalesce(p.withdrawn, 'reported_anew') as reason,
    case when p.withdrawn is null then p.close end as close,
    case when p.withdrawn is null then p.adj_close end as adj_close,
    case when p.withdrawn is null then p.volume end as volume,
    p.source, p.known_at,
    b.close as close_before, b.adj_close as adj_close_before, b.volume as volume_before,
    b.known_at as known_at_before
from price p
join instrument i on i.id = p.instrument_id
left join price b on b.instrument_id = p.instrument_id and b.session = p.session and b.known_at = (
    select max(earlier.known_at)
    from price earlier
    where earlier.instrument_id = p.instrument_id and earlier.session = p.session
        and earlier.known_at < p.known_at
)
where coalesce(b.close, 0) > 0
