-- What the paper account of each market earned from one open to the next, beside the same without costs, equal parts of all constituents and the index.
--
-- market     text     Name of the market.
-- session    date     Session of the first of the two opens.
-- portfolio  text     'account', 'account, no costs', 'equal parts' or 'index'.
-- gross      number   Return before costs, a ratio minus 1.
-- turnover   number   Value bought and sold at the first open, as a share of equity.
-- cost       number   Commission, spread and taxes of that, as a share of equity.
-- net        number   Return after costs, a ratio minus 1.
-- equity     number   What 1 has become by the second open.
-- holdings   integer  Stocks held by the account.
select
    p.market, p.session, p.portfolio, p.gross, p.turnover, p.cost, p.net, p.equity,
    (select count(*) from paper_position h where h.market = p.market and h.session = p.session) as holdings
from paper_return p
