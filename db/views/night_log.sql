-- How each night ended and what it did: one row per market and night.
--
-- market       text       Name of the market.
-- as_of        date       Last closed session, which is the last session seen.
-- target       date       The next session, which is predicted; missing if the calendar ends before that session.
-- status       text       'running', 'complete', 'complete_with_gaps' or 'refused'.
-- reason       text       Why the night was refused, or what happened to the user's own code; missing otherwise.
-- source       text       Where bars came from: yahoo, files, simulated, or the name of a user's own feed.
-- fetched      integer    Bars the source returned; missing while running.
-- stored       integer    Bars that were new or restated; missing while running.
-- rejected     integer    Bars rejected; missing while running.
-- predictions  integer    Stocks predicted; missing while running.
-- gaps         json       Stocks left out, a JSON list of {symbol, reason}; missing while running.
-- run_id       text       The model used: a row of run; missing until there is one.
-- known_at     timestamp  Latest known_at of the prices used, UTC; missing until known.
-- inputs_hash  text       SHA-256 of the windows that the model read; missing until it has read them.
-- started_at   timestamp  When the night began, UTC.
-- finished_at  timestamp  When it ended, UTC; missing while running.
-- computed_by  text       Versions, processor and device that predicted, which decide the last bits; missing until predicted.
select
    market, as_of, target, status, reason, source, fetched, stored, rejected, predictions, gaps, run_id,
    known_at, inputs_hash, started_at, finished_at, computed_by
from night
