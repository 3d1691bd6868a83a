-- Last logged step of each training of a translation model that logged it at :since or later.
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
select t.*
from translation_training t
join (select model, max(step) as step from translation_training group by model) as newest
    on newest.model = t.model and newest.step = t.step
where t.at >= :since
order by t.model
