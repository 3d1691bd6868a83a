"""Nights: how each ended, and what somebody should know of it."""

from sqlalchemy import JSON, CheckConstraint, Date, ForeignKey, Integer, String

from db.tables.columns import UtcTimestamp, key, optional, required, table

night = table(
    "night",
    key("market", String, "Name of the market."),
    key("as_of", Date, "Last closed session: the last one seen."),
    required("target", Date, "The session after it: the one predicted."),
    required("status", String, "'running', 'complete', 'complete_with_gaps' or 'refused'."),
    optional("reason", String, "Why it was refused, or what is to be known of its own code; missing otherwise."),
    optional("run_id", ForeignKey("run.id"), "The model used; missing until there is one."),
    required("source", String, "Where bars came from: yahoo, files, simulated."),
    optional("known_at", UtcTimestamp, "Latest known_at of the prices used; missing until known."),
    optional("fetched", Integer, "Bars the source returned; missing while running."),
    optional("stored", Integer, "Bars that were new or restated; missing while running."),
    optional("rejected", Integer, "Bars rejected; missing while running."),
    optional("predictions", Integer, "Stocks predicted; missing while running."),
    optional("gaps", JSON, "Stocks left out, a list of {symbol, reason}; missing while running."),
    optional("inputs_hash", String, "SHA-256 of the windows the model read; missing until it has."),
    required("started_at", UtcTimestamp, "When the night began."),
    optional("finished_at", UtcTimestamp, "When it ended; missing while running."),
    CheckConstraint("status in ('running', 'complete', 'complete_with_gaps', 'refused')", name="status"),
    CheckConstraint("as_of < target", name="dates"),
    CheckConstraint("fetched >= 0 and stored >= 0 and rejected >= 0 and predictions >= 0", name="counts"),
    comment="One row per market and night: how it ended and what it did.",
)

alert = table(
    "alert",
    key("market", String, "Name of the market."),
    key("as_of", Date, "The night it is about."),
    key("kind", String, "'refused', 'late' or 'below_rule'."),
    required("message", String, "What happened, in words."),
    required("raised_at", UtcTimestamp, "When it was noticed."),
    optional("sent_at", UtcTimestamp, "When every service of DTML_ALERTS took it; missing until then."),
    CheckConstraint("kind in ('refused', 'late', 'below_rule')", name="kind"),
    comment="What somebody should know of a night, once for each night and kind.",
)
