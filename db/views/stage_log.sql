-- The stages of each night's last run and how long each took: one row per night and stage begun.
--
-- market      text       Name of the market.
-- as_of       date       The night's last closed session.
-- stage       text       'fetch', 'model', 'predict', 'rank', 'store', 'freeze', 'score', 'paper account', 'drift' or 'report'.
-- status      text       'running', 'done' or 'failed'; a stage whose process was killed stays 'running'.
-- started_at  timestamp  When the stage began, UTC.
-- seconds     number     How long the stage took; missing while its status is 'running'.
select market, as_of, stage, status, started_at, seconds
from night_stage
