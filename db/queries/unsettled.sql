-- Stock-days of :first to :last that nights of a market predicted or ranked, and that are not settled: without an outcome, or with a target from :since on, whose outcome may still change.
--
-- symbol           text    The stock.
-- as_of            date    Last session seen.
-- target           date    Session predicted.
-- realised_return  number  Stored return; missing without an outcome.
select i.symbol, d.as_of, d.target, o.realised_return
from (
    select p.instrument_id, p.as_of, p.target
    from night n
    join prediction p on p.run_id = n.run_id and p.target = n.target and p.as_of = n.as_of
    where n.market = :market and n.target between :first and :last
    union
    select s.instrument_id, s.as_of, s.target
    from night n
    join ranker r on r.market = n.market
    join stock_rank s on s.ranker_id = r.id and s.target = n.target and s.as_of = n.as_of
    where n.market = :market and n.target between :first and :last
) as d
join instrument i on i.id = d.instrument_id
left join outcome o on o.instrument_id = d.instrument_id and o.session = d.target
where o.realised_return is null or d.target >= :since
order by d.target, i.symbol
