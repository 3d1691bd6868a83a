-- Trained translation models: one row per name.
--
-- model            text       Name of the model.
-- kind             text       Its architecture: transformer, rnn and the like.
-- size             text       Preset of its size: tiny, small, base, big.
-- source_language  text       Language it reads, such as en.
-- target_language  text       Language it writes, such as de.
-- parameters       integer    Number of weights trained.
-- vocabulary       integer    Number of pieces in the tokenizer, including special ones.
-- pairs            integer    Pairs of sentences trained on.
-- steps            integer    Updates of the weights.
-- validation_loss  number     Loss per target token on the validation pairs, in nats; missing without validation.
-- validation_bleu  number     BLEU on the validation pairs, 0 to 100; missing without validation.
-- test             text       Test set of its newest score; missing before the first score, as are the next two.
-- test_bleu        number     BLEU on that test set, 0 to 100.
-- test_chrf        number     chrF on that test set, 0 to 100.
-- receipt          text       Receipt that identifies the model and everything it was made from.
-- created_at       timestamp  When training ended, UTC.
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
