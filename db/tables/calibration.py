"""Calibration: each model's abstention bands, and nightly counts of what its probabilities came to.

Counts are kept night by night, so that ten years of them are read at once."""

from sqlalchemy import Boolean, CheckConstraint, Integer

from db.tables.columns import REAL, belongs_to, key, level, required, table, target

abstention_band = table(
    "abstention_band",
    belongs_to("run", "The model that predicted."),
    level(),
    required("threshold", REAL, "A rise is predicted above it, a fall below 1 less it, else nothing. 0.5 to 1."),
    required("days", Integer, "Days of validation that it rests on."),
    required("n", Integer, "Stock-days of them."),
    required("is_default", Boolean, "Whether it is the market's own level, at which directions are given."),
    CheckConstraint("level > 0 and level < 1 and threshold >= 0.5 and threshold <= 1", name="ranges"),
    comment="Abstention bands of each model, from its validation days (split-conformal prediction).",
)

calibration_bin = table(
    "calibration_bin",
    belongs_to("run", "The model that predicted."),
    target(),
    key("bin", Integer, "Whole percent of the probability, 0 to 99."),
    required("n", Integer, "Predictions in it whose outcome is known."),
    required("probability_sum", REAL, "Their probabilities of a rise, added up."),
    required("rises", Integer, "Those of them that rose."),
    CheckConstraint("bin >= 0 and bin <= 99 and n > 0 and rises >= 0 and rises <= n", name="counts"),
    comment="What came of each night's probabilities, counted by whole percent.",
)

abstention_count = table(
    "abstention_count",
    belongs_to("run", "The model that predicted."),
    target(),
    level(),
    required("n", Integer, "Calibrated predictions whose outcome is known."),
    required("covered", Integer, "Those in the abstention band, and those with a correct direction."),
    required("decided", Integer, "Those with a predicted direction at that level."),
    required("decided_correct", Integer, "Those with a correct direction."),
    CheckConstraint(
        "n > 0 and decided <= n and decided_correct <= decided and covered = n - decided + decided_correct",
        name="counts",
    ),
    comment="What came of each night's directions at each level of its abstention band.",
)
