-- Frozen nights: a chain of SHA-256 hashes, each over what a night predicted and what it was made from. One row per link; the last of a market is the head of its chain.
--
-- market      text       Name of the market.
-- number      integer    Place in the market's chain, from 1.
-- as_of       date       The night's last closed session.
-- target      date       Session predicted.
-- known_at    timestamp  Latest known_at of the prices that the night used, UTC.
-- link        text       The link: JSON with the SHA-256 of each part of the night, and of the link before.
-- digest      text       SHA-256 of `link`.
-- previous    text       Digest of the link before; missing for the first.
-- replaces    integer    Number of the earlier link of the same night, which was run again since; missing without one.
-- created_at  timestamp  When the link was made, UTC.
select market, number, as_of, target, known_at, link, digest, previous, replaces, created_at
from frozen_night
