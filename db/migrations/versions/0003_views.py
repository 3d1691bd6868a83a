"""The documented views.

Frozen: db/schema.py and db/views.py say what holds today.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
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

PREDICTION_HISTORY = """
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

DAILY_SCORE = """
create view daily_score as
select
    d.market, d.target, d.protocol, d.predictor, d.n, d.rises, d.acc, d.mcc,
    r.nights as running_nights, r.n as running_n, r.acc as running_acc, r.acc_low as running_acc_low,
    r.acc_high as running_acc_high, r.mcc as running_mcc, r.mcc_low as running_mcc_low,
    r.mcc_high as running_mcc_high, d.scored_at
from score d
left join score r on r.market = d.market and r.target = d.target and r.span = 'running'
    and r.protocol = d.protocol and r.predictor = d.predictor
where d.span = 'night'
"""

PRICE_LATEST = """
create view price_latest as
select
    i.market, i.symbol, p.session, p.open, p.high, p.low, p.close, p.adj_close, p.volume, p.dividend, p.split,
    p.source, p.known_at
from price p
join instrument i on i.id = p.instrument_id
where not exists (
    select 1
    from price later
    where later.instrument_id = p.instrument_id and later.session = p.session and later.known_at > p.known_at
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
join price b on b.instrument_id = p.instrument_id and b.session = p.session and b.known_at = (
    select max(earlier.known_at)
    from price earlier
    where earlier.instrument_id = p.instrument_id and earlier.session = p.session
        and earlier.known_at < p.known_at
)
"""

REFUSED = """
create view refused as
select i.market, i.symbol, b.session, b.source, b.reason, b.value, b.first_known_at
from refused_bar b
join instrument i on i.id = b.instrument_id
"""

NIGHT_LOG = """
create view night_log as
select
    market, as_of, target, status, reason, source, fetched, stored, refused, predictions, gaps, run_id,
    known_at, started_at, finished_at
from night
"""
VIEWS = {
    "latest_prediction": LATEST_PREDICTION,
    "prediction_history": PREDICTION_HISTORY,
    "daily_score": DAILY_SCORE,
    "price_latest": PRICE_LATEST,
    "price_restatement": PRICE_RESTATEMENT,
    "refused": REFUSED,
    "night_log": NIGHT_LOG,
}


def upgrade() -> None:
    for sql in VIEWS.values():
        op.execute(sql)


def downgrade() -> None:
    for name in reversed(VIEWS):
        op.execute(f"drop view {name}")
