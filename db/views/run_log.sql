-- Trained models: one row per training run.
--
-- market           text       Name of the market.
-- run_id           text       Name of the training run.
-- kind             text       Purpose of the model: 'nightly', 'backtest' or 'benchmark'.
-- model            text       Kind of network: dtml, lstm, alstm, adv_alstm, stocknet, logistic_regression, gradient_boosting.
-- train_first      date       First session trained on.
-- train_last       date       Last session that the training could see.
-- seeds            json       Seeds of the ensemble, a JSON list.
-- config           json       Every setting of features, model and training, as JSON.
-- losses           json       Training history, per seed and epoch, as JSON.
-- code_version     text       Version of the code that trained the model.
-- data_watermark   timestamp  Latest known_at of the prices trained on, UTC.
-- checkpoint_hash  text       SHA-256 of the checkpoint; missing for a model that keeps no weights.
-- slope            number     Slope of the calibration: factor on the logit of the probability; missing if not calibrated.
-- intercept        number     Intercept of the calibration: calibrated logit of a probability of one half; missing if not calibrated.
-- created_at       timestamp  When training ended, UTC.
-- computed_by      text       Versions, processor and device that trained the model, which decide the last bits; missing if not recorded.
select
    market, id as run_id, kind, model, train_first, train_last, seeds, config, losses, code_version, data_watermark,
    checkpoint_hash, slope, intercept, created_at, computed_by
from run
