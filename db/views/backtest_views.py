"""The SQL views of backtests and what each column means; a part of db/views/views.py, which holds every view."""

from types import MappingProxyType
from typing import Final

from db.tables.columns import meaning

BACKTEST_SUMMARY = """
create view backtest_summary as
select
    b.market, p.backtest_id, b.first, b.last, b.retrain_every, p.portfolio, p.days, p.annual_return,
    p.annual_volatility, p.sharpe, p.sharpe_low, p.sharpe_high, p.deflated_sharpe, b.tried, p.max_drawdown,
    p.hit_rate, p.turnover, p.break_even, d.n, d.acc, d.acc_low, d.acc_high, d.mcc, d.mcc_low, d.mcc_high,
    r.predictor as best_rule, r.acc as rule_acc, r.acc_low as rule_acc_low, r.acc_high as rule_acc_high,
    r.mcc as rule_mcc, r.mcc_low as rule_mcc_low, r.mcc_high as rule_mcc_high, b.seconds, b.finished_at
from backtest_portfolio p
join backtest b on b.id = p.backtest_id
left join backtest_score d on d.backtest_id = b.id and d.slice = 'all' and d.protocol = 'all'
    and d.predictor = 'dtml'
left join backtest_score r on r.backtest_id = b.id and r.slice = 'all' and r.protocol = 'all'
    and r.predictor = (
        select s.predictor
        from backtest_score s
        where s.backtest_id = b.id and s.slice = 'all' and s.protocol = 'all' and s.predictor <> 'dtml'
            and s.mcc is not null
        order by s.mcc desc, s.predictor
        limit 1
    )
"""

ATTENTION = """
create view attention as
select i.market, w.run_id, p.as_of, w.target, i.symbol, s.symbol as source, w.weight
from attention_weight w
join prediction p on p.run_id = w.run_id and p.target = w.target and p.instrument_id = w.instrument_id
join instrument i on i.id = w.instrument_id
join instrument s on s.id = w.source_id
"""

BACKTEST_VIEW_SQL: Final = MappingProxyType({"backtest_summary": BACKTEST_SUMMARY, "attention": ATTENTION})

_FEW = "missing with too few days"

BACKTEST_VIEW_COLUMNS: Final = MappingProxyType(
    {
        "backtest_summary": {
            **meaning("market"),
            "backtest_id": "The backtest: a row of backtest.",
            "first": "First session predicted.",
            "last": "Last session predicted.",
            "retrain_every": "Sessions predicted by each model, 1 or more.",
            "portfolio": "Name of the portfolio, such as 'long, next open'.",
            "days": "Sessions held.",
            "annual_return": f"Compound net return a year, 0.01 is 1 %; {_FEW}.",
            "annual_volatility": f"Standard deviation of the net return, a year; {_FEW}.",
            "sharpe": f"Annual Sharpe ratio of the net return, no risk-free rate; {_FEW}.",
            "sharpe_low": f"Lower end of its day-resampled 95 % interval; {_FEW}.",
            "sharpe_high": f"Upper end of that interval; {_FEW}.",
            "deflated_sharpe": "Probability that the true Sharpe ratio is above the best that chance gives of all that"
            " was tried, 0 to 1 (Bailey and Lopez de Prado, 2014); missing for a yardstick or with too few days.",
            "tried": "Portfolios that followed predictions on this market so far, these included.",
            "max_drawdown": f"Largest fall of net equity from a peak, -0.01 is 1 %; {_FEW}.",
            "hit_rate": f"Share of sessions with a net return above 0, 0 to 1; {_FEW}.",
            "turnover": f"Mean a session of the value traded, as a share of equity; {_FEW}.",
            "break_even": "Cost at which net is 0, in basis points of value traded; missing untraded.",
            "n": "Stock-days scored; missing with the model's figures.",
            "acc": "Share of right calls of the model on every stock-day, 0 to 1; missing when not scored.",
            "acc_low": f"Lower end of its day-resampled 95 % interval; {_FEW}.",
            "acc_high": f"Upper end of that interval; {_FEW}.",
            "mcc": "Matthews correlation of the same calls, -1 to 1; missing when not scored.",
            "mcc_low": f"Lower end of its day-resampled 95 % interval; {_FEW}.",
            "mcc_high": f"Upper end of that interval; {_FEW}.",
            "best_rule": "The naive rule with the highest mcc on the same stock-days, chosen in hindsight; missing"
            " without one.",
            "rule_acc": "Share of right calls of that rule, 0 to 1; missing without one.",
            "rule_acc_low": f"Lower end of its day-resampled 95 % interval; {_FEW}.",
            "rule_acc_high": f"Upper end of that interval; {_FEW}.",
            "rule_mcc": "Matthews correlation of that rule, -1 to 1; missing without one.",
            "rule_mcc_low": f"Lower end of its day-resampled 95 % interval; {_FEW}.",
            "rule_mcc_high": f"Upper end of that interval; {_FEW}.",
            "seconds": "Time the backtest took in all, in seconds.",
            "finished_at": "When its figures were stored, UTC.",
        },
        "attention": {
            **meaning("market", "run_id", "as_of", "target"),
            "symbol": "The stock predicted: who looks.",
            "source": "The stock it looks at.",
            "weight": "Share of its attention, 0 to 1; mean of the members.",
        },
    }
)
