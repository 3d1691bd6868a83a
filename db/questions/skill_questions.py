"""The SQL of the questions of what is called and how good the calls are; a part of db/questions/questions.py."""

TOMORROW = """
with tomorrow as (
    select * from latest_prediction where market = 'simulated'
), bands as (
    select b.run_id, b.symbol, b.call
    from tomorrow t
    cross join band_call b
    where b.market = 'simulated' and b.level = 0.8 and b.run_id = t.run_id and b.target = t.target
        and b.symbol = t.symbol
), looks as (
    select run_id, symbol, source, row_number() over (partition by run_id, symbol order by weight desc, source) as place
    from attention
    where market = 'simulated' and target = (select max(target) from tomorrow) and source <> symbol
)
select
    t.target, t.symbol, t.sector, round(cast(t.probability as numeric), 3) as probability,
    round(cast(t.calibrated as numeric), 3) as calibrated, t.call, b.call as call_at_80, l.source as looks_at
from tomorrow t
left join bands b on b.run_id = t.run_id and b.symbol = t.symbol
left join looks l on l.run_id = t.run_id and l.symbol = t.symbol and l.place = 1
order by abs(t.probability - 0.5) desc, t.symbol
"""

RULES_BEATEN = """
with nightly as (
    select r.predictor, m.acc - r.acc as gain
    from daily_score r
    join daily_score m on m.market = r.market and m.target = r.target and m.protocol = r.protocol
    where r.market = 'simulated' and r.protocol = 'all' and m.predictor = 'dtml' and r.predictor <> 'dtml'
), gains as (
    select
        predictor, avg(gain) as gain,
        1.96 * sqrt((avg(gain * gain) - avg(gain) * avg(gain)) / (count(*) - 1)) as error,
        sum(case when gain > 0 then 1 else 0 end) as ahead, sum(case when gain < 0 then 1 else 0 end) as behind
    from nightly
    group by predictor
    having count(*) > 1
)
select
    s.predictor, s.running_nights as nights, round(cast(s.running_acc as numeric), 3) as acc,
    round(cast(s.running_acc_low as numeric), 3) as acc_low, round(cast(s.running_acc_high as numeric), 3) as acc_high,
    round(cast(s.running_mcc as numeric), 3) as mcc, round(cast(g.gain as numeric), 3) as model_gains,
    round(cast(g.gain - g.error as numeric), 3) as gain_low,
    round(cast(g.gain + g.error as numeric), 3) as gain_high, g.ahead as nights_ahead, g.behind as nights_behind
from daily_score s
left join gains g on g.predictor = s.predictor
where s.market = 'simulated' and s.protocol = 'all'
    and s.target = (select max(target) from daily_score where market = 'simulated' and protocol = 'all')
order by acc desc, s.predictor
"""

RULES_CONTRADICTED = """
with rule(name) as (
    values ('always_up'), ('index_reversal'), ('index_below_mean20')
), calls as (
    select
        r.name as rule, h.call, h.hit,
        case r.name
            when 'always_up' then h.always_up
            when 'index_reversal' then h.index_reversal
            else h.index_below_mean20
        end as rule_call
    from prediction_history h
    cross join rule r
    where h.market = 'simulated' and h.kind = 'nightly' and h.hit is not null
)
select
    rule, sum(case when call = rule_call then 1 else 0 end) as agreed,
    round(avg(case when call = rule_call then hit end), 3) as both_right,
    sum(case when call <> rule_call then 1 else 0 end) as contradicted,
    round(avg(case when call <> rule_call then hit end), 3) as model_right,
    round(avg(case when call <> rule_call then 1 - hit end), 3) as rule_right
from calls
where rule_call is not null
group by rule
order by rule
"""

STOCKS = """
with scored as (
    select
        symbol, n as calls, round(cast(acc as numeric), 3) as acc, round(cast(mcc as numeric), 3) as mcc,
        round(cast(up_acc as numeric), 3) as always_up, round(cast(acc - up_acc as numeric), 3) as gain
    from symbol_score
    where market = 'simulated' and kind = 'nightly'
), placed as (
    select
        scored.*, row_number() over (order by mcc desc, symbol) as place,
        row_number() over (order by mcc, symbol desc) as from_below
    from scored
)
select place, symbol, calls, acc, mcc, always_up, gain
from placed
where place <= 5 or from_below <= 5
order by place
"""

NIGHTS = """
select
    target, count(*) as calls, round(avg(hit), 3) as acc,
    round(avg(case when call = 'rise' then 1.0 else 0.0 end), 3) as called_rise,
    round(avg(case when move > 0 then 1.0 else 0.0 end), 3) as rose,
    round(cast(100 * avg(move) as numeric), 2) as mean_move_percent,
    max(index_reversal) as index_reversal, max(index_below_mean20) as index_below_mean20
from prediction_history
where market = 'simulated' and kind = 'nightly' and hit is not null
group by target
order by acc, target
limit 10
"""

SLICES = """
with calls as (
    select
        symbol, hit, case when move > 0 then 1 else 0 end as rose, substr(cast(target as varchar), 1, 7) as month,
        cast(substr(cast(target as varchar), 1, 4) as integer) as y,
        cast(substr(cast(target as varchar), 6, 2) as integer) as m,
        cast(substr(cast(target as varchar), 9, 2) as integer) as d
    from prediction_history
    where market = 'simulated' and kind = 'nightly' and hit is not null
), dated as (
    -- Days as astronomers number them: every Monday's number can be divided by 7.
    select
        symbol, hit, rose, month,
        (1461 * (y + 4800 + (m - 14) / 12) / 4 + 367 * (m - 2 - (m - 14) / 12 * 12) / 12
            - 3 * ((y + 4900 + (m - 14) / 12) / 100) / 4 + d - 32075) % 7 + 1 as weekday
    from calls
), sectors as (
    select symbol, sector from latest_prediction where market = 'simulated'
), slices as (
    select 'month' as slice, month as value, hit, rose from dated
    union all
    select 'sector', coalesce(s.sector, 'unknown'), d.hit, d.rose
    from dated d
    left join sectors s on s.symbol = d.symbol
    union all
    select 'weekday', substr('1 Mon2 Tue3 Wed4 Thu5 Fri6 Sat7 Sun', 5 * weekday - 4, 5), hit, rose from dated
)
select
    slice, value, count(*) as calls, round(avg(hit), 3) as acc, round(avg(rose), 3) as always_up,
    round(avg(hit - rose), 3) as gain
from slices
group by slice, value
order by slice, value
"""

SURENESS = """
with calls as (
    select abs(probability - 0.5) as distance, hit, move, case when move > 0 then 1 else 0 end as rose
    from prediction_history
    where market = 'simulated' and kind = 'nightly' and hit is not null
), stepped as (
    select
        calls.*,
        case
            when distance < 0.02 then 0.0
            when distance < 0.05 then 0.02
            when distance < 0.1 then 0.05
            when distance < 0.2 then 0.1
            when distance < 0.3 then 0.2
            else 0.3
        end as distance_from
    from calls
)
select
    distance_from, count(*) as calls, round(100.0 * count(*) / sum(count(*)) over (), 1) as percent_of_calls,
    round(avg(hit), 3) as acc, round(avg(rose), 3) as always_up,
    round(cast(100 * avg(abs(move)) as numeric), 2) as mean_size_percent
from stepped
group by distance_from
order by distance_from
"""

CALIBRATED = """
with tenth(low, high) as (
    values (0.0, 0.1), (0.1, 0.2), (0.2, 0.3), (0.3, 0.4), (0.4, 0.5),
        (0.5, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1.0)
), found as (
    select
        t.low, t.high, count(distinct c.target) as nights, sum(c.n) as calls,
        sum(c.n * c.mean_probability) / sum(c.n) as said, sum(c.n * c.share_risen) / sum(c.n) as risen
    from tenth t
    join calibration c on c.bin_low >= t.low and c.bin_low < t.high
    where c.market = 'simulated' and c.kind = 'nightly'
    group by t.low, t.high
)
select
    low as probability_from, high as probability_to, nights, calls, round(cast(said as numeric), 3) as said,
    round(cast(risen as numeric), 3) as risen, round(cast(risen - said as numeric), 3) as gap
from found
order by low
"""

MEMBERS = """
with calls as (
    select
        d.highest - d.lowest as width, d.unanimous, h.hit,
        ntile(4) over (order by d.highest - d.lowest, d.target, d.symbol) as quarter
    from disagreement d
    join prediction_history h on h.run_id = d.run_id and h.symbol = d.symbol and h.target = d.target
    where d.market = 'simulated' and d.kind = 'nightly' and h.market = 'simulated' and h.hit is not null
)
select
    quarter, count(*) as calls, round(cast(min(width) as numeric), 3) as narrowest,
    round(cast(max(width) as numeric), 3) as widest, round(avg(unanimous), 3) as unanimous,
    round(avg(hit), 3) as acc, round(avg(case when unanimous = 1 then hit end), 3) as acc_unanimous,
    round(avg(case when unanimous = 0 then hit end), 3) as acc_divided
from calls
group by quarter
order by quarter
"""

ABSTAINING = """
select
    level, sum(n) as predictions, round(1.0 * sum(covered) / sum(n), 3) as covered,
    round(1.0 * sum(called) / sum(n), 3) as called, sum(called) as calls,
    round(1.0 * sum(right_calls) / nullif(sum(called), 0), 3) as acc
from coverage
where market = 'simulated' and kind = 'nightly'
group by level
order by level desc
"""
