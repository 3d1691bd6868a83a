-- The newest nightly predictions of each market: one row per stock.
--
-- market           text       Name of the market.
-- symbol           text       The market's own symbol.
-- name             text       Name of the company; missing when unknown.
-- sector           text       Sector; missing when unknown.
-- as_of            date       Last session the model saw; always before target.
-- target           date       Session predicted.
-- probability      number     Probability of a rise, 0 to 1; mean of the seeds.
-- probability_std  number     Standard deviation over the seeds; 0 with one seed, missing if not stored.
-- calibrated       number     The probability as calibrated on validation; missing if not stored.
-- direction        text       'rise', 'fall' or 'none' at the market's default level, as on the night's page; if the model has no abstention band, 'rise' when the probability is above 0.5, else 'fall'.
-- above_half       text       'rise' when the probability is above 0.5, else 'fall'; the scores use this.
-- place            integer    Place in the night's ranking, 1 is the best; missing if the stocks were not ranked.
-- leg              text       Return that the ranking predicts, such as next_close; missing when place is.
-- run_id           text       The model that predicted: a row of run.
-- known_at         timestamp  Latest known_at of the prices that the model saw, UTC.
-- made_at          timestamp  When the prediction was computed, UTC.
-- receipt          text       What `dtml replay` takes: run, symbol and session predicted.
--
-- SQLite reads a cross join in the order written: the newest night before its predictions, never all of a market's.
with newest as (
    select market, max(target) as target
    from (
        select r.market, (select max(p.target) from prediction p where p.run_id = r.id) as target
        from run r
        where r.kind = 'nightly'
    ) as by_run
    group by market
)
select
    n.market, i.symbol, i.name, i.sector, p.as_of, p.target, p.probability, p.probability_std, p.calibrated,
    case
        when d.threshold is null or p.calibrated is null then case when p.probability > 0.5 then 'rise' else 'fall' end
        when p.calibrated > d.threshold then 'rise'
        when p.calibrated < 1 - d.threshold then 'fall'
        else 'none'
    end as direction,
    case when p.probability > 0.5 then 'rise' else 'fall' end as above_half,
    (
        select s.place
        from stock_rank s
        join ranker k on k.id = s.ranker_id and k.chosen = s.predictor
        where s.instrument_id = p.instrument_id and s.target = p.target
        order by s.made_at desc, s.ranker_id desc
        limit 1
    ) as place,
    (
        select k.leg
        from stock_rank s
        join ranker k on k.id = s.ranker_id and k.chosen = s.predictor
        where s.instrument_id = p.instrument_id and s.target = p.target
        order by s.made_at desc, s.ranker_id desc
        limit 1
    ) as leg,
    p.run_id, p.known_at, p.made_at,
    p.run_id || '/' || i.symbol || '/' || cast(p.target as varchar) as receipt
from newest n
cross join run r
cross join prediction p
cross join instrument i
left join abstention_band d on d.run_id = p.run_id and d.is_default
where r.market = n.market and r.kind = 'nightly' and p.run_id = r.id and p.target = n.target
    and i.id = p.instrument_id
    and not exists (
        select 1
        from prediction later
        join run lr on lr.id = later.run_id and lr.kind = 'nightly'
        where later.instrument_id = p.instrument_id and later.target = p.target
            and (later.made_at > p.made_at or later.made_at = p.made_at and later.run_id > p.run_id)
    )
