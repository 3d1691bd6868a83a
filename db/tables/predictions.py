"""Models, what they and the naive rules predicted, what happened, and the scores."""

from sqlalchemy import JSON, Boolean, CheckConstraint, Date, Index, Integer, PrimaryKeyConstraint, SmallInteger, String

from db.tables.columns import REAL, UtcTimestamp, belongs_to, key, optional, required, table, target, with_interval

run = table(
    "run",
    key("id", String, "Name of the run."),
    required("market", String, "Name of the market."),
    required("kind", String, "Its purpose: 'nightly', 'backtest' or 'benchmark'."),
    required("model", String, "Kind of model: dtml, lstm, adv_alstm, gradient_boosting and so on."),
    required("config", JSON, "Every setting of features, model and training."),
    optional("universe", JSON, "The index, and the constituents with their dates; missing for a benchmark."),
    required("seeds", JSON, "List of the ensemble's seeds."),
    required("code_version", String, "Version of the code that trained."),
    required("data_watermark", UtcTimestamp, "Latest known_at of the prices trained on."),
    optional("checkpoint_path", String, "File of the weights; missing for a model that keeps none."),
    optional("checkpoint_hash", String, "SHA-256 of the checkpoint; missing for a model that keeps none."),
    required("losses", JSON, "Training history, per seed and epoch."),
    optional("slope", REAL, "Calibrated logit over the logit of the probability; missing if not calibrated."),
    optional("intercept", REAL, "Calibrated logit of a probability of one half; missing if not calibrated."),
    required("train_first", Date, "First session trained on."),
    required("train_last", Date, "Session as of which it was trained: the last one it could see."),
    required("created_at", UtcTimestamp, "When training ended."),
    CheckConstraint("kind in ('nightly', 'backtest', 'benchmark')", name="kind"),
    CheckConstraint("train_first <= train_last", name="span"),
    Index(None, "market", "train_last"),
    comment="Trained models and all it takes to train them again.",
    with_rowid=True,
)

prediction = table(
    "prediction",
    belongs_to("run", "The model that predicted."),
    key("target", Date, "Session predicted."),
    belongs_to("instrument", "The instrument."),
    required("as_of", Date, "Last session the model saw; always before target."),
    required("probability", REAL, "Probability of a rise, 0 to 1; mean of the seeds."),
    optional("probability_std", REAL, "Standard deviation over the seeds; 0 with one, missing if not kept."),
    required("known_at", UtcTimestamp, "Latest known_at of the prices it saw."),
    required("made_at", UtcTimestamp, "When it was computed."),
    optional("calibrated", REAL, "The probability as calibrated on validation; missing if not kept."),
    optional("lowest", REAL, "Smallest probability among the seeds; missing if not kept."),
    optional("highest", REAL, "Largest probability among the seeds; missing if not kept."),
    optional("rising_share", REAL, "Share of the seeds above 0.5; missing if not kept."),
    CheckConstraint("probability >= 0 and probability <= 1", name="probability"),
    CheckConstraint("probability_std >= 0 and probability_std <= 1", name="probability_std"),
    CheckConstraint("as_of < target", name="dates"),
    Index(
        None,
        "instrument_id",
        "target",
        postgresql_include=["run_id", "as_of", "probability", "probability_std", "known_at", "made_at", "calibrated"],
    ),
    Index(None, "target"),
    Index(None, "as_of"),
    comment="Predictions, never rewritten: one row per run, session predicted and stock.",
)

rule_direction = table(
    "rule_direction",
    key("market", String, "Name of the market."),
    target(),
    required("as_of", Date, "Last session the rules saw; always before target."),
    required("always_up", Boolean, "Whether 'every stock rises' predicts a rise: always."),
    optional("index_reversal", Boolean, "Whether a fall of the index predicts a rise; missing without history."),
    optional(
        "index_below_mean20", Boolean, "Whether an index below its mean of 20 predicts a rise; missing without history."
    ),
    CheckConstraint("as_of < target", name="dates"),
    comment="The direction that each naive rule predicts for a session, for all stocks of a market at once.",
)

outcome = table(
    "outcome",
    belongs_to("instrument", "The instrument."),
    key("session", Date, "The session that was to be predicted."),
    required("realised_return", REAL, "Adjusted close, else close, over the one before, minus 1; 0.01 is 1 %."),
    required("rise", Boolean, "Whether the return is above 0."),
    required("label", SmallInteger, "The paper's label: 1 from +0.55 % up, -1 from -0.5 % down, 0 between."),
    required("known_at", UtcTimestamp, "Latest known_at of the prices it is from."),
    required("recorded_at", UtcTimestamp, "When the row was last changed."),
    PrimaryKeyConstraint("instrument_id", "session", postgresql_include=["realised_return", "rise", "label"]),
    CheckConstraint("realised_return > -1", name="realised_return"),
    CheckConstraint("label in (-1, 0, 1)", name="label"),
    comment="What happened to each predicted stock and session.",
)

score = table(
    "score",
    key("market", String, "Name of the market."),
    key("target", Date, "Session predicted; the last one of a running score."),
    key("span", String, "'night' for that session, 'running' for all up to it."),
    key("protocol", String, "'paper': labelled stock-days alone; 'all': every one."),
    key("predictor", String, "'dtml', or the name of a naive rule."),
    required("n", Integer, "Stock-days scored."),
    required("nights", Integer, "Sessions scored."),
    required("rises", Integer, "Stock-days that rose."),
    *with_interval("acc", "Share of correct directions, 0 to 1; missing when n is 0"),
    *with_interval("mcc", "Matthews correlation, -1 to 1; missing when n is 0"),
    *with_interval("model_gain", "The model's mcc less this rule's, same stock-days; missing but in running ones"),
    required("scored_at", UtcTimestamp, "When the row was last changed."),
    CheckConstraint("span in ('night', 'running')", name="span"),
    CheckConstraint("protocol in ('paper', 'all')", name="protocol"),
    CheckConstraint("nights >= 0 and rises >= 0 and rises <= n", name="counts"),
    CheckConstraint("acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1", name="ranges"),
    comment="Accuracy and Matthews correlation of the predictions and of the naive rules.",
)
