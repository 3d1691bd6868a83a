-- Progress of the training of each translation model: one row per logged step.
--
-- model              text       Name of the model; the model itself is stored when its training ends.
-- source_language    text       Language that the model reads, such as en; missing until the model is stored.
-- target_language    text       Language that the model writes, such as de; missing until the model is stored.
-- step               integer    Updates of the weights so far.
-- epoch              number     Passes over the pairs so far, with fractions.
-- tokens             integer    Target tokens seen so far.
-- train_loss         number     Loss per target token since the previous row, in nats.
-- validation_loss    number     Loss per target token on the validation pairs; missing if not measured.
-- validation_bleu    number     BLEU on the validation pairs, 0 to 100; missing if not measured.
-- learning_rate      number     Learning rate of the step.
-- tokens_per_second  number     Target tokens a second since the previous row.
-- at                 timestamp  When the step was logged, UTC.
select
    t.model, m.source_language, m.target_language, t.step, t.epoch, t.tokens, t.train_loss, t.validation_loss,
    t.validation_bleu, t.learning_rate, t.tokens_per_second, t.at
from translation_progress t
left join translation_model m on m.name = t.model
