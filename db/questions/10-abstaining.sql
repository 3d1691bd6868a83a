-- What does abstaining gain?
--
-- At each level, `covered`, the share of predictions without a wrong direction, should reach the
-- level. If it does not, the validation days were easier than the days that followed. `decided` is
-- the share of predictions outside the abstention band, and `acc` is how often those were correct.
select
    level, sum(n) as predictions, round(1.0 * sum(covered) / sum(n), 3) as covered,
    round(1.0 * sum(decided) / sum(n), 3) as decided, sum(decided) as decisions,
    round(1.0 * sum(decided_correct) / nullif(sum(decided), 0), 3) as acc
from coverage
where market = 'simulated' and kind = 'nightly'
group by level
order by level desc
