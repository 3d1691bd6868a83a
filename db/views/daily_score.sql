-- Scores of each night, and running scores of all nights so far: one row per market, session, label protocol and predictor.
--
-- market            text       Name of the market.
-- target            date       Session predicted.
-- protocol          text       'published': only stock-days with a published label; 'all': every stock-day.
-- predictor         text       'dtml', or the name of a naive rule.
-- n                 integer    Stock-days scored that night.
-- rises             integer    Stock-days scored that night on which the stock rose.
-- acc               number     Share of correct directions that night, 0 to 1; missing when n is 0.
-- mcc               number     Matthews correlation that night, -1 to 1; missing when n is 0.
-- running_nights    integer    Sessions scored up to and including this one.
-- running_n         integer    Stock-days scored up to and including this night.
-- running_acc       number     Share of correct directions over all stock-days scored so far, 0 to 1.
-- running_acc_low   number     Lower end of its day-resampled 95 % interval; missing below 20 nights.
-- running_acc_high  number     Upper end of that interval; missing below 20 nights.
-- running_mcc       number     Matthews correlation over all stock-days scored so far, -1 to 1.
-- running_mcc_low   number     Lower end of its day-resampled 95 % interval; missing below 20 nights.
-- running_mcc_high  number     Upper end of that interval; missing below 20 nights.
-- model_gain        number     The model's running_mcc minus that of this rule on the same stock-days; missing for the model.
-- model_gain_low    number     Lower end of its day-resampled 95 % interval; missing below 20 nights.
-- model_gain_high   number     Upper end of that interval; missing below 20 nights.
-- scored_at         timestamp  When the night's row was last changed, UTC.
select
    d.market, d.target, d.protocol, d.predictor, d.n, d.rises, d.acc, d.mcc,
    r.nights as running_nights, r.n as running_n, r.acc as running_acc, r.acc_low as running_acc_low,
    r.acc_high as running_acc_high, r.mcc as running_mcc, r.mcc_low as running_mcc_low,
    r.mcc_high as running_mcc_high, r.model_gain, r.model_gain_low, r.model_gain_high, d.scored_at
from score d
left join score r on r.market = d.market and r.target = d.target and r.span = 'running'
    and r.protocol = d.protocol and r.predictor = d.predictor
where d.span = 'night'
