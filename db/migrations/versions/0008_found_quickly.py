"""Predictions can be found by the session seen, and two views read no more than they give.

Frozen: db/schema.py and db/views.py say what holds today.
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

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
    n.market, i.symbol, i.name, i.sector, p.as_of, p.target, p.probability, p.spread,
    case when p.probability > 0.5 then 'rise' else 'fall' end as call,
    p.run_id, p.known_at, p.made_at,
    p.run_id || '/' || i.symbol || '/' || cast(p.target as varchar) as receipt
from newest n
cross join run r
cross join prediction p
cross join instrument i
where r.market = n.market and r.kind = 'nightly' and p.run_id = r.id and p.target = n.target
    and i.id = p.instrument_id
    and not exists (
        select 1
        from prediction later
        join run lr on lr.id = later.run_id and lr.kind = 'nightly'
        where later.instrument_id = p.instrument_id and later.target = p.target
            and (later.made_at > p.made_at or later.made_at = p.made_at and later.run_id > p.run_id)
    )
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

PRICE_RESTATEMENT = """
create view price_restatement as
select
    i.market, i.symbol, p.session, p.close, p.adj_close, p.volume, p.source, p.known_at,
    b.close as close_before, b.adj_close as adj_close_before, b.volume as volume_before,
    b.known_at as known_at_before
from price p
join instrument i on i.id = p.instrument_id
left join price b on b.instrument_id = p.instrument_id and b.session = p.session and b.known_at = (
    select max(earlier.known_at)
    from price earlier
    where earlier.instrument_id = p.instrument_id and earlier.session = p.session
        and earlier.known_at < p.known_at
)
where coalesce(b.close, 0) > 0
"""

PRICE_RESTATEMENT_BEFORE = """
create view price_restatement as
select
    i.market, i.symbol, p.session, p.close, p.adj_close, p.volume, p.source, p.known_at,
    b.close as close_before, b.adj_close as adj_close_before, b.volume as volume_before,
    b.known_at as known_at_before
from price p
join instrument i on i.id = p.instrument_id
join price b on b.instrument_id = p.instrument_id and b.session = p.session and b.known_at = (
    select max(earlier.known_at)
    from price earlier
    where earlier.instrument_id = p.instrument_id and earlier.session = p.session
        and earlier.known_at < p.known_at
)
"""

CHANGED = {
    "latest_prediction": (LATEST_PREDICTION, LATEST_PREDICTION_BEFORE),
    "price_restatement": (PRICE_RESTATEMENT, PRICE_RESTATEMENT_BEFORE),
}


def upgrade() -> None:
    op.create_index(op.f("ix_prediction_as_of"), "prediction", ["as_of"])
    for view, (after, _before) in CHANGED.items():
        op.execute(f"drop view {view}")
        op.execute(after)


def downgrade() -> None:
    for view, (_after, before) in CHANGED.items():
        op.execute(f"drop view {view}")
        op.execute(before)
    op.drop_index(op.f("ix_prediction_as_of"), "prediction")
