"""The SQL views of how far predictions can be trusted, and what each column means; a part of db/views/views.py."""

from types import MappingProxyType
from typing import Final

from db.tables.columns import meaning

# Counts before their ratios: a query for one stock reads that stock alone on either engine.
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

EVIDENCE_VIEW_SQL: Final = MappingProxyType(
    {
        "symbol_score": SYMBOL_SCORE,
        "calibration": CALIBRATION,
        "coverage": COVERAGE,
        "disagreement": DISAGREEMENT,
        "band_call": BAND_CALL,
        "explanation_log": EXPLANATION_LOG,
    }
)

_OF_NIGHT = meaning("market", "kind", "run_id", "target")
_PREDICTED = meaning("market", "symbol", "as_of", "target")

EVIDENCE_VIEW_COLUMNS: Final = MappingProxyType(
    {
        "symbol_score": {
            **meaning("market", "symbol", "kind"),
            "n": "Predictions whose outcome is known.",
            "rises": "Those of them that rose.",
            "first": "First session of them.",
            "last": "Last session of them.",
            "acc": "Share of right calls, 0 to 1.",
            "mcc": "Matthews correlation of the calls, -1 to 1; 0 when one class is never called or never happens.",
            "up_acc": "Share of right calls of 'every stock rises' on the same sessions, 0 to 1.",
        },
        "calibration": {
            **_OF_NIGHT,
            "bin_low": "Lower edge of a whole percent of the probability before calibration, 0 to 0.99.",
            "bin_high": "Its upper edge, left out; 1 belongs to the last.",
            "n": "Predictions in it whose outcome is known; add nights up with these weights.",
            "mean_probability": "Mean probability of a rise that they gave, before calibration, 0 to 1.",
            "share_risen": "Share of them that rose, 0 to 1.",
        },
        "coverage": {
            **_OF_NIGHT,
            "level": "Nominal share of outcomes that are to be covered, 0 to 1.",
            "n": "Calibrated predictions whose outcome is known.",
            "covered": "Those without a call or with a right one: covered / n is to reach the level.",
            "called": "Those with a call at that level.",
            "right_calls": "Those with a right call.",
        },
        "disagreement": {
            **_PREDICTED,
            **meaning("probability"),
            "spread": "Standard deviation over the members; 0 with one.",
            "lowest": "Smallest probability among the members.",
            "highest": "Largest probability among the members.",
            "rising_share": "Share of the members above 0.5.",
            "unanimous": "1 when all members call alike, else 0.",
            **meaning("kind", "run_id"),
        },
        "band_call": {
            **_PREDICTED,
            "level": "Nominal share of outcomes that are to be covered, 0 to 1.",
            "calibrated": "Probability of a rise after calibration on validation, 0 to 1.",
            "low": "A fall is called below it.",
            "high": "A rise is called above it; no call is made between the two.",
            "call": "'rise', 'fall' or 'none'.",
            **meaning("move"),
            "covered": "1 without a call or with a right one, 0 with a wrong one; missing with the move.",
            **meaning("kind", "run_id"),
        },
        "explanation_log": {
            **meaning("market"),
            "run_id": "The market's model it is about: a row of run.",
            "as_of": "Last session read.",
            "made_at": "When it was measured, UTC.",
            "stocks": "Stocks of the networks compared.",
            "days": "Days of validation looked at.",
            "members": "Networks trained on true labels.",
            "shuffles": "Networks trained on labels of shuffled days.",
            "epochs": "Epochs that each was trained.",
            "distance": "Energy distance between the attention of both groups.",
            "distance_p": "Its p-value, by permuting who belongs to which group.",
            "told_apart": "1 when it is at most 0.05, else 0.",
            "agreement": "Mean over stocks of Spearman's correlation of attention with permutation importance.",
            "agreement_low": "Lower end of its day-resampled 95 % interval; missing with too few days.",
            "agreement_high": "Upper end of that interval; missing with too few days.",
            "top": "Sources of each stock that are held against its true driver.",
            "drivers": "Share of stocks whose true driver is among them; missing where none is known.",
            "drivers_chance": "The share that chance gives; missing with drivers.",
            "drivers_importance": "The share by permutation importance; missing with drivers.",
            "seconds": "Time it took, in seconds.",
        },
    }
)
