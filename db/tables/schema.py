"""The tables: what each row and each column means is in the comments, which the data dictionary prints.

Dates are sessions of the market's exchange. Timestamps are UTC. Missing is NULL, never 0.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    ForeignKey,
    Index,
    Integer,
    SmallInteger,
    String,
    Table,
    UniqueConstraint,
)

from db.tables.backtest_schema import (
    attention_weight,
    backtest,
    backtest_fold,
    backtest_portfolio,
    backtest_return,
    backtest_score,
)
from db.tables.benchmark_schema import benchmark, benchmark_member, benchmark_score
from db.tables.columns import REAL, UtcTimestamp, metadata
from db.tables.evidence_schema import band, band_count, calibration_bin, explanation, rule_call
from db.tables.service_schema import alert, price_fetch
from db.tables.translation_schema import translation_model, translation_progress, translation_score, translation_text

__all__ = [
    "REVISION",
    "alert",
    "attention_weight",
    "backtest",
    "backtest_fold",
    "backtest_portfolio",
    "backtest_return",
    "backtest_score",
    "band",
    "band_count",
    "benchmark",
    "benchmark_member",
    "benchmark_score",
    "calibration_bin",
    "explanation",
    "instrument",
    "membership",
    "metadata",
    "night",
    "outcome",
    "prediction",
    "price",
    "price_fetch",
    "refused_bar",
    "rule_call",
    "run",
    "score",
    "translation_model",
    "translation_progress",
    "translation_score",
    "translation_text",
]

# The newest Alembic revision, which a store must have; a test holds it to the migrations.
REVISION = "0001"


def _instrument() -> Column[Any]:
    return Column("instrument_id", ForeignKey("instrument.id"), primary_key=True, comment="The instrument.")


instrument = Table(
    "instrument",
    metadata,
    Column("id", Integer, primary_key=True, comment="Number given by the store."),
    Column("market", String, nullable=False, comment="Name of the market, such as sp500."),
    Column("symbol", String, nullable=False, comment="The market's own symbol."),
    Column("kind", String, nullable=False, comment="'stock', or 'index' for the market's index."),
    Column("source_symbol", String, nullable=False, comment="Symbol at the price source (Yahoo's spelling)."),
    Column("name", String, comment="Name of the company or index; missing when unknown."),
    Column("sector", String, comment="Sector; missing when unknown and for an index."),
    Column("asked_from", Date, comment="First session ever asked of a source; missing before the first answer."),
    UniqueConstraint("market", "symbol"),
    CheckConstraint("kind in ('stock', 'index')", name="kind"),
    comment="Stocks and indices, one row per market and symbol.",
)

membership = Table(
    "membership",
    metadata,
    _instrument(),
    Column("spell", Integer, primary_key=True, autoincrement=False, comment="1 for the first stay."),
    Column("valid_from", Date, comment="First session of the stay; missing when not known."),
    Column("valid_to", Date, comment="First day after the stay; missing while it lasts."),
    Column("source", String, nullable=False, comment="Where the list of constituents comes from, in words."),
    CheckConstraint("spell >= 1", name="spell"),
    CheckConstraint("valid_from <= valid_to", name="span"),
    comment="When each stock was a constituent of its market, as the market's file states it.",
    sqlite_with_rowid=False,
)

price = Table(
    "price",
    metadata,
    _instrument(),
    Column("session", Date, primary_key=True, comment="The session the bar belongs to."),
    Column("known_at", UtcTimestamp, primary_key=True, comment="When this version was fetched."),
    Column("open", REAL, comment="First price, in currency units, above 0; missing when not reported."),
    Column("high", REAL, comment="Highest price, in currency units, above 0; missing when not reported."),
    Column("low", REAL, comment="Lowest price, in currency units, above 0; missing when not reported."),
    Column("close", REAL, nullable=False, comment="Last price, in currency units, above 0."),
    Column(
        "adj_close",
        REAL,
        comment="Close adjusted for splits and dividends, above 0; missing when not reported.",
    ),
    Column("volume", REAL, comment="Shares traded, 0 or more, split-adjusted or not; missing when not reported."),
    Column("dividend", REAL, comment="Dividend per share gone ex, in currency units; missing when none."),
    Column("split", REAL, comment="New shares per old share on a split's day, above 0; missing when none."),
    Column("source", String, nullable=False, comment="Who reported the bar: yahoo, files, simulated."),
    CheckConstraint("open > 0 and high > 0 and low > 0 and close > 0 and adj_close > 0", name="prices"),
    CheckConstraint("volume >= 0 and dividend >= 0 and split > 0", name="amounts"),
    comment="Daily bars that passed the checks; a restated bar is a new row with a later known_at.",
    sqlite_with_rowid=False,
)

refused_bar = Table(
    "refused_bar",
    metadata,
    _instrument(),
    Column("session", Date, primary_key=True, comment="The session the bar claims."),
    Column("source", String, primary_key=True, comment="Who reported the bar."),
    Column("reason", String, primary_key=True, comment="The check it failed, such as high_below_low."),
    Column("value", String, nullable=False, comment="What was found, in words, such as open=0.0."),
    Column("first_known_at", UtcTimestamp, nullable=False, comment="When it was first fetched and refused."),
    comment="Bars that failed a check, one row per reason; they are in no price and no window.",
    sqlite_with_rowid=False,
)

run = Table(
    "run",
    metadata,
    Column("id", String, primary_key=True, comment="Name of the run."),
    Column("market", String, nullable=False, comment="Name of the market."),
    Column("kind", String, nullable=False, comment="Its purpose: 'nightly', 'backtest' or 'paper'."),
    Column(
        "model",
        String,
        nullable=False,
        comment="Kind of network: dtml, lstm, alstm, adv_alstm, stocknet, logistic_regression, gradient_boosting.",
    ),
    Column("config", JSON, nullable=False, comment="Every setting of features, model and training."),
    Column("seeds", JSON, nullable=False, comment="List of seeds, one per member of the ensemble."),
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
    Column("losses", JSON, nullable=False, comment="Training history, per member and epoch."),
    Column("slope", REAL, comment="Calibrated logit over the logit of the probability; missing if not calibrated."),
    Column("intercept", REAL, comment="Calibrated logit of a probability of one half; missing if not calibrated."),
    Column("train_first", Date, nullable=False, comment="First session trained on."),
    Column(
        "train_last", Date, nullable=False, comment="Session as of which it was trained: the last one it could see."
    ),
    Column("created_at", UtcTimestamp, nullable=False, comment="When training ended."),
    CheckConstraint("kind in ('nightly', 'backtest', 'paper')", name="kind"),
    CheckConstraint("train_first <= train_last", name="span"),
    Index(None, "market", "train_last"),
    comment="Trained models and all it takes to train them again.",
)

prediction = Table(
    "prediction",
    metadata,
    Column("run_id", ForeignKey("run.id"), primary_key=True, comment="The model that predicted."),
    Column("target", Date, primary_key=True, comment="Session predicted."),
    _instrument(),
    Column("as_of", Date, nullable=False, comment="Last session the model saw; always before target."),
    Column("probability", REAL, nullable=False, comment="Probability of a rise, 0 to 1; mean of the members."),
    Column("spread", REAL, comment="Standard deviation over the members; 0 with one, missing if not kept."),
    Column("known_at", UtcTimestamp, nullable=False, comment="Latest known_at of the prices it saw."),
    Column("made_at", UtcTimestamp, nullable=False, comment="When it was computed."),
    Column("calibrated", REAL, comment="The probability as calibrated on validation; missing if not kept."),
    Column("lowest", REAL, comment="Smallest probability among the members; missing if not kept."),
    Column("highest", REAL, comment="Largest probability among the members; missing if not kept."),
    Column("rising_share", REAL, comment="Share of the members above 0.5; missing if not kept."),
    CheckConstraint("probability >= 0 and probability <= 1", name="probability"),
    CheckConstraint("spread >= 0 and spread <= 1", name="spread"),
    CheckConstraint("as_of < target", name="dates"),
    Index(
        None,
        "instrument_id",
        "target",
        postgresql_include=["run_id", "as_of", "probability", "spread", "known_at", "made_at", "calibrated"],
    ),
    Index(None, "target"),
    Index(None, "as_of"),
    comment="Predictions, never rewritten: one row per run, session predicted and stock.",
    sqlite_with_rowid=False,
)

outcome = Table(
    "outcome",
    metadata,
    _instrument(),
    Column("session", Date, primary_key=True, comment="The session that was to be predicted."),
    Column(
        "move",
        REAL,
        nullable=False,
        comment="Adjusted close (close where there is none) over the one before, minus 1; 0.01 is 1 %.",
    ),
    Column("rise", Boolean, nullable=False, comment="Whether the move is above 0."),
    Column(
        "label",
        SmallInteger,
        nullable=False,
        comment="The paper's label: 1 from +0.55 % up, -1 from -0.5 % down, 0 between.",
    ),
    Column("known_at", UtcTimestamp, nullable=False, comment="Latest known_at of the prices it is from."),
    Column("recorded_at", UtcTimestamp, nullable=False, comment="When the row was last changed."),
    CheckConstraint("move > -1", name="move"),
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
    Column("acc", REAL, comment="Share of right calls, 0 to 1; missing when n is 0."),
    Column("acc_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing below 20 nights."),
    Column("acc_high", REAL, comment="Upper end of that interval; missing below 20 nights."),
    Column("mcc", REAL, comment="Matthews correlation, -1 to 1; missing when n is 0."),
    Column("mcc_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing below 20 nights."),
    Column("mcc_high", REAL, comment="Upper end of that interval; missing below 20 nights."),
    Column("scored_at", UtcTimestamp, nullable=False, comment="When the row was last changed."),
    CheckConstraint("span in ('night', 'running')", name="span"),
    CheckConstraint("protocol in ('paper', 'all')", name="protocol"),
    CheckConstraint("nights >= 0 and rises >= 0 and rises <= n", name="counts"),
    CheckConstraint("acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1", name="ranges"),
    comment="Accuracy and Matthews correlation of the predictions and of the naive rules.",
    sqlite_with_rowid=False,
)

night = Table(
    "night",
    metadata,
    Column("market", String, primary_key=True, comment="Name of the market."),
    Column("as_of", Date, primary_key=True, comment="Last closed session: the last one seen."),
    Column("target", Date, nullable=False, comment="The session after it: the one predicted."),
    Column("status", String, nullable=False, comment="'running', 'complete', 'complete_with_gaps' or 'refused'."),
    Column("reason", String, comment="Why it was refused; missing otherwise."),
    Column("run_id", ForeignKey("run.id"), comment="The model used; missing until there is one."),
    Column("source", String, nullable=False, comment="Where bars came from: yahoo, files, simulated."),
    Column("known_at", UtcTimestamp, comment="Latest known_at of the prices used; missing until known."),
    Column("fetched", Integer, comment="Bars the source returned; missing while running."),
    Column("stored", Integer, comment="Bars that were new or restated; missing while running."),
    Column("refused", Integer, comment="Bars refused; missing while running."),
    Column("predictions", Integer, comment="Stocks predicted; missing while running."),
    Column("gaps", JSON, comment="Stocks left out, a list of {symbol, reason}; missing while running."),
    Column("inputs_hash", String, comment="SHA-256 of the windows the model read; missing until it has."),
    Column("started_at", UtcTimestamp, nullable=False, comment="When the night began."),
    Column("finished_at", UtcTimestamp, comment="When it ended; missing while running."),
    CheckConstraint("status in ('running', 'complete', 'complete_with_gaps', 'refused')", name="status"),
    CheckConstraint("as_of < target", name="dates"),
    CheckConstraint(
        "fetched >= 0 and stored >= 0 and refused >= 0 and predictions >= 0",
        name="counts",
    ),
    comment="One row per market and night: how it ended and what it did.",
    sqlite_with_rowid=False,
)
