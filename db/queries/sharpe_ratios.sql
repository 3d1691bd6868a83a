-- Annualised Sharpe ratios of a market's backtests but one, a row for each portfolio that trades by predictions.
--
-- sharpe  number  The ratio.
select p.sharpe
from backtest_portfolio p
join backtest b on b.id = p.backtest_id
where b.market = :market and b.id <> :other_than and p.strategy is not null and p.sharpe is not null
order by b.id, p.portfolio
