-- Texts to translate and their translations: one row per text.
--
-- id               integer    Number of the text.
-- model            text       Name of the model that is to translate it.
-- source_language  text       Language that the model reads, such as en; missing until the model is stored.
-- target_language  text       Language that the model writes, such as de; missing until the model is stored.
-- text             text       Text to translate.
-- status           text       'queued', 'taken', 'done' or 'failed'.
-- priority         integer    Texts of higher priority are taken first.
-- queued_at        timestamp  When it was queued, UTC.
-- finished_at      timestamp  When it was done or failed, UTC; missing until then.
-- translation      text       The translation; missing until it is done.
-- score            number     Log probability of the translation divided by the length penalty, at most 0; missing until it is done.
-- attempts         integer    How often a worker has taken it.
-- reason           text       Why it failed; missing otherwise.
select
    t.id, t.model, m.source_language, m.target_language, t.text, t.status, t.priority, t.queued_at, t.finished_at,
    t.translation, t.score, t.attempts, t.reason
from translation_text t
left join translation_model m on m.name = t.model
