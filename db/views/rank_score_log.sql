-- How well the rankers and the one-line rules ranked the stocks, on each night and over all nights so far: one row per session, span, return and predictor.
--
-- market            text       Name of the market.
-- target            date       Session for which the stocks were ranked.
-- span              text       'night' for the scores of that session alone, 'running' for those of all sessions up to it; running scores cover only the return that the market ranks by.
-- leg               text       Return scored: next_close, overnight, intraday, open_to_open, second_close, five_days, ten_days or twenty_days.
-- predictor         text       Name of a ranker, as in ranking_history, or of a one-line rule.
-- is_rule           integer    1 for a one-line rule, which needs no training, else 0.
-- days              integer    Sessions scored.
-- n                 integer    Stock-days scored.
-- rank_ic           number     Mean over days of Spearman's correlation of score and return; missing without a day.
-- rank_ic_low       number     Lower end of its day-resampled 95 % interval; missing below 20 nights.
-- rank_ic_high      number     Upper end of that interval; missing below 20 nights.
-- residual_ic       number     Mean over days of the correlation of the returns' ranks with what is left of the scores' ranks after least squares on those of all one-line rules; missing for a rule, and with fewer than ten stocks.
-- residual_ic_low   number     Lower end of its day-resampled 95 % interval; missing below 20 nights.
-- residual_ic_high  number     Upper end of that interval; missing below 20 nights.
-- upper_ic          number     Mean rank IC among the stocks in the upper half of their day's ranking; missing with fewer than five there.
-- lower_ic          number     Mean rank IC among the stocks in the lower half of their day's ranking; missing with fewer than five there.
-- t                 number     Mean daily rank IC divided by its Newey-West standard error; missing below 2 days.
-- auc               number     Share of same-day pairs (one above, one below the median) that are ranked correctly; missing without a day.
-- acc               number     Share of stocks correctly predicted to be above or below the day's median; missing without a day.
-- decile_spread     number     Mean daily return of the top decile minus that of the bottom decile, 0.01 is 1 %; missing without a day.
-- scored_at         timestamp  When the row was last changed, UTC.
select
    market, target, span, leg, predictor, case when is_rule then 1 else 0 end as is_rule, days, n, rank_ic,
    rank_ic_low, rank_ic_high, residual_ic, residual_ic_low, residual_ic_high, upper_ic, lower_ic, t, auc, acc, decile_spread, scored_at
from rank_score
