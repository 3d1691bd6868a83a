-- Does the model beat the naive rules, and by how much?
--
-- `better` names the better of model and rule if the difference between them is significant. As
-- there are three rules, each is tested at a level of 1.67 % instead of 5 % (Bonferroni). The
-- interval from `gain_low` to `gain_high` is not corrected for this. The interval from `acc_low` to
-- `acc_high` comes from resampling days. `model_gains` is the mean over nights of the model's ACC
-- minus the rule's; its interval is 1.96 standard errors either way, as if nights were independent.
-- Below 20 nights there is no interval.
with nightly as (
    select r.predictor, m.acc - r.acc as gain
    from daily_score r
    join daily_score m on m.market = r.market and m.target = r.target and m.protocol = r.protocol
    where r.market = 'simulated' and r.protocol = 'all' and m.predictor = 'dtml' and r.predictor <> 'dtml'
), gains as (
    select
        predictor, avg(gain) as gain,
        case when count(*) >= 20
            then 1.96 * sqrt((avg(gain * gain) - avg(gain) * avg(gain)) / (count(*) - 1))
        end as error,
        sum(case when gain > 0 then 1 else 0 end) as ahead, sum(case when gain < 0 then 1 else 0 end) as behind
    from nightly
    group by predictor
)
select
    s.predictor, s.running_nights as nights, round(cast(s.running_acc as numeric), 3) as acc,
    round(cast(s.running_acc_low as numeric), 3) as acc_low, round(cast(s.running_acc_high as numeric), 3) as acc_high,
    round(cast(s.running_mcc as numeric), 3) as mcc, round(cast(g.gain as numeric), 3) as model_gains,
    round(cast(g.gain - g.error as numeric), 3) as gain_low,
    round(cast(g.gain + g.error as numeric), 3) as gain_high,
    case
        -- 2.394 standard errors hold 98.33 %, 1.96 hold 95 %.
        when g.gain - 2.394 / 1.96 * g.error > 0 then 'dtml'
        when g.gain + 2.394 / 1.96 * g.error < 0 then s.predictor
    end as better, g.ahead as nights_ahead, g.behind as nights_behind
from daily_score s
left join gains g on g.predictor = s.predictor
where s.market = 'simulated' and s.protocol = 'all'
    and s.target = (select max(target) from daily_score where market = 'simulated' and protocol = 'all')
order by acc desc, s.predictor
