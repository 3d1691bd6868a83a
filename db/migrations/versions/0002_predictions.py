"""Runs, predictions, outcomes, scores, nights.

Frozen: db/schema.py and db/views.py say what holds today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TEXT = sa.String()
REAL = sa.Float(53)
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "run",
        sa.Column("id", TEXT, nullable=False, comment="Name of the run."),
        sa.Column("market", TEXT, nullable=False, comment="Name of the market."),
        sa.Column("kind", TEXT, nullable=False, comment="Its purpose: 'nightly', 'backtest' or 'paper'."),
        sa.Column("config", sa.JSON, nullable=False, comment="Every setting of features, model and training."),
        sa.Column("seeds", sa.JSON, nullable=False, comment="List of seeds, one per member of the ensemble."),
        sa.Column("code_version", TEXT, nullable=False, comment="Version of the code that trained."),
        sa.Column("data_watermark", MOMENT, nullable=False, comment="Latest known_at of the prices trained on."),
        sa.Column("checkpoint_path", TEXT, nullable=False, comment="Folder of the weights."),
        sa.Column("checkpoint_hash", TEXT, nullable=False, comment="SHA-256 of the checkpoint."),
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
    op.create_table(
        "prediction",
        sa.Column("run_id", TEXT, nullable=False, comment="The model that predicted."),
        sa.Column("target", sa.Date, nullable=False, comment="Session predicted."),
        sa.Column("instrument_id", sa.Integer, nullable=False, comment="The instrument."),
        sa.Column("as_of", sa.Date, nullable=False, comment="Last session the model saw; always before target."),
        sa.Column("probability", REAL, nullable=False, comment="Probability of a rise, 0 to 1; mean of the members."),
        sa.Column("spread", REAL, comment="Standard deviation over the members; 0 with one, missing if not kept."),
        sa.Column("known_at", MOMENT, nullable=False, comment="Latest known_at of the prices it saw."),
        sa.Column("made_at", MOMENT, nullable=False, comment="When it was computed."),
        sa.CheckConstraint("as_of < target", name=op.f("ck_prediction_dates")),
        sa.CheckConstraint("probability >= 0 and probability <= 1", name=op.f("ck_prediction_probability")),
        sa.CheckConstraint("spread >= 0 and spread <= 1", name=op.f("ck_prediction_spread")),
        sa.ForeignKeyConstraint(
            ["instrument_id"], ["instrument.id"], name=op.f("fk_prediction_instrument_id_instrument")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_prediction_run_id_run")),
        sa.PrimaryKeyConstraint("run_id", "target", "instrument_id", name=op.f("pk_prediction")),
        comment="Predictions, never rewritten: one row per run, session predicted and stock.",
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_prediction_instrument_id_target"), "prediction", ["instrument_id", "target"])
    op.create_index(op.f("ix_prediction_target"), "prediction", ["target"])
    op.create_table(
        "outcome",
        sa.Column("instrument_id", sa.Integer, nullable=False, comment="The instrument."),
        sa.Column("session", sa.Date, nullable=False, comment="The session that was to be predicted."),
        sa.Column(
            "move",
            REAL,
            nullable=False,
            comment="Adjusted close (close where there is none) over the one before, minus 1; 0.01 is 1 %.",
        ),
        sa.Column("rise", sa.Boolean, nullable=False, comment="Whether the move is above 0."),
        sa.Column(
            "label",
            sa.SmallInteger,
            nullable=False,
            comment="The paper's label: 1 from +0.55 % up, -1 from -0.5 % down, 0 between.",
        ),
        sa.Column("known_at", MOMENT, nullable=False, comment="Latest known_at of the prices it is from."),
        sa.Column("recorded_at", MOMENT, nullable=False, comment="When the row was last changed."),
        sa.CheckConstraint("label in (-1, 0, 1)", name=op.f("ck_outcome_label")),
        sa.CheckConstraint("move > -1", name=op.f("ck_outcome_move")),
        sa.ForeignKeyConstraint(["instrument_id"], ["instrument.id"], name=op.f("fk_outcome_instrument_id_instrument")),
        sa.PrimaryKeyConstraint("instrument_id", "session", name=op.f("pk_outcome")),
        comment="What happened to each predicted stock and session.",
        sqlite_with_rowid=False,
    )
    op.create_table(
        "score",
        sa.Column("market", TEXT, nullable=False, comment="Name of the market."),
        sa.Column("target", sa.Date, nullable=False, comment="Session predicted; the last one of a running score."),
        sa.Column("span", TEXT, nullable=False, comment="'night' for that session, 'running' for all up to it."),
        sa.Column("protocol", TEXT, nullable=False, comment="'paper': labelled stock-days alone; 'all': every one."),
        sa.Column("predictor", TEXT, nullable=False, comment="'dtml', or the name of a naive rule."),
        sa.Column("n", sa.Integer, nullable=False, comment="Stock-days scored."),
        sa.Column("nights", sa.Integer, nullable=False, comment="Sessions scored."),
        sa.Column("rises", sa.Integer, nullable=False, comment="Stock-days that rose."),
        sa.Column("acc", REAL, comment="Share of right calls, 0 to 1; missing when n is 0."),
        sa.Column("acc_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing below 20 nights."),
        sa.Column("acc_high", REAL, comment="Upper end of that interval; missing below 20 nights."),
        sa.Column("mcc", REAL, comment="Matthews correlation, -1 to 1; missing when n is 0."),
        sa.Column("mcc_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing below 20 nights."),
        sa.Column("mcc_high", REAL, comment="Upper end of that interval; missing below 20 nights."),
        sa.Column("scored_at", MOMENT, nullable=False, comment="When the row was last changed."),
        sa.CheckConstraint("protocol in ('paper', 'all')", name=op.f("ck_score_protocol")),
        sa.CheckConstraint("span in ('night', 'running')", name=op.f("ck_score_span")),
        sa.CheckConstraint("acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1", name=op.f("ck_score_ranges")),
        sa.CheckConstraint("nights >= 0 and rises >= 0 and rises <= n", name=op.f("ck_score_counts")),
        sa.PrimaryKeyConstraint("market", "target", "span", "protocol", "predictor", name=op.f("pk_score")),
        comment="Accuracy and Matthews correlation of the predictions and of the naive rules.",
        sqlite_with_rowid=False,
    )
    op.create_table(
        "night",
        sa.Column("market", TEXT, nullable=False, comment="Name of the market."),
        sa.Column("as_of", sa.Date, nullable=False, comment="Last closed session: the last one seen."),
        sa.Column("target", sa.Date, nullable=False, comment="The session after it: the one predicted."),
        sa.Column(
            "status",
            TEXT,
            nullable=False,
            comment="'running', 'complete', 'complete_with_gaps' or 'refused'.",
        ),
        sa.Column("reason", TEXT, comment="Why it was refused; missing otherwise."),
        sa.Column("run_id", TEXT, comment="The model used; missing until there is one."),
        sa.Column("source", TEXT, nullable=False, comment="Where bars came from: yahoo, files, simulated."),
        sa.Column("known_at", MOMENT, comment="Latest known_at of the prices used; missing until known."),
        sa.Column("fetched", sa.Integer, comment="Bars the source returned; missing while running."),
        sa.Column("stored", sa.Integer, comment="Bars that were new or restated; missing while running."),
        sa.Column("refused", sa.Integer, comment="Bars refused; missing while running."),
        sa.Column("predictions", sa.Integer, comment="Stocks predicted; missing while running."),
        sa.Column("gaps", sa.JSON, comment="Stocks left out, a list of {symbol, reason}; missing while running."),
        sa.Column("started_at", MOMENT, nullable=False, comment="When the night began."),
        sa.Column("finished_at", MOMENT, comment="When it ended; missing while running."),
        sa.CheckConstraint(
            "status in ('running', 'complete', 'complete_with_gaps', 'refused')", name=op.f("ck_night_status")
        ),
        sa.CheckConstraint("as_of < target", name=op.f("ck_night_dates")),
        sa.CheckConstraint(
            "fetched >= 0 and stored >= 0 and refused >= 0 and predictions >= 0", name=op.f("ck_night_counts")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_night_run_id_run")),
        sa.PrimaryKeyConstraint("market", "as_of", name=op.f("pk_night")),
        comment="One row per market and night: how it ended and what it did.",
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("night")
    op.drop_table("score")
    op.drop_table("outcome")
    op.drop_table("prediction")
    op.drop_table("run")
