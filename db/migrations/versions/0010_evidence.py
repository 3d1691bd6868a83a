"""How far predictions can be trusted: calibration, bands of no call, members, naive rules' calls, explanations.

Frozen: db/schema.py says what holds today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

REAL = sa.Float(53)

COLUMNS = {
    "run": {
        "slope": "Calibrated logit over the logit of the probability; missing if not calibrated.",
        "intercept": "Calibrated logit of a probability of one half; missing if not calibrated.",
    },
    "prediction": {
        "calibrated": "The probability as calibrated on validation; missing if not kept.",
        "lowest": "Smallest probability among the members; missing if not kept.",
        "highest": "Largest probability among the members; missing if not kept.",
        "rising_share": "Share of the members above 0.5; missing if not kept.",
    },
}
TABLES = ("band", "rule_call", "calibration_bin", "band_count", "explanation")

BY_STOCK = "ix_prediction_instrument_id_target"
SAID = ["run_id", "as_of", "probability", "spread", "known_at", "made_at"]


def upgrade() -> None:
    for table, columns in COLUMNS.items():
        for name, meaning in columns.items():
            op.add_column(table, sa.Column(name, REAL, comment=meaning))
    create_band()
    create_rule_call()
    create_calibration_bin()
    create_band_count()
    create_explanation()
    remake_index([*SAID, "calibrated"])


def downgrade() -> None:
    remake_index(SAID)
    for table in TABLES:
        op.drop_table(table)
    for table, columns in COLUMNS.items():
        for name in columns:
            op.drop_column(table, name)


def remake_index(said: list[str]) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.drop_index(BY_STOCK, "prediction")
        op.create_index(BY_STOCK, "prediction", ["instrument_id", "target"], postgresql_include=said)


def create_band() -> None:
    op.create_table(
        "band",
        sa.Column("run_id", sa.String, nullable=False, comment="The model that predicted."),
        sa.Column("level", REAL, nullable=False, comment="Nominal share of outcomes that are to be covered, 0 to 1."),
        sa.Column(
            "threshold",
            REAL,
            nullable=False,
            comment="A rise is called above it, a fall below 1 less it, else nothing; 0.5 to 1, at 1 nothing ever is.",
        ),
        sa.Column("days", sa.Integer, nullable=False, comment="Days of validation that it rests on."),
        sa.Column("n", sa.Integer, nullable=False, comment="Stock-days of them."),
        sa.CheckConstraint(
            "level > 0 and level < 1 and threshold >= 0.5 and threshold <= 1", name=op.f("ck_band_ranges")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_band_run_id_run")),
        sa.PrimaryKeyConstraint("run_id", "level", name=op.f("pk_band")),
        comment="Bands of no call of each model, from its validation days (split-conformal prediction).",
        sqlite_with_rowid=False,
    )


def create_rule_call() -> None:
    op.create_table(
        "rule_call",
        sa.Column("market", sa.String, nullable=False, comment="Name of the market."),
        sa.Column("target", sa.Date, nullable=False, comment="Session predicted."),
        sa.Column("as_of", sa.Date, nullable=False, comment="Last session the rules saw; always before target."),
        sa.Column("always_up", sa.Boolean, nullable=False, comment="Whether 'every stock rises' calls a rise: always."),
        sa.Column(
            "index_reversal", sa.Boolean, comment="Whether a fall of the index calls a rise; missing without history."
        ),
        sa.Column(
            "index_below_mean20",
            sa.Boolean,
            comment="Whether an index below its mean of 20 sessions calls a rise; missing without history.",
        ),
        sa.CheckConstraint("as_of < target", name=op.f("ck_rule_call_dates")),
        sa.PrimaryKeyConstraint("market", "target", name=op.f("pk_rule_call")),
        comment="What each naive rule called for a session, of all of a market's stocks at once.",
        sqlite_with_rowid=False,
    )


def create_calibration_bin() -> None:
    op.create_table(
        "calibration_bin",
        sa.Column("run_id", sa.String, nullable=False, comment="The model that predicted."),
        sa.Column("target", sa.Date, nullable=False, comment="Session predicted."),
        sa.Column(
            "bin", sa.Integer, autoincrement=False, nullable=False, comment="Whole percent of the probability, 0 to 99."
        ),
        sa.Column("n", sa.Integer, nullable=False, comment="Predictions in it whose outcome is known."),
        sa.Column("probability_sum", REAL, nullable=False, comment="Their probabilities of a rise, added up."),
        sa.Column("rises", sa.Integer, nullable=False, comment="Those of them that rose."),
        sa.CheckConstraint(
            "bin >= 0 and bin <= 99 and n > 0 and rises >= 0 and rises <= n", name=op.f("ck_calibration_bin_counts")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_calibration_bin_run_id_run")),
        sa.PrimaryKeyConstraint("run_id", "target", "bin", name=op.f("pk_calibration_bin")),
        comment="What came of each night's probabilities, counted by whole percent.",
        sqlite_with_rowid=False,
    )


def create_band_count() -> None:
    op.create_table(
        "band_count",
        sa.Column("run_id", sa.String, nullable=False, comment="The model that predicted."),
        sa.Column("target", sa.Date, nullable=False, comment="Session predicted."),
        sa.Column("level", REAL, nullable=False, comment="Nominal share of outcomes that are to be covered, 0 to 1."),
        sa.Column("n", sa.Integer, nullable=False, comment="Calibrated predictions whose outcome is known."),
        sa.Column("covered", sa.Integer, nullable=False, comment="Those without a call or with a right one."),
        sa.Column("called", sa.Integer, nullable=False, comment="Those with a call at that level."),
        sa.Column("right_calls", sa.Integer, nullable=False, comment="Those with a right call."),
        sa.CheckConstraint(
            "n > 0 and called <= n and right_calls <= called and covered = n - called + right_calls",
            name=op.f("ck_band_count_counts"),
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_band_count_run_id_run")),
        sa.PrimaryKeyConstraint("run_id", "target", "level", name=op.f("pk_band_count")),
        comment="What came of each night's calls at each level of its band.",
        sqlite_with_rowid=False,
    )


def create_explanation() -> None:
    op.create_table(
        "explanation",
        sa.Column("run_id", sa.String, nullable=False, comment="The model that predicted."),
        sa.Column("market", sa.String, nullable=False, comment="Name of the market."),
        sa.Column("as_of", sa.Date, nullable=False, comment="Last session read."),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False, comment="When it was measured."),
        sa.Column("stocks", sa.Integer, nullable=False, comment="Stocks of the networks compared."),
        sa.Column("days", sa.Integer, nullable=False, comment="Days of validation looked at."),
        sa.Column("members", sa.Integer, nullable=False, comment="Networks trained on true labels."),
        sa.Column("shuffles", sa.Integer, nullable=False, comment="Networks trained on labels of shuffled days."),
        sa.Column("epochs", sa.Integer, nullable=False, comment="Epochs that each was trained."),
        sa.Column("distance", REAL, nullable=False, comment="Energy distance between the attention of both groups."),
        sa.Column("distance_p", REAL, nullable=False, comment="Its p-value, by permuting who belongs to which group."),
        sa.Column("told_apart", sa.Boolean, nullable=False, comment="Whether it is at most 0.05."),
        sa.Column(
            "agreement",
            REAL,
            comment="Mean over stocks of Spearman's correlation of attention with importance; missing without.",
        ),
        sa.Column(
            "agreement_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing with too few days."
        ),
        sa.Column("agreement_high", REAL, comment="Upper end of that interval; missing with too few days."),
        sa.Column(
            "top", sa.Integer, nullable=False, comment="Sources of each stock that are held against its true driver."
        ),
        sa.Column(
            "drivers", REAL, comment="Share of stocks whose true driver is among them; missing where none is known."
        ),
        sa.Column("drivers_chance", REAL, comment="The share that chance gives; missing with drivers."),
        sa.Column("drivers_importance", REAL, comment="The share by permutation importance; missing with drivers."),
        sa.Column("seconds", REAL, nullable=False, comment="Time it took, in seconds."),
        sa.CheckConstraint(
            "distance_p > 0 and distance_p <= 1 and agreement >= -1 and agreement <= 1",
            name=op.f("ck_explanation_ranges"),
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_explanation_run_id_run")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_explanation")),
        comment="Whether a model's attention says more than that of models trained on nonsense.",
        sqlite_with_rowid=False,
    )
