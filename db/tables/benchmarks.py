"""The published experiment: what was fixed beforehand, its figures, and the distribution behind them."""

from sqlalchemy import JSON, Boolean, CheckConstraint, Date, ForeignKey, Integer, String

from db.tables.columns import REAL, UtcTimestamp, belongs_to, key, optional, required, table, with_interval

_PRINTED = "in print (Yoo et al., KDD 2021, table 2)"


benchmark = table(
    "benchmark",
    key("id", String, "Name of the benchmark, such as acl18-1a2b3c4d."),
    required("market", String, "Name of the market."),
    required("title", String, "What was compared, in words."),
    required("config", JSON, "Every setting of every predictor."),
    required("code_version", String, "Version of the code that trained and scored."),
    required("data_watermark", UtcTimestamp, "Latest known_at of the prices used."),
    required("stocks", Integer, "Stocks predicted."),
    required("train_first", Date, "First session predicted in training."),
    required("train_last", Date, "Last session predicted in training."),
    required("validation_first", Date, "First session of validation, which chooses."),
    required("validation_last", Date, "Last session of validation."),
    required("test_first", Date, "First session of the test."),
    required("test_last", Date, "Last session of the test."),
    required("best_rule", String, "The naive rule chosen on the training span alone."),
    optional("seconds", REAL, "Time of the trainings, in seconds; missing when not measured."),
    required("device", String, "What the trainings ran on, such as cpu."),
    required("test_read_at", UtcTimestamp, "When the test span was read: once."),
    CheckConstraint(
        "train_first <= train_last and train_last < validation_first and validation_first <= validation_last"
        " and validation_last < test_first and test_first <= test_last",
        name="spans",
    ),
    CheckConstraint("stocks >= 1 and seconds >= 0", name="counts"),
    comment="Benchmarks: every predictor on the same spans, the test span read once.",
    with_rowid=True,
)

benchmark_score = table(
    "benchmark_score",
    belongs_to("benchmark", "The benchmark."),
    key("predictor", String, "Name of the model or of the naive rule."),
    key("protocol", String, "'paper': labelled stock-days alone; 'all': every one."),
    optional("run_id", ForeignKey("run.id"), "The ensemble scored; missing for a naive rule."),
    required("is_rule", Boolean, "Whether it is a naive rule, which trains nothing."),
    required("days", Integer, "Sessions scored."),
    required("n", Integer, "Stock-days scored."),
    required("rises", Integer, "Stock-days that rose."),
    optional("seeds", Integer, "Seeds of the ensemble; missing for a naive rule."),
    optional("configurations", Integer, "Configurations tried on validation; missing for a naive rule."),
    optional("acc_mean", REAL, "Mean over the seeds of the share of correct directions; missing for a rule."),
    optional("acc_sd", REAL, "Its standard deviation; missing for a rule and for one seed."),
    optional("mcc_mean", REAL, "Mean over the seeds of the Matthews correlation; missing for a rule."),
    optional("mcc_sd", REAL, "Its standard deviation; missing for a rule and for one seed."),
    *with_interval("acc", "Share of correct directions of the ensemble or rule, 0 to 1; missing when n is 0"),
    *with_interval("mcc", "Matthews correlation of the same directions, -1 to 1; missing when n is 0"),
    *with_interval("acc_gain", "acc less that of best_rule on the same days; missing for best_rule", kind="paired"),
    *with_interval("mcc_gain", "mcc less that of best_rule on the same days; missing for best_rule", kind="paired"),
    *with_interval("brier", "Mean squared error of the probability, 0 to 1; missing for a rule"),
    optional("calibration_slope", REAL, "Slope of the rises on the log-odds: 1 is calibrated; missing for a rule."),
    optional("calibration_intercept", REAL, "Its intercept: 0 is calibrated; missing for a rule."),
    optional(
        "auc",
        REAL,
        "Within-day skill: share of same-day pairs (riser, faller) in which the riser got the higher"
        " probability, 0.5 is none; missing for a rule.",
    ),
    optional("auc_low", REAL, "Lower end of its day-resampled 95 % interval; missing with auc."),
    optional("auc_high", REAL, "Upper end of that interval; missing with auc."),
    optional(
        "same_direction", REAL, "Mean over days of the larger share with one direction, 0.5 to 1; missing when n is 0."
    ),
    optional("published_acc", REAL, f"acc_mean {_PRINTED}, of 10 seeds; missing when not there."),
    optional("published_acc_sd", REAL, f"acc_sd {_PRINTED}, of 10 seeds; missing when not there."),
    optional("published_mcc", REAL, f"mcc_mean {_PRINTED}, of 10 seeds; missing when not there."),
    optional("published_mcc_sd", REAL, f"mcc_sd {_PRINTED}, of 10 seeds; missing when not there."),
    CheckConstraint("protocol in ('paper', 'all')", name="protocol"),
    CheckConstraint("days >= 0 and rises >= 0 and rises <= n and seeds >= 0 and configurations >= 0", name="counts"),
    CheckConstraint(
        "acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1 and brier >= 0 and brier <= 1 and auc >= 0 and auc <= 1",
        name="ranges",
    ),
    comment="Figures of a benchmark on its test span: one row per predictor and protocol.",
)

benchmark_seed = table(
    "benchmark_seed",
    belongs_to("benchmark", "The benchmark."),
    key("predictor", String, "Name of the model."),
    key("configuration", Integer, "Number of the configuration."),
    key("seed", Integer, "Seed of the training."),
    required("settings", JSON, "What this configuration sets."),
    required("kept", Boolean, "Whether this configuration was chosen on validation."),
    optional("best_epoch", Integer, "Epoch kept; missing for a model without epochs."),
    optional("validation_acc", REAL, "Share of correct directions on validation, 0 to 1; missing if not scored."),
    optional("validation_loss", REAL, "Loss on validation; missing if not computed."),
    optional("acc", REAL, "Share of correct directions on the test, the paper's labels; missing if not scored."),
    optional("mcc", REAL, "Matthews correlation of the same directions, -1 to 1; missing if not scored."),
    CheckConstraint("acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1", name="ranges"),
    CheckConstraint("validation_acc >= 0 and validation_acc <= 1", name="validation"),
    comment="One row a seed and configuration: the whole distribution, never the best test figure.",
)
