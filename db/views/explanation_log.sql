-- Tests of whether a model's attention differs from that of models trained on shuffled labels: one row per model.
--
-- market              text       Name of the market.
-- run_id              text       The model that was tested: a row of run.
-- as_of               date       Last session read.
-- made_at             timestamp  When it was measured, UTC.
-- stocks              integer    Stocks of the networks compared.
-- days                integer    Validation days used.
-- seeds               integer    Networks trained on true labels.
-- shuffles            integer    Networks trained on labels whose days were shuffled.
-- epochs              integer    Epochs that each network was trained for.
-- distance            number     Energy distance between the attention of the two groups.
-- distance_p          number     p-value of the distance, from permutations of the networks between the groups.
-- told_apart          integer    1 when distance_p is at most 0.05, else 0.
-- agreement           number     Mean over stocks of Spearman's correlation of attention with permutation importance.
-- agreement_low       number     Lower end of its day-resampled 95 % interval; missing with too few days.
-- agreement_high      number     Upper end of that interval; missing with too few days.
-- top                 integer    Number of most attended stocks among which the true driver is sought.
-- drivers             number     Share of stocks whose true driver is among their `top` most attended; missing where no driver is known.
-- drivers_chance      number     The share expected by chance; missing when drivers is.
-- drivers_importance  number     The same share by permutation importance; missing when drivers is.
-- seconds             number     Time it took, in seconds.
select
    market, run_id, as_of, made_at, stocks, days, seeds, shuffles, epochs, distance, distance_p,
    case when told_apart then 1 else 0 end as told_apart, agreement, agreement_low, agreement_high, top, drivers,
    drivers_chance, drivers_importance, seconds
from explanation
