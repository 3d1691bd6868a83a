-- A store as it is after ten years, in parts that benchmarks/ten_year_store.py runs. Every value is made of its stock
-- and session, or is the same in all rows. The parameters: a market, its model's name `run`, and the number of the first
-- night and of the night after the last one, `first` and `stop`.

-- part: helpers
-- `late` is an hour after `evening`, and `random` lies in [0, 1).
create temporary view stock_night as
select
    day.*, instrument.market, instrument.id as instrument_id, instrument.symbol,
    (instrument.id - 1) % 401 as place, -- of a stock in its market, whose index is the last of 401
    (instrument.id * 7919 + day.number * 104729) % 10007 / 10007.0 as random
from day cross join instrument
where instrument.kind = 'stock';

-- part: stocks
insert into instrument (market, symbol, source_symbol, kind, name, sector)
select :market, symbol, symbol, kind, 'A company', 'Industrials' from stock order by kind desc, symbol;

-- part: predictions
insert into run (
    id, market, kind, model, config, seeds, code_version, data_watermark, losses, train_first, train_last, created_at,
    checkpoint_path, checkpoint_hash
)
select
    :run, :market, :kind, 'dtml', '{"window": 15, "hidden": 64}', '[1, 2, 3]', '0.1.0', evening,
    '[{"seed": 1, "loss": [0.69, 0.69, 0.69]}]', '2010-01-04', as_of, evening, :run, :run
from day where number = :first;

insert into prediction (
    run_id, as_of, target, instrument_id, probability, probability_std, calibrated, lowest, highest, rising_share,
    known_at, made_at
)
select
    :run, as_of, target, instrument_id, 0.45 + 0.1 * random, 0.01, 0.45 + 0.1 * random, 0.43 + 0.1 * random,
    0.47 + 0.1 * random, 1.0, evening, late
from stock_night where market = :market and number >= :first and number < :stop order by number, instrument_id;

-- part: evidence
insert into abstention_band (run_id, level, threshold, days, n, is_default)
select :run, level, 0.5 + level / 50, 63, 25000, false from levels;

insert into calibration_bin (run_id, target, bin, n, probability_sum, rises)
select :run, day.target, 39 + bins.number, 20, 8 + bins.number / 5.0, 10
from day cross join day as bins
where day.number >= :first and day.number < :stop and bins.number between 1 and 20 order by day.number;

insert into abstention_count (run_id, target, level, n, covered, decided, decided_correct)
select :run, target, level, 400, 352, 100, 52
from day cross join levels where number >= :first and number < :stop order by number;

insert into rule_direction (market, target, as_of, always_up, index_reversal, index_below_mean20)
select :market, target, as_of, true, true, true from day where number >= :first and number < :stop;

insert into outcome (instrument_id, session, realised_return, rise, label, known_at, recorded_at)
select
    instrument_id, target, 0.03 * (random - 0.5), random > 0.5,
    case when random > 0.7 then 1 when random < 0.3 then -1 else 0 end, target_evening, target_late
from stock_night where market = :market and number >= :first and number < :stop order by number, instrument_id;

insert into score (
    market, target, span, protocol, predictor, n, nights, rises, predicted_rises, acc, acc_low, acc_high, mcc, mcc_low,
    mcc_high, scored_at
)
select
    :market, target, span, protocol, name, 400, 1, 201, 210, 0.51, 0.49, 0.53, 0.02, -0.02, 0.06, target_late
from day cross join (select 'night' as span union all select 'running') as spans
cross join (select 'published' as protocol union all select 'all') as protocols
cross join predictors
where number >= :first and number < :stop and predictors.directions order by number;

-- part: bars
insert into price (
    instrument_id, session, known_at, source, volume, open, high, low, close, adj_close
)
select
    instrument_id, as_of, evening, 'yahoo', 1e6, 9 + 99 * random, 12 + 102 * random, 8 + 98 * random, 10 + 100 * random,
    9 + 90 * random
from stock_night where market = :market and number >= :first and number < :stop order by number, instrument_id;

-- part: restated bars
insert into price (
    instrument_id, session, known_at, source, volume, open, high, low, close, adj_close
)
select
    instrument_id, as_of, (select late from day where number = :stop - 1), 'yahoo', 1e6, 9 + 9 * random, 12 + 12 * random,
    8 + 8 * random, 10 + 10 * random, 9 + 9 * random
from stock_night where market = :market and number < :stop and place % 20 = 0 order by number, instrument_id;

-- part: attention
insert into attention_weight (run_id, target, instrument_id, source_id, weight)
select :run, target, instrument_id, instrument_id - place + (place + steps.number) % 400, 0.1 / steps.number
from stock_night cross join (select number from day where number between 1 and 3) as steps
where market = :market and stock_night.number >= :first and stock_night.number < :stop
order by stock_night.number, instrument_id;

-- part: scores of rankings
insert into rank_score (market, target, span, leg, predictor, is_rule, days, n, rank_ic, scored_at)
select :market, target, span, 'next_close', name, not ranker, 1, 400, 0.02, target_late
from day cross join (select 'night' as span union all select 'running') as spans cross join predictors
where number >= :first and number < :stop and predictors.ranks order by number;

-- part: rankings
insert into ranker (
    id, market, leg, chosen, config, code_version, data_watermark, checkpoint_path, checkpoint_hash, train_last, created_at
)
select :run, :market, 'next_close', 'blend', '{}', '0.1.0', evening, 'none', 'none', as_of, evening
from day where number = :first;

insert into stock_rank (
    ranker_id, predictor, as_of, target, instrument_id, score, place, probability, chosen, known_at, made_at
)
select :run, name, as_of, target, instrument_id, -(place + 1) / 400.0, place + 1, 0.5, name = 'blend', evening, late
from stock_night cross join predictors
where market = :market and number >= :first and number < :stop and predictors.ranker order by number, instrument_id;

-- part: log
-- Every seventh night has gaps, rejected bars and an alert.
insert into night (
    market, as_of, target, status, run_id, source, known_at, fetched, stored, rejected, predictions, gaps, inputs_hash,
    started_at, finished_at
)
select :market, as_of, target, 'complete', :run, 'yahoo', evening, 4000, 400, 0, 400, '[]', 'none', evening, late
from day where number >= :first and number < :stop and number % 7 < 6;

insert into night (
    market, as_of, target, status, run_id, source, known_at, fetched, stored, rejected, predictions, gaps, inputs_hash,
    started_at, finished_at
)
select
    :market, as_of, target, 'complete_with_gaps', :run, 'yahoo', evening, 4000, 400, 3, 400,
    '[{"symbol": "S000", "reason": "bar rejected: null_price"}]', 'none', evening, late
from day where number >= :first and number < :stop and number % 7 = 6;

insert into price_fetch (market, as_of, source, known_at, asked, fetched, stored, rejected, restated, failures)
select :market, as_of, 'yahoo', evening, 401, 4000, 400, 0, '[]', '[]' from day where number >= :first and number < :stop;

insert into alert (market, as_of, kind, message, raised_at)
select :market, as_of, 'below_rule', 'below always_up for 60 nights', evening
from day where number >= :first and number < :stop and number % 7 = 6;

insert into rejected_bar (instrument_id, session, source, reason, value, first_known_at)
select instrument_id, as_of, 'yahoo', 'null_price', 'close=nan', evening
from stock_night where market = :market and number >= :first and number < :stop and number % 7 = 6 and place < 3;

-- part: backtest
insert into backtest (
    id, market, first, last, retrain_every, config, seeds, code_version, data_watermark, list_is_snapshot, device,
    created_at, finished_at, seconds
)
select
    'backtest', :market, min(target), max(target), 63, '{"sessions_a_year": 252}', '[1, 2, 3]', '0.1.0', max(evening), true, 'cpu', max(late),
    max(late), 900
from day where number >= :first and number < :stop;

insert into backtest_score (backtest_id, slice, value, protocol, predictor, n, days, rises, acc, mcc)
select 'backtest', slice, value, protocol, name, 1000, 1000, 500, 0.51, 0.02
from (
    select 'all' as slice, '' as value union all select 'symbol', symbol from stock where kind = 'stock'
    union all select 'fold', cast(number as text) from day where number between 1 and 16
) as slices
cross join (select 'published' as protocol union all select 'all') as protocols
cross join predictors
where predictors.directions;

insert into backtest_portfolio (backtest_id, portfolio, days, settled, unbooked)
select 'backtest', 'portfolio ' || cast(number as text), 1000, 0, 0 from day where number < 12;

insert into backtest_return (backtest_id, portfolio, session, gross, turnover, cost, borrow, net)
select 'backtest', portfolio, target, 0.001, 0.5, 0.0001, 0, 0.0009
from day cross join backtest_portfolio where number >= :first and number < :stop order by number;

-- part: fold
insert into backtest_fold (backtest_id, number, run_id, as_of, first, last, predictions, refused, seconds)
select 'backtest', :fold, :run, min(as_of), min(target), max(target), 25200, '{}', 60
from day where number >= :first and number < :stop;

-- part: every pair of attention
insert into attention_weight (run_id, target, instrument_id, source_id, weight)
select :run, target, stock_night.instrument_id, source.id, 0.0025
from stock_night join instrument as source on source.market = stock_night.market and source.kind = 'stock'
where stock_night.market = :market and number >= :first and number < :stop
order by number, stock_night.instrument_id, source.id;

-- part: benchmarks
insert into benchmark (
    id, market, title, config, code_version, data_watermark, stocks, train_first, train_last, validation_first,
    validation_last, test_first, test_last, best_rule, device, test_read_at, seconds
)
select
    'benchmark' || cast(number as text), :market, 'six models', '{}', '0.1.0', evening, 400, '2023-01-02', '2023-12-29',
    '2024-01-02', '2024-06-28', '2024-07-01', '2025-06-30', 'always_up', 'cpu', evening, 60
from day where number < 20;

insert into benchmark_score (benchmark_id, predictor, protocol, is_rule, days, n, rises, acc, mcc)
select benchmark.id, name, protocol, not ranker, 250, 100000, 50000, 0.51, 0.02
from benchmark cross join (select 'published' as protocol union all select 'all') as protocols cross join predictors
where predictors.directions;

insert into benchmark_seed (
    benchmark_id, predictor, configuration, seed, settings, kept, best_epoch, validation_loss, validation_acc, acc, mcc
)
select benchmark.id, model, configuration.number, seed.number, '{"window": 15}', false, 9, 0.69, 0.51, 0.51, 0.02
from benchmark cross join (select 'dtml' as model union all select 'lstm' union all select 'alstm') as models
cross join day as configuration cross join day as seed
where configuration.number between 1 and 6 and seed.number between 0 and 9;

-- part: translations
insert into translation_model (
    name, kind, size, source_language, target_language, parameters, vocabulary, pairs, steps, epochs, config, seed,
    code_version, folder, checkpoint_hash, tokenizer_hash, corpus_hash, receipt, validation_loss, validation_bleu, created_at
)
select
    'model-' || cast(number as text), 'transformer', 'tiny', 'en', 'de', 2600000, 10000, 29000, 8000, 60, '{}', number,
    '0.1.0', 'none', 'none', 'none', 'none', 'none', 1.8, 38, evening
from day where number < 20;

insert into translation_progress (
    model, step, epoch, tokens, train_loss, validation_loss, validation_bleu, learning_rate, tokens_per_second, at
)
select name, number, number / 2.0, 3600 * number, 3, 2, 30, 0.004, 9000, created_at
from translation_model cross join day where number < 200;

insert into translation_score (model, test, test_hash, sentences, bleu, chrf, signature, search, search_text, scored_at)
select name, 'flickr2016', 'none', 1000, 39, 62, 'none', '{}', '{}', created_at from translation_model;

insert into translation_text (model, text, status, priority, attempts, queued_at)
select name, 'A text waits.', 'queued', 0, 0, created_at from translation_model cross join day where number < 20;

insert into translation_text (model, text, status, priority, attempts, queued_at, finished_at, translation, score)
with recursive texts(number) as (select 1 union all select number + 1 from texts where number < :texts)
select name, 'A text.', 'done', 0, 1, created_at, created_at, 'Ein Text.', -0.5
from texts join translation_model on seed = number % 20 order by number;
