-- Scores of translation models on test sets, alone or compared with another model: one row per score.
--
-- model            text       Name of the model.
-- source_language  text       Language that the model reads, such as en; missing until the model is stored.
-- target_language  text       Language that the model writes, such as de; missing until the model is stored.
-- test             text       Name of the test set.
-- test_hash        text       SHA-256 of the test set's pairs.
-- sentences        integer    Sentences in the test set.
-- bleu             number     BLEU of the whole set, 0 to 100.
-- bleu_low         number     Lower end of its bootstrapped 95 % interval; missing if not measured.
-- bleu_high        number     Upper end of that interval; missing if not measured.
-- chrf             number     chrF of the whole set, 0 to 100.
-- signature        text       sacreBLEU's signature, which says how the score was computed.
-- search           json       Settings of the beam search, as JSON: beams, length penalty.
-- against          text       The model it is compared with; missing without a comparison.
-- difference       number     BLEU minus that of the other model; missing without a comparison.
-- p                number     p-value of the difference; missing without a comparison.
-- scored_at        timestamp  When it was measured, UTC.
select
    s.model, m.source_language, m.target_language, s.test, s.test_hash, s.sentences, s.bleu, s.bleu_low, s.bleu_high,
    s.chrf, s.signature, s.search, s.against, s.difference, s.p, s.scored_at
from translation_score s
left join translation_model m on m.name = s.model
