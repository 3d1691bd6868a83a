-- Whether a model's attention says more than that of models trained on nonsense: one row per model.
--
-- market              text       Name of the market.
-- run_id              text       The market's model it is about: a row of run.
-- as_of               date       Last session read.
-- made_at             timestamp  When it was measured, UTC.
-- stocks              integer    Stocks of the networks compared.
-- days                integer    Days of validation looked at.
-- seeds               integer    Networks trained on true labels.
-- shuffles            integer    Networks trained on labels of shuffled days.
-- epochs              integer    Epochs that each was trained.
-- distance            number     Energy distance between the attention of both groups.
-- distance_p          number     Its p-value, by permuting who belongs to which group.
-- told_apart          integer    1 when it is at most 0.05, else 0.
-- agreement           number     Mean over stocks of Spearman's correlation of attention with permutation importance.
-- agreement_low       number     Lower end of its day-resampled 95 % interval; missing with too few days.
-- agreement_high      number     Upper end of that interval; missing with too few days.
-- top                 integer    Sources of each stock that are held against its true driver.
-- drivers             number     Share of stocks whose true driver is among them; missing where none is known.
-- drivers_chance      number     The share that chance gives; missing with drivers.
-- drivers_importance  number     The share by permutation importance; missing with drivers.
-- seconds             number     Time it took, in seconds.
select
    market, run_id, as_of, made_at, stocks, days, seeds, shuffles, epochs, distance, distance_p,
    case when told_apart then 1 else 0 end as told_apart, agreement, agreement_low, agreement_high, top, drivers,
    drivers_chance, drivers_importance, seconds
from explanation
