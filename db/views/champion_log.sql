-- Champions: the candidates whose rankings a market has shown, if its candidates compete. One row per change.
--
-- market      text       Name of the market.
-- since       date       First target session whose ranking it provides.
-- predictor   text       Name of the candidate that becomes champion.
-- replaced    text       Name of the champion before; missing for the first champion.
-- nights      integer    Nights whose scores were compared; for the first champion, sessions of the walk-forward that chose it.
-- gain        number     Mean daily rank IC minus that of the champion before; missing for the first champion.
-- stake       number     Wealth of a bet that started at 1 and is fair if there is no gain; missing for the first champion.
-- needed      number     Wealth needed to become champion; missing for the first champion.
-- decided_at  timestamp  When it was decided, UTC.
select market, since, predictor, replaced, nights, gain, stake, needed, decided_at
from champion
