"""Instruments, memberships, prices, refused bars.

Frozen: db/schema.py and db/views.py say what holds today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TEXT = sa.String()
REAL = sa.Float(53)
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "instrument",
        sa.Column("id", sa.Integer, nullable=False, comment="Number given by the store."),
        sa.Column("market", TEXT, nullable=False, comment="Name of the market, such as sp500."),
        sa.Column("symbol", TEXT, nullable=False, comment="The market's own symbol."),
        sa.Column("kind", TEXT, nullable=False, comment="'stock', or 'index' for the market's index."),
        sa.Column("source_symbol", TEXT, nullable=False, comment="Symbol at the price source (Yahoo's spelling)."),
        sa.Column("name", TEXT, comment="Name of the company or index; missing when unknown."),
        sa.Column("sector", TEXT, comment="Sector; missing when unknown and for an index."),
        sa.CheckConstraint("kind in ('stock', 'index')", name=op.f("ck_instrument_kind")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_instrument")),
        sa.UniqueConstraint("market", "symbol", name=op.f("uq_instrument_market_symbol")),
        comment="Stocks and indices, one row per market and symbol.",
    )
    op.create_table(
        "membership",
        sa.Column("instrument_id", sa.Integer, nullable=False, comment="The instrument."),
        sa.Column("spell", sa.Integer, autoincrement=False, nullable=False, comment="1 for the first stay."),
        sa.Column("valid_from", sa.Date, comment="First session of the stay; missing when not known."),
        sa.Column("valid_to", sa.Date, comment="First day after the stay; missing while it lasts."),
        sa.Column("source", TEXT, nullable=False, comment="Where the list of constituents comes from, in words."),
        sa.CheckConstraint("spell >= 1", name=op.f("ck_membership_spell")),
        sa.CheckConstraint("valid_from <= valid_to", name=op.f("ck_membership_span")),
        sa.ForeignKeyConstraint(
            ["instrument_id"], ["instrument.id"], name=op.f("fk_membership_instrument_id_instrument")
        ),
        sa.PrimaryKeyConstraint("instrument_id", "spell", name=op.f("pk_membership")),
        comment="When each stock was a constituent of its market, as the market's file states it.",
        sqlite_with_rowid=False,
    )
    op.create_table(
        "price",
        sa.Column("instrument_id", sa.Integer, nullable=False, comment="The instrument."),
        sa.Column("session", sa.Date, nullable=False, comment="The session the bar belongs to."),
        sa.Column("known_at", MOMENT, nullable=False, comment="When this version was fetched."),
        sa.Column("open", REAL, comment="First price, in currency units, above 0; missing when not reported."),
        sa.Column("high", REAL, comment="Highest price, in currency units, above 0; missing when not reported."),
        sa.Column("low", REAL, comment="Lowest price, in currency units, above 0; missing when not reported."),
        sa.Column("close", REAL, nullable=False, comment="Last price, in currency units, above 0."),
        sa.Column(
            "adj_close",
            REAL,
            comment="Close adjusted for splits and dividends, above 0; missing when not reported.",
        ),
        sa.Column(
            "volume",
            REAL,
            comment="Shares traded, 0 or more, split-adjusted or not; missing when not reported.",
        ),
        sa.Column("dividend", REAL, comment="Dividend per share gone ex, in currency units; missing when none."),
        sa.Column("split", REAL, comment="New shares per old share on a split's day, above 0; missing when none."),
        sa.Column("source", TEXT, nullable=False, comment="Who reported the bar: yahoo, files, simulated."),
        sa.CheckConstraint(
            "open > 0 and high > 0 and low > 0 and close > 0 and adj_close > 0", name=op.f("ck_price_prices")
        ),
        sa.CheckConstraint("volume >= 0 and dividend >= 0 and split > 0", name=op.f("ck_price_amounts")),
        sa.ForeignKeyConstraint(["instrument_id"], ["instrument.id"], name=op.f("fk_price_instrument_id_instrument")),
        sa.PrimaryKeyConstraint("instrument_id", "session", "known_at", name=op.f("pk_price")),
        comment="Daily bars that passed the checks; a restated bar is a new row with a later known_at.",
        sqlite_with_rowid=False,
    )
    op.create_table(
        "refused_bar",
        sa.Column("instrument_id", sa.Integer, nullable=False, comment="The instrument."),
        sa.Column("session", sa.Date, nullable=False, comment="The session the bar claims."),
        sa.Column("source", TEXT, nullable=False, comment="Who reported the bar."),
        sa.Column("reason", TEXT, nullable=False, comment="The check it failed, such as high_below_low."),
        sa.Column("value", TEXT, nullable=False, comment="What was found, in words, such as open=0.0."),
        sa.Column("first_known_at", MOMENT, nullable=False, comment="When it was first fetched and refused."),
        sa.ForeignKeyConstraint(
            ["instrument_id"], ["instrument.id"], name=op.f("fk_refused_bar_instrument_id_instrument")
        ),
        sa.PrimaryKeyConstraint("instrument_id", "session", "source", "reason", name=op.f("pk_refused_bar")),
        comment="Bars that failed a check, one row per reason; they are in no price and no window.",
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("refused_bar")
    op.drop_table("price")
    op.drop_table("membership")
    op.drop_table("instrument")
