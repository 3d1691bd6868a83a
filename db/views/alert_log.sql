-- What somebody should know of a night: one row per night and kind of alert.
--
-- market     text       Name of the market.
-- as_of      date       The night it is about.
-- kind       text       'refused', 'late', 'below_rule' or 'promoted'.
-- message    text       What happened, in words.
-- raised_at  timestamp  When it was noticed, UTC.
-- sent_at    timestamp  When every service of DTML_ALERTS took it, UTC; missing until then.
select market, as_of, kind, message, raised_at, sent_at
from alert
