-- Results of each run of `dtml ranking`, which ranks the stocks of each day of a past period: the skill of the blend, and its return after costs.
--
-- market            text       Name of the market.
-- ranking_id        text       The walk-forward: a row of ranking.
-- first             date       First close after which stocks were ranked.
-- last              date       Last such close.
-- leg               text       Return that the models were trained to rank by.
-- days              integer    Days scored.
-- rank_ic           number     Mean daily rank IC of the blend; 0 is no skill; missing without a day.
-- rank_ic_low       number     Lower end of its day-resampled 95 % interval; missing with too few days.
-- rank_ic_high      number     Upper end of that interval; missing with too few days.
-- residual_ic       number     Mean over days of the correlation of the returns' ranks with what is left of the blend's ranks after least squares on those of all one-line rules; missing with fewer than ten stocks.
-- residual_ic_low   number     Lower end of its day-resampled 95 % interval; missing with too few days.
-- residual_ic_high  number     Upper end of that interval; missing with too few days.
-- best_rule         text       The one-line rule over which the blend gains least on these days, chosen in hindsight; missing without a day.
-- gain              number     Mean rank IC of the blend minus that of `best_rule`, on the same stock-days; missing without a day.
-- gain_low          number     Lower end of its day-resampled 95 % interval; missing with too few days.
-- gain_high         number     Upper end of that interval; missing with too few days.
-- gain_p            number     p-value of the gain, adjusted for all pairs of the walk-forward (Romano and Wolf, 2005); missing with too few days.
-- version           text       How the blend's best stocks were traded: 'smoothed and banded', with settings chosen on validation days, or 'daily' if there were no such days.
-- annual_return     number     Geometric return per year after costs, 0.1 is 10 %; missing without a portfolio.
-- sharpe            number     Yearly Sharpe ratio after costs; missing without a portfolio.
-- sharpe_low        number     Lower end of its day-resampled 95 % interval; missing with too few days.
-- sharpe_high       number     Upper end of that interval; missing with too few days.
-- index_gain        number     Sharpe ratio minus that of equal parts of all stocks on the same sessions; missing without a portfolio.
-- index_gain_low    number     Lower end of its day-resampled 95 % interval; missing with too few days.
-- index_gain_high   number     Upper end of that interval; missing with too few days.
-- turnover          number     Mean value bought and sold per session, as a share of equity; missing without a portfolio.
-- break_even        number     Cost, in basis points of value traded, at which the mean return equals that of equal parts; missing without a portfolio.
-- read_at           timestamp  When the days were scored, UTC.
select
    r.market, r.id as ranking_id, r.first, r.last, r.leg, s.days, s.rank_ic, s.rank_ic_low, s.rank_ic_high,
    s.residual_ic, s.residual_ic_low, s.residual_ic_high,
    d.other as best_rule, d.gain, d.gain_low, d.gain_high, d.gain_p, p.version, p.annual_return, p.sharpe, p.sharpe_low, p.sharpe_high,
    p.index_gain, p.index_gain_low, p.index_gain_high, p.turnover, p.break_even, r.read_at
from ranking r
join ranking_score s on s.ranking_id = r.id and s.predictor = 'blend' and s.leg = r.leg and s.slice = 'all'
left join ranking_difference d
    on d.ranking_id = r.id and d.predictor = 'blend' and d.leg = r.leg and d.other = (
        select e.other
        from ranking_difference e
        join ranking_score u on u.ranking_id = e.ranking_id and u.predictor = e.other and u.leg = e.leg
            and u.slice = 'all' and u.is_rule
        where e.ranking_id = r.id and e.predictor = 'blend' and e.leg = r.leg and e.gain is not null
        order by e.gain, e.other
        limit 1
    )
left join ranking_portfolio p
    on p.ranking_id = r.id and p.span = 'test' and p.version = case
        when exists (select 1 from ranking_portfolio v where v.ranking_id = r.id and v.version = 'smoothed and banded')
        then 'smoothed and banded' else 'daily' end
