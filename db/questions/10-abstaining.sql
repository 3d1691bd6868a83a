-- What does abstaining buy?
--
-- At each level `covered`, the share without a wrong call, is to reach the level: below it, the days of validation
-- were easier than those that came. `called` is the share still called, `acc` how often that was right.
select
    level, sum(n) as predictions, round(1.0 * sum(covered) / sum(n), 3) as covered,
    round(1.0 * sum(called) / sum(n), 3) as called, sum(called) as calls,
    round(1.0 * sum(right_calls) / nullif(sum(called), 0), 3) as acc
from coverage
where market = 'simulated' and kind = 'nightly'
group by level
order by level desc
