"""The tables of how far predictions can be trusted: bands of no call, calibration, naive rules' calls, explanations.

Counts are kept night by night, so that ten years of them are read at once. A part of db/tables/schema.py.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, CheckConstraint, Column, Date, ForeignKey, Integer, String, Table

from db.tables.columns import REAL, UtcTimestamp, metadata


def _run() -> Column[Any]:
    return Column("run_id", ForeignKey("run.id"), primary_key=True, comment="The model that predicted.")


def _target() -> Column[Any]:
    return Column("target", Date, primary_key=True, comment="Session predicted.")


def _level() -> Column[Any]:
    return Column("level", REAL, primary_key=True, comment="Nominal share of outcomes that are to be covered, 0 to 1.")


band = Table(
    "band",
    metadata,
    _run(),
    _level(),
    Column(
        "threshold",
        REAL,
        nullable=False,
        comment="A rise is called above it, a fall below 1 less it, else nothing; 0.5 to 1, at 1 nothing ever is.",
    ),
    Column("days", Integer, nullable=False, comment="Days of validation that it rests on."),
    Column("n", Integer, nullable=False, comment="Stock-days of them."),
    CheckConstraint("level > 0 and level < 1 and threshold >= 0.5 and threshold <= 1", name="ranges"),
    comment="Bands of no call of each model, from its validation days (split-conformal prediction).",
    sqlite_with_rowid=False,
)

rule_call = Table(
    "rule_call",
    metadata,
    Column("market", String, primary_key=True, comment="Name of the market."),
    _target(),
    Column("as_of", Date, nullable=False, comment="Last session the rules saw; always before target."),
    Column("always_up", Boolean, nullable=False, comment="Whether 'every stock rises' calls a rise: always."),
    Column("index_reversal", Boolean, comment="Whether a fall of the index calls a rise; missing without history."),
    Column(
        "index_below_mean20",
        Boolean,
        comment="Whether an index below its mean of 20 sessions calls a rise; missing without history.",
    ),
    CheckConstraint("as_of < target", name="dates"),
    comment="What each naive rule called for a session, of all of a market's stocks at once.",
    sqlite_with_rowid=False,
)

calibration_bin = Table(
    "calibration_bin",
    metadata,
    _run(),
    _target(),
    Column("bin", Integer, primary_key=True, autoincrement=False, comment="Whole percent of the probability, 0 to 99."),
    Column("n", Integer, nullable=False, comment="Predictions in it whose outcome is known."),
    Column("probability_sum", REAL, nullable=False, comment="Their probabilities of a rise, added up."),
    Column("rises", Integer, nullable=False, comment="Those of them that rose."),
    CheckConstraint("bin >= 0 and bin <= 99 and n > 0 and rises >= 0 and rises <= n", name="counts"),
    comment="What came of each night's probabilities, counted by whole percent.",
    sqlite_with_rowid=False,
)

band_count = Table(
    "band_count",
    metadata,
    _run(),
    _target(),
    _level(),
    Column("n", Integer, nullable=False, comment="Calibrated predictions whose outcome is known."),
    Column("covered", Integer, nullable=False, comment="Those without a call or with a right one."),
    Column("called", Integer, nullable=False, comment="Those with a call at that level."),
    Column("right_calls", Integer, nullable=False, comment="Those with a right call."),
    CheckConstraint(
        "n > 0 and called <= n and right_calls <= called and covered = n - called + right_calls", name="counts"
    ),
    comment="What came of each night's calls at each level of its band.",
    sqlite_with_rowid=False,
)

explanation = Table(
    "explanation",
    metadata,
    _run(),
    Column("market", String, nullable=False, comment="Name of the market."),
    Column("as_of", Date, nullable=False, comment="Last session read."),
    Column("made_at", UtcTimestamp, nullable=False, comment="When it was measured."),
    Column("stocks", Integer, nullable=False, comment="Stocks of the networks compared."),
    Column("days", Integer, nullable=False, comment="Days of validation looked at."),
    Column("members", Integer, nullable=False, comment="Networks trained on true labels."),
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
