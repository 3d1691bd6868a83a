-- Returns of each market's paper account from one open to the next and, for comparison, those of the account without costs, of equal parts of all constituents and of the index.
--
-- market     text     Name of the market.
-- session    date     Session of the first of the two opens.
-- portfolio  text     'account', 'account, no costs', 'equal parts' or 'index'.
-- gross      number   Return before costs; 0.01 is 1 %.
-- turnover   number   Value bought and sold at the first open, as a share of equity.
-- cost       number   Commission, spread and taxes on that value, as a share of equity.
-- net        number   Return after costs; 0.01 is 1 %.
-- equity     number   Equity at the second open, of an account that started at 1.
-- holdings   integer  Number of stocks that the account holds.
select
    p.market, p.session, p.portfolio, p.gross, p.turnover, p.cost, p.net, p.equity,
    (select count(*) from paper_position h where h.market = p.market and h.session = p.session) as holdings
from paper_return p
