-- A small store that is sound and has rows in every table, some with values that are awkward to copy:
-- texts in an order that a language would not give them and with all that COPY, CSV and SQL give a
-- meaning; the smallest and the largest number, one that no short decimal gives, and one that is whole.

insert into alert (market, as_of, kind, message, raised_at) values
    ('toy', '2024-01-04', 'late', 'a' || char(9) || 'b', '2024-01-05 02:30:00.000007');

insert into backtest (id, market, first, last, retrain_every, config, seeds, code_version, data_watermark, list_is_snapshot, list_as_of, device, created_at, finished_at, seconds, stocks, constituent_days, without_price, tried, expected_best) values
    ('toy-2024-01-05-1a2b3c4d', 'toy', '2024-01-05', '2024-01-08', 1, '{"experiment": {"window": 3}, "sessions_a_year": 252, "costs": {"commission": 1.0}, "strategies": ["long"]}', '[2, 3]', '0.1.0', '2024-01-09 02:30:00.000000', 1, '2023-12-29', 'cpu', '2024-01-09 02:30:00.000000', '2024-01-05 02:30:00.000007', 97.5, 3, 6, 1, 2, 0.75);

insert into benchmark (id, market, title, config, code_version, data_watermark, stocks, train_first, train_last, validation_first, validation_last, test_first, test_last, best_rule, seconds, device, test_read_at) values
    ('toy-1a2b3c4d', 'toy', 'Toy market, paper protocol', '{"dtml": {"window": 3, "rates": [0.001, 0.0001]}, "stocknet": {}}', '0.1.0', '2024-01-05 02:30:00.000000', 87, '2014-01-02', '2015-07-31', '2015-08-03', '2015-09-30', '2015-10-01', '2015-12-31', 'index_reversal', 97.5, 'cpu', '2024-01-05 02:30:00.000000');

insert into champion (market, since, predictor, replaced, nights, gain, stake, needed, decided_at) values
    ('toy', '2024-01-05', 'ridge', 'blend', 25, 0.0125, 61.5, 60.0, '2024-01-05 02:30:00.000007');

insert into instrument (id, market, symbol, kind, source_symbol, sector) values
    (1, 'toy', '"q"', 'stock', '"q"', 'Tin'),
    (2, 'toy', '100 %s :x', 'stock', '100 %s :x', 'Tin'),
    (3, 'toy', 'A', 'stock', 'A', 'Tin'),
    (4, 'toy', 'B', 'stock', 'B', 'Tin'),
    (5, 'toy', 'C', 'stock', 'C', 'Tin'),
    (6, 'toy', 'Zebra', 'stock', 'Zebra', 'Tin'),
    (7, 'toy', '\N', 'stock', '\N', 'Tin'),
    (8, 'toy', 'a' || char(9) || 'b', 'stock', 'a' || char(9) || 'b', 'Tin'),
    (9, 'toy', 'a' || char(10) || 'b', 'stock', 'a' || char(10) || 'b', 'Tin'),
    (10, 'toy', 'apple', 'stock', 'apple', 'Tin'),
    (11, 'toy', 'back\slash', 'stock', 'back\slash', 'Tin'),
    (12, 'toy', 'it''s', 'stock', 'it''s', 'Tin'),
    (13, 'toy', '{}', 'stock', '{}', 'Tin'),
    (14, 'toy', 'Äpfel', 'stock', 'Äpfel', 'Tin'),
    (15, 'toy', 'Ünïcode', 'stock', 'Ünïcode', 'Tin'),
    (16, 'toy', '日本', 'stock', '日本', 'Tin');

insert into market_file (market, path, text, saved_at) values
    ('toy', '/markets/toy.toml', 'title = "Toy"' || char(10) || '', '2024-01-05 02:30:00.000007');

insert into night_drift (market, as_of, measure, value, expected, evidence, needed, drifted) values
    ('toy', '2024-01-04', 'coverage', 0.30000000000000004, 0.5, 3.5, 3.0, 0),
    ('toy', '2024-01-04', 'z_open', 0.30000000000000004, 0.5, 3.5, 3.0, 1);

insert into night_stage (market, as_of, stage, status, started_at, seconds) values
    ('toy', '2024-01-04', 'fetch', 'done', '2024-01-05 02:30:00.000007', 0.30000000000000004);

insert into paper_return (market, session, portfolio, gross, turnover, cost, net, equity) values
    ('toy', '2024-01-05', 'account', 0.30000000000000004, 0.3, 0.001, -0.1, 0.9),
    ('toy', '2024-01-05', 'account, no costs', 0.30000000000000004, 0.3, 0.001, -0.1, 0.9),
    ('toy', '2024-01-05', 'equal parts', 0.30000000000000004, 0.3, 0.001, -0.1, 0.9),
    ('toy', '2024-01-05', 'index', 0.30000000000000004, 0.3, 0.001, -0.1, 0.9);

insert into price_comparison (market, as_of, known_at, source, symbols, bars, differing, failures, failure) values
    ('toy', '2024-01-04', '2024-01-05 02:30:00.000007', 'files', 2, 2, 2, '[{"symbol": "\u00c4pfel", "status": "no_data", "detail": "a\tb"}]', 'back\slash');

insert into price_fetch (market, known_at, as_of, source, asked, fetched, stored, rejected, restated, failures) values
    ('toy', '2024-01-05 02:30:00.000007', '2024-01-04', 'files', 2, 2, 2, 2, '["A"]', '[]');

insert into rank_score (market, target, span, leg, predictor, is_rule, days, n, rank_ic, rank_ic_low, rank_ic_high, icir, t, auc, auc_low, auc_high, acc, acc_low, acc_high, mcc, mcc_low, mcc_high, decile_spread, decile_spread_low, decile_spread_high, scored_at) values
    ('toy', '2024-01-03', 'night', 'next_close', 'blend', 0, 251, 7001, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, '2024-01-05 02:30:00.000007'),
    ('toy', '2024-01-03', 'night', 'next_close', 'day_losers', 1, 251, 7001, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, '2024-01-05 02:30:00.000007'),
    ('toy', '2024-01-03', 'night', 'next_close', 'ridge', 0, 251, 7001, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, '2024-01-05 02:30:00.000007');

insert into ranker (id, market, leg, chosen, config, code_version, data_watermark, checkpoint_path, checkpoint_hash, train_last, created_at) values
    ('toy-2023-12-29-1a2b3c4d', 'toy', 'next_close', 'ridge', '{"leg": "next_close"}', '0.1.0', '2024-01-05 02:30:00.000000', 'models/first.safetensors', '86999bc83fbb352383dcf949b5a4c48ab9a5e3b418d1110976e6f4ffb7b7b1e3', '2023-12-29', '2024-01-05 02:30:00.000000');

insert into ranking (id, market, leg, first, last, config, stocks, folds, best_rule, code_version, data_watermark, seconds, read_at) values
    ('toy-2022-01-03-1a2b3c4d', 'toy', 'next_close', '2022-01-03', '2022-12-30', '{"ridge": {"penalty": 0.1}, "trading": {"top": 20, "sources": {"lot": "Made up."}}}', 31, 4, 'day_losers', '0.1.0', '2024-01-05 02:30:00.000000', 2.5, '2024-01-05 02:30:00.000000');

insert into rule_direction (market, target, as_of, always_up, index_reversal) values
    ('toy', '2024-01-05', '2024-01-04', 1, 0);

insert into run (id, market, kind, model, config, universe, seeds, code_version, data_watermark, checkpoint_path, checkpoint_hash, losses, slope, intercept, train_first, train_last, created_at) values
    ('first', 'toy', 'nightly', 'dtml', '{"window": 3, "words": ["Zebra", "apple", "\u00c4pfel", "a\tb", "a\nb", "back\\slash", "\\N", "it''s", "\"q\"", "100 %s :x", "\u65e5\u672c", "{}"]}', '{"index": "IDX", "constituents": [["A", "2023-01-03", null]]}', '[2, 3, 5]', '0.1.0', '2024-01-05 02:30:00.000000', 'models/first.safetensors', '86999bc83fbb352383dcf949b5a4c48ab9a5e3b418d1110976e6f4ffb7b7b1e3', '[{"seed": 2, "loss": [0.7, 0.6]}]', 1.25, -0.5, '2023-01-03', '2024-01-04', '2024-01-05 02:30:00.000000'),
    ('trees', 'toy', 'benchmark', 'dtml', '{"window": 3, "betas": [0.1, 0.01]}', '{"index": "IDX", "constituents": [["A", "2023-01-03", null]]}', '[2, 3, 5]', '0.1.0', '2024-01-05 02:30:00.000000', null, null, '[{"seed": 2, "loss": [0.7, 0.6]}]', 1.25, -0.5, '2023-01-03', '2024-01-04', '2024-01-05 02:30:00.000000');

insert into score (market, target, span, protocol, predictor, n, nights, rises, predicted_rises, acc, acc_low, acc_high, mcc, mcc_low, mcc_high, scored_at) values
    ('toy', '2024-01-05', 'night', 'all', 'dtml', 3, 1, 1, 2, 1.0, null, null, null, null, null, '2024-01-05 02:30:00.000007'),
    ('toy', '2024-01-05', 'running', 'all', 'dtml', 3, 1, 1, 2, 0.6, 0.25, 0.25, 0.25, 0.25, 0.25, '2024-01-05 02:30:00.000007');

insert into translation_model (name, kind, size, source_language, target_language, parameters, vocabulary, pairs, steps, epochs, config, seed, code_version, folder, checkpoint_hash, tokenizer_hash, corpus_hash, receipt, validation_loss, created_at) values
    ('en-de', 'transformer', 'tiny', 'en', 'de', 5000000000, 8000, 29000, 200, 1.5, '{"layers": 6, "words": ["Zebra", "apple", "\u00c4pfel", "a\tb", "a\nb", "back\\slash", "\\N", "it''s", "\"q\"", "100 %s :x", "\u65e5\u672c", "{}"]}', 17, '1', 'models/en-de', 'checkpoint', 'tokenizer', 'corpus', 'r', 2.5, '2024-01-05 02:30:00.000000');

insert into translation_progress (model, step, epoch, tokens, train_loss, validation_bleu, learning_rate, tokens_per_second, at) values
    ('en-de', 100, 1.0, 10000000000, 3.25, null, 0.30000000000000004, 100000.0, '2024-01-05 02:30:00.000000'),
    ('en-de', 200, 2.0, 20000000000, 3.25, 0.30000000000000004, 0.30000000000000004, 100000.0, '2024-01-05 02:30:00.000000');

insert into translation_score (id, model, test, test_hash, sentences, bleu, bleu_low, bleu_high, chrf, signature, search, search_text, against, difference, p, scored_at) values
    (1, 'en-de', 'multi30k 2016', 'abc', 1000, 34.5, 33.25, 35.75, 60.5, 'nrefs:1|case:mixed', '{"beams": 5, "length_penalty": 0.6}', '{"beams": 5, "length_penalty": 0.6}', null, null, null, '2024-01-05 02:30:00.000000'),
    (2, 'en-de', 'multi30k 2016', 'abc', 1000, 34.5, 33.25, 35.75, 60.5, 'nrefs:1|case:mixed', '{"beams": 5, "length_penalty": 0.6}', '{"beams": 5, "length_penalty": 0.6}', 'other', 0.30000000000000004, 5e-324, '2024-01-05 02:30:00.000000');

insert into translation_text (id, model, text, status, priority, queued_at, taken_by, taken_until, attempts, finished_at, translation, score, attention, reason) values
    (1, 'en-de', 'Zebra', 'done', 0, '2026-11-29 22:02:17.703225', 'a worker', null, 1, '2026-11-29 22:02:17.704867', 'a' || char(10) || 'b', -0.30000000000000004, '[[5e-324, 0.30000000000000004]]', null),
    (2, 'en-de', 'apple', 'failed', 0, '2026-11-29 22:02:17.703230', 'a worker', null, 1, '2026-11-29 22:02:17.729639', null, null, null, 'a' || char(9) || 'b'),
    (3, 'en-de', 'Äpfel', 'taken', 0, '2026-11-29 22:02:17.703231', 'a worker', '2024-01-05 02:30:00.000007', 1, null, null, null, null, null),
    (4, 'en-de', 'a' || char(9) || 'b', 'queued', 0, '2026-11-29 22:02:17.703231', null, null, 0, null, null, null, null, null),
    (5, 'en-de', 'a' || char(10) || 'b', 'queued', 0, '2026-11-29 22:02:17.703232', null, null, 0, null, null, null, null, null),
    (6, 'en-de', 'back\slash', 'queued', 0, '2026-11-29 22:02:17.703232', null, null, 0, null, null, null, null, null),
    (7, 'en-de', '\N', 'queued', 0, '2026-11-29 22:02:17.703233', null, null, 0, null, null, null, null, null),
    (8, 'en-de', 'it''s', 'queued', 0, '2026-11-29 22:02:17.703233', null, null, 0, null, null, null, null, null),
    (9, 'en-de', '"q"', 'queued', 0, '2026-11-29 22:02:17.703234', null, null, 0, null, null, null, null, null),
    (10, 'en-de', '100 %s :x', 'queued', 0, '2026-11-29 22:02:17.703234', null, null, 0, null, null, null, null, null),
    (11, 'en-de', '日本', 'queued', 0, '2026-11-29 22:02:17.703235', null, null, 0, null, null, null, null, null),
    (12, 'en-de', '{}', 'queued', 0, '2026-11-29 22:02:17.703235', null, null, 0, null, null, null, null, null),
    (13, 'en-fr', 'A dog.', 'queued', 0, '2026-11-29 22:02:17.730000', null, null, 0, null, null, null, null, null);

insert into abstention_band (run_id, level, threshold, days, n, is_default) values
    ('first', 0.8, 0.6, 7, 21, 0);

insert into abstention_count (run_id, target, level, n, covered, decided, decided_correct) values
    ('first', '2024-01-05', 0.8, 3, 2, 2, 1);

insert into backtest_fold (backtest_id, number, run_id, as_of, first, last, predictions, refused, seconds) values
    ('toy-2024-01-05-1a2b3c4d', 1, 'first', '2024-01-04', '2024-01-05', '2024-01-05', 3, '{}', 1.5);

insert into backtest_portfolio (backtest_id, portfolio, strategy, days, annual_return, annual_volatility, sharpe, index_gain, deflated_sharpe, max_drawdown, hit_rate, turnover, break_even, settled, unbooked) values
    ('toy-2024-01-05-1a2b3c4d', 'index', null, 2, -0.25, 0.125, -2.0, null, 0.25, -0.02, 0.5, 0.0, null, 0, 0.0),
    ('toy-2024-01-05-1a2b3c4d', 'long, next open', '{"form": "long", "fill": "next_open", "top": 10}', 2, 0.5, 0.125, 4.0, 6.0, 0.75, -0.0006, 0.5, 1.5, 33.0, 2, 0.75);

insert into backtest_return (backtest_id, portfolio, session, gross, turnover, cost, borrow, net) values
    ('toy-2024-01-05-1a2b3c4d', 'index', '2024-01-05', 0.01, 0.0, 0.0, 0.0, 0.01),
    ('toy-2024-01-05-1a2b3c4d', 'index', '2024-01-08', -0.02, 0.0, 0.0, 0.0, -0.02),
    ('toy-2024-01-05-1a2b3c4d', 'long, next open', '2024-01-05', 0.01, 1.0, 0.0003, 0.0, 0.0097),
    ('toy-2024-01-05-1a2b3c4d', 'long, next open', '2024-01-08', 0.0, 2.0, 0.0006, 0.0, -0.0006);

insert into backtest_score (backtest_id, slice, value, protocol, predictor, n, days, rises, acc, acc_low, mcc, model_gain, rank_ic, rank_gain) values
    ('toy-2024-01-05-1a2b3c4d', 'all', '', 'all', 'always_up', 6, 2, 3, 0.6875, 0.25, 0.0, 0.5, null, null),
    ('toy-2024-01-05-1a2b3c4d', 'all', '', 'all', 'dtml', 6, 2, 3, 0.75, 0.5, 0.5, null, 0.25, -0.125),
    ('toy-2024-01-05-1a2b3c4d', 'all', '', 'all', 'index_reversal', 6, 2, 3, 0.625, 0.375, 0.25, 0.25, null, null),
    ('toy-2024-01-05-1a2b3c4d', 'fold', '1', 'all', 'dtml', 3, 1, 2, 0.5, null, 0.0, null, 0.5, null),
    ('toy-2024-01-05-1a2b3c4d', 'symbol', 'A', 'all', 'dtml', 2, 2, 1, 0.5, null, 0.0, null, null, null),
    ('toy-2024-01-05-1a2b3c4d', 'year', '2024', 'published', 'dtml', 0, 0, 0, null, null, null, null, null, null);

insert into bar_disagreement (instrument_id, as_of, session, field, first_value, second_value, difference) values
    (3, '2024-01-04', '2024-01-05', 'bar', 1.0, null, null),
    (3, '2024-01-04', '2024-01-05', 'close', 5e-324, 1.7976931348623157e+308, 0.30000000000000004),
    (3, '2024-01-04', '2024-01-05', 'volume', null, 0.30000000000000004, null);

insert into benchmark_score (benchmark_id, predictor, protocol, run_id, is_rule, days, n, rises, seeds, configurations, acc_mean, acc_sd, mcc_mean, mcc_sd, acc, acc_low, acc_high, mcc, mcc_low, mcc_high, acc_gain, acc_gain_low, acc_gain_high, mcc_gain, mcc_gain_low, mcc_gain_high, brier, brier_low, brier_high, calibration_slope, calibration_intercept, auc, auc_low, auc_high, rank_ic, rank_ic_low, rank_ic_high, same_direction, published_acc, published_acc_sd, published_mcc, published_mcc_sd, acc_gain_p, mcc_gain_p) values
    ('toy-1a2b3c4d', 'dtml', 'published', 'first', 0, 64, 3720, 1873, 5, 4, 0.125, 0.125, 0.125, 0.125, 0.5625, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125),
    ('toy-1a2b3c4d', 'gradient_boosting', 'published', 'trees', 0, 64, 3720, 1873, 1, 2, 0.125, null, 0.125, null, 0.53, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, null, null, null, null, 0.125, 0.125),
    ('toy-1a2b3c4d', 'index_reversal', 'published', null, 1, 64, 3720, 1873, null, null, null, null, null, null, 0.51, 0.125, 0.125, 0.125, 0.125, 0.125, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, 0.125, null, null, null, null, null, null);

insert into benchmark_seed (benchmark_id, predictor, configuration, seed, settings, kept, best_epoch, validation_acc, validation_loss, acc, mcc) values
    ('toy-1a2b3c4d', 'dtml', 0, 0, '{"hidden": 32, "betas": []}', 0, 7, 0.5, 0.7, null, null),
    ('toy-1a2b3c4d', 'dtml', 1, 0, '{"hidden": 64, "betas": [0.1, 1]}', 1, 11, 0.5, 0.6, 0.5, 0.0),
    ('toy-1a2b3c4d', 'dtml', 1, 1, '{"hidden": 64, "betas": [0.1, 1]}', 1, 13, 0.75, 0.5, 0.625, 0.25),
    ('toy-1a2b3c4d', 'gradient_boosting', 0, 0, '{"leaves": 31}', 1, null, 0.5, null, 0.53, 0.0);

insert into calibration_bin (run_id, target, bin, n, probability_sum, rises) values
    ('first', '2024-01-05', 25, 3, 0.30000000000000004, 1);

insert into constituent (instrument_id, spell, valid_to, source) values
    (3, 1, '2024-01-05', 'a list'),
    (4, 1, '2024-01-05', 'a list'),
    (5, 1, '2024-01-05', 'a list');

insert into night (market, as_of, target, status, run_id, source, known_at, fetched, stored, rejected, predictions, gaps, started_at, finished_at) values
    ('toy', '2024-01-04', '2024-01-05', 'complete_with_gaps', 'first', 'files', '2024-01-05 02:30:00.000007', 7, 5, 2, 3, '[{"symbol": "\u00dcn\u00efcode", "reason": "no bar: ''quoted'', \"twice\", \\ and\ttab"}]', '2024-01-05 02:30:00.000007', '2024-01-05 02:30:00.000007');

insert into outcome (instrument_id, session, realised_return, rise, label, known_at, recorded_at) values
    (3, '2024-01-05', -0.01, 0, -1, '2024-01-05 02:30:00.000007', '2024-01-05 02:30:00.000007'),
    (4, '2024-01-05', 0.0, 0, 0, '2024-01-05 02:30:00.000007', '2024-01-05 02:30:00.000007'),
    (5, '2024-01-05', 0.02, 1, 1, '2024-01-05 02:30:00.000007', '2024-01-05 02:30:00.000007');

insert into paper_position (market, session, instrument_id, weight) values
    ('toy', '2024-01-05', 3, 0.30000000000000004),
    ('toy', '2024-01-05', 4, 0.5);

insert into prediction (run_id, target, instrument_id, as_of, probability, probability_std, known_at, made_at) values
    ('first', '2024-01-05', 3, '2024-01-04', 0.25, 0.125, '2024-01-05 02:30:00.000007', '2024-01-05 02:30:00.000007'),
    ('first', '2024-01-05', 4, '2024-01-04', 0.5, null, '2024-01-05 02:30:00.000007', '2024-01-05 02:30:00.000007'),
    ('first', '2024-01-05', 5, '2024-01-04', 0.75, 0.0, '2024-01-05 02:30:00.000007', '2024-01-05 02:30:00.000007');

insert into price (instrument_id, session, known_at, open, high, low, close, volume, dividend, source) values
    (3, '2024-01-02', '2024-01-05 02:30:00.000007', 5e-324, 5e-324, 5e-324, 5e-324, 5e-324, 0.0, 'files'),
    (3, '2024-01-03', '2024-01-05 02:30:00.000007', 1.7976931348623157e+308, 1.7976931348623157e+308, 1.7976931348623157e+308, 1.7976931348623157e+308, 1.7976931348623157e+308, 0.0, 'files'),
    (3, '2024-01-04', '2024-01-05 02:30:00.000007', 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.0, 'files'),
    (3, '2024-01-05', '2024-01-05 02:30:00.000007', 3.0, 3.0, 3.0, 3.0, 3.0, 0.0, 'files');

insert into ranking_difference (ranking_id, predictor, other, leg, gain, gain_low, gain_high, gain_p) values
    ('toy-2022-01-03-1a2b3c4d', 'blend', 'day_losers', 'next_close', 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004),
    ('toy-2022-01-03-1a2b3c4d', 'blend', 'ridge', 'next_close', 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004),
    ('toy-2022-01-03-1a2b3c4d', 'day_losers', 'ridge', 'next_close', 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004),
    ('toy-2022-01-03-1a2b3c4d', 'ridge', 'day_losers', 'next_close', 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004);

insert into ranking_portfolio (ranking_id, span, version, smooth, band, days, annual_return, annual_volatility, sharpe, sharpe_low, sharpe_high, index_gain, index_gain_low, index_gain_high, max_drawdown, turnover, break_even) values
    ('toy-2022-01-03-1a2b3c4d', 'test', 'equal parts', 5, 2.0, 251, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, -0.1, 0.30000000000000004, 0.30000000000000004),
    ('toy-2022-01-03-1a2b3c4d', 'test', 'smoothed and banded', 5, 2.0, 251, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, -0.1, 0.30000000000000004, 0.30000000000000004),
    ('toy-2022-01-03-1a2b3c4d', 'validation', '', 5, 2.0, 251, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, -0.1, 0.30000000000000004, 0.30000000000000004);

insert into ranking_score (ranking_id, predictor, leg, slice, value, is_rule, days, n, rank_ic, rank_ic_low, rank_ic_high, icir, t, auc, auc_low, auc_high, acc, acc_low, acc_high, mcc, mcc_low, mcc_high, decile_spread, decile_spread_low, decile_spread_high) values
    ('toy-2022-01-03-1a2b3c4d', 'blend', 'next_close', 'all', '', 0, 251, 7001, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004),
    ('toy-2022-01-03-1a2b3c4d', 'day_losers', 'next_close', 'all', '', 1, 251, 7001, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004),
    ('toy-2022-01-03-1a2b3c4d', 'ridge', 'next_close', 'all', '', 0, 251, 7001, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004, 0.30000000000000004);

insert into rejected_bar (instrument_id, session, source, reason, value, first_known_at) values
    (3, '2024-01-05', 'files', '"q"', '"q"', '2024-01-05 02:30:00.000007'),
    (3, '2024-01-05', 'files', '100 %s :x', '100 %s :x', '2024-01-05 02:30:00.000007'),
    (3, '2024-01-05', 'files', 'Zebra', 'Zebra', '2024-01-05 02:30:00.000007'),
    (3, '2024-01-05', 'files', '\N', '\N', '2024-01-05 02:30:00.000007'),
    (3, '2024-01-05', 'files', 'a' || char(9) || 'b', 'a' || char(9) || 'b', '2024-01-05 02:30:00.000007'),
    (3, '2024-01-05', 'files', 'a' || char(10) || 'b', 'a' || char(10) || 'b', '2024-01-05 02:30:00.000007'),
    (3, '2024-01-05', 'files', 'apple', 'apple', '2024-01-05 02:30:00.000007'),
    (3, '2024-01-05', 'files', 'back\slash', 'back\slash', '2024-01-05 02:30:00.000007'),
    (3, '2024-01-05', 'files', 'it''s', 'it''s', '2024-01-05 02:30:00.000007'),
    (3, '2024-01-05', 'files', '{}', '{}', '2024-01-05 02:30:00.000007'),
    (3, '2024-01-05', 'files', 'Äpfel', 'Äpfel', '2024-01-05 02:30:00.000007'),
    (3, '2024-01-05', 'files', '日本', '日本', '2024-01-05 02:30:00.000007');

insert into stock_rank (ranker_id, predictor, target, instrument_id, as_of, score, place, probability, chosen, known_at, made_at) values
    ('toy-2023-12-29-1a2b3c4d', 'ridge', '2024-01-05', 3, '2024-01-04', 5e-324, 1, 0.6, 1, '2024-01-05 02:30:00.000007', '2024-01-05 02:30:00.000007'),
    ('toy-2023-12-29-1a2b3c4d', 'ridge', '2024-01-05', 4, '2024-01-04', 1.7976931348623157e+308, 2, 0.5, 1, '2024-01-05 02:30:00.000007', '2024-01-05 02:30:00.000007'),
    ('toy-2023-12-29-1a2b3c4d', 'ridge', '2024-01-05', 5, '2024-01-04', 0.30000000000000004, 3, 0.4, 1, '2024-01-05 02:30:00.000007', '2024-01-05 02:30:00.000007');

insert into symbol_warning (instrument_id, reason, value, known_at) values
    (3, '"q"', '"q"', '2024-01-05 02:30:00.000007'),
    (3, '100 %s :x', '100 %s :x', '2024-01-05 02:30:00.000007'),
    (3, 'Zebra', 'Zebra', '2024-01-05 02:30:00.000007'),
    (3, '\N', '\N', '2024-01-05 02:30:00.000007'),
    (3, 'a' || char(9) || 'b', 'a' || char(9) || 'b', '2024-01-05 02:30:00.000007'),
    (3, 'a' || char(10) || 'b', 'a' || char(10) || 'b', '2024-01-05 02:30:00.000007'),
    (3, 'apple', 'apple', '2024-01-05 02:30:00.000007'),
    (3, 'back\slash', 'back\slash', '2024-01-05 02:30:00.000007'),
    (3, 'it''s', 'it''s', '2024-01-05 02:30:00.000007'),
    (3, '{}', '{}', '2024-01-05 02:30:00.000007'),
    (3, 'Äpfel', 'Äpfel', '2024-01-05 02:30:00.000007'),
    (3, '日本', '日本', '2024-01-05 02:30:00.000007');

insert into target_position (market, target, instrument_id, weight, kept, decided_at) values
    ('toy', '2024-01-05', 3, 0.30000000000000004, 1, '2024-01-05 02:30:00.000007'),
    ('toy', '2024-01-05', 4, 0.5, 0, '2024-01-05 02:30:00.000007');

insert into attention_weight (run_id, target, instrument_id, source_id, weight) values
    ('first', '2024-01-05', 3, 3, 0.5),
    ('first', '2024-01-05', 3, 4, 0.25),
    ('first', '2024-01-05', 3, 5, 0.25),
    ('first', '2024-01-05', 4, 3, 0.0),
    ('first', '2024-01-05', 4, 4, 1.0),
    ('first', '2024-01-05', 4, 5, 0.0),
    ('first', '2024-01-05', 5, 3, 0.125),
    ('first', '2024-01-05', 5, 4, 0.25),
    ('first', '2024-01-05', 5, 5, 0.625);
