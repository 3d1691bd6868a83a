-- Backtest results: one row per backtest and portfolio, with the scores of the model and of the best naive rule.
--
-- market             text       Name of the market.
-- backtest_id        text       The backtest: a row of backtest.
-- first              date       First session predicted.
-- last               date       Last session predicted.
-- retrain_every      integer    Sessions predicted by each model, 1 or more.
-- portfolio          text       Name of the portfolio, such as 'long, next open'.
-- days               integer    Number of sessions in which the portfolio was held.
-- annual_return      number     Compound net return a year, 0.01 is 1 %; missing with too few days.
-- annual_volatility  number     Standard deviation of the net return, a year; missing with too few days.
-- sharpe             number     Annual Sharpe ratio of the net return, no risk-free rate; missing with too few days.
-- sharpe_low         number     Lower end of its day-resampled 95 % interval; missing with too few days.
-- sharpe_high        number     Upper end of that interval; missing with too few days.
-- index_gain         number     Sharpe ratio minus that of the index on the same sessions; missing without the index.
-- index_gain_low     number     Lower end of its day-resampled 95 % interval; missing with too few days.
-- index_gain_high    number     Upper end of that interval; missing with too few days.
-- deflated_sharpe    number     Probability that the true Sharpe ratio exceeds the best that chance would produce among all portfolios tried, 0 to 1 (Bailey and Lopez de Prado, 2014); missing for the index and equal weight, or with too few days.
-- tried              integer    Number of portfolios that backtests of this market have tried so far, including those of this backtest.
-- expected_best      number     Annual Sharpe ratio to expect of the best of `tried` portfolios if none of them had skill.
-- max_drawdown       number     Largest fall of net equity from a peak, -0.01 is 1 %; missing with too few days.
-- hit_rate           number     Share of sessions with a net return above 0, 0 to 1; missing with too few days.
-- turnover           number     Mean value traded per session, as a share of equity; missing with too few days.
-- break_even         number     Cost at which the net return is 0, in basis points of value traded; missing when nothing was traded.
-- settled            integer    Number of positions sold at the last price before an unexplained price move, such as that of a rejected bar.
-- unbooked           number     Total return that these moves would have added, as a fraction of equity; 0.01 is 1 %.
-- n                  integer    Stock-days scored; missing when the model was not scored.
-- acc                number     Share of correct directions of the model on every stock-day, 0 to 1; missing when not scored.
-- acc_low            number     Lower end of its day-resampled 95 % interval; missing with too few days.
-- acc_high           number     Upper end of that interval; missing with too few days.
-- mcc                number     Matthews correlation of the same directions, -1 to 1; missing when not scored.
-- mcc_low            number     Lower end of its day-resampled 95 % interval; missing with too few days.
-- mcc_high           number     Upper end of that interval; missing with too few days.
-- best_rule          text       The naive rule with the highest mcc on the same stock-days, chosen in hindsight; missing without one.
-- rule_acc           number     Share of correct directions of that rule, 0 to 1; missing without one.
-- rule_acc_low       number     Lower end of its day-resampled 95 % interval; missing with too few days.
-- rule_acc_high      number     Upper end of that interval; missing with too few days.
-- rule_mcc           number     Matthews correlation of that rule, -1 to 1; missing without one.
-- rule_mcc_low       number     Lower end of its day-resampled 95 % interval; missing with too few days.
-- rule_mcc_high      number     Upper end of that interval; missing with too few days.
-- model_gain         number     The model's mcc minus that of the rule on the same stock-days; missing without one.
-- model_gain_low     number     Lower end of its day-resampled 95 % interval; missing with too few days.
-- model_gain_high    number     Upper end of that interval; missing with too few days.
-- seconds            number     Total time of the backtest, in seconds.
-- finished_at        timestamp  When its figures were stored, UTC.
select
    b.market, p.backtest_id, b.first, b.last, b.retrain_every, p.portfolio, p.days, p.annual_return,
    p.annual_volatility, p.sharpe, p.sharpe_low, p.sharpe_high, p.index_gain, p.index_gain_low, p.index_gain_high, p.deflated_sharpe, b.tried,
    b.expected_best, p.max_drawdown,
    p.hit_rate, p.turnover, p.break_even, p.settled, p.unbooked, d.n, d.acc, d.acc_low, d.acc_high, d.mcc, d.mcc_low, d.mcc_high,
    r.predictor as best_rule, r.acc as rule_acc, r.acc_low as rule_acc_low, r.acc_high as rule_acc_high,
    r.mcc as rule_mcc, r.mcc_low as rule_mcc_low, r.mcc_high as rule_mcc_high, r.model_gain, r.model_gain_low,
    r.model_gain_high, b.seconds, b.finished_at
from backtest_portfolio p
join backtest b on b.id = p.backtest_id
left join backtest_score d on d.backtest_id = b.id and d.slice = 'all' and d.protocol = 'all'
    and d.predictor = 'dtml'
left join backtest_score r on r.backtest_id = b.id and r.slice = 'all' and r.protocol = 'all'
    and r.predictor = (
        select s.predictor
        from backtest_score s
        where s.backtest_id = b.id and s.slice = 'all' and s.protocol = 'all' and s.predictor <> 'dtml'
            and s.mcc is not null
        order by s.mcc desc, s.predictor
        limit 1
    )
