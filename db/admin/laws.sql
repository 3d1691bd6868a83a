-- a complete night has as many predictions as it records
select n.market, n.as_of, n.run_id, n.predictions as said, count(p.instrument_id) as found
from night n
left join prediction p on p.run_id = n.run_id and p.target = n.target
where n.status in ('complete', 'complete_with_gaps')
group by n.market, n.as_of, n.run_id, n.predictions
having count(p.instrument_id) <> coalesce(n.predictions, -1)
order by n.market, n.as_of

-- a night predicts a stock or says why not, never both
select n.market, n.as_of, {symbol} as symbol
from night n
cross join {elements}(n.gaps) as g
left join instrument i on i.market = n.market and i.symbol = {symbol}
left join prediction p on p.run_id = n.run_id and p.target = n.target and p.instrument_id = i.id
where n.status in ('complete', 'complete_with_gaps')
group by n.market, n.as_of, {symbol}
having count(*) > 1 or count(p.instrument_id) > 0
order by n.market, n.as_of, 3

-- a stock has one nightly prediction for a session
select i.market, i.symbol, d.target, d.found
from (
    select p.instrument_id, p.target, count(*) as found
    from prediction p
    cross join run r
    where r.id = p.run_id and r.kind = 'nightly'
    group by p.instrument_id, p.target
    having count(*) > 1
) as d
join instrument i on i.id = d.instrument_id
order by i.market, d.target, i.symbol

-- a night's counts of its directions match their outcomes
select c.run_id, c.target, c.said, count(o.session) as found
from (select run_id, target, sum(n) as said from calibration_bin group by run_id, target) as c
join prediction p on p.run_id = c.run_id and p.target = c.target
left join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
group by c.run_id, c.target, c.said
having count(o.session) <> c.said
order by c.run_id, c.target

-- a running score includes every night up to it
select r.market, r.target, r.protocol, r.predictor, r.n as said, d.n as found
from score r
join (
    select market, target, protocol, predictor,
        sum(n) over (partition by market, protocol, predictor order by target) as n
    from score
    where span = 'night'
) as d on d.market = r.market and d.target = r.target and d.protocol = r.protocol
    and d.predictor = r.predictor
where r.span = 'running' and d.n <> r.n
order by r.market, r.target, r.protocol, r.predictor

-- the score of a night matches its outcomes
select s.market, s.target, s.protocol, s.n as said, s.rises, s.acc, count(o.session) as found,
    sum(case when o.rise then 1 else 0 end) as risen,
    sum(case when o.rise = (p.probability > 0.5) then 1 else 0 end) as correct
from score s
join night n on n.market = s.market and n.target = s.target
join prediction p on p.run_id = n.run_id and p.target = n.target and p.as_of = n.as_of
left join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
    and (s.protocol = 'all' or o.label <> 0)
where s.span = 'night' and s.predictor = 'dtml'
group by s.market, s.target, s.protocol, s.n, s.rises, s.acc
having count(o.session) <> s.n or sum(case when o.rise then 1 else 0 end) <> s.rises
    or abs(sum(case when o.rise = (p.probability > 0.5) then 1 else 0 end)
        - coalesce(s.acc, 0) * s.n) > 0.5
order by s.market, s.target, s.protocol

-- a probability lies between those of its seeds
select i.market, i.symbol, p.run_id, p.target
from prediction p
join instrument i on i.id = p.instrument_id
where p.lowest > p.probability + 1e-6 or p.highest < p.probability - 1e-6
order by i.market, p.target, i.symbol

-- no price is newer than its market's last fetch
select i.market, i.symbol, p.session, p.known_at, f.newest
from (select market, max(known_at) as newest from price_fetch group by market) as f
join instrument i on i.market = f.market
join price p on p.instrument_id = i.id and p.known_at > f.newest
order by i.market, i.symbol, p.session
