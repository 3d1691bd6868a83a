"""Nights: how each ended, and what somebody should know of it."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    CheckConstraint,
    Column,
    Date,
    ForeignKey,
    Integer,
    String,
    Table,
)

from db.tables.columns import UtcTimestamp, metadata

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
    Column("rejected", Integer, comment="Bars rejected; missing while running."),
    Column("predictions", Integer, comment="Stocks predicted; missing while running."),
    Column("gaps", JSON, comment="Stocks left out, a list of {symbol, reason}; missing while running."),
    Column("inputs_hash", String, comment="SHA-256 of the windows the model read; missing until it has."),
    Column("started_at", UtcTimestamp, nullable=False, comment="When the night began."),
    Column("finished_at", UtcTimestamp, comment="When it ended; missing while running."),
    CheckConstraint("status in ('running', 'complete', 'complete_with_gaps', 'refused')", name="status"),
    CheckConstraint("as_of < target", name="dates"),
    CheckConstraint(
        "fetched >= 0 and stored >= 0 and rejected >= 0 and predictions >= 0",
        name="counts",
    ),
    comment="One row per market and night: how it ended and what it did.",
    sqlite_with_rowid=False,
)

alert = Table(
    "alert",
    metadata,
    Column("market", String, primary_key=True, comment="Name of the market."),
    Column("as_of", Date, primary_key=True, comment="The night it is about."),
    Column("kind", String, primary_key=True, comment="'refused', 'late' or 'below_rule'."),
    Column("message", String, nullable=False, comment="What happened, in words."),
    Column("raised_at", UtcTimestamp, nullable=False, comment="When it was noticed."),
    Column("sent_at", UtcTimestamp, comment="When a webhook took it; missing without one, or until it does."),
    CheckConstraint("kind in ('refused', 'late', 'below_rule')", name="kind"),
    comment="What somebody should know of a night, once for each night and kind.",
    sqlite_with_rowid=False,
)
