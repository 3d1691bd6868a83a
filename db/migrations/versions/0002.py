"""Record what computed models and nights, stages, feeds, second sources' bars, frozen nights."""

import sqlalchemy as sa
from alembic import op

from db.tables import UtcTimestamp

revision = "0002"
down_revision = "0001"

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new
# revision.
schema = "bfd0a4bb9927e5d4181aedf42734f7ee8803bcf991c6e97312073b5fef97911f"

# What this revision adds or changes, which an older store lacks: tables, and columns by table.
new_tables = ["night_stage", "bar_disagreement", "price_comparison", "frozen_night"]
changed_columns: dict[str, list[str]] = {
    "run": ["computed_by"],
    "night": ["computed_by"],
    "price_fetch": ["code"],
    "ranking_difference": ["gain_p"],
    "benchmark_score": ["acc_gain_p", "mcc_gain_p"],
}

TRAINED = (
    "Versions, processor and device that trained it, which decide the last bits; missing before "
    "schema 0002."
)
PREDICTED = (
    "Versions, processor and device that predicted, which decide the last bits; missing until "
    "predicted, and before schema 0002."
)

FEED = (
    "Text of the user's own feed that fetched; missing for other sources, where the feed was not "
    "admitted, and before schema 0002."
)

GAIN_P = (
    "p-value of the gain, adjusted for all pairs of the walk-forward (Romano and Wolf, 2005); "
    "missing with too few days, and before schema 0002."
)
ACC_P = (
    "p-value of acc_gain, adjusted for all predictors of the protocol (Romano and Wolf, 2005); "
    "missing for best_rule, with too few days, and before schema 0002."
)
MCC_P = "p-value of mcc_gain, adjusted in the same way; missing when acc_gain_p is."

STAGE = (
    "'fetch', 'model', 'predict', 'rank', 'store', 'freeze', 'score', 'paper account', 'drift' or "
    "'report'."
)
STATUS = "'running', 'done' or 'failed'; it stays 'running' where the process was killed."
SECONDS = "How long it took; missing while its status is 'running'."
STAGES = (
    "Stages of nights: one row per stage that the last run of a night has begun, with how long it "
    "took."
)

FIELDS = (
    "A column of price; 'scale' where all prices differ by one factor; 'bar' where only one of the "
    "two has the bar."
)
FIRST = (
    "Stored value; of 'scale' and 'bar' the close, of 'adj_close' the ratio of adj_close / close "
    "to that of the bar before; missing when not stored."
)
SETTLED = (
    "Where the values agree again, who changed: 'first' (the store), 'second' or 'both'; missing "
    "while they differ."
)
DIFFERENCE = "second_value / first_value - 1; missing when a value is missing or the first is 0."
DISAGREEMENTS = (
    "Values of stored bars that differ from those of the market's second source; a new row, with a "
    "later known_at, where they change or agree again."
)
COMPARISONS = (
    "Comparisons of the stored bars with those of the market's second source: one row per market "
    "and comparison."
)
COUNTS = {
    "symbols": "Symbols compared.",
    "bars": "Bars that both have.",
    "differing": "Values that differ.",
    "found": "Of these, values that did not differ before, or not in this way.",
    "settled": "Values that differed before and agree now.",
}
UNANSWERED = "Symbols that the second source did not answer, a list of {symbol, status, detail}."
FAILURE = "Why it failed or ended early; missing when it did not."
FROZEN = (
    "Frozen nights, never rewritten: a chain of SHA-256 hashes, each over what a night predicted "
    "and what it was made from. One row per link."
)
LINK = "The link: JSON with the SHA-256 of each part of the night, and of the link before."
REPLACED = (
    "Number of the earlier link of the same night, which was run again since; missing without one."
)
MADE = "When it was made; later than every comparison and fetch before it."
KINDS = (
    "kind in ('refused', 'late', 'below_rule', 'promoted', 'drifted', 'calendar', 'second_source')"
)


def upgrade() -> None:
    """Add columns, missing in every row (nobody knows what computed these), and empty tables.

    The table of alerts allows another kind.
    """
    op.add_column("price_fetch", sa.Column("code", sa.String(), comment=FEED))
    op.add_column("run", sa.Column("computed_by", sa.String(), comment=TRAINED))
    op.add_column("night", sa.Column("computed_by", sa.String(), comment=PREDICTED))
    op.add_column("ranking_difference", sa.Column("gain_p", sa.Float(53), comment=GAIN_P))
    op.add_column("benchmark_score", sa.Column("acc_gain_p", sa.Float(53), comment=ACC_P))
    op.add_column("benchmark_score", sa.Column("mcc_gain_p", sa.Float(53), comment=MCC_P))
    op.create_table(
        "night_stage",
        sa.Column("market", sa.String(), primary_key=True, comment="Name of the market."),
        sa.Column("as_of", sa.Date(), primary_key=True, comment="The night."),
        sa.Column("stage", sa.String(), primary_key=True, comment=STAGE),
        sa.Column("status", sa.String(), nullable=False, comment=STATUS),
        sa.Column("started_at", UtcTimestamp(), nullable=False, comment="When the stage began."),
        sa.Column("seconds", sa.Float(53), comment=SECONDS),
        sa.CheckConstraint("status in ('running', 'done', 'failed')", name="status"),
        sa.CheckConstraint("seconds >= 0", name="seconds"),
        comment=STAGES,
        sqlite_with_rowid=False,
    )
    _create_disagreements()
    _create_comparisons()
    _create_frozen_nights()
    _allow_kinds()


def _create_disagreements() -> None:
    op.create_table(
        "bar_disagreement",
        sa.Column(
            "instrument_id",
            sa.Integer(),
            sa.ForeignKey("instrument.id"),
            primary_key=True,
            autoincrement=False,
            comment="The instrument.",
        ),
        sa.Column(
            "session", sa.Date(), primary_key=True, comment="The session the bar belongs to."
        ),
        sa.Column("field", sa.String(), primary_key=True, comment=FIELDS),
        sa.Column(
            "known_at",
            UtcTimestamp(),
            primary_key=True,
            comment="When the comparison found these values.",
        ),
        sa.Column("first_value", sa.Float(53), comment=FIRST),
        sa.Column(
            "second_value",
            sa.Float(53),
            comment="The same of the second source; missing when it has none.",
        ),
        sa.Column("difference", sa.Float(53), comment=DIFFERENCE),
        sa.Column("settled_by", sa.String(), comment=SETTLED),
        sa.Column("source", sa.String(), nullable=False, comment="Name of the second source."),
        sa.CheckConstraint(
            "field in ('bar', 'scale', 'open', 'high', 'low', 'close', 'adj_close', 'volume', "
            "'dividend', 'split')",
            name="field",
        ),
        sa.CheckConstraint("settled_by in ('first', 'second', 'both')", name="settled_by"),
        comment=DISAGREEMENTS,
        sqlite_with_rowid=False,
    )


def _create_comparisons() -> None:
    counts = [
        sa.Column(name, sa.Integer(), nullable=False, comment=meaning)
        for name, meaning in COUNTS.items()
    ]
    op.create_table(
        "price_comparison",
        sa.Column("market", sa.String(), primary_key=True, comment="Name of the market."),
        sa.Column("known_at", UtcTimestamp(), primary_key=True, comment=MADE),
        sa.Column("as_of", sa.Date(), nullable=False, comment="Last session compared."),
        sa.Column("source", sa.String(), nullable=False, comment="Name of the second source."),
        *counts,
        sa.Column("failures", sa.JSON(), nullable=False, comment=UNANSWERED),
        sa.Column("failure", sa.String(), comment=FAILURE),
        sa.CheckConstraint(
            "symbols >= 0 and bars >= 0 and differing >= 0 and found >= 0 and settled >= 0",
            name="counts",
        ),
        comment=COMPARISONS,
        sqlite_with_rowid=False,
    )


def _create_frozen_nights() -> None:
    op.create_table(
        "frozen_night",
        sa.Column("market", sa.String(), primary_key=True, comment="Name of the market."),
        sa.Column(
            "number",
            sa.Integer(),
            primary_key=True,
            autoincrement=False,
            comment="Place in the market's chain, from 1.",
        ),
        sa.Column("as_of", sa.Date(), nullable=False, comment="The night's last closed session."),
        sa.Column("target", sa.Date(), nullable=False, comment="Session predicted."),
        sa.Column(
            "known_at",
            UtcTimestamp(),
            nullable=False,
            comment="Latest known_at of the prices that the night used.",
        ),
        sa.Column("link", sa.String(), nullable=False, comment=LINK),
        sa.Column("digest", sa.String(), nullable=False, comment="SHA-256 of `link`."),
        sa.Column(
            "previous",
            sa.String(),
            comment="Digest of the link before; missing for the first.",
        ),
        sa.Column("replaces", sa.Integer(), comment=REPLACED),
        sa.Column("created_at", UtcTimestamp(), nullable=False, comment="When the link was made."),
        sa.CheckConstraint("number >= 1 and replaces < number", name="number"),
        sa.CheckConstraint("as_of < target", name="dates"),
        comment=FROZEN,
    )


def _allow_kinds() -> None:
    """Let alerts be about the second source.

    SQLite cannot change a constraint: there a new table takes over the rows.
    """
    if op.get_bind().dialect.name == "postgresql":
        op.execute("alter table alert drop constraint ck_alert_kind")
        op.execute(f"alter table alert add constraint ck_alert_kind check ({KINDS})")
        return
    op.rename_table("alert", "alert_before")
    op.create_table(
        "alert",
        sa.Column("market", sa.String(), primary_key=True),
        sa.Column("as_of", sa.Date(), primary_key=True),
        sa.Column("kind", sa.String(), primary_key=True),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("raised_at", UtcTimestamp(), nullable=False),
        sa.Column("sent_at", UtcTimestamp()),
        sa.CheckConstraint(KINDS, name="kind"),
        sqlite_with_rowid=False,
    )
    op.execute(
        "insert into alert (market, as_of, kind, message, raised_at, sent_at) "
        "select market, as_of, kind, message, raised_at, sent_at from alert_before"
    )
    op.drop_table("alert_before")
