-- Attention between stocks: one row per model, session, stock predicted and stock attended to. A night stores the stocks to which each stock attends most.
--
-- market  text    Name of the market.
-- run_id  text    The model that predicted: a row of run.
-- as_of   date    Last session the model saw; always before target.
-- target  date    Session predicted.
-- symbol  text    The stock predicted, whose attention this is.
-- source  text    The stock that it attends to.
-- weight  number  Share of the predicted stock's attention, 0 to 1; mean of the seeds.
select i.market, w.run_id, p.as_of, w.target, i.symbol, s.symbol as source, w.weight
from attention_weight w
join prediction p on p.run_id = w.run_id and p.target = w.target and p.instrument_id = w.instrument_id
join instrument i on i.id = w.instrument_id
join instrument s on s.id = w.source_id
