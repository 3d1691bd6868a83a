-- First ranked session of :first to :last that has no score for a return; no row where each has one.
--
-- target  date  The session.
select s.target
from stock_rank s
join ranker r on r.id = s.ranker_id
where r.market = :market and s.target between :first and :last
    and not exists (
        select 1
        from rank_score c
        where c.market = :market and c.target = s.target and c.span = 'night' and c.leg = :leg
    )
order by s.target
limit 1
