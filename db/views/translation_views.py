"""The SQL views of translation, and what each column means; a part of db/views/views.py."""

from types import MappingProxyType
from typing import Final

TRANSLATION_JOB = """
create view translation_job as
select
    t.id, t.model, m.source_language, m.target_language, t.text, t.status, t.priority, t.queued_at, t.finished_at,
    t.translation, t.score, t.attempts, t.reason
from translation_text t
left join translation_model m on m.name = t.model
"""

TRANSLATION_MODEL_LOG = """
create view translation_model_log as
select
    m.name as model, m.kind, m.size, m.source_language, m.target_language, m.parameters, m.vocabulary, m.pairs,
    m.steps, m.validation_loss, m.validation_bleu, s.test, s.bleu as test_bleu, s.chrf as test_chrf, m.receipt,
    m.created_at
from translation_model m
left join translation_score s on s.id = (
    select newest.id
    from translation_score newest
    where newest.model = m.name
    order by newest.scored_at desc, newest.id desc
    limit 1
)
"""

TRANSLATION_SCORE_LOG = """
create view translation_score_log as
select
    s.model, m.source_language, m.target_language, s.test, s.test_hash, s.sentences, s.bleu, s.bleu_low, s.bleu_high,
    s.chrf, s.signature, s.search, s.against, s.difference, s.p, s.scored_at
from translation_score s
left join translation_model m on m.name = s.model
"""

TRANSLATION_TRAINING = """
create view translation_training as
select
    t.model, m.source_language, m.target_language, t.step, t.epoch, t.tokens, t.train_loss, t.validation_loss,
    t.validation_bleu, t.learning_rate, t.tokens_per_second, t.at
from translation_progress t
left join translation_model m on m.name = t.model
"""

TRANSLATION_VIEW_SQL: Final = MappingProxyType(
    {
        "translation_job": TRANSLATION_JOB,
        "translation_model_log": TRANSLATION_MODEL_LOG,
        "translation_score_log": TRANSLATION_SCORE_LOG,
        "translation_training": TRANSLATION_TRAINING,
    }
)

_LANGUAGES = {
    "source_language": "Language that the model reads, such as en; missing until the model is stored.",
    "target_language": "Language that it writes, such as de; missing until the model is stored.",
}

TRANSLATION_VIEW_COLUMNS: Final = MappingProxyType(
    {
        "translation_job": {
            "id": "Number of the text.",
            "model": "Name of the model that is to translate it.",
            **_LANGUAGES,
            "text": "What is to be translated.",
            "status": "'queued', 'taken', 'done' or 'failed'.",
            "priority": "Higher ones are taken first.",
            "queued_at": "When it was queued, UTC.",
            "finished_at": "When it was done or failed, UTC; missing until then.",
            "translation": "The translation; missing until it is done.",
            "score": "Log probability over the length penalty, at most 0; missing until it is done.",
            "attempts": "How often a worker took it.",
            "reason": "Why it failed, or what is odd about the text; missing otherwise.",
        },
        "translation_model_log": {
            "model": "Name of the model.",
            "kind": "Its architecture: transformer, rnn and the like.",
            "size": "Preset of its size: tiny, small, base, big.",
            "source_language": "Language it reads, such as en.",
            "target_language": "Language it writes, such as de.",
            "parameters": "Weights that were trained.",
            "vocabulary": "Pieces of its tokenizer, special ones too.",
            "pairs": "Pairs of sentences trained on.",
            "steps": "Updates of the weights.",
            "validation_loss": "Loss per target token on the validation pairs, in nats; missing without.",
            "validation_bleu": "BLEU on the validation pairs, 0 to 100; missing without.",
            "test": "Test set of its newest score; missing before the first, like the next two.",
            "test_bleu": "BLEU on it, 0 to 100.",
            "test_chrf": "chrF on it, 0 to 100.",
            "receipt": "What names the model and all it was made of.",
            "created_at": "When training ended, UTC.",
        },
        "translation_score_log": {
            "model": "Name of the model.",
            **_LANGUAGES,
            "test": "Name of the test set.",
            "test_hash": "SHA-256 of the test set's pairs.",
            "sentences": "Sentences of it.",
            "bleu": "BLEU of the whole set, 0 to 100.",
            "bleu_low": "Lower end of its bootstrapped 95 % interval; missing if not measured.",
            "bleu_high": "Upper end of that interval; missing if not measured.",
            "chrf": "chrF of the whole set, 0 to 100.",
            "signature": "How sacreBLEU measured, in its own words.",
            "search": "Settings of the search, as JSON: beams, length penalty.",
            "against": "The model it is compared with; missing without a comparison.",
            "difference": "BLEU above that of the other model; missing without a comparison.",
            "p": "p-value of the difference; missing without a comparison.",
            "scored_at": "When it was measured, UTC.",
        },
        "translation_training": {
            "model": "Name of the model, which is stored when its training ends.",
            **_LANGUAGES,
            "step": "Updates of the weights so far.",
            "epoch": "Passes over the pairs so far, in parts too.",
            "tokens": "Target tokens seen so far.",
            "train_loss": "Loss per target token since the row before, in nats.",
            "validation_loss": "Loss per target token on the validation pairs; missing if not measured.",
            "validation_bleu": "BLEU on the validation pairs, 0 to 100; missing if not measured.",
            "learning_rate": "Learning rate of the step.",
            "tokens_per_second": "Target tokens a second since the row before.",
            "at": "When it was noted, UTC.",
        },
    }
)
