-- Who orders the stocks of a market that lets its candidates earn it: one row per change.
--
-- market      text       Name of the market.
-- since       date       First session whose stocks it orders.
-- predictor   text       Name of the candidate that speaks from then on.
-- replaced    text       Whom it replaced; missing for the first champion.
-- nights      integer    Nights whose scores decided, or sessions walked for the first champion.
-- gain        number     Mean daily rank IC above that of the replaced; missing for the first champion.
-- stake       number     What a bet of 1 on that gain, one fair without it, has become; missing for the first champion.
-- needed      number     What it had to become; missing for the first champion.
-- decided_at  timestamp  When it was decided, UTC.
select market, since, predictor, replaced, nights, gain, stake, needed, decided_at
from champion
