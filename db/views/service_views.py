"""The views of a service: fetches, alerts, models."""

from types import MappingProxyType
from typing import Final

from db.tables.columns import meaning

FETCH_LOG = """
create view fetch_log as
select market, as_of, source, asked, fetched, stored, refused, restated, failures, known_at
from price_fetch
"""

ALERT_LOG = """
create view alert_log as
select market, as_of, kind, message, raised_at, sent_at
from alert
"""

MODEL = """
create view model as
select
    market, id as run_id, kind, model, train_first, train_last, seeds, config, code_version, data_watermark,
    checkpoint_hash, slope, intercept, created_at
from run
"""

SERVICE_VIEW_SQL: Final = MappingProxyType({"fetch_log": FETCH_LOG, "alert_log": ALERT_LOG, "model": MODEL})

SERVICE_VIEW_COLUMNS: Final = MappingProxyType(
    {
        "fetch_log": {
            **meaning("market"),
            "as_of": "Session up to which the store was to be brought.",
            "source": "Who was asked: yahoo, files, simulated.",
            "asked": "Symbols asked for.",
            "fetched": "Bars the source returned.",
            "stored": "Bars that were new or restated.",
            "refused": "Findings against bars, one for each check failed.",
            "restated": "Symbols whose whole history was fetched anew, a JSON list.",
            "failures": "Symbols without an answer, a JSON list of {symbol, status, detail}.",
            "known_at": "When its bars were known, UTC; later than the fetch before.",
        },
        "alert_log": {
            **meaning("market"),
            "as_of": "The night it is about.",
            "kind": "'refused', 'late' or 'below_rule'.",
            "message": "What happened, in words.",
            "raised_at": "When it was noticed, UTC.",
            "sent_at": "When a webhook took it, UTC; missing without one, or until it does.",
        },
        "model": {
            **meaning("market"),
            "run_id": "Name of the run that trained it.",
            "kind": "Its purpose: 'nightly', 'backtest' or 'paper'.",
            "model": "Kind of network: dtml, lstm, alstm, adv_alstm, stocknet, logistic_regression, gradient_boosting.",
            "train_first": "First session trained on.",
            "train_last": "Session as of which it was trained: the last one it could see.",
            "seeds": "Seeds, one per member of the ensemble, a JSON list.",
            "config": "Every setting of features, model and training, as JSON.",
            "code_version": "Version of the code that trained.",
            "data_watermark": "Latest known_at of the prices trained on, UTC.",
            "checkpoint_hash": "SHA-256 of the checkpoint; missing for a model that keeps no weights.",
            "slope": "Calibrated logit over the logit of the probability; missing if not calibrated.",
            "intercept": "Calibrated logit of a probability of one half; missing if not calibrated.",
            "created_at": "When training ended, UTC.",
        },
    }
)
