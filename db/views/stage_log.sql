-- Stages of nights, with how long each took: one row per night and stage that its last run has begun.
--
-- market      text       Name of the market.
-- as_of       date       The night.
-- stage       text       'fetch', 'model', 'predict', 'rank', 'store', 'score', 'paper account', 'drift' or 'report'.
-- status      text       'running', 'done' or 'failed'; it stays 'running' where the process was killed.
-- started_at  timestamp  When the stage began, UTC.
-- seconds     number     How long it took; missing while its status is 'running'.
select market, as_of, stage, status, started_at, seconds
from night_stage
