"""The documented SQL views: one text for both engines, and what each column means.

A revision of db/migrations holds its own copy of the text, so that an old store can always be upgraded; a
test holds the newest copy to this one.
"""

from types import MappingProxyType
from typing import Final

from db.tables.columns import meaning
from db.views.backtest_views import BACKTEST_VIEW_COLUMNS, BACKTEST_VIEW_SQL
from db.views.benchmark_views import BENCHMARK_VIEW_COLUMNS, BENCHMARK_VIEW_SQL
from db.views.evidence_views import EVIDENCE_VIEW_COLUMNS, EVIDENCE_VIEW_SQL
from db.views.service_views import SERVICE_VIEW_COLUMNS, SERVICE_VIEW_SQL
from db.views.translation_views import TRANSLATION_VIEW_COLUMNS, TRANSLATION_VIEW_SQL

# SQLite reads a cross join in the order written: the newest night before its predictions, never all of a market's.
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

# A join that could go either way, PostgreSQL begins with the versions before, and pairs each with every later one.
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
    known_at, inputs_hash, started_at, finished_at
from night
"""

VIEW_SQL: Final = MappingProxyType(
    {
        "latest_prediction": LATEST_PREDICTION,
        "prediction_history": PREDICTION_HISTORY,
        "daily_score": DAILY_SCORE,
        "price_latest": PRICE_LATEST,
        "price_restatement": PRICE_RESTATEMENT,
        "refused": REFUSED,
        "night_log": NIGHT_LOG,
        **BENCHMARK_VIEW_SQL,
        **BACKTEST_VIEW_SQL,
        **SERVICE_VIEW_SQL,
        **EVIDENCE_VIEW_SQL,
        **TRANSLATION_VIEW_SQL,
    }
)

_BAR = {
    **meaning("market", "symbol"),
    "session": "The session the bar belongs to.",
}
_PREDICTION = {
    **meaning("as_of", "target", "probability"),
    "spread": "Standard deviation over the members; 0 with one, missing if not kept.",
    "calibrated": "The probability as calibrated on validation; missing if not kept.",
    "call": "'rise' when the probability is above 0.5, else 'fall'.",
}
_RECEIPT = {
    **meaning("run_id"),
    "known_at": "Latest known_at of the prices it saw, UTC.",
    "made_at": "When it was computed, UTC.",
    "receipt": "What `dtml replay` takes: run, symbol and session predicted.",
}

VIEW_COLUMNS: Final = MappingProxyType(
    {
        "latest_prediction": {
            **meaning("market", "symbol"),
            "name": "Name of the company; missing when unknown.",
            "sector": "Sector; missing when unknown.",
            **_PREDICTION,
            **_RECEIPT,
        },
        "prediction_history": {
            **meaning("market", "symbol"),
            **_PREDICTION,
            **meaning("move"),
            "label": "The paper's label of the move: 1, 0 or -1; missing with the move.",
            "hit": "1 when the call was right (a rise is a move above 0), else 0; missing with the move.",
            "always_up": "What the rule 'every stock rises' called; missing if not kept, like the next two.",
            "index_reversal": "What 'rises after a fall of the index, else falls' called; missing without history.",
            "index_below_mean20": "What 'rises while the index is below its mean of 20 sessions, else falls' called.",
            **meaning("kind"),
            **_RECEIPT,
        },
        "daily_score": {
            **meaning("market", "target", "protocol"),
            "predictor": "'dtml', or the name of a naive rule.",
            "n": "Stock-days scored that night.",
            "rises": "Stock-days of them that rose.",
            "acc": "Share of right calls that night, 0 to 1; missing when n is 0.",
            "mcc": "Matthews correlation that night, -1 to 1; missing when n is 0.",
            "running_nights": "Sessions scored up to and with this one.",
            "running_n": "Stock-days scored up to and with this night.",
            "running_acc": "Share of right calls over all of them, 0 to 1.",
            "running_acc_low": "Lower end of its day-resampled 95 % interval; missing below 20 nights.",
            "running_acc_high": "Upper end of that interval; missing below 20 nights.",
            "running_mcc": "Matthews correlation over all of them pooled, -1 to 1.",
            "running_mcc_low": "Lower end of its day-resampled 95 % interval; missing below 20 nights.",
            "running_mcc_high": "Upper end of that interval; missing below 20 nights.",
            "scored_at": "When the night's row was last changed, UTC.",
        },
        "price_latest": {
            **_BAR,
            "open": "First price, in currency units; missing when not reported.",
            "high": "Highest price, in currency units; missing when not reported.",
            "low": "Lowest price, in currency units; missing when not reported.",
            "close": "Last price, in currency units.",
            "adj_close": "Close adjusted for splits and dividends; missing when not reported.",
            "volume": "Shares traded; missing when not reported.",
            "dividend": "Dividend per share gone ex, in currency units; missing when none.",
            "split": "New shares per old share on a split's day; missing when none.",
            "source": "Who reported the bar: yahoo, files, simulated.",
            "known_at": "When this, the newest version, was fetched, UTC.",
        },
        "price_restatement": {
            **_BAR,
            "close": "Restated last price, in currency units.",
            "adj_close": "Restated adjusted close; missing when not reported.",
            "volume": "Restated volume; missing when not reported.",
            "source": "Who restated it.",
            "known_at": "When the restated version was fetched, UTC.",
            "close_before": "Close of the version before.",
            "adj_close_before": "Adjusted close of the version before; missing when not reported.",
            "volume_before": "Volume of the version before; missing when not reported.",
            "known_at_before": "When the version before was fetched, UTC.",
        },
        "refused": {
            **_BAR,
            "source": "Who reported the bar.",
            "reason": "The check it failed, such as high_below_low.",
            "value": "What was found, in words, such as open=0.0.",
            "first_known_at": "When it was first fetched and refused, UTC.",
        },
        "night_log": {
            **meaning("market"),
            "as_of": "Last closed session: the last one seen.",
            "target": "The session after it: the one predicted.",
            "status": "'running', 'complete', 'complete_with_gaps' or 'refused'.",
            "reason": "Why it was refused; missing otherwise.",
            "source": "Where bars came from: yahoo, files, simulated.",
            "fetched": "Bars the source returned; missing while running.",
            "stored": "Bars that were new or restated; missing while running.",
            "refused": "Bars refused; missing while running.",
            "predictions": "Stocks predicted; missing while running.",
            "gaps": "Stocks left out, a JSON list of {symbol, reason}; missing while running.",
            "run_id": "The model used: a row of run; missing until there is one.",
            "known_at": "Latest known_at of the prices used, UTC; missing until known.",
            "inputs_hash": "SHA-256 of the windows the model read; missing until it has.",
            "started_at": "When the night began, UTC.",
            "finished_at": "When it ended, UTC; missing while running.",
        },
        **BENCHMARK_VIEW_COLUMNS,
        **BACKTEST_VIEW_COLUMNS,
        **SERVICE_VIEW_COLUMNS,
        **EVIDENCE_VIEW_COLUMNS,
        **TRANSLATION_VIEW_COLUMNS,
    }
)
