"""Attention: which stocks a prediction looked at, and whether that explains anything."""

from sqlalchemy import Boolean, CheckConstraint, Column, Date, ForeignKey, ForeignKeyConstraint, Integer, String

from db.tables.columns import REAL, UtcTimestamp, belongs_to, key, optional, required, table, with_interval

attention_weight = table(
    "attention_weight",
    key("run_id", String, "The model that predicted."),
    key("target", Date, "Session predicted."),
    key("instrument_id", Integer, "The stock predicted: who looks."),
    Column("source_id", ForeignKey("instrument.id"), primary_key=True, comment="The stock it looks at."),
    required("weight", REAL, "Share of its attention, 0 to 1; mean of the seeds."),
    ForeignKeyConstraint(
        ["run_id", "target", "instrument_id"], ["prediction.run_id", "prediction.target", "prediction.instrument_id"]
    ),
    CheckConstraint("weight >= 0 and weight <= 1", name="weight"),
    comment="Attention between stocks (data axis), kept for the sessions asked for.",
)

explanation = table(
    "explanation",
    belongs_to("run", "The model that predicted."),
    required("market", String, "Name of the market."),
    required("as_of", Date, "Last session read."),
    required("made_at", UtcTimestamp, "When it was measured."),
    required("stocks", Integer, "Stocks of the networks compared."),
    required("days", Integer, "Days of validation looked at."),
    required("seeds", Integer, "Networks trained on true labels."),
    required("shuffles", Integer, "Networks trained on labels of shuffled days."),
    required("epochs", Integer, "Epochs that each was trained."),
    required("distance", REAL, "Energy distance between the attention of both groups."),
    required("distance_p", REAL, "Its p-value, by permuting who belongs to which group."),
    required("told_apart", Boolean, "Whether it is at most 0.05."),
    *with_interval("agreement", "Mean over stocks of Spearman's correlation with importance; missing without"),
    required("top", Integer, "Sources of each stock that are held against its true driver."),
    optional("drivers", REAL, "Share of stocks whose true driver is among them; missing where none is known."),
    optional("drivers_chance", REAL, "The share that chance gives; missing with drivers."),
    optional("drivers_importance", REAL, "The share by permutation importance; missing with drivers."),
    required("seconds", REAL, "Time it took, in seconds."),
    CheckConstraint("distance_p > 0 and distance_p <= 1 and agreement >= -1 and agreement <= 1", name="ranges"),
    comment="Whether a model's attention says more than that of models trained on nonsense.",
)
