"""The views of how far predictions can be trusted; three others say more of each prediction and model.

Frozen: db/views.py says what holds today.
"""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

SYMBOL_SCORE = """
create view symbol_score as
select
    c.market, c.symbol, c.kind, c.n, c.rises, c.first, c.last,
    cast(c.hits + c.passes as double precision) / c.n as acc,
    case
        when c.hits + c.alarms = 0 or c.hits + c.misses = 0 or c.passes + c.alarms = 0 or c.passes + c.misses = 0
        then 0.0
        else (cast(c.hits as double precision) * c.passes - cast(c.alarms as double precision) * c.misses)
            / sqrt(
                cast(c.hits + c.alarms as double precision) * (c.hits + c.misses)
                * cast(c.passes + c.alarms as double precision) * (c.passes + c.misses)
            )
    end as mcc,
    cast(c.rises as double precision) / c.n as up_acc
from (
    select
        i.market, i.symbol, r.kind, count(*) as n, min(p.target) as first, max(p.target) as last,
        sum(case when o.rise then 1 else 0 end) as rises,
        sum(case when p.probability > 0.5 and o.rise then 1 else 0 end) as hits,
        sum(case when p.probability > 0.5 and not o.rise then 1 else 0 end) as alarms,
        sum(case when p.probability <= 0.5 and o.rise then 1 else 0 end) as misses,
        sum(case when p.probability <= 0.5 and not o.rise then 1 else 0 end) as passes
    from instrument i
    join prediction p on p.instrument_id = i.id
    join run r on r.id = p.run_id
    join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
    group by i.market, i.symbol, r.kind
) as c
"""

CALIBRATION = """
create view calibration as
select
    r.market, r.kind, b.run_id, b.target, b.bin / 100.0 as bin_low, (b.bin + 1) / 100.0 as bin_high, b.n,
    b.probability_sum / b.n as mean_probability, cast(b.rises as double precision) / b.n as share_risen
from run r
join calibration_bin b on b.run_id = r.id
"""

COVERAGE = """
create view coverage as
select r.market, r.kind, b.run_id, b.target, b.level, b.n, b.covered, b.called, b.right_calls
from run r
join band_count b on b.run_id = r.id
"""

DISAGREEMENT = """
create view disagreement as
select
    i.market, i.symbol, p.as_of, p.target, p.probability, p.spread, p.lowest, p.highest, p.rising_share,
    case when p.rising_share > 0 and p.rising_share < 1 then 0 else 1 end as unanimous, r.kind, p.run_id
from prediction p
join instrument i on i.id = p.instrument_id
join run r on r.id = p.run_id
where p.rising_share is not null
"""

BAND_CALL = """
create view band_call as
select
    i.market, i.symbol, p.as_of, p.target, b.level, p.calibrated, 1 - b.threshold as low, b.threshold as high,
    case
        when p.calibrated > b.threshold then 'rise'
        when p.calibrated < 1 - b.threshold then 'fall'
        else 'none'
    end as call,
    o.move,
    case
        when o.rise is null then null
        when p.calibrated > b.threshold and not o.rise or p.calibrated < 1 - b.threshold and o.rise then 0
        else 1
    end as covered,
    r.kind, p.run_id
from prediction p
join instrument i on i.id = p.instrument_id
join run r on r.id = p.run_id
join band b on b.run_id = p.run_id
left join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
where p.calibrated is not null
"""

EXPLANATION_LOG = """
create view explanation_log as
select
    market, run_id, as_of, made_at, stocks, days, members, shuffles, epochs, distance, distance_p,
    case when told_apart then 1 else 0 end as told_apart, agreement, agreement_low, agreement_high, top, drivers,
    drivers_chance, drivers_importance, seconds
from explanation
"""

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
    n.market, i.symbol, i.name, i.sector, p.as_of, p.target, p.probability, p.spread, p.calibrated,
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

PREDICTION_HISTORY = """
create view prediction_history as
select
    i.market, i.symbol, p.as_of, p.target, p.probability, p.spread, p.calibrated,
    case when p.probability > 0.5 then 'rise' else 'fall' end as call,
    o.move, o.label,
    case when o.rise is null then null when (p.probability > 0.5) = o.rise then 1 else 0 end as hit,
    case when c.always_up then 'rise' when not c.always_up then 'fall' end as always_up,
    case when c.index_reversal then 'rise' when not c.index_reversal then 'fall' end as index_reversal,
    case when c.index_below_mean20 then 'rise' when not c.index_below_mean20 then 'fall' end as index_below_mean20,
    r.kind, p.run_id, p.known_at, p.made_at,
    p.run_id || '/' || i.symbol || '/' || cast(p.target as varchar) as receipt
from prediction p
join instrument i on i.id = p.instrument_id
join run r on r.id = p.run_id
left join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
left join rule_call c on c.market = i.market and c.target = p.target
"""

MODEL = """
create view model as
select
    market, id as run_id, kind, model, train_first, train_last, seeds, config, code_version, data_watermark,
    checkpoint_hash, slope, intercept, created_at
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

PREDICTION_HISTORY_BEFORE = """
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

MODEL_BEFORE = """
create view model as
select
    market, id as run_id, kind, model, train_first, train_last, seeds, config, code_version, data_watermark,
    checkpoint_hash, created_at
from run
"""

ADDED = {
    "symbol_score": SYMBOL_SCORE,
    "calibration": CALIBRATION,
    "coverage": COVERAGE,
    "disagreement": DISAGREEMENT,
    "band_call": BAND_CALL,
    "explanation_log": EXPLANATION_LOG,
}
CHANGED = {
    "latest_prediction": (LATEST_PREDICTION, LATEST_PREDICTION_BEFORE),
    "prediction_history": (PREDICTION_HISTORY, PREDICTION_HISTORY_BEFORE),
    "model": (MODEL, MODEL_BEFORE),
}


def upgrade() -> None:
    for view, (after, _before) in CHANGED.items():
        op.execute(f"drop view {view}")
        op.execute(after)
    for text in ADDED.values():
        op.execute(text)


def downgrade() -> None:
    for view in ADDED:
        op.execute(f"drop view {view}")
    for view, (_after, before) in CHANGED.items():
        op.execute(f"drop view {view}")
        op.execute(before)
