"""The published experiment: what was fixed beforehand, its figures, and the distribution behind them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    ForeignKey,
    Integer,
    String,
    Table,
)

from db.tables.columns import REAL, UtcTimestamp, metadata

_PRINTED = "in print (Yoo et al., KDD 2021, table 2)"


def _benchmark() -> Column[Any]:
    return Column("benchmark_id", ForeignKey("benchmark.id"), primary_key=True, comment="The benchmark.")


benchmark = Table(
    "benchmark",
    metadata,
    Column("id", String, primary_key=True, comment="Name of the benchmark, such as acl18-1a2b3c4d."),
    Column("market", String, nullable=False, comment="Name of the market."),
    Column("title", String, nullable=False, comment="What was compared, in words."),
    Column("config", JSON, nullable=False, comment="Every setting of every predictor."),
    Column("code_version", String, nullable=False, comment="Version of the code that trained and scored."),
    Column("data_watermark", UtcTimestamp, nullable=False, comment="Latest known_at of the prices used."),
    Column("stocks", Integer, nullable=False, comment="Stocks predicted."),
    Column("train_first", Date, nullable=False, comment="First session predicted in training."),
    Column("train_last", Date, nullable=False, comment="Last session predicted in training."),
    Column("validation_first", Date, nullable=False, comment="First session of validation, which chooses."),
    Column("validation_last", Date, nullable=False, comment="Last session of validation."),
    Column("test_first", Date, nullable=False, comment="First session of the test."),
    Column("test_last", Date, nullable=False, comment="Last session of the test."),
    Column("best_rule", String, nullable=False, comment="The naive rule chosen on the training span alone."),
    Column("seconds", REAL, comment="Time of the trainings, in seconds; missing when not measured."),
    Column("device", String, nullable=False, comment="What the trainings ran on, such as cpu."),
    Column("test_read_at", UtcTimestamp, nullable=False, comment="When the test span was read: once."),
    CheckConstraint(
        "train_first <= train_last and train_last < validation_first and validation_first <= validation_last"
        " and validation_last < test_first and test_first <= test_last",
        name="spans",
    ),
    CheckConstraint("stocks >= 1 and seconds >= 0", name="counts"),
    comment="Benchmarks: every predictor on the same spans, the test span read once.",
)

benchmark_score = Table(
    "benchmark_score",
    metadata,
    _benchmark(),
    Column("predictor", String, primary_key=True, comment="Name of the model or of the naive rule."),
    Column("protocol", String, primary_key=True, comment="'paper': labelled stock-days alone; 'all': every one."),
    Column("run_id", ForeignKey("run.id"), comment="The ensemble scored; missing for a naive rule."),
    Column("is_rule", Boolean, nullable=False, comment="Whether it is a naive rule, which trains nothing."),
    Column("days", Integer, nullable=False, comment="Sessions scored."),
    Column("n", Integer, nullable=False, comment="Stock-days scored."),
    Column("rises", Integer, nullable=False, comment="Stock-days that rose."),
    Column("seeds", Integer, comment="Seeds of the ensemble; missing for a naive rule."),
    Column("configurations", Integer, comment="Configurations tried on validation; missing for a naive rule."),
    Column("acc_mean", REAL, comment="Mean over the seeds of the share of correct directions; missing for a rule."),
    Column("acc_sd", REAL, comment="Its standard deviation; missing for a rule and for one seed."),
    Column("mcc_mean", REAL, comment="Mean over the seeds of the Matthews correlation; missing for a rule."),
    Column("mcc_sd", REAL, comment="Its standard deviation; missing for a rule and for one seed."),
    Column("acc", REAL, comment="Share of correct directions of the ensemble or rule, 0 to 1; missing when n is 0."),
    Column("acc_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing with too few days."),
    Column("acc_high", REAL, comment="Upper end of that interval; missing with too few days."),
    Column("mcc", REAL, comment="Matthews correlation of the same directions, -1 to 1; missing when n is 0."),
    Column("mcc_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing with too few days."),
    Column("mcc_high", REAL, comment="Upper end of that interval; missing with too few days."),
    Column("acc_gain", REAL, comment="acc minus that of best_rule on the same days; missing for best_rule itself."),
    Column("acc_gain_low", REAL, comment="Lower end of its paired 95 % interval; missing with acc_gain."),
    Column("acc_gain_high", REAL, comment="Upper end of that interval; missing with acc_gain."),
    Column("mcc_gain", REAL, comment="mcc minus that of best_rule on the same days; missing for best_rule itself."),
    Column("mcc_gain_low", REAL, comment="Lower end of its paired 95 % interval; missing with mcc_gain."),
    Column("mcc_gain_high", REAL, comment="Upper end of that interval; missing with mcc_gain."),
    Column("brier", REAL, comment="Mean squared error of the probability, 0 to 1; missing for a rule."),
    Column("brier_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing with brier."),
    Column("brier_high", REAL, comment="Upper end of that interval; missing with brier."),
    Column(
        "calibration_slope", REAL, comment="Slope of the rises on the log-odds: 1 is calibrated; missing for a rule."
    ),
    Column("calibration_intercept", REAL, comment="Its intercept: 0 is calibrated; missing for a rule."),
    Column(
        "auc",
        REAL,
        comment="Within-day skill: share of same-day pairs (riser, faller) in which the riser got the higher"
        " probability, 0.5 is none; missing for a rule.",
    ),
    Column("auc_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing with auc."),
    Column("auc_high", REAL, comment="Upper end of that interval; missing with auc."),
    Column(
        "same_direction",
        REAL,
        comment="Mean over days of the larger share of stocks with one direction, 0.5 to 1; missing when n is 0.",
    ),
    Column("published_acc", REAL, comment=f"acc_mean {_PRINTED}, of 10 seeds; missing when not there."),
    Column("published_acc_sd", REAL, comment=f"acc_sd {_PRINTED}, of 10 seeds; missing when not there."),
    Column("published_mcc", REAL, comment=f"mcc_mean {_PRINTED}, of 10 seeds; missing when not there."),
    Column("published_mcc_sd", REAL, comment=f"mcc_sd {_PRINTED}, of 10 seeds; missing when not there."),
    CheckConstraint("protocol in ('paper', 'all')", name="protocol"),
    CheckConstraint(
        "days >= 0 and rises >= 0 and rises <= n and seeds >= 0 and configurations >= 0",
        name="counts",
    ),
    CheckConstraint(
        "acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1 and brier >= 0 and brier <= 1 and auc >= 0 and auc <= 1",
        name="ranges",
    ),
    comment="Figures of a benchmark on its test span: one row per predictor and protocol.",
    sqlite_with_rowid=False,
)

benchmark_seed = Table(
    "benchmark_seed",
    metadata,
    _benchmark(),
    Column("predictor", String, primary_key=True, comment="Name of the model."),
    Column("configuration", Integer, primary_key=True, autoincrement=False, comment="Number of the configuration."),
    Column("seed", Integer, primary_key=True, autoincrement=False, comment="Seed of the training."),
    Column("settings", JSON, nullable=False, comment="What this configuration sets."),
    Column("kept", Boolean, nullable=False, comment="Whether this configuration was chosen on validation."),
    Column("best_epoch", Integer, comment="Epoch kept; missing for a model without epochs."),
    Column("validation_acc", REAL, comment="Share of correct directions on validation, 0 to 1; missing if not scored."),
    Column("validation_loss", REAL, comment="Loss on validation; missing if not computed."),
    Column(
        "acc",
        REAL,
        comment="Share of correct directions on the test, the paper's labels, 0 to 1; missing if not scored.",
    ),
    Column("mcc", REAL, comment="Matthews correlation of the same directions, -1 to 1; missing if not scored."),
    CheckConstraint("acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1", name="ranges"),
    CheckConstraint("validation_acc >= 0 and validation_acc <= 1", name="validation"),
    comment="One row a seed and configuration: the whole distribution, never the best test figure.",
    sqlite_with_rowid=False,
)
