"""Nights say what their model read; fetches and alerts are kept; predictions have a receipt.

Frozen: db/schema.py and db/views.py say what holds today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TEXT = sa.String()
MOMENT = sa.DateTime(timezone=True)

LATEST_PREDICTION = """
create view latest_prediction as
with newest as (
    select market, max(target) as target
    from (
        select r.market, (select max(p.target) from prediction p where p.run_id = r.id) as target
        from run r
        where r.kind = 'nightly'
    ) as by_run
    group by market
)
select
    i.market, i.symbol, i.name, i.sector, p.as_of, p.target, p.probability, p.spread,
    case when p.probability > 0.5 then 'rise' else 'fall' end as call,
    p.run_id, p.known_at, p.made_at,
    p.run_id || '/' || i.symbol || '/' || cast(p.target as varchar) as receipt
from newest n
join run r on r.market = n.market and r.kind = 'nightly'
join prediction p on p.run_id = r.id and p.target = n.target
join instrument i on i.id = p.instrument_id
where not exists (
    select 1
    from prediction later
    join run lr on lr.id = later.run_id and lr.kind = 'nightly'
    where later.instrument_id = p.instrument_id and later.target = p.target
        and (later.made_at > p.made_at or later.made_at = p.made_at and later.run_id > p.run_id)
)
"""

PREDICTION_HISTORY = """
create view prediction_history as
select
    i.market, i.symbol, p.as_of, p.target, p.probability, p.spread,
    case when p.probability > 0.5 then 'rise' else 'fall' end as call,
    o.move, o.label,
    case when o.rise is null then null when (p.probability > 0.5) = o.rise then 1 else 0 end as hit,
    r.kind, p.run_id, p.known_at, p.made_at,
    p.run_id || '/' || i.symbol || '/' || cast(p.target as varchar) as receipt
from prediction p
join instrument i on i.id = p.instrument_id
join run r on r.id = p.run_id
left join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
"""

NIGHT_LOG = """
create view night_log as
select
    market, as_of, target, status, reason, source, fetched, stored, refused, predictions, gaps, run_id,
    known_at, inputs_hash, started_at, finished_at
from night
"""

FETCH_LOG = """
create view fetch_log as
select market, as_of, source, asked, fetched, stored, refused, restated, failures, known_at
from price_fetch
"""

ALERT_LOG = """
create view alert_log as
select market, as_of, kind, message, raised_at, sent_at
from alert
"""

MODEL = """
create view model as
select
    market, id as run_id, kind, model, train_first, train_last, seeds, config, code_version, data_watermark,
    checkpoint_hash, created_at
from run
"""

LATEST_PREDICTION_BEFORE = """
create view latest_prediction as
with newest as (
    select market, max(target) as target
    from (
        select r.market, (select max(p.target) from prediction p where p.run_id = r.id) as target
        from run r
        where r.kind = 'nightly'
    ) as by_run
    group by market
)
select
    i.market, i.symbol, i.name, i.sector, p.as_of, p.target, p.probability, p.spread,
    case when p.probability > 0.5 then 'rise' else 'fall' end as call,
    p.run_id, p.known_at, p.made_at
from newest n
join run r on r.market = n.market and r.kind = 'nightly'
join prediction p on p.run_id = r.id and p.target = n.target
join instrument i on i.id = p.instrument_id
where not exists (
    select 1
    from prediction later
    join run lr on lr.id = later.run_id and lr.kind = 'nightly'
    where later.instrument_id = p.instrument_id and later.target = p.target
        and (later.made_at > p.made_at or later.made_at = p.made_at and later.run_id > p.run_id)
)
"""

PREDICTION_HISTORY_BEFORE = """
create view prediction_history as
select
    i.market, i.symbol, p.as_of, p.target, p.probability, p.spread,
    case when p.probability > 0.5 then 'rise' else 'fall' end as call,
    o.move, o.label,
    case when o.rise is null then null when (p.probability > 0.5) = o.rise then 1 else 0 end as hit,
    r.kind, p.run_id, p.known_at, p.made_at
from prediction p
join instrument i on i.id = p.instrument_id
join run r on r.id = p.run_id
left join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
"""

NIGHT_LOG_BEFORE = """
create view night_log as
select
    market, as_of, target, status, reason, source, fetched, stored, refused, predictions, gaps, run_id,
    known_at, started_at, finished_at
from night
"""

ADDED = {"fetch_log": FETCH_LOG, "alert_log": ALERT_LOG, "model": MODEL}
CHANGED = {
    "latest_prediction": (LATEST_PREDICTION, LATEST_PREDICTION_BEFORE),
    "prediction_history": (PREDICTION_HISTORY, PREDICTION_HISTORY_BEFORE),
    "night_log": (NIGHT_LOG, NIGHT_LOG_BEFORE),
}


def upgrade() -> None:
    for view in CHANGED:
        op.execute(f"drop view {view}")
    said = "SHA-256 of the windows the model read; missing until it has."
    op.add_column("night", sa.Column("inputs_hash", TEXT, comment=said))
    _create_price_fetch()
    _create_alert()
    for after, _before in CHANGED.values():
        op.execute(after)
    for text in ADDED.values():
        op.execute(text)


def downgrade() -> None:
    for view in (*ADDED, *CHANGED):
        op.execute(f"drop view {view}")
    op.drop_table("alert")
    op.drop_table("price_fetch")
    op.drop_column("night", "inputs_hash")
    for _after, before in CHANGED.values():
        op.execute(before)


def _create_price_fetch() -> None:
    op.create_table(
        "price_fetch",
        sa.Column("market", TEXT, nullable=False, comment="Name of the market."),
        sa.Column("known_at", MOMENT, nullable=False, comment="When its bars were known; later than the fetch before."),
        sa.Column("as_of", sa.Date, nullable=False, comment="Session up to which the store was to be brought."),
        sa.Column("source", TEXT, nullable=False, comment="Who was asked: yahoo, files, simulated."),
        sa.Column("asked", sa.Integer, nullable=False, comment="Symbols asked for."),
        sa.Column("fetched", sa.Integer, nullable=False, comment="Bars the source returned."),
        sa.Column("stored", sa.Integer, nullable=False, comment="Bars that were new or restated."),
        sa.Column("refused", sa.Integer, nullable=False, comment="Findings against bars, one for each check failed."),
        sa.Column("restated", sa.JSON, nullable=False, comment="Symbols whose whole history was fetched anew, a list."),
        sa.Column(
            "failures",
            sa.JSON,
            nullable=False,
            comment="Symbols without an answer, a list of {symbol, status, detail}.",
        ),
        sa.CheckConstraint(
            "asked >= 0 and fetched >= 0 and stored >= 0 and refused >= 0", name=op.f("ck_price_fetch_counts")
        ),
        sa.PrimaryKeyConstraint("market", "known_at", name=op.f("pk_price_fetch")),
        comment="One row per time a source was asked: what came, and what did not.",
        sqlite_with_rowid=False,
    )


def _create_alert() -> None:
    op.create_table(
        "alert",
        sa.Column("market", TEXT, nullable=False, comment="Name of the market."),
        sa.Column("as_of", sa.Date, nullable=False, comment="The night it is about."),
        sa.Column("kind", TEXT, nullable=False, comment="'refused', 'late' or 'below_rule'."),
        sa.Column("message", TEXT, nullable=False, comment="What happened, in words."),
        sa.Column("raised_at", MOMENT, nullable=False, comment="When it was noticed."),
        sa.Column("sent_at", MOMENT, comment="When a webhook took it; missing without one, or until it does."),
        sa.CheckConstraint("kind in ('refused', 'late', 'below_rule')", name=op.f("ck_alert_kind")),
        sa.PrimaryKeyConstraint("market", "as_of", "kind", name=op.f("pk_alert")),
        comment="What somebody should know of a night, once for each night and kind.",
        sqlite_with_rowid=False,
    )
