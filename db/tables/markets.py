"""Markets: their instruments, constituents, bars, rejected bars, and what each fetch brought."""

from sqlalchemy import JSON, CheckConstraint, Column, Date, Integer, PrimaryKeyConstraint, String, UniqueConstraint

from db.tables.columns import REAL, UtcTimestamp, belongs_to, key, optional, required, table

instrument = table(
    "instrument",
    Column("id", Integer, primary_key=True, comment="Number given by the store."),
    required("market", String, "Name of the market, such as sp500."),
    required("symbol", String, "The market's own symbol."),
    required("kind", String, "'stock', or 'index' for the market's index."),
    required("source_symbol", String, "Symbol at the price source (Yahoo's spelling)."),
    optional("name", String, "Name of the company or index; missing when unknown."),
    optional("sector", String, "Sector; missing when unknown and for an index."),
    optional("asked_from", Date, "First session ever asked of a source; missing before the first answer."),
    UniqueConstraint("market", "symbol"),
    CheckConstraint("kind in ('stock', 'index')", name="kind"),
    comment="Stocks and indices, one row per market and symbol.",
    with_rowid=True,
)

membership = table(
    "membership",
    belongs_to("instrument", "The instrument."),
    key("spell", Integer, "1 for the first stay."),
    optional("valid_from", Date, "First session of the stay; missing when not known."),
    optional("valid_to", Date, "First day after the stay; missing while it lasts."),
    required("source", String, "Where the list of constituents comes from, in words."),
    CheckConstraint("spell >= 1", name="spell"),
    CheckConstraint("valid_from <= valid_to", name="span"),
    comment="When each stock was a constituent of its market, as the market's file states it.",
)

BAR_VALUES = ("open", "high", "low", "close", "adj_close", "volume", "dividend", "split")

price = table(
    "price",
    belongs_to("instrument", "The instrument."),
    key("session", Date, "The session the bar belongs to."),
    key("known_at", UtcTimestamp, "When this version was fetched."),
    optional("open", REAL, "First price, in currency units, above 0; missing when not reported."),
    optional("high", REAL, "Highest price, in currency units, above 0; missing when not reported."),
    optional("low", REAL, "Lowest price, in currency units, above 0; missing when not reported."),
    required("close", REAL, "Last price, in currency units, above 0."),
    optional("adj_close", REAL, "Close adjusted for splits and dividends, above 0; missing when not reported."),
    optional("volume", REAL, "Shares traded, 0 or more, split-adjusted or not; missing when not reported."),
    optional("dividend", REAL, "Dividend per share gone ex, in currency units; missing when none."),
    optional("split", REAL, "New shares per old share on a split's day, above 0; missing when none."),
    required("source", String, "Who reported the bar: yahoo, files, simulated."),
    # PostgreSQL answers from the key's index alone: without these it fetches a page of the table for each bar.
    PrimaryKeyConstraint("instrument_id", "session", "known_at", postgresql_include=[*BAR_VALUES, "source"]),
    CheckConstraint("open > 0 and high > 0 and low > 0 and close > 0 and adj_close > 0", name="prices"),
    CheckConstraint("volume >= 0 and dividend >= 0 and split > 0", name="amounts"),
    comment="Daily bars that passed the checks; a restated bar is a new row with a later known_at.",
)

rejected_bar = table(
    "rejected_bar",
    belongs_to("instrument", "The instrument."),
    key("session", Date, "The session the bar claims."),
    key("source", String, "Who reported the bar."),
    key("reason", String, "The check it failed, such as high_below_low."),
    required("value", String, "What was found, in words, such as open=0.0."),
    required("first_known_at", UtcTimestamp, "When it was first fetched and rejected."),
    comment="Bars that failed a check, one row per reason; they are in no price and no window.",
)

symbol_warning = table(
    "symbol_warning",
    belongs_to("instrument", "The instrument."),
    key("reason", String, "What is doubtful: over_corrected_dividends or shifted_dates."),
    required("value", String, "What was found, in words."),
    required("known_at", UtcTimestamp, "When the prices that show it were fetched."),
    comment="Symbols whose prices are doubtful though every bar passed the checks, as of their last whole history.",
)

price_fetch = table(
    "price_fetch",
    key("market", String, "Name of the market."),
    key("known_at", UtcTimestamp, "When its bars were known; after the fetch before."),
    required("as_of", Date, "Session up to which the store was to be brought."),
    required("source", String, "Who was asked: yahoo, files, simulated."),
    required("asked", Integer, "Symbols asked for."),
    required("fetched", Integer, "Bars the source returned."),
    required("stored", Integer, "Bars that were new or restated."),
    required("rejected", Integer, "Findings against bars, one for each check failed."),
    required("restated", JSON, "Symbols whose whole history was fetched anew, a list."),
    required("failures", JSON, "Symbols without an answer, a list of {symbol, status, detail}."),
    CheckConstraint("asked >= 0 and fetched >= 0 and stored >= 0 and rejected >= 0", name="counts"),
    comment="One row per time a source was asked: what came, and what did not.",
)
