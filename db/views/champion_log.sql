-- Champions: where a market's rankers compete, the champion is the one whose ranking the market shows. One row per change of champion.
--
-- market      text       Name of the market.
-- since       date       First session for which the market shows the new champion's ranking.
-- predictor   text       Name of the candidate that becomes champion.
-- replaced    text       Name of the previous champion; missing for the first champion.
-- nights      integer    Nights whose scores were compared; for the first champion, sessions of the walk-forward that chose it.
-- gain        number     Mean daily rank IC minus that of the previous champion; missing for the first champion.
-- stake       number     What a stake of 1, bet on this gain, had grown to; without a gain it does not grow on average; missing for the first champion.
-- needed      number     Stake needed to become champion; missing for the first champion.
-- decided_at  timestamp  When the change was decided, UTC.
select market, since, predictor, replaced, nights, gain, stake, needed, decided_at
from champion
