-- Alerts raised about nights: one row per market, night and kind of alert.
--
-- market     text       Name of the market.
-- as_of      date       Last closed session of the night that the alert is about.
-- kind       text       'refused', 'late', 'below_rule', 'promoted', 'drifted', 'calendar' or 'second_source'.
-- message    text       The text of the alert.
-- raised_at  timestamp  When the alert was raised, UTC.
-- sent_at    timestamp  When every service in DTML_ALERTS had accepted it, UTC; missing until then.
select market, as_of, kind, message, raised_at, sent_at
from alert
