"""The tables of a service: what each fetch brought, and what was worth an alert."""

from __future__ import annotations

from sqlalchemy import JSON, CheckConstraint, Column, Date, Integer, String, Table

from db.tables.columns import UtcTimestamp, metadata

price_fetch = Table(
    "price_fetch",
    metadata,
    Column("market", String, primary_key=True, comment="Name of the market."),
    Column(
        "known_at", UtcTimestamp, primary_key=True, comment="When its bars were known; later than the fetch before."
    ),
    Column("as_of", Date, nullable=False, comment="Session up to which the store was to be brought."),
    Column("source", String, nullable=False, comment="Who was asked: yahoo, files, simulated."),
    Column("asked", Integer, nullable=False, comment="Symbols asked for."),
    Column("fetched", Integer, nullable=False, comment="Bars the source returned."),
    Column("stored", Integer, nullable=False, comment="Bars that were new or restated."),
    Column("refused", Integer, nullable=False, comment="Findings against bars, one for each check failed."),
    Column("restated", JSON, nullable=False, comment="Symbols whose whole history was fetched anew, a list."),
    Column("failures", JSON, nullable=False, comment="Symbols without an answer, a list of {symbol, status, detail}."),
    CheckConstraint("asked >= 0 and fetched >= 0 and stored >= 0 and refused >= 0", name="counts"),
    comment="One row per time a source was asked: what came, and what did not.",
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
