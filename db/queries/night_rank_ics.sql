-- Rank IC of each night of :first to :last, of a predictor and of all one-line rules, for a return.
--
-- target     date    Session predicted.
-- predictor  text    Predictor or rule.
-- rank_ic    number  Rank correlation of scores and returns.
select target, predictor, rank_ic
from rank_score_log
where market = :market and target between :first and :last and span = 'night' and leg = :leg
    and (predictor = :predictor or is_rule = 1) and rank_ic is not null
order by target, predictor
