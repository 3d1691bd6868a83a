"""The SQL of the questions of what following the calls did, of models, and of the record."""

LONG_SHORT = """
with placed as (
    select
        target, move, row_number() over (partition by target order by probability desc, symbol) as from_top,
        row_number() over (partition by target order by probability, symbol desc) as from_bottom
    from prediction_history
    where market = 'simulated' and kind = 'nightly' and move is not null
), nights as (
    select
        substr(cast(target as varchar), 1, 7) as month, avg(case when from_top <= 10 then 100 * move end) as top,
        avg(case when from_bottom <= 10 then 100 * move end) as bottom
    from placed
    group by target
), months as (
    select
        month, count(*) as nights, avg(top) as top, avg(bottom) as bottom, sum(top - bottom) as earned,
        sum(case when top > bottom then 1 else 0 end) as nights_won, min(top - bottom) as worst_night
    from nights
    group by month
)
select
    month, nights, round(cast(top as numeric), 3) as top_ten, round(cast(bottom as numeric), 3) as bottom_ten,
    round(cast(top - bottom as numeric), 3) as difference, nights_won,
    round(cast(worst_night as numeric), 2) as worst_night, round(cast(earned as numeric), 2) as earned,
    round(cast(sum(earned) over (order by month) as numeric), 2) as earned_so_far
from months
order by month
"""

TURNS = """
with steps as (
    select
        call, hit, move, lag(call) over (partition by symbol order by target) as call_before
    from prediction_history
    where market = 'simulated' and kind = 'nightly'
)
select
    case when call = call_before then 'kept' else 'turned' end as step, call, count(*) as calls,
    round(100.0 * count(*) / sum(count(*)) over (), 1) as percent_of_calls, round(avg(hit), 3) as acc,
    round(cast(100 * avg(case when call = 'rise' then move else -move end) as numeric), 3) as mean_gain_percent
from steps
where call_before is not null and hit is not null
group by case when call = call_before then 'kept' else 'turned' end, call
order by step, call
"""

STREAKS = """
with calls as (
    select
        symbol, target, hit, row_number() over (partition by symbol order by target)
            - row_number() over (partition by symbol, hit order by target) as island
    from prediction_history
    where market = 'simulated' and kind = 'nightly' and hit is not null
), streaks as (
    select symbol, hit, min(target) as first, max(target) as last, count(*) as nights
    from calls
    group by symbol, hit, island
), placed as (
    select streaks.*, row_number() over (partition by hit order by nights desc, symbol, first) as place
    from streaks
)
select case hit when 1 then 'right' else 'wrong' end as streak, place, symbol, nights, first, last
from placed
where place <= 5
order by streak, place
"""

LOOKED_AT = """
with nights as (
    select run_id, target
    from night_log
    where market = 'simulated' and predictions > 0
    order by target desc
    limit 20
), looks as (
    select
        a.source, a.symbol, a.weight,
        row_number() over (partition by a.target, a.symbol order by a.weight desc, a.source) as place
    from attention a
    join nights n on n.run_id = a.run_id and n.target = a.target
    where a.market = 'simulated' and a.source <> a.symbol
)
select
    source, count(distinct symbol) as stocks, count(*) as looks,
    sum(case when place = 1 then 1 else 0 end) as looks_first,
    round(cast(avg(weight) as numeric), 3) as mean_weight,
    round(cast(100 * sum(weight) / sum(sum(weight)) over () as numeric), 1) as percent_of_weight
from looks
group by source
order by percent_of_weight desc, source
limit 10
"""

DRIVERS = """
with best as (
    select symbol
    from symbol_score
    where market = 'simulated' and kind = 'nightly'
    order by round(cast(mcc as numeric), 6) desc, symbol
    limit 1
), nights as (
    select run_id, target
    from night_log
    where market = 'simulated' and predictions > 0
    order by target desc
    limit 60
), looks as (
    select a.run_id, a.as_of, a.target, a.symbol, a.source, a.weight
    from best b
    cross join nights n
    join attention a on a.run_id = n.run_id and a.target = n.target and a.symbol = b.symbol
    where a.market = 'simulated' and a.source <> a.symbol
), beside as (
    select
        l.symbol, l.source, l.weight, case when s.move > 0 then 'rise' else 'fall' end as source_moved,
        case when h.move > 0 then 1.0 else 0.0 end as rose, case when h.call = 'rise' then 1.0 else 0.0 end as called
    from looks l
    join prediction_history h on h.market = 'simulated' and h.symbol = l.symbol and h.target = l.target
        and h.run_id = l.run_id
    join prediction_history s on s.market = 'simulated' and s.symbol = l.source and s.target = l.as_of
        and s.kind = 'nightly'
    where h.move is not null and s.move is not null
)
select
    symbol, source, count(*) as nights, round(cast(sum(weight) as numeric), 2) as weight,
    round(avg(case when source_moved = 'rise' then rose end), 3) as rose_after_rise,
    round(avg(case when source_moved = 'fall' then rose end), 3) as rose_after_fall,
    round(avg(case when source_moved = 'rise' then called end), 3) as called_after_rise,
    round(avg(case when source_moved = 'fall' then called end), 3) as called_after_fall
from beside
group by symbol, source
order by weight desc, source
limit 10
"""

MODELS = """
with calls as (
    select run_id, symbol, target, call, hit
    from prediction_history
    where market = 'simulated' and hit is not null
)
select
    a.run_id as one, b.run_id as other, min(a.target) as first, max(a.target) as last, count(*) as common_calls,
    round(avg(case when a.call = b.call then 1.0 else 0.0 end), 3) as same_call, round(avg(a.hit), 3) as acc_one,
    round(avg(b.hit), 3) as acc_other, sum(case when a.hit > b.hit then 1 else 0 end) as only_one_right,
    sum(case when a.hit < b.hit then 1 else 0 end) as only_other_right
from calls a
join calls b on b.symbol = a.symbol and b.target = a.target and b.run_id > a.run_id
group by a.run_id, b.run_id
order by common_calls desc, one, other
limit 10
"""

AGE = """
with served as (
    select
        h.run_id, h.hit, case when h.move > 0 then 1 else 0 end as rose, m.train_last, h.as_of,
        dense_rank() over (partition by h.run_id order by h.target) - 1 as age
    from prediction_history h
    join model m on m.run_id = h.run_id
    where h.market = 'simulated' and h.kind = 'nightly' and h.hit is not null and h.as_of >= m.train_last
)
select
    min(age) + 1 as first_night, max(age) + 1 as last_night, count(distinct run_id) as models, count(*) as calls,
    round(avg(hit), 3) as acc, round(avg(rose), 3) as always_up, round(avg(hit - rose), 3) as gain
from served
group by age / 10
order by first_night
"""

RESTATED = """
with restated as (
    select
        symbol, known_at, min(known_at_before) as known_before, min(session) as first, max(session) as last,
        count(*) as bars, max(abs(coalesce(adj_close / adj_close_before, close / close_before) - 1)) as change
    from price_restatement
    where market = 'simulated'
    group by symbol, known_at
    order by known_at desc, symbol
    limit 20
)
select
    r.symbol, r.known_at as restated_at, r.first, r.last, r.bars, round(cast(100 * r.change as numeric), 2) as percent,
    count(h.target) as calls_before, min(h.target) as first_call, max(h.target) as last_call,
    round(avg(h.hit), 3) as acc
from restated r
left join prediction_history h on h.market = 'simulated' and h.symbol = r.symbol and h.kind = 'nightly'
    and h.as_of >= r.first and h.known_at >= r.known_before and h.known_at < r.known_at
group by r.symbol, r.known_at, r.first, r.last, r.bars, r.change
order by r.known_at desc, r.symbol
"""

MISSING = """
select as_of as day, 'night refused' as what, null as symbol, reason as detail
from night_log
where market = 'simulated' and status = 'refused'
union all
select as_of, 'stocks left out', null, cast(gaps as varchar)
from night_log
where market = 'simulated' and status = 'complete_with_gaps'
union all
select as_of, 'not made before its day', null, 'for ' || cast(target as varchar)
from night_log
where market = 'simulated' and predictions > 0 and finished_at >= target
union all
select session, 'bar refused', symbol, reason || ': ' || value
from refused
where market = 'simulated'
union all
select as_of, 'no answer', null, cast(failures as varchar)
from fetch_log
where market = 'simulated' and cast(failures as varchar) <> '[]'
order by day desc, what, symbol, detail
limit 20
"""

RECEIPTS = """
with wrong as (
    select
        h.receipt, h.probability, h.move, m.train_last,
        case when h.made_at < h.target then 'yes' else 'no' end as before_its_day,
        cast(substr(cast(h.known_at as varchar), 12, 2) as integer) * 60
            + cast(substr(cast(h.known_at as varchar), 15, 2) as integer) as known_minute,
        cast(substr(cast(h.made_at as varchar), 12, 2) as integer) * 60
            + cast(substr(cast(h.made_at as varchar), 15, 2) as integer) as made_minute
    from prediction_history h
    join model m on m.run_id = h.run_id
    where h.market = 'simulated' and h.kind = 'nightly' and h.hit = 0
    order by abs(h.probability - 0.5) desc, h.receipt
    limit 10
)
select
    receipt, round(cast(probability as numeric), 3) as probability,
    round(cast(100 * move as numeric), 2) as move_percent, train_last,
    (made_minute - known_minute + 1440) % 1440 as minutes_after_prices, before_its_day
from wrong
order by abs(probability - 0.5) desc, receipt
"""
