"""Models, what they and the naive rules predicted, what happened, and the scores."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
)

from db.tables.columns import REAL, UtcTimestamp, instrument_id, metadata, target

run = Table(
    "run",
    metadata,
    Column("id", String, primary_key=True, comment="Name of the run."),
    Column("market", String, nullable=False, comment="Name of the market."),
    Column("kind", String, nullable=False, comment="Its purpose: 'nightly', 'backtest' or 'benchmark'."),
    Column(
        "model",
        String,
        nullable=False,
        comment="Kind of network: dtml, lstm, alstm, adv_alstm, stocknet, logistic_regression, gradient_boosting.",
    ),
    Column("config", JSON, nullable=False, comment="Every setting of features, model and training."),
    Column(
        "universe",
        JSON,
        comment="Symbol of the index, and the constituents with their dates, as trained on; missing for a benchmark.",
    ),
    Column("seeds", JSON, nullable=False, comment="List of the ensemble's seeds."),
    Column("code_version", String, nullable=False, comment="Version of the code that trained."),
    Column("data_watermark", UtcTimestamp, nullable=False, comment="Latest known_at of the prices trained on."),
    Column(
        "checkpoint_path",
        String,
        comment="Folder of the weights; missing for a model that keeps no weights, such as gradient boosting.",
    ),
    Column(
        "checkpoint_hash",
        String,
        comment="SHA-256 of the checkpoint; missing for a model that keeps no weights, such as gradient boosting.",
    ),
    Column("losses", JSON, nullable=False, comment="Training history, per seed and epoch."),
    Column("slope", REAL, comment="Calibrated logit over the logit of the probability; missing if not calibrated."),
    Column("intercept", REAL, comment="Calibrated logit of a probability of one half; missing if not calibrated."),
    Column("train_first", Date, nullable=False, comment="First session trained on."),
    Column(
        "train_last", Date, nullable=False, comment="Session as of which it was trained: the last one it could see."
    ),
    Column("created_at", UtcTimestamp, nullable=False, comment="When training ended."),
    CheckConstraint("kind in ('nightly', 'backtest', 'benchmark')", name="kind"),
    CheckConstraint("train_first <= train_last", name="span"),
    Index(None, "market", "train_last"),
    comment="Trained models and all it takes to train them again.",
)

prediction = Table(
    "prediction",
    metadata,
    Column("run_id", ForeignKey("run.id"), primary_key=True, comment="The model that predicted."),
    Column("target", Date, primary_key=True, comment="Session predicted."),
    instrument_id(),
    Column("as_of", Date, nullable=False, comment="Last session the model saw; always before target."),
    Column("probability", REAL, nullable=False, comment="Probability of a rise, 0 to 1; mean of the seeds."),
    Column("probability_std", REAL, comment="Standard deviation over the seeds; 0 with one, missing if not kept."),
    Column("known_at", UtcTimestamp, nullable=False, comment="Latest known_at of the prices it saw."),
    Column("made_at", UtcTimestamp, nullable=False, comment="When it was computed."),
    Column("calibrated", REAL, comment="The probability as calibrated on validation; missing if not kept."),
    Column("lowest", REAL, comment="Smallest probability among the seeds; missing if not kept."),
    Column("highest", REAL, comment="Largest probability among the seeds; missing if not kept."),
    Column("rising_share", REAL, comment="Share of the seeds above 0.5; missing if not kept."),
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
    sqlite_with_rowid=False,
)

rule_direction = Table(
    "rule_direction",
    metadata,
    Column("market", String, primary_key=True, comment="Name of the market."),
    target(),
    Column("as_of", Date, nullable=False, comment="Last session the rules saw; always before target."),
    Column("always_up", Boolean, nullable=False, comment="Whether 'every stock rises' predicts a rise: always."),
    Column("index_reversal", Boolean, comment="Whether a fall of the index predicts a rise; missing without history."),
    Column(
        "index_below_mean20",
        Boolean,
        comment="Whether an index below its mean of 20 sessions predicts a rise; missing without history.",
    ),
    CheckConstraint("as_of < target", name="dates"),
    comment="The direction that each naive rule predicts for a session, for all stocks of a market at once.",
    sqlite_with_rowid=False,
)

outcome = Table(
    "outcome",
    metadata,
    instrument_id(),
    Column("session", Date, primary_key=True, comment="The session that was to be predicted."),
    Column(
        "realised_return",
        REAL,
        nullable=False,
        comment="Adjusted close (close where there is none) over the one before, minus 1; 0.01 is 1 %.",
    ),
    Column("rise", Boolean, nullable=False, comment="Whether the return is above 0."),
    Column(
        "label",
        SmallInteger,
        nullable=False,
        comment="The paper's label: 1 from +0.55 % up, -1 from -0.5 % down, 0 between.",
    ),
    Column("known_at", UtcTimestamp, nullable=False, comment="Latest known_at of the prices it is from."),
    Column("recorded_at", UtcTimestamp, nullable=False, comment="When the row was last changed."),
    PrimaryKeyConstraint("instrument_id", "session", postgresql_include=["realised_return", "rise", "label"]),
    CheckConstraint("realised_return > -1", name="realised_return"),
    CheckConstraint("label in (-1, 0, 1)", name="label"),
    comment="What happened to each predicted stock and session.",
    sqlite_with_rowid=False,
)

score = Table(
    "score",
    metadata,
    Column("market", String, primary_key=True, comment="Name of the market."),
    Column("target", Date, primary_key=True, comment="Session predicted; the last one of a running score."),
    Column("span", String, primary_key=True, comment="'night' for that session, 'running' for all up to it."),
    Column("protocol", String, primary_key=True, comment="'paper': labelled stock-days alone; 'all': every one."),
    Column("predictor", String, primary_key=True, comment="'dtml', or the name of a naive rule."),
    Column("n", Integer, nullable=False, comment="Stock-days scored."),
    Column("nights", Integer, nullable=False, comment="Sessions scored."),
    Column("rises", Integer, nullable=False, comment="Stock-days that rose."),
    Column("acc", REAL, comment="Share of correct directions, 0 to 1; missing when n is 0."),
    Column("acc_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing below 20 nights."),
    Column("acc_high", REAL, comment="Upper end of that interval; missing below 20 nights."),
    Column("mcc", REAL, comment="Matthews correlation, -1 to 1; missing when n is 0."),
    Column("mcc_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing below 20 nights."),
    Column("mcc_high", REAL, comment="Upper end of that interval; missing below 20 nights."),
    Column(
        "model_gain",
        REAL,
        comment="The model's mcc less this rule's, same stock-days; missing but in running ones.",
    ),
    Column("model_gain_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing below 20 nights."),
    Column("model_gain_high", REAL, comment="Upper end of that interval; missing below 20 nights."),
    Column("scored_at", UtcTimestamp, nullable=False, comment="When the row was last changed."),
    CheckConstraint("span in ('night', 'running')", name="span"),
    CheckConstraint("protocol in ('paper', 'all')", name="protocol"),
    CheckConstraint("nights >= 0 and rises >= 0 and rises <= n", name="counts"),
    CheckConstraint("acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1", name="ranges"),
    comment="Accuracy and Matthews correlation of the predictions and of the naive rules.",
    sqlite_with_rowid=False,
)
