-- Figures for monitoring, which the dashboard sends to Prometheus: one row per figure and labels.
--
-- name    text    Name of the figure.
-- labels  text    Labels as Prometheus writes them, such as market="simulated",status="complete".
-- value   number  Its value.
--
-- A night that is still running has no stages here, and a score is the newest running one.
with found as (
    select
        'dtml_nights' as name, cast(null as varchar) as figure, 'market' as a, market as of_a, 'status' as b,
        status as of_b, count(*) * 1.0 as value
    from night
    group by market, status
    union all
    select 'dtml_night_stage_seconds', null, 'market', s.market, 'stage', s.stage, s.seconds
    from night_stage s
    join (select market, max(as_of) as as_of from night where finished_at is not null group by market) n
        on n.market = s.market and n.as_of = s.as_of
    where s.seconds is not null
    union all
    select
        'dtml_score', f.name, 'market', s.market, 'predictor', s.predictor,
        case f.name when 'acc' then s.acc else s.mcc end
    from score s
    join (select market, max(target) as target from score where span = 'running' and protocol = 'all' group by market) n
        on n.market = s.market and n.target = s.target
    cross join (select 'acc' as name union all select 'mcc') f
    where s.span = 'running' and s.protocol = 'all' and s.acc is not null
    union all
    select 'dtml_score', 'rank_ic', 'market', s.market, 'predictor', s.predictor, s.rank_ic
    from rank_score s
    join (select market, max(target) as target from rank_score where span = 'running' group by market) n
        on n.market = s.market and n.target = s.target
    where s.span = 'running' and s.rank_ic is not null
    union all
    select 'dtml_scored_nights', f.name, 'market', s.market, null, null, max(s.nights) * 1.0
    from score s
    join (select market, max(target) as target from score where span = 'running' and protocol = 'all' group by market) n
        on n.market = s.market and n.target = s.target
    cross join (select 'acc' as name union all select 'mcc') f
    where s.span = 'running' and s.protocol = 'all'
    group by s.market, f.name
    union all
    select 'dtml_scored_nights', 'rank_ic', 'market', s.market, null, null, max(s.days) * 1.0
    from rank_score s
    join (select market, max(target) as target from rank_score where span = 'running' group by market) n
        on n.market = s.market and n.target = s.target
    where s.span = 'running'
    group by s.market
    union all
    select 'dtml_translation_texts', null, 'model', model, 'status', status, count(*) * 1.0
    from translation_text
    group by model, status
)
select
    name,
    coalesce('figure="' || figure || '",', '')
    || a || '="' || replace(replace(of_a, '\', '\\'), '"', '\"') || '"'
    || coalesce(',' || b || '="' || replace(replace(of_b, '\', '\\'), '"', '\"') || '"', '') as labels,
    value
from found
