"""Attention: which stocks a prediction looked at, and whether that explains anything."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Date,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    String,
    Table,
)

from db.tables.columns import REAL, UtcTimestamp, metadata, run_id

attention_weight = Table(
    "attention_weight",
    metadata,
    Column("run_id", String, primary_key=True, comment="The model that predicted."),
    Column("target", Date, primary_key=True, comment="Session predicted."),
    Column("instrument_id", Integer, primary_key=True, autoincrement=False, comment="The stock predicted: who looks."),
    Column("source_id", ForeignKey("instrument.id"), primary_key=True, comment="The stock it looks at."),
    Column("weight", REAL, nullable=False, comment="Share of its attention, 0 to 1; mean of the seeds."),
    ForeignKeyConstraint(
        ["run_id", "target", "instrument_id"], ["prediction.run_id", "prediction.target", "prediction.instrument_id"]
    ),
    CheckConstraint("weight >= 0 and weight <= 1", name="weight"),
    comment="Attention between stocks (data axis), kept for the sessions asked for.",
    sqlite_with_rowid=False,
)

explanation = Table(
    "explanation",
    metadata,
    run_id(),
    Column("market", String, nullable=False, comment="Name of the market."),
    Column("as_of", Date, nullable=False, comment="Last session read."),
    Column("made_at", UtcTimestamp, nullable=False, comment="When it was measured."),
    Column("stocks", Integer, nullable=False, comment="Stocks of the networks compared."),
    Column("days", Integer, nullable=False, comment="Days of validation looked at."),
    Column("seeds", Integer, nullable=False, comment="Networks trained on true labels."),
    Column("shuffles", Integer, nullable=False, comment="Networks trained on labels of shuffled days."),
    Column("epochs", Integer, nullable=False, comment="Epochs that each was trained."),
    Column("distance", REAL, nullable=False, comment="Energy distance between the attention of both groups."),
    Column("distance_p", REAL, nullable=False, comment="Its p-value, by permuting who belongs to which group."),
    Column("told_apart", Boolean, nullable=False, comment="Whether it is at most 0.05."),
    Column(
        "agreement",
        REAL,
        comment="Mean over stocks of Spearman's correlation of attention with importance; missing without.",
    ),
    Column("agreement_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing with too few days."),
    Column("agreement_high", REAL, comment="Upper end of that interval; missing with too few days."),
    Column("top", Integer, nullable=False, comment="Sources of each stock that are held against its true driver."),
    Column("drivers", REAL, comment="Share of stocks whose true driver is among them; missing where none is known."),
    Column("drivers_chance", REAL, comment="The share that chance gives; missing with drivers."),
    Column("drivers_importance", REAL, comment="The share by permutation importance; missing with drivers."),
    Column("seconds", REAL, nullable=False, comment="Time it took, in seconds."),
    CheckConstraint("distance_p > 0 and distance_p <= 1 and agreement >= -1 and agreement <= 1", name="ranges"),
    comment="Whether a model's attention says more than that of models trained on nonsense.",
    sqlite_with_rowid=False,
)
