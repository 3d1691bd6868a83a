-- What does abstaining buy?
--
-- At each level `covered`, the share without a wrong direction, is to reach the level: below it, the days of
-- validation were easier than those that came. `decided` is the share outside the abstention band, `acc` how often
-- that was right.
select
    level, sum(n) as predictions, round(1.0 * sum(covered) / sum(n), 3) as covered,
    round(1.0 * sum(decided) / sum(n), 3) as decided, sum(decided) as decisions,
    round(1.0 * sum(decided_correct) / nullif(sum(decided), 0), 3) as acc
from coverage
where market = 'simulated' and kind = 'nightly'
group by level
order by level desc
