"""The paper's benchmark; runs of models that keep no weights.

Frozen: db/schema.py and db/views.py say what holds today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TEXT = sa.String()
REAL = sa.Float(53)
MOMENT = sa.DateTime(timezone=True)

RUN_SCORE = """
create view run_score as
select
    b.market, s.benchmark_id, s.predictor, s.protocol, b.test_first, b.test_last, s.days, s.n, s.seeds,
    s.configurations, s.acc_mean, s.acc_sd, s.acc, s.acc_low, s.acc_high, s.mcc_mean, s.mcc_sd, s.mcc, s.mcc_low,
    s.mcc_high, s.acc_gain, s.acc_gain_low, s.acc_gain_high, s.mcc_gain, s.mcc_gain_low, s.mcc_gain_high, s.auc,
    s.auc_low, s.auc_high, s.brier, s.same_call,
    case when s.is_rule then 1 else 0 end as is_rule,
    case when s.is_rule and s.predictor = b.best_rule then 1 else 0 end as is_best_rule,
    s.published_acc, s.published_mcc, s.run_id, b.test_read_at
from benchmark_score s
join benchmark b on b.id = s.benchmark_id
"""

BENCHMARK_CONFIGURATION = """
create view benchmark_configuration as
select
    b.market, c.benchmark_id, c.predictor, c.configuration, m.settings,
    case when m.kept then 1 else 0 end as kept,
    c.seeds, c.validation_acc, c.acc_mean, c.acc_min, c.acc_max, c.mcc_mean, c.mcc_min, c.mcc_max
from (
    select
        benchmark_id, predictor, configuration, min(seed) as first_seed, count(*) as seeds,
        avg(validation_acc) as validation_acc, avg(acc) as acc_mean, min(acc) as acc_min, max(acc) as acc_max,
        avg(mcc) as mcc_mean, min(mcc) as mcc_min, max(mcc) as mcc_max
    from benchmark_member
    group by benchmark_id, predictor, configuration
) as c
join benchmark_member m on m.benchmark_id = c.benchmark_id and m.predictor = c.predictor
    and m.configuration = c.configuration and m.seed = c.first_seed
join benchmark b on b.id = c.benchmark_id
"""

MODEL = "Kind of network: dtml, lstm, alstm, adv_alstm, stocknet, logistic_regression, gradient_boosting."
PATH, SHA = "Folder of the weights", "SHA-256 of the checkpoint"
NONE_KEPT = "; missing for a model that keeps no weights, such as gradient boosting."


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        _rebuild_run(weightless=True)
    else:
        _alter_run(weightless=True)
    _create_benchmark()
    _create_scores()
    _create_members()
    op.execute(RUN_SCORE)
    op.execute(BENCHMARK_CONFIGURATION)


def downgrade() -> None:
    """Refused by the store while it holds a run without weights: the older schema has no place for it."""
    op.execute("drop view benchmark_configuration")
    op.execute("drop view run_score")
    for table in ("benchmark_member", "benchmark_score", "benchmark"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "sqlite":
        _rebuild_run(weightless=False)
    else:
        _alter_run(weightless=False)


def _alter_run(*, weightless: bool) -> None:
    for column, meaning in (("checkpoint_path", PATH), ("checkpoint_hash", SHA)):
        comment = meaning + (NONE_KEPT if weightless else ".")
        op.alter_column("run", column, existing_type=TEXT, nullable=weightless, comment=comment)
    if not weightless:
        op.drop_column("run", "model")
        return
    op.add_column("run", sa.Column("model", TEXT, nullable=False, server_default="dtml", comment=MODEL))
    op.alter_column("run", "model", existing_type=TEXT, server_default=None)


def _rebuild_run(*, weightless: bool) -> None:
    """SQLite cannot alter a column: make the table again under its name, so that views and foreign keys hold.

    Renaming would carry the foreign keys of prediction and night along. They are checked when the migration
    ends, when every row they name is back.
    """
    op.execute("pragma defer_foreign_keys = on")
    op.execute("create temporary table run_kept as select * from run")
    op.drop_table("run")
    model = [sa.Column("model", TEXT, nullable=False, comment=MODEL)] if weightless else []
    ending = NONE_KEPT if weightless else "."
    table = op.create_table(
        "run",
        sa.Column("id", TEXT, nullable=False, comment="Name of the run."),
        sa.Column("market", TEXT, nullable=False, comment="Name of the market."),
        sa.Column("kind", TEXT, nullable=False, comment="Its purpose: 'nightly', 'backtest' or 'paper'."),
        *model,
        sa.Column("config", sa.JSON, nullable=False, comment="Every setting of features, model and training."),
        sa.Column("seeds", sa.JSON, nullable=False, comment="List of seeds, one per member of the ensemble."),
        sa.Column("code_version", TEXT, nullable=False, comment="Version of the code that trained."),
        sa.Column("data_watermark", MOMENT, nullable=False, comment="Latest known_at of the prices trained on."),
        sa.Column("checkpoint_path", TEXT, nullable=weightless, comment=PATH + ending),
        sa.Column("checkpoint_hash", TEXT, nullable=weightless, comment=SHA + ending),
        sa.Column("losses", sa.JSON, nullable=False, comment="Training history, per member and epoch."),
        sa.Column("train_first", sa.Date, nullable=False, comment="First session trained on."),
        sa.Column("train_last", sa.Date, nullable=False, comment="Last session trained or validated on."),
        sa.Column("created_at", MOMENT, nullable=False, comment="When training ended."),
        sa.CheckConstraint("kind in ('nightly', 'backtest', 'paper')", name=op.f("ck_run_kind")),
        sa.CheckConstraint("train_first <= train_last", name=op.f("ck_run_span")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
        comment="Trained models and all it takes to train them again.",
    )
    op.create_index(op.f("ix_run_market_train_last"), "run", ["market", "train_last"])
    names = [column.name for column in table.c]
    values = ["'dtml'" if name == "model" else name for name in names]
    op.execute(f"insert into run ({', '.join(names)}) select {', '.join(values)} from run_kept")  # noqa: S608
    op.execute("drop table run_kept")


def _create_benchmark() -> None:
    op.create_table(
        "benchmark",
        sa.Column("id", TEXT, nullable=False, comment="Name of the benchmark, such as acl18-1a2b3c4d."),
        sa.Column("market", TEXT, nullable=False, comment="Name of the market."),
        sa.Column("title", TEXT, nullable=False, comment="What was compared, in words."),
        sa.Column("config", sa.JSON, nullable=False, comment="Every setting of every predictor."),
        sa.Column("code_version", TEXT, nullable=False, comment="Version of the code that trained and scored."),
        sa.Column("data_watermark", MOMENT, nullable=False, comment="Latest known_at of the prices used."),
        sa.Column("stocks", sa.Integer, nullable=False, comment="Stocks predicted."),
        sa.Column("train_first", sa.Date, nullable=False, comment="First session predicted in training."),
        sa.Column("train_last", sa.Date, nullable=False, comment="Last session predicted in training."),
        sa.Column("validation_first", sa.Date, nullable=False, comment="First session of validation, which chooses."),
        sa.Column("validation_last", sa.Date, nullable=False, comment="Last session of validation."),
        sa.Column("test_first", sa.Date, nullable=False, comment="First session of the test."),
        sa.Column("test_last", sa.Date, nullable=False, comment="Last session of the test."),
        sa.Column("best_rule", TEXT, nullable=False, comment="The naive rule chosen on the training span alone."),
        sa.Column("seconds", REAL, comment="Time of the trainings, in seconds; missing when not measured."),
        sa.Column("device", TEXT, nullable=False, comment="What the trainings ran on, such as cpu."),
        sa.Column("test_read_at", MOMENT, nullable=False, comment="When the test span was read: once."),
        sa.CheckConstraint(
            "train_first <= train_last and train_last < validation_first and validation_first <= validation_last"
            " and validation_last < test_first and test_first <= test_last",
            name=op.f("ck_benchmark_spans"),
        ),
        sa.CheckConstraint("stocks >= 1 and seconds >= 0", name=op.f("ck_benchmark_counts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_benchmark")),
        comment="Benchmarks: every predictor on the same spans, the test span read once.",
    )


def _create_scores() -> None:
    op.create_table(
        "benchmark_score",
        sa.Column("benchmark_id", TEXT, nullable=False, comment="The benchmark."),
        sa.Column("predictor", TEXT, nullable=False, comment="Name of the model or of the naive rule."),
        sa.Column("protocol", TEXT, nullable=False, comment="'paper': labelled stock-days alone; 'all': every one."),
        sa.Column("run_id", TEXT, comment="The ensemble scored; missing for a naive rule."),
        sa.Column("is_rule", sa.Boolean, nullable=False, comment="Whether it is a naive rule, which trains nothing."),
        sa.Column("days", sa.Integer, nullable=False, comment="Sessions scored."),
        sa.Column("n", sa.Integer, nullable=False, comment="Stock-days scored."),
        sa.Column("rises", sa.Integer, nullable=False, comment="Stock-days that rose."),
        sa.Column("seeds", sa.Integer, comment="Seeds of the ensemble; missing for a naive rule."),
        sa.Column(
            "configurations", sa.Integer, comment="Configurations tried on validation; missing for a naive rule."
        ),
        sa.Column("acc_mean", REAL, comment="Mean over the seeds of the share of right calls; missing for a rule."),
        sa.Column("acc_sd", REAL, comment="Its standard deviation; missing for a rule and for one seed."),
        sa.Column("mcc_mean", REAL, comment="Mean over the seeds of the Matthews correlation; missing for a rule."),
        sa.Column("mcc_sd", REAL, comment="Its standard deviation; missing for a rule and for one seed."),
        sa.Column("acc", REAL, comment="Share of right calls of the ensemble or rule, 0 to 1; missing when n is 0."),
        sa.Column("acc_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing with too few days."),
        sa.Column("acc_high", REAL, comment="Upper end of that interval; missing with too few days."),
        sa.Column("mcc", REAL, comment="Matthews correlation of the same calls, -1 to 1; missing when n is 0."),
        sa.Column("mcc_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing with too few days."),
        sa.Column("mcc_high", REAL, comment="Upper end of that interval; missing with too few days."),
        sa.Column(
            "acc_gain", REAL, comment="acc minus that of best_rule on the same days; missing for best_rule itself."
        ),
        sa.Column("acc_gain_low", REAL, comment="Lower end of its paired 95 % interval; missing with acc_gain."),
        sa.Column("acc_gain_high", REAL, comment="Upper end of that interval; missing with acc_gain."),
        sa.Column(
            "mcc_gain", REAL, comment="mcc minus that of best_rule on the same days; missing for best_rule itself."
        ),
        sa.Column("mcc_gain_low", REAL, comment="Lower end of its paired 95 % interval; missing with mcc_gain."),
        sa.Column("mcc_gain_high", REAL, comment="Upper end of that interval; missing with mcc_gain."),
        sa.Column("brier", REAL, comment="Mean squared error of the probability, 0 to 1; missing for a rule."),
        sa.Column("brier_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing with brier."),
        sa.Column("brier_high", REAL, comment="Upper end of that interval; missing with brier."),
        sa.Column(
            "calibration_slope",
            REAL,
            comment="Slope of the rises on the log-odds: 1 is calibrated; missing for a rule.",
        ),
        sa.Column("calibration_intercept", REAL, comment="Its intercept: 0 is calibrated; missing for a rule."),
        sa.Column(
            "auc",
            REAL,
            comment="Within-day skill: share of same-day pairs (riser, faller) in which the riser got the higher"
            " probability, 0.5 is none; missing for a rule.",
        ),
        sa.Column("auc_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing with auc."),
        sa.Column("auc_high", REAL, comment="Upper end of that interval; missing with auc."),
        sa.Column(
            "same_call",
            REAL,
            comment="Mean over days of the larger share of stocks called one way, 0.5 to 1; missing when n is 0.",
        ),
        sa.Column(
            "published_acc",
            REAL,
            comment="acc_mean in print (Yoo et al., KDD 2021, table 2), of 10 seeds; missing when not there.",
        ),
        sa.Column(
            "published_acc_sd",
            REAL,
            comment="acc_sd in print (Yoo et al., KDD 2021, table 2), of 10 seeds; missing when not there.",
        ),
        sa.Column(
            "published_mcc",
            REAL,
            comment="mcc_mean in print (Yoo et al., KDD 2021, table 2), of 10 seeds; missing when not there.",
        ),
        sa.Column(
            "published_mcc_sd",
            REAL,
            comment="mcc_sd in print (Yoo et al., KDD 2021, table 2), of 10 seeds; missing when not there.",
        ),
        sa.CheckConstraint("protocol in ('paper', 'all')", name=op.f("ck_benchmark_score_protocol")),
        sa.CheckConstraint(
            "days >= 0 and rises >= 0 and rises <= n and seeds >= 0 and configurations >= 0",
            name=op.f("ck_benchmark_score_counts"),
        ),
        sa.CheckConstraint(
            "acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1 and brier >= 0 and brier <= 1 and auc >= 0 and auc <= 1",
            name=op.f("ck_benchmark_score_ranges"),
        ),
        sa.ForeignKeyConstraint(
            ["benchmark_id"], ["benchmark.id"], name=op.f("fk_benchmark_score_benchmark_id_benchmark")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_benchmark_score_run_id_run")),
        sa.PrimaryKeyConstraint("benchmark_id", "predictor", "protocol", name=op.f("pk_benchmark_score")),
        comment="Figures of a benchmark on its test span: one row per predictor and protocol.",
        sqlite_with_rowid=False,
    )


def _create_members() -> None:
    op.create_table(
        "benchmark_member",
        sa.Column("benchmark_id", TEXT, nullable=False, comment="The benchmark."),
        sa.Column("predictor", TEXT, nullable=False, comment="Name of the model."),
        sa.Column("configuration", sa.Integer, nullable=False, comment="Number of the configuration."),
        sa.Column("seed", sa.Integer, nullable=False, comment="Seed of the training."),
        sa.Column("settings", sa.JSON, nullable=False, comment="What this configuration sets."),
        sa.Column("kept", sa.Boolean, nullable=False, comment="Whether this configuration was chosen on validation."),
        sa.Column("best_epoch", sa.Integer, comment="Epoch kept; missing for a model without epochs."),
        sa.Column("validation_acc", REAL, comment="Share of right calls on validation, 0 to 1; missing if not scored."),
        sa.Column("validation_loss", REAL, comment="Loss on validation; missing if not computed."),
        sa.Column(
            "acc", REAL, comment="Share of right calls on the test, paper protocol, 0 to 1; missing if not scored."
        ),
        sa.Column("mcc", REAL, comment="Matthews correlation of the same calls, -1 to 1; missing if not scored."),
        sa.CheckConstraint("acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1", name=op.f("ck_benchmark_member_ranges")),
        sa.CheckConstraint("validation_acc >= 0 and validation_acc <= 1", name=op.f("ck_benchmark_member_validation")),
        sa.ForeignKeyConstraint(
            ["benchmark_id"], ["benchmark.id"], name=op.f("fk_benchmark_member_benchmark_id_benchmark")
        ),
        sa.PrimaryKeyConstraint("benchmark_id", "predictor", "configuration", "seed", name=op.f("pk_benchmark_member")),
        comment="One row a seed and configuration: the whole distribution, never the best test figure.",
        sqlite_with_rowid=False,
    )
