CREATE TABLE backtest (
    id VARCHAR NOT NULL,
    market VARCHAR NOT NULL,
    first DATE NOT NULL,
    last DATE NOT NULL,
    retrain_every INTEGER NOT NULL,
    config JSON NOT NULL,
    seeds JSON NOT NULL,
    code_version VARCHAR NOT NULL,
    data_watermark TIMESTAMP WITH TIME ZONE NOT NULL,
    list_is_snapshot BOOLEAN NOT NULL,
    list_as_of DATE,
    device VARCHAR NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    seconds FLOAT(53),
    stocks INTEGER,
    member_days INTEGER,
    without_price INTEGER,
    tried INTEGER,
    CONSTRAINT pk_backtest PRIMARY KEY (id),
    CONSTRAINT ck_backtest_span CHECK (first <= last),
    CONSTRAINT ck_backtest_counts CHECK (retrain_every >= 1 and seconds >= 0 and stocks >= 0 and without_price >= 0 and without_price <= member_days and tried >= 1)
);
CREATE INDEX ix_backtest_market_created_at ON backtest (market, created_at);
COMMENT ON TABLE backtest IS 'Backtests: walks through history, each fold trained on what was known then.';
COMMENT ON COLUMN backtest.id IS 'Name of the backtest, such as sp500-2018-01-02-1a2b3c4d.';
COMMENT ON COLUMN backtest.market IS 'Name of the market.';
COMMENT ON COLUMN backtest.first IS 'First session predicted.';
COMMENT ON COLUMN backtest.last IS 'Last session predicted.';
COMMENT ON COLUMN backtest.retrain_every IS 'Sessions predicted by each model, 1 or more.';
COMMENT ON COLUMN backtest.config IS 'Every setting: experiment, universe, strategies, costs.';
COMMENT ON COLUMN backtest.seeds IS 'List of seeds, one per member of each fold''s ensemble.';
COMMENT ON COLUMN backtest.code_version IS 'Version of the code that began it.';
COMMENT ON COLUMN backtest.data_watermark IS 'Latest known_at of the prices used.';
COMMENT ON COLUMN backtest.list_is_snapshot IS 'Whether today''s constituents stand for the past.';
COMMENT ON COLUMN backtest.list_as_of IS 'Day of the list of constituents; missing when not known.';
COMMENT ON COLUMN backtest.device IS 'What the trainings ran on, such as cpu.';
COMMENT ON COLUMN backtest.created_at IS 'When it was begun.';
COMMENT ON COLUMN backtest.finished_at IS 'When its figures were stored; missing until then.';
COMMENT ON COLUMN backtest.seconds IS 'Time it took in all, in seconds; missing until finished.';
COMMENT ON COLUMN backtest.stocks IS 'Stocks predicted at least once; missing until finished.';
COMMENT ON COLUMN backtest.member_days IS 'Days of membership, summed over the stocks; missing until finished.';
COMMENT ON COLUMN backtest.without_price IS 'Those of them without a price; missing until finished.';
COMMENT ON COLUMN backtest.tried IS 'Portfolios that followed predictions on this market so far, these included; missing until finished.';

CREATE TABLE benchmark (
    id VARCHAR NOT NULL,
    market VARCHAR NOT NULL,
    title VARCHAR NOT NULL,
    config JSON NOT NULL,
    code_version VARCHAR NOT NULL,
    data_watermark TIMESTAMP WITH TIME ZONE NOT NULL,
    stocks INTEGER NOT NULL,
    train_first DATE NOT NULL,
    train_last DATE NOT NULL,
    validation_first DATE NOT NULL,
    validation_last DATE NOT NULL,
    test_first DATE NOT NULL,
    test_last DATE NOT NULL,
    best_rule VARCHAR NOT NULL,
    seconds FLOAT(53),
    device VARCHAR NOT NULL,
    test_read_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_benchmark PRIMARY KEY (id),
    CONSTRAINT ck_benchmark_spans CHECK (train_first <= train_last and train_last < validation_first and validation_first <= validation_last and validation_last < test_first and test_first <= test_last),
    CONSTRAINT ck_benchmark_counts CHECK (stocks >= 1 and seconds >= 0)
);
COMMENT ON TABLE benchmark IS 'Benchmarks: every predictor on the same spans, the test span read once.';
COMMENT ON COLUMN benchmark.id IS 'Name of the benchmark, such as acl18-1a2b3c4d.';
COMMENT ON COLUMN benchmark.market IS 'Name of the market.';
COMMENT ON COLUMN benchmark.title IS 'What was compared, in words.';
COMMENT ON COLUMN benchmark.config IS 'Every setting of every predictor.';
COMMENT ON COLUMN benchmark.code_version IS 'Version of the code that trained and scored.';
COMMENT ON COLUMN benchmark.data_watermark IS 'Latest known_at of the prices used.';
COMMENT ON COLUMN benchmark.stocks IS 'Stocks predicted.';
COMMENT ON COLUMN benchmark.train_first IS 'First session predicted in training.';
COMMENT ON COLUMN benchmark.train_last IS 'Last session predicted in training.';
COMMENT ON COLUMN benchmark.validation_first IS 'First session of validation, which chooses.';
COMMENT ON COLUMN benchmark.validation_last IS 'Last session of validation.';
COMMENT ON COLUMN benchmark.test_first IS 'First session of the test.';
COMMENT ON COLUMN benchmark.test_last IS 'Last session of the test.';
COMMENT ON COLUMN benchmark.best_rule IS 'The naive rule chosen on the training span alone.';
COMMENT ON COLUMN benchmark.seconds IS 'Time of the trainings, in seconds; missing when not measured.';
COMMENT ON COLUMN benchmark.device IS 'What the trainings ran on, such as cpu.';
COMMENT ON COLUMN benchmark.test_read_at IS 'When the test span was read: once.';

CREATE TABLE rule_call (
    market VARCHAR NOT NULL,
    target DATE NOT NULL,
    as_of DATE NOT NULL,
    always_up BOOLEAN NOT NULL,
    index_reversal BOOLEAN,
    index_below_mean20 BOOLEAN,
    CONSTRAINT pk_rule_call PRIMARY KEY (market, target),
    CONSTRAINT ck_rule_call_dates CHECK (as_of < target)
);
COMMENT ON TABLE rule_call IS 'What each naive rule called for a session, of all of a market''s stocks at once.';
COMMENT ON COLUMN rule_call.market IS 'Name of the market.';
COMMENT ON COLUMN rule_call.target IS 'Session predicted.';
COMMENT ON COLUMN rule_call.as_of IS 'Last session the rules saw; always before target.';
COMMENT ON COLUMN rule_call.always_up IS 'Whether ''every stock rises'' calls a rise: always.';
COMMENT ON COLUMN rule_call.index_reversal IS 'Whether a fall of the index calls a rise; missing without history.';
COMMENT ON COLUMN rule_call.index_below_mean20 IS 'Whether an index below its mean of 20 sessions calls a rise; missing without history.';

CREATE TABLE price_fetch (
    market VARCHAR NOT NULL,
    known_at TIMESTAMP WITH TIME ZONE NOT NULL,
    as_of DATE NOT NULL,
    source VARCHAR NOT NULL,
    asked INTEGER NOT NULL,
    fetched INTEGER NOT NULL,
    stored INTEGER NOT NULL,
    refused INTEGER NOT NULL,
    restated JSON NOT NULL,
    failures JSON NOT NULL,
    CONSTRAINT pk_price_fetch PRIMARY KEY (market, known_at),
    CONSTRAINT ck_price_fetch_counts CHECK (asked >= 0 and fetched >= 0 and stored >= 0 and refused >= 0)
);
COMMENT ON TABLE price_fetch IS 'One row per time a source was asked: what came, and what did not.';
COMMENT ON COLUMN price_fetch.market IS 'Name of the market.';
COMMENT ON COLUMN price_fetch.known_at IS 'When its bars were known; later than the fetch before.';
COMMENT ON COLUMN price_fetch.as_of IS 'Session up to which the store was to be brought.';
COMMENT ON COLUMN price_fetch.source IS 'Who was asked: yahoo, files, simulated.';
COMMENT ON COLUMN price_fetch.asked IS 'Symbols asked for.';
COMMENT ON COLUMN price_fetch.fetched IS 'Bars the source returned.';
COMMENT ON COLUMN price_fetch.stored IS 'Bars that were new or restated.';
COMMENT ON COLUMN price_fetch.refused IS 'Findings against bars, one for each check failed.';
COMMENT ON COLUMN price_fetch.restated IS 'Symbols whose whole history was fetched anew, a list.';
COMMENT ON COLUMN price_fetch.failures IS 'Symbols without an answer, a list of {symbol, status, detail}.';

CREATE TABLE alert (
    market VARCHAR NOT NULL,
    as_of DATE NOT NULL,
    kind VARCHAR NOT NULL,
    message VARCHAR NOT NULL,
    raised_at TIMESTAMP WITH TIME ZONE NOT NULL,
    sent_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_alert PRIMARY KEY (market, as_of, kind),
    CONSTRAINT ck_alert_kind CHECK (kind in ('refused', 'late', 'below_rule'))
);
COMMENT ON TABLE alert IS 'What somebody should know of a night, once for each night and kind.';
COMMENT ON COLUMN alert.market IS 'Name of the market.';
COMMENT ON COLUMN alert.as_of IS 'The night it is about.';
COMMENT ON COLUMN alert.kind IS '''refused'', ''late'' or ''below_rule''.';
COMMENT ON COLUMN alert.message IS 'What happened, in words.';
COMMENT ON COLUMN alert.raised_at IS 'When it was noticed.';
COMMENT ON COLUMN alert.sent_at IS 'When a webhook took it; missing without one, or until it does.';

CREATE TABLE translation_model (
    name VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    size VARCHAR NOT NULL,
    source_language VARCHAR NOT NULL,
    target_language VARCHAR NOT NULL,
    parameters BIGINT NOT NULL,
    vocabulary INTEGER NOT NULL,
    pairs INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    epochs FLOAT(53) NOT NULL,
    config JSON NOT NULL,
    seed BIGINT NOT NULL,
    code_version VARCHAR NOT NULL,
    folder VARCHAR NOT NULL,
    checkpoint_hash VARCHAR NOT NULL,
    tokenizer_hash VARCHAR NOT NULL,
    corpus_hash VARCHAR NOT NULL,
    receipt VARCHAR NOT NULL,
    validation_loss FLOAT(53),
    validation_bleu FLOAT(53),
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_translation_model PRIMARY KEY (name),
    CONSTRAINT ck_translation_model_counts CHECK (parameters > 0 and vocabulary > 0 and pairs > 0 and steps >= 0 and epochs >= 0)
);
COMMENT ON TABLE translation_model IS 'Trained translation models, one row per name.';
COMMENT ON COLUMN translation_model.name IS 'Name of the model.';
COMMENT ON COLUMN translation_model.kind IS 'Its architecture: transformer, rnn and the like.';
COMMENT ON COLUMN translation_model.size IS 'Preset of its size: tiny, small, base, big.';
COMMENT ON COLUMN translation_model.source_language IS 'Language it reads, such as en.';
COMMENT ON COLUMN translation_model.target_language IS 'Language it writes, such as de.';
COMMENT ON COLUMN translation_model.parameters IS 'Weights that were trained.';
COMMENT ON COLUMN translation_model.vocabulary IS 'Pieces of its tokenizer, special ones too.';
COMMENT ON COLUMN translation_model.pairs IS 'Pairs of sentences trained on.';
COMMENT ON COLUMN translation_model.steps IS 'Updates of the weights.';
COMMENT ON COLUMN translation_model.epochs IS 'Passes over the pairs, in parts too.';
COMMENT ON COLUMN translation_model.config IS 'Every setting of data, model and training.';
COMMENT ON COLUMN translation_model.seed IS 'Seed of the weights, the order and the dropout.';
COMMENT ON COLUMN translation_model.code_version IS 'Version of the code that trained.';
COMMENT ON COLUMN translation_model.folder IS 'Folder of the weights and the tokenizer.';
COMMENT ON COLUMN translation_model.checkpoint_hash IS 'SHA-256 of the weights.';
COMMENT ON COLUMN translation_model.tokenizer_hash IS 'SHA-256 of the tokenizer.';
COMMENT ON COLUMN translation_model.corpus_hash IS 'SHA-256 of the pairs trained on.';
COMMENT ON COLUMN translation_model.receipt IS 'What names the model and all it was made of.';
COMMENT ON COLUMN translation_model.validation_loss IS 'Loss per target token on the validation pairs, in nats; missing without.';
COMMENT ON COLUMN translation_model.validation_bleu IS 'BLEU on the validation pairs, 0 to 100; missing without.';
COMMENT ON COLUMN translation_model.created_at IS 'When training ended.';

CREATE TABLE translation_progress (
    model VARCHAR NOT NULL,
    step INTEGER NOT NULL,
    epoch FLOAT(53) NOT NULL,
    tokens BIGINT NOT NULL,
    train_loss FLOAT(53) NOT NULL,
    validation_loss FLOAT(53),
    validation_bleu FLOAT(53),
    learning_rate FLOAT(53) NOT NULL,
    tokens_per_second FLOAT(53) NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_translation_progress PRIMARY KEY (model, step),
    CONSTRAINT ck_translation_progress_counts CHECK (step >= 0 and epoch >= 0 and tokens >= 0)
);
COMMENT ON TABLE translation_progress IS 'How the training of a translation model goes, while it runs and afterwards.';
COMMENT ON COLUMN translation_progress.model IS 'Name of the model, which may not be stored yet.';
COMMENT ON COLUMN translation_progress.step IS 'Updates of the weights so far.';
COMMENT ON COLUMN translation_progress.epoch IS 'Passes over the pairs so far, in parts too.';
COMMENT ON COLUMN translation_progress.tokens IS 'Target tokens seen so far.';
COMMENT ON COLUMN translation_progress.train_loss IS 'Loss per target token since the row before, in nats.';
COMMENT ON COLUMN translation_progress.validation_loss IS 'Loss per target token on the validation pairs; missing if not measured.';
COMMENT ON COLUMN translation_progress.validation_bleu IS 'BLEU on the validation pairs, 0 to 100; missing if not measured.';
COMMENT ON COLUMN translation_progress.learning_rate IS 'Learning rate of the step.';
COMMENT ON COLUMN translation_progress.tokens_per_second IS 'Target tokens a second since the row before.';
COMMENT ON COLUMN translation_progress.at IS 'When it was noted.';

CREATE TABLE translation_text (
    id SERIAL NOT NULL,
    model VARCHAR NOT NULL,
    text VARCHAR NOT NULL,
    status VARCHAR DEFAULT 'queued' NOT NULL,
    priority INTEGER DEFAULT 0 NOT NULL,
    queued_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    taken_by VARCHAR,
    taken_until TIMESTAMP WITH TIME ZONE,
    attempts INTEGER DEFAULT 0 NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    translation VARCHAR,
    score FLOAT(53),
    attention JSON,
    reason VARCHAR,
    CONSTRAINT pk_translation_text PRIMARY KEY (id),
    CONSTRAINT ck_translation_text_status CHECK (status in ('queued', 'taken', 'done', 'failed')),
    CONSTRAINT ck_translation_text_attempts CHECK (attempts >= 0),
    CONSTRAINT ck_translation_text_lease CHECK (status <> 'taken' or taken_by is not null and taken_until is not null),
    CONSTRAINT ck_translation_text_length CHECK (length(text) <= 20000),
    CONSTRAINT ck_translation_text_end CHECK ((status <> 'done' or translation is not null) and (status <> 'failed' or reason is not null))
);
CREATE INDEX ix_translation_text_waiting ON translation_text (status, model, priority DESC, id);
COMMENT ON TABLE translation_text IS 'The queue of texts to translate, and their translations.';
COMMENT ON COLUMN translation_text.id IS 'Number given by the store, never given twice.';
COMMENT ON COLUMN translation_text.model IS 'Name of the model, which may not be stored yet.';
COMMENT ON COLUMN translation_text.text IS 'What is to be translated.';
COMMENT ON COLUMN translation_text.status IS '''queued'', ''taken'', ''done'' or ''failed''.';
COMMENT ON COLUMN translation_text.priority IS 'Higher ones are taken first.';
COMMENT ON COLUMN translation_text.queued_at IS 'When it was queued.';
COMMENT ON COLUMN translation_text.taken_by IS 'The worker that took it last; missing before the first.';
COMMENT ON COLUMN translation_text.taken_until IS 'When its lease ends; missing unless it is taken.';
COMMENT ON COLUMN translation_text.attempts IS 'How often it was taken.';
COMMENT ON COLUMN translation_text.finished_at IS 'When it was done or failed; missing until then.';
COMMENT ON COLUMN translation_text.translation IS 'The translation; missing until it is done.';
COMMENT ON COLUMN translation_text.score IS 'Log probability over the length penalty, at most 0; missing until it is done.';
COMMENT ON COLUMN translation_text.attention IS 'Weights of the source''s pieces for each piece written; missing if not asked for.';
COMMENT ON COLUMN translation_text.reason IS 'Why it failed, or what is odd about the text; missing otherwise.';

CREATE TABLE translation_score (
    id SERIAL NOT NULL,
    model VARCHAR NOT NULL,
    test VARCHAR NOT NULL,
    test_hash VARCHAR NOT NULL,
    sentences INTEGER NOT NULL,
    bleu FLOAT(53) NOT NULL,
    bleu_low FLOAT(53),
    bleu_high FLOAT(53),
    chrf FLOAT(53) NOT NULL,
    signature VARCHAR NOT NULL,
    search JSON NOT NULL,
    search_text VARCHAR NOT NULL,
    against VARCHAR,
    difference FLOAT(53),
    p FLOAT(53),
    scored_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_translation_score PRIMARY KEY (id),
    CONSTRAINT ck_translation_score_sentences CHECK (sentences > 0),
    CONSTRAINT ck_translation_score_ranges CHECK (bleu >= 0 and chrf >= 0 and p >= 0 and p <= 1),
    CONSTRAINT ck_translation_score_against CHECK (against is not null or difference is null and p is null),
    CONSTRAINT uq_translation_score_model_test_hash_search_text_against UNIQUE (model, test_hash, search_text, against)
);
CREATE UNIQUE INDEX ix_translation_score_alone ON translation_score (model, test_hash, search_text) WHERE against is null;
COMMENT ON TABLE translation_score IS 'Scores of translation models on test sets, alone and against another model.';
COMMENT ON COLUMN translation_score.id IS 'Number given by the store.';
COMMENT ON COLUMN translation_score.model IS 'Name of the model, which may not be stored yet.';
COMMENT ON COLUMN translation_score.test IS 'Name of the test set.';
COMMENT ON COLUMN translation_score.test_hash IS 'SHA-256 of the test set''s pairs.';
COMMENT ON COLUMN translation_score.sentences IS 'Sentences of it.';
COMMENT ON COLUMN translation_score.bleu IS 'BLEU of the whole set, 0 to 100.';
COMMENT ON COLUMN translation_score.bleu_low IS 'Lower end of its bootstrapped 95 % interval; missing if not measured.';
COMMENT ON COLUMN translation_score.bleu_high IS 'Upper end of that interval; missing if not measured.';
COMMENT ON COLUMN translation_score.chrf IS 'chrF of the whole set, 0 to 100.';
COMMENT ON COLUMN translation_score.signature IS 'How sacreBLEU measured, in its own words.';
COMMENT ON COLUMN translation_score.search IS 'Settings of the search: beams, length penalty.';
COMMENT ON COLUMN translation_score.search_text IS 'The same as text with sorted keys: a rerun is known by it.';
COMMENT ON COLUMN translation_score.against IS 'The model it is compared with; missing without a comparison.';
COMMENT ON COLUMN translation_score.difference IS 'BLEU above that of the other model; missing without a comparison.';
COMMENT ON COLUMN translation_score.p IS 'p-value of the difference; missing without a comparison.';
COMMENT ON COLUMN translation_score.scored_at IS 'When it was measured.';

CREATE TABLE instrument (
    id SERIAL NOT NULL,
    market VARCHAR NOT NULL,
    symbol VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    source_symbol VARCHAR NOT NULL,
    name VARCHAR,
    sector VARCHAR,
    asked_from DATE,
    CONSTRAINT pk_instrument PRIMARY KEY (id),
    CONSTRAINT uq_instrument_market_symbol UNIQUE (market, symbol),
    CONSTRAINT ck_instrument_kind CHECK (kind in ('stock', 'index'))
);
COMMENT ON TABLE instrument IS 'Stocks and indices, one row per market and symbol.';
COMMENT ON COLUMN instrument.id IS 'Number given by the store.';
COMMENT ON COLUMN instrument.market IS 'Name of the market, such as sp500.';
COMMENT ON COLUMN instrument.symbol IS 'The market''s own symbol.';
COMMENT ON COLUMN instrument.kind IS '''stock'', or ''index'' for the market''s index.';
COMMENT ON COLUMN instrument.source_symbol IS 'Symbol at the price source (Yahoo''s spelling).';
COMMENT ON COLUMN instrument.name IS 'Name of the company or index; missing when unknown.';
COMMENT ON COLUMN instrument.sector IS 'Sector; missing when unknown and for an index.';
COMMENT ON COLUMN instrument.asked_from IS 'First session ever asked of a source; missing before the first answer.';

CREATE TABLE run (
    id VARCHAR NOT NULL,
    market VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    config JSON NOT NULL,
    seeds JSON NOT NULL,
    code_version VARCHAR NOT NULL,
    data_watermark TIMESTAMP WITH TIME ZONE NOT NULL,
    checkpoint_path VARCHAR,
    checkpoint_hash VARCHAR,
    losses JSON NOT NULL,
    slope FLOAT(53),
    intercept FLOAT(53),
    train_first DATE NOT NULL,
    train_last DATE NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_run PRIMARY KEY (id),
    CONSTRAINT ck_run_kind CHECK (kind in ('nightly', 'backtest', 'paper')),
    CONSTRAINT ck_run_span CHECK (train_first <= train_last)
);
CREATE INDEX ix_run_market_train_last ON run (market, train_last);
COMMENT ON TABLE run IS 'Trained models and all it takes to train them again.';
COMMENT ON COLUMN run.id IS 'Name of the run.';
COMMENT ON COLUMN run.market IS 'Name of the market.';
COMMENT ON COLUMN run.kind IS 'Its purpose: ''nightly'', ''backtest'' or ''paper''.';
COMMENT ON COLUMN run.model IS 'Kind of network: dtml, lstm, alstm, adv_alstm, stocknet, logistic_regression, gradient_boosting.';
COMMENT ON COLUMN run.config IS 'Every setting of features, model and training.';
COMMENT ON COLUMN run.seeds IS 'List of seeds, one per member of the ensemble.';
COMMENT ON COLUMN run.code_version IS 'Version of the code that trained.';
COMMENT ON COLUMN run.data_watermark IS 'Latest known_at of the prices trained on.';
COMMENT ON COLUMN run.checkpoint_path IS 'Folder of the weights; missing for a model that keeps no weights, such as gradient boosting.';
COMMENT ON COLUMN run.checkpoint_hash IS 'SHA-256 of the checkpoint; missing for a model that keeps no weights, such as gradient boosting.';
COMMENT ON COLUMN run.losses IS 'Training history, per member and epoch.';
COMMENT ON COLUMN run.slope IS 'Calibrated logit over the logit of the probability; missing if not calibrated.';
COMMENT ON COLUMN run.intercept IS 'Calibrated logit of a probability of one half; missing if not calibrated.';
COMMENT ON COLUMN run.train_first IS 'First session trained on.';
COMMENT ON COLUMN run.train_last IS 'Session as of which it was trained: the last one it could see.';
COMMENT ON COLUMN run.created_at IS 'When training ended.';

CREATE TABLE score (
    market VARCHAR NOT NULL,
    target DATE NOT NULL,
    span VARCHAR NOT NULL,
    protocol VARCHAR NOT NULL,
    predictor VARCHAR NOT NULL,
    n INTEGER NOT NULL,
    nights INTEGER NOT NULL,
    rises INTEGER NOT NULL,
    acc FLOAT(53),
    acc_low FLOAT(53),
    acc_high FLOAT(53),
    mcc FLOAT(53),
    mcc_low FLOAT(53),
    mcc_high FLOAT(53),
    scored_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_score PRIMARY KEY (market, target, span, protocol, predictor),
    CONSTRAINT ck_score_span CHECK (span in ('night', 'running')),
    CONSTRAINT ck_score_protocol CHECK (protocol in ('paper', 'all')),
    CONSTRAINT ck_score_counts CHECK (nights >= 0 and rises >= 0 and rises <= n),
    CONSTRAINT ck_score_ranges CHECK (acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1)
);
COMMENT ON TABLE score IS 'Accuracy and Matthews correlation of the predictions and of the naive rules.';
COMMENT ON COLUMN score.market IS 'Name of the market.';
COMMENT ON COLUMN score.target IS 'Session predicted; the last one of a running score.';
COMMENT ON COLUMN score.span IS '''night'' for that session, ''running'' for all up to it.';
COMMENT ON COLUMN score.protocol IS '''paper'': labelled stock-days alone; ''all'': every one.';
COMMENT ON COLUMN score.predictor IS '''dtml'', or the name of a naive rule.';
COMMENT ON COLUMN score.n IS 'Stock-days scored.';
COMMENT ON COLUMN score.nights IS 'Sessions scored.';
COMMENT ON COLUMN score.rises IS 'Stock-days that rose.';
COMMENT ON COLUMN score.acc IS 'Share of right calls, 0 to 1; missing when n is 0.';
COMMENT ON COLUMN score.acc_low IS 'Lower end of its day-resampled 95 % interval; missing below 20 nights.';
COMMENT ON COLUMN score.acc_high IS 'Upper end of that interval; missing below 20 nights.';
COMMENT ON COLUMN score.mcc IS 'Matthews correlation, -1 to 1; missing when n is 0.';
COMMENT ON COLUMN score.mcc_low IS 'Lower end of its day-resampled 95 % interval; missing below 20 nights.';
COMMENT ON COLUMN score.mcc_high IS 'Upper end of that interval; missing below 20 nights.';
COMMENT ON COLUMN score.scored_at IS 'When the row was last changed.';

CREATE TABLE backtest_fold (
    backtest_id VARCHAR NOT NULL,
    number INTEGER NOT NULL,
    run_id VARCHAR NOT NULL,
    as_of DATE NOT NULL,
    first DATE NOT NULL,
    last DATE NOT NULL,
    predictions INTEGER NOT NULL,
    refused JSON NOT NULL,
    seconds FLOAT(53),
    CONSTRAINT pk_backtest_fold PRIMARY KEY (backtest_id, number),
    CONSTRAINT ck_backtest_fold_span CHECK (as_of < first and first <= last),
    CONSTRAINT ck_backtest_fold_counts CHECK (number >= 1 and predictions >= 0 and seconds >= 0),
    CONSTRAINT fk_backtest_fold_backtest_id_backtest FOREIGN KEY(backtest_id) REFERENCES backtest (id),
    CONSTRAINT fk_backtest_fold_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
);
CREATE INDEX ix_backtest_fold_run_id ON backtest_fold (run_id);
COMMENT ON TABLE backtest_fold IS 'Folds of a backtest: one row a model, with the sessions it predicted.';
COMMENT ON COLUMN backtest_fold.backtest_id IS 'The backtest.';
COMMENT ON COLUMN backtest_fold.number IS '1 for the first fold.';
COMMENT ON COLUMN backtest_fold.run_id IS 'The model trained for it.';
COMMENT ON COLUMN backtest_fold.as_of IS 'Session at whose close it was trained.';
COMMENT ON COLUMN backtest_fold.first IS 'First session predicted, the one after as_of.';
COMMENT ON COLUMN backtest_fold.last IS 'Last session predicted.';
COMMENT ON COLUMN backtest_fold.predictions IS 'Stock-days predicted.';
COMMENT ON COLUMN backtest_fold.refused IS 'Nights the nightly job would have refused: a mapping of as_of to the reason.';
COMMENT ON COLUMN backtest_fold.seconds IS 'Time of its training and predictions, in seconds; missing when not measured.';

CREATE TABLE backtest_score (
    backtest_id VARCHAR NOT NULL,
    slice VARCHAR NOT NULL,
    value VARCHAR NOT NULL,
    protocol VARCHAR NOT NULL,
    predictor VARCHAR NOT NULL,
    n INTEGER NOT NULL,
    days INTEGER NOT NULL,
    rises INTEGER NOT NULL,
    acc FLOAT(53),
    acc_low FLOAT(53),
    acc_high FLOAT(53),
    mcc FLOAT(53),
    mcc_low FLOAT(53),
    mcc_high FLOAT(53),
    CONSTRAINT pk_backtest_score PRIMARY KEY (backtest_id, slice, value, protocol, predictor),
    CONSTRAINT ck_backtest_score_slice CHECK (slice in ('all', 'fold', 'year', 'symbol') and (slice = 'all') = (value = '')),
    CONSTRAINT ck_backtest_score_protocol CHECK (protocol in ('paper', 'all')),
    CONSTRAINT ck_backtest_score_counts CHECK (days >= 0 and rises >= 0 and rises <= n),
    CONSTRAINT ck_backtest_score_ranges CHECK (acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1),
    CONSTRAINT fk_backtest_score_backtest_id_backtest FOREIGN KEY(backtest_id) REFERENCES backtest (id)
);
COMMENT ON TABLE backtest_score IS 'Figures of a backtest: the model beside the naive rules, in all and per fold, year and stock.';
COMMENT ON COLUMN backtest_score.backtest_id IS 'The backtest.';
COMMENT ON COLUMN backtest_score.slice IS 'What was scored: ''all'', ''fold'', ''year'' or ''symbol''.';
COMMENT ON COLUMN backtest_score.value IS 'Number of the fold, year or symbol; empty for ''all''.';
COMMENT ON COLUMN backtest_score.protocol IS '''paper'': labelled stock-days alone; ''all'': every one.';
COMMENT ON COLUMN backtest_score.predictor IS '''dtml'', or the name of a naive rule.';
COMMENT ON COLUMN backtest_score.n IS 'Stock-days scored.';
COMMENT ON COLUMN backtest_score.days IS 'Sessions scored.';
COMMENT ON COLUMN backtest_score.rises IS 'Stock-days that rose.';
COMMENT ON COLUMN backtest_score.acc IS 'Share of right calls, 0 to 1; missing when n is 0.';
COMMENT ON COLUMN backtest_score.acc_low IS 'Lower end of its day-resampled 95 % interval; missing with too few days.';
COMMENT ON COLUMN backtest_score.acc_high IS 'Upper end of that interval; missing with too few days.';
COMMENT ON COLUMN backtest_score.mcc IS 'Matthews correlation, -1 to 1; missing when n is 0.';
COMMENT ON COLUMN backtest_score.mcc_low IS 'Lower end of its day-resampled 95 % interval; missing with too few days.';
COMMENT ON COLUMN backtest_score.mcc_high IS 'Upper end of that interval; missing with too few days.';

CREATE TABLE backtest_return (
    backtest_id VARCHAR NOT NULL,
    portfolio VARCHAR NOT NULL,
    session DATE NOT NULL,
    gross FLOAT(53) NOT NULL,
    turnover FLOAT(53) NOT NULL,
    cost FLOAT(53) NOT NULL,
    borrow FLOAT(53) NOT NULL,
    net FLOAT(53) NOT NULL,
    CONSTRAINT pk_backtest_return PRIMARY KEY (backtest_id, portfolio, session),
    CONSTRAINT ck_backtest_return_ranges CHECK (turnover >= 0 and cost >= 0 and borrow >= 0),
    CONSTRAINT fk_backtest_return_backtest_id_backtest FOREIGN KEY(backtest_id) REFERENCES backtest (id)
);
COMMENT ON TABLE backtest_return IS 'What each portfolio of a backtest would have earned, a row a session.';
COMMENT ON COLUMN backtest_return.backtest_id IS 'The backtest.';
COMMENT ON COLUMN backtest_return.portfolio IS 'Name of the portfolio, such as ''long, next open''.';
COMMENT ON COLUMN backtest_return.session IS 'Session in which its positions were taken.';
COMMENT ON COLUMN backtest_return.gross IS 'Return of the positions before costs; 0.01 is 1 % of equity.';
COMMENT ON COLUMN backtest_return.turnover IS 'Value bought and sold, as a share of equity; 0 or more.';
COMMENT ON COLUMN backtest_return.cost IS 'Commission and spread, as a share of equity; 0 or more.';
COMMENT ON COLUMN backtest_return.borrow IS 'Fee for stocks sold short, as a share of equity; 0 or more.';
COMMENT ON COLUMN backtest_return.net IS 'gross less cost and borrow.';

CREATE TABLE backtest_portfolio (
    backtest_id VARCHAR NOT NULL,
    portfolio VARCHAR NOT NULL,
    strategy JSON,
    days INTEGER NOT NULL,
    annual_return FLOAT(53),
    annual_volatility FLOAT(53),
    sharpe FLOAT(53),
    sharpe_low FLOAT(53),
    sharpe_high FLOAT(53),
    deflated_sharpe FLOAT(53),
    max_drawdown FLOAT(53),
    hit_rate FLOAT(53),
    turnover FLOAT(53),
    break_even FLOAT(53),
    CONSTRAINT pk_backtest_portfolio PRIMARY KEY (backtest_id, portfolio),
    CONSTRAINT ck_backtest_portfolio_figures CHECK (days >= 0 and annual_volatility >= 0 and turnover >= 0 and max_drawdown <= 0),
    CONSTRAINT ck_backtest_portfolio_shares CHECK (deflated_sharpe >= 0 and deflated_sharpe <= 1 and hit_rate >= 0 and hit_rate <= 1),
    CONSTRAINT fk_backtest_portfolio_backtest_id_backtest FOREIGN KEY(backtest_id) REFERENCES backtest (id)
);
COMMENT ON TABLE backtest_portfolio IS 'Figures of each portfolio of a backtest, the index and the equal-weight universe among them.';
COMMENT ON COLUMN backtest_portfolio.backtest_id IS 'The backtest.';
COMMENT ON COLUMN backtest_portfolio.portfolio IS 'Name of the portfolio, such as ''long, next open''.';
COMMENT ON COLUMN backtest_portfolio.strategy IS 'Its form, fill, limits, costs; missing for a yardstick.';
COMMENT ON COLUMN backtest_portfolio.days IS 'Sessions held.';
COMMENT ON COLUMN backtest_portfolio.annual_return IS 'Compound net return a year, 0.01 is 1 %; missing with too few days.';
COMMENT ON COLUMN backtest_portfolio.annual_volatility IS 'Standard deviation of the net return, a year; missing with too few days.';
COMMENT ON COLUMN backtest_portfolio.sharpe IS 'Annual Sharpe ratio of the net return, no risk-free rate; missing with too few days.';
COMMENT ON COLUMN backtest_portfolio.sharpe_low IS 'Lower end of its day-resampled 95 % interval; missing with too few days.';
COMMENT ON COLUMN backtest_portfolio.sharpe_high IS 'Upper end of that interval; missing with too few days.';
COMMENT ON COLUMN backtest_portfolio.deflated_sharpe IS 'Probability that the true Sharpe ratio is above the best that chance gives of all that was tried, 0 to 1 (Bailey and Lopez de Prado, 2014); missing for a yardstick or with too few days.';
COMMENT ON COLUMN backtest_portfolio.max_drawdown IS 'Largest fall of net equity from a peak, -0.01 is 1 %; missing with too few days.';
COMMENT ON COLUMN backtest_portfolio.hit_rate IS 'Share of sessions with a net return above 0, 0 to 1; missing with too few days.';
COMMENT ON COLUMN backtest_portfolio.turnover IS 'Mean a session of the value traded, as a share of equity; missing with too few days.';
COMMENT ON COLUMN backtest_portfolio.break_even IS 'Cost at which net is 0, in basis points of value traded; missing untraded.';

CREATE TABLE benchmark_score (
    benchmark_id VARCHAR NOT NULL,
    predictor VARCHAR NOT NULL,
    protocol VARCHAR NOT NULL,
    run_id VARCHAR,
    is_rule BOOLEAN NOT NULL,
    days INTEGER NOT NULL,
    n INTEGER NOT NULL,
    rises INTEGER NOT NULL,
    seeds INTEGER,
    configurations INTEGER,
    acc_mean FLOAT(53),
    acc_sd FLOAT(53),
    mcc_mean FLOAT(53),
    mcc_sd FLOAT(53),
    acc FLOAT(53),
    acc_low FLOAT(53),
    acc_high FLOAT(53),
    mcc FLOAT(53),
    mcc_low FLOAT(53),
    mcc_high FLOAT(53),
    acc_gain FLOAT(53),
    acc_gain_low FLOAT(53),
    acc_gain_high FLOAT(53),
    mcc_gain FLOAT(53),
    mcc_gain_low FLOAT(53),
    mcc_gain_high FLOAT(53),
    brier FLOAT(53),
    brier_low FLOAT(53),
    brier_high FLOAT(53),
    calibration_slope FLOAT(53),
    calibration_intercept FLOAT(53),
    auc FLOAT(53),
    auc_low FLOAT(53),
    auc_high FLOAT(53),
    same_call FLOAT(53),
    published_acc FLOAT(53),
    published_acc_sd FLOAT(53),
    published_mcc FLOAT(53),
    published_mcc_sd FLOAT(53),
    CONSTRAINT pk_benchmark_score PRIMARY KEY (benchmark_id, predictor, protocol),
    CONSTRAINT ck_benchmark_score_protocol CHECK (protocol in ('paper', 'all')),
    CONSTRAINT ck_benchmark_score_counts CHECK (days >= 0 and rises >= 0 and rises <= n and seeds >= 0 and configurations >= 0),
    CONSTRAINT ck_benchmark_score_ranges CHECK (acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1 and brier >= 0 and brier <= 1 and auc >= 0 and auc <= 1),
    CONSTRAINT fk_benchmark_score_benchmark_id_benchmark FOREIGN KEY(benchmark_id) REFERENCES benchmark (id),
    CONSTRAINT fk_benchmark_score_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
);
COMMENT ON TABLE benchmark_score IS 'Figures of a benchmark on its test span: one row per predictor and protocol.';
COMMENT ON COLUMN benchmark_score.benchmark_id IS 'The benchmark.';
COMMENT ON COLUMN benchmark_score.predictor IS 'Name of the model or of the naive rule.';
COMMENT ON COLUMN benchmark_score.protocol IS '''paper'': labelled stock-days alone; ''all'': every one.';
COMMENT ON COLUMN benchmark_score.run_id IS 'The ensemble scored; missing for a naive rule.';
COMMENT ON COLUMN benchmark_score.is_rule IS 'Whether it is a naive rule, which trains nothing.';
COMMENT ON COLUMN benchmark_score.days IS 'Sessions scored.';
COMMENT ON COLUMN benchmark_score.n IS 'Stock-days scored.';
COMMENT ON COLUMN benchmark_score.rises IS 'Stock-days that rose.';
COMMENT ON COLUMN benchmark_score.seeds IS 'Seeds of the ensemble; missing for a naive rule.';
COMMENT ON COLUMN benchmark_score.configurations IS 'Configurations tried on validation; missing for a naive rule.';
COMMENT ON COLUMN benchmark_score.acc_mean IS 'Mean over the seeds of the share of right calls; missing for a rule.';
COMMENT ON COLUMN benchmark_score.acc_sd IS 'Its standard deviation; missing for a rule and for one seed.';
COMMENT ON COLUMN benchmark_score.mcc_mean IS 'Mean over the seeds of the Matthews correlation; missing for a rule.';
COMMENT ON COLUMN benchmark_score.mcc_sd IS 'Its standard deviation; missing for a rule and for one seed.';
COMMENT ON COLUMN benchmark_score.acc IS 'Share of right calls of the ensemble or rule, 0 to 1; missing when n is 0.';
COMMENT ON COLUMN benchmark_score.acc_low IS 'Lower end of its day-resampled 95 % interval; missing with too few days.';
COMMENT ON COLUMN benchmark_score.acc_high IS 'Upper end of that interval; missing with too few days.';
COMMENT ON COLUMN benchmark_score.mcc IS 'Matthews correlation of the same calls, -1 to 1; missing when n is 0.';
COMMENT ON COLUMN benchmark_score.mcc_low IS 'Lower end of its day-resampled 95 % interval; missing with too few days.';
COMMENT ON COLUMN benchmark_score.mcc_high IS 'Upper end of that interval; missing with too few days.';
COMMENT ON COLUMN benchmark_score.acc_gain IS 'acc minus that of best_rule on the same days; missing for best_rule itself.';
COMMENT ON COLUMN benchmark_score.acc_gain_low IS 'Lower end of its paired 95 % interval; missing with acc_gain.';
COMMENT ON COLUMN benchmark_score.acc_gain_high IS 'Upper end of that interval; missing with acc_gain.';
COMMENT ON COLUMN benchmark_score.mcc_gain IS 'mcc minus that of best_rule on the same days; missing for best_rule itself.';
COMMENT ON COLUMN benchmark_score.mcc_gain_low IS 'Lower end of its paired 95 % interval; missing with mcc_gain.';
COMMENT ON COLUMN benchmark_score.mcc_gain_high IS 'Upper end of that interval; missing with mcc_gain.';
COMMENT ON COLUMN benchmark_score.brier IS 'Mean squared error of the probability, 0 to 1; missing for a rule.';
COMMENT ON COLUMN benchmark_score.brier_low IS 'Lower end of its day-resampled 95 % interval; missing with brier.';
COMMENT ON COLUMN benchmark_score.brier_high IS 'Upper end of that interval; missing with brier.';
COMMENT ON COLUMN benchmark_score.calibration_slope IS 'Slope of the rises on the log-odds: 1 is calibrated; missing for a rule.';
COMMENT ON COLUMN benchmark_score.calibration_intercept IS 'Its intercept: 0 is calibrated; missing for a rule.';
COMMENT ON COLUMN benchmark_score.auc IS 'Within-day skill: share of same-day pairs (riser, faller) in which the riser got the higher probability, 0.5 is none; missing for a rule.';
COMMENT ON COLUMN benchmark_score.auc_low IS 'Lower end of its day-resampled 95 % interval; missing with auc.';
COMMENT ON COLUMN benchmark_score.auc_high IS 'Upper end of that interval; missing with auc.';
COMMENT ON COLUMN benchmark_score.same_call IS 'Mean over days of the larger share of stocks called one way, 0.5 to 1; missing when n is 0.';
COMMENT ON COLUMN benchmark_score.published_acc IS 'acc_mean in print (Yoo et al., KDD 2021, table 2), of 10 seeds; missing when not there.';
COMMENT ON COLUMN benchmark_score.published_acc_sd IS 'acc_sd in print (Yoo et al., KDD 2021, table 2), of 10 seeds; missing when not there.';
COMMENT ON COLUMN benchmark_score.published_mcc IS 'mcc_mean in print (Yoo et al., KDD 2021, table 2), of 10 seeds; missing when not there.';
COMMENT ON COLUMN benchmark_score.published_mcc_sd IS 'mcc_sd in print (Yoo et al., KDD 2021, table 2), of 10 seeds; missing when not there.';

CREATE TABLE benchmark_member (
    benchmark_id VARCHAR NOT NULL,
    predictor VARCHAR NOT NULL,
    configuration INTEGER NOT NULL,
    seed INTEGER NOT NULL,
    settings JSON NOT NULL,
    kept BOOLEAN NOT NULL,
    best_epoch INTEGER,
    validation_acc FLOAT(53),
    validation_loss FLOAT(53),
    acc FLOAT(53),
    mcc FLOAT(53),
    CONSTRAINT pk_benchmark_member PRIMARY KEY (benchmark_id, predictor, configuration, seed),
    CONSTRAINT ck_benchmark_member_ranges CHECK (acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1),
    CONSTRAINT ck_benchmark_member_validation CHECK (validation_acc >= 0 and validation_acc <= 1),
    CONSTRAINT fk_benchmark_member_benchmark_id_benchmark FOREIGN KEY(benchmark_id) REFERENCES benchmark (id)
);
COMMENT ON TABLE benchmark_member IS 'One row a seed and configuration: the whole distribution, never the best test figure.';
COMMENT ON COLUMN benchmark_member.benchmark_id IS 'The benchmark.';
COMMENT ON COLUMN benchmark_member.predictor IS 'Name of the model.';
COMMENT ON COLUMN benchmark_member.configuration IS 'Number of the configuration.';
COMMENT ON COLUMN benchmark_member.seed IS 'Seed of the training.';
COMMENT ON COLUMN benchmark_member.settings IS 'What this configuration sets.';
COMMENT ON COLUMN benchmark_member.kept IS 'Whether this configuration was chosen on validation.';
COMMENT ON COLUMN benchmark_member.best_epoch IS 'Epoch kept; missing for a model without epochs.';
COMMENT ON COLUMN benchmark_member.validation_acc IS 'Share of right calls on validation, 0 to 1; missing if not scored.';
COMMENT ON COLUMN benchmark_member.validation_loss IS 'Loss on validation; missing if not computed.';
COMMENT ON COLUMN benchmark_member.acc IS 'Share of right calls on the test, paper protocol, 0 to 1; missing if not scored.';
COMMENT ON COLUMN benchmark_member.mcc IS 'Matthews correlation of the same calls, -1 to 1; missing if not scored.';

CREATE TABLE band (
    run_id VARCHAR NOT NULL,
    level FLOAT(53) NOT NULL,
    threshold FLOAT(53) NOT NULL,
    days INTEGER NOT NULL,
    n INTEGER NOT NULL,
    CONSTRAINT pk_band PRIMARY KEY (run_id, level),
    CONSTRAINT ck_band_ranges CHECK (level > 0 and level < 1 and threshold >= 0.5 and threshold <= 1),
    CONSTRAINT fk_band_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
);
COMMENT ON TABLE band IS 'Bands of no call of each model, from its validation days (split-conformal prediction).';
COMMENT ON COLUMN band.run_id IS 'The model that predicted.';
COMMENT ON COLUMN band.level IS 'Nominal share of outcomes that are to be covered, 0 to 1.';
COMMENT ON COLUMN band.threshold IS 'A rise is called above it, a fall below 1 less it, else nothing; 0.5 to 1, at 1 nothing ever is.';
COMMENT ON COLUMN band.days IS 'Days of validation that it rests on.';
COMMENT ON COLUMN band.n IS 'Stock-days of them.';

CREATE TABLE calibration_bin (
    run_id VARCHAR NOT NULL,
    target DATE NOT NULL,
    bin INTEGER NOT NULL,
    n INTEGER NOT NULL,
    probability_sum FLOAT(53) NOT NULL,
    rises INTEGER NOT NULL,
    CONSTRAINT pk_calibration_bin PRIMARY KEY (run_id, target, bin),
    CONSTRAINT ck_calibration_bin_counts CHECK (bin >= 0 and bin <= 99 and n > 0 and rises >= 0 and rises <= n),
    CONSTRAINT fk_calibration_bin_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
);
COMMENT ON TABLE calibration_bin IS 'What came of each night''s probabilities, counted by whole percent.';
COMMENT ON COLUMN calibration_bin.run_id IS 'The model that predicted.';
COMMENT ON COLUMN calibration_bin.target IS 'Session predicted.';
COMMENT ON COLUMN calibration_bin.bin IS 'Whole percent of the probability, 0 to 99.';
COMMENT ON COLUMN calibration_bin.n IS 'Predictions in it whose outcome is known.';
COMMENT ON COLUMN calibration_bin.probability_sum IS 'Their probabilities of a rise, added up.';
COMMENT ON COLUMN calibration_bin.rises IS 'Those of them that rose.';

CREATE TABLE band_count (
    run_id VARCHAR NOT NULL,
    target DATE NOT NULL,
    level FLOAT(53) NOT NULL,
    n INTEGER NOT NULL,
    covered INTEGER NOT NULL,
    called INTEGER NOT NULL,
    right_calls INTEGER NOT NULL,
    CONSTRAINT pk_band_count PRIMARY KEY (run_id, target, level),
    CONSTRAINT ck_band_count_counts CHECK (n > 0 and called <= n and right_calls <= called and covered = n - called + right_calls),
    CONSTRAINT fk_band_count_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
);
COMMENT ON TABLE band_count IS 'What came of each night''s calls at each level of its band.';
COMMENT ON COLUMN band_count.run_id IS 'The model that predicted.';
COMMENT ON COLUMN band_count.target IS 'Session predicted.';
COMMENT ON COLUMN band_count.level IS 'Nominal share of outcomes that are to be covered, 0 to 1.';
COMMENT ON COLUMN band_count.n IS 'Calibrated predictions whose outcome is known.';
COMMENT ON COLUMN band_count.covered IS 'Those without a call or with a right one.';
COMMENT ON COLUMN band_count.called IS 'Those with a call at that level.';
COMMENT ON COLUMN band_count.right_calls IS 'Those with a right call.';

CREATE TABLE explanation (
    run_id VARCHAR NOT NULL,
    market VARCHAR NOT NULL,
    as_of DATE NOT NULL,
    made_at TIMESTAMP WITH TIME ZONE NOT NULL,
    stocks INTEGER NOT NULL,
    days INTEGER NOT NULL,
    members INTEGER NOT NULL,
    shuffles INTEGER NOT NULL,
    epochs INTEGER NOT NULL,
    distance FLOAT(53) NOT NULL,
    distance_p FLOAT(53) NOT NULL,
    told_apart BOOLEAN NOT NULL,
    agreement FLOAT(53),
    agreement_low FLOAT(53),
    agreement_high FLOAT(53),
    top INTEGER NOT NULL,
    drivers FLOAT(53),
    drivers_chance FLOAT(53),
    drivers_importance FLOAT(53),
    seconds FLOAT(53) NOT NULL,
    CONSTRAINT pk_explanation PRIMARY KEY (run_id),
    CONSTRAINT ck_explanation_ranges CHECK (distance_p > 0 and distance_p <= 1 and agreement >= -1 and agreement <= 1),
    CONSTRAINT fk_explanation_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
);
COMMENT ON TABLE explanation IS 'Whether a model''s attention says more than that of models trained on nonsense.';
COMMENT ON COLUMN explanation.run_id IS 'The model that predicted.';
COMMENT ON COLUMN explanation.market IS 'Name of the market.';
COMMENT ON COLUMN explanation.as_of IS 'Last session read.';
COMMENT ON COLUMN explanation.made_at IS 'When it was measured.';
COMMENT ON COLUMN explanation.stocks IS 'Stocks of the networks compared.';
COMMENT ON COLUMN explanation.days IS 'Days of validation looked at.';
COMMENT ON COLUMN explanation.members IS 'Networks trained on true labels.';
COMMENT ON COLUMN explanation.shuffles IS 'Networks trained on labels of shuffled days.';
COMMENT ON COLUMN explanation.epochs IS 'Epochs that each was trained.';
COMMENT ON COLUMN explanation.distance IS 'Energy distance between the attention of both groups.';
COMMENT ON COLUMN explanation.distance_p IS 'Its p-value, by permuting who belongs to which group.';
COMMENT ON COLUMN explanation.told_apart IS 'Whether it is at most 0.05.';
COMMENT ON COLUMN explanation.agreement IS 'Mean over stocks of Spearman''s correlation of attention with importance; missing without.';
COMMENT ON COLUMN explanation.agreement_low IS 'Lower end of its day-resampled 95 % interval; missing with too few days.';
COMMENT ON COLUMN explanation.agreement_high IS 'Upper end of that interval; missing with too few days.';
COMMENT ON COLUMN explanation.top IS 'Sources of each stock that are held against its true driver.';
COMMENT ON COLUMN explanation.drivers IS 'Share of stocks whose true driver is among them; missing where none is known.';
COMMENT ON COLUMN explanation.drivers_chance IS 'The share that chance gives; missing with drivers.';
COMMENT ON COLUMN explanation.drivers_importance IS 'The share by permutation importance; missing with drivers.';
COMMENT ON COLUMN explanation.seconds IS 'Time it took, in seconds.';

CREATE TABLE membership (
    instrument_id INTEGER NOT NULL,
    spell INTEGER NOT NULL,
    valid_from DATE,
    valid_to DATE,
    source VARCHAR NOT NULL,
    CONSTRAINT pk_membership PRIMARY KEY (instrument_id, spell),
    CONSTRAINT ck_membership_spell CHECK (spell >= 1),
    CONSTRAINT ck_membership_span CHECK (valid_from <= valid_to),
    CONSTRAINT fk_membership_instrument_id_instrument FOREIGN KEY(instrument_id) REFERENCES instrument (id)
);
COMMENT ON TABLE membership IS 'When each stock was a constituent of its market, as the market''s file states it.';
COMMENT ON COLUMN membership.instrument_id IS 'The instrument.';
COMMENT ON COLUMN membership.spell IS '1 for the first stay.';
COMMENT ON COLUMN membership.valid_from IS 'First session of the stay; missing when not known.';
COMMENT ON COLUMN membership.valid_to IS 'First day after the stay; missing while it lasts.';
COMMENT ON COLUMN membership.source IS 'Where the list of constituents comes from, in words.';

-- Rows come night by night, so those of one stock lie far apart: its key, an index, holds every column it is asked for.
CREATE TABLE price (
    instrument_id INTEGER NOT NULL,
    session DATE NOT NULL,
    known_at TIMESTAMP WITH TIME ZONE NOT NULL,
    open FLOAT(53),
    high FLOAT(53),
    low FLOAT(53),
    close FLOAT(53) NOT NULL,
    adj_close FLOAT(53),
    volume FLOAT(53),
    dividend FLOAT(53),
    split FLOAT(53),
    source VARCHAR NOT NULL,
    CONSTRAINT pk_price PRIMARY KEY (instrument_id, session, known_at)
        INCLUDE (open, high, low, close, adj_close, volume, dividend, split, source),
    CONSTRAINT ck_price_prices CHECK (open > 0 and high > 0 and low > 0 and close > 0 and adj_close > 0),
    CONSTRAINT ck_price_amounts CHECK (volume >= 0 and dividend >= 0 and split > 0),
    CONSTRAINT fk_price_instrument_id_instrument FOREIGN KEY(instrument_id) REFERENCES instrument (id)
);
COMMENT ON TABLE price IS 'Daily bars that passed the checks; a restated bar is a new row with a later known_at.';
COMMENT ON COLUMN price.instrument_id IS 'The instrument.';
COMMENT ON COLUMN price.session IS 'The session the bar belongs to.';
COMMENT ON COLUMN price.known_at IS 'When this version was fetched.';
COMMENT ON COLUMN price.open IS 'First price, in currency units, above 0; missing when not reported.';
COMMENT ON COLUMN price.high IS 'Highest price, in currency units, above 0; missing when not reported.';
COMMENT ON COLUMN price.low IS 'Lowest price, in currency units, above 0; missing when not reported.';
COMMENT ON COLUMN price.close IS 'Last price, in currency units, above 0.';
COMMENT ON COLUMN price.adj_close IS 'Close adjusted for splits and dividends, above 0; missing when not reported.';
COMMENT ON COLUMN price.volume IS 'Shares traded, 0 or more, split-adjusted or not; missing when not reported.';
COMMENT ON COLUMN price.dividend IS 'Dividend per share gone ex, in currency units; missing when none.';
COMMENT ON COLUMN price.split IS 'New shares per old share on a split''s day, above 0; missing when none.';
COMMENT ON COLUMN price.source IS 'Who reported the bar: yahoo, files, simulated.';

CREATE TABLE refused_bar (
    instrument_id INTEGER NOT NULL,
    session DATE NOT NULL,
    source VARCHAR NOT NULL,
    reason VARCHAR NOT NULL,
    value VARCHAR NOT NULL,
    first_known_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_refused_bar PRIMARY KEY (instrument_id, session, source, reason),
    CONSTRAINT fk_refused_bar_instrument_id_instrument FOREIGN KEY(instrument_id) REFERENCES instrument (id)
);
COMMENT ON TABLE refused_bar IS 'Bars that failed a check, one row per reason; they are in no price and no window.';
COMMENT ON COLUMN refused_bar.instrument_id IS 'The instrument.';
COMMENT ON COLUMN refused_bar.session IS 'The session the bar claims.';
COMMENT ON COLUMN refused_bar.source IS 'Who reported the bar.';
COMMENT ON COLUMN refused_bar.reason IS 'The check it failed, such as high_below_low.';
COMMENT ON COLUMN refused_bar.value IS 'What was found, in words, such as open=0.0.';
COMMENT ON COLUMN refused_bar.first_known_at IS 'When it was first fetched and refused.';

CREATE TABLE prediction (
    run_id VARCHAR NOT NULL,
    target DATE NOT NULL,
    instrument_id INTEGER NOT NULL,
    as_of DATE NOT NULL,
    probability FLOAT(53) NOT NULL,
    spread FLOAT(53),
    known_at TIMESTAMP WITH TIME ZONE NOT NULL,
    made_at TIMESTAMP WITH TIME ZONE NOT NULL,
    calibrated FLOAT(53),
    lowest FLOAT(53),
    highest FLOAT(53),
    rising_share FLOAT(53),
    CONSTRAINT pk_prediction PRIMARY KEY (run_id, target, instrument_id),
    CONSTRAINT ck_prediction_probability CHECK (probability >= 0 and probability <= 1),
    CONSTRAINT ck_prediction_spread CHECK (spread >= 0 and spread <= 1),
    CONSTRAINT ck_prediction_dates CHECK (as_of < target),
    CONSTRAINT fk_prediction_run_id_run FOREIGN KEY(run_id) REFERENCES run (id),
    CONSTRAINT fk_prediction_instrument_id_instrument FOREIGN KEY(instrument_id) REFERENCES instrument (id)
);
CREATE INDEX ix_prediction_target ON prediction (target);
CREATE INDEX ix_prediction_as_of ON prediction (as_of);
CREATE INDEX ix_prediction_instrument_id_target ON prediction (instrument_id, target) INCLUDE (run_id, as_of, probability, spread, known_at, made_at, calibrated);
COMMENT ON TABLE prediction IS 'Predictions, never rewritten: one row per run, session predicted and stock.';
COMMENT ON COLUMN prediction.run_id IS 'The model that predicted.';
COMMENT ON COLUMN prediction.target IS 'Session predicted.';
COMMENT ON COLUMN prediction.instrument_id IS 'The instrument.';
COMMENT ON COLUMN prediction.as_of IS 'Last session the model saw; always before target.';
COMMENT ON COLUMN prediction.probability IS 'Probability of a rise, 0 to 1; mean of the members.';
COMMENT ON COLUMN prediction.spread IS 'Standard deviation over the members; 0 with one, missing if not kept.';
COMMENT ON COLUMN prediction.known_at IS 'Latest known_at of the prices it saw.';
COMMENT ON COLUMN prediction.made_at IS 'When it was computed.';
COMMENT ON COLUMN prediction.calibrated IS 'The probability as calibrated on validation; missing if not kept.';
COMMENT ON COLUMN prediction.lowest IS 'Smallest probability among the members; missing if not kept.';
COMMENT ON COLUMN prediction.highest IS 'Largest probability among the members; missing if not kept.';
COMMENT ON COLUMN prediction.rising_share IS 'Share of the members above 0.5; missing if not kept.';

-- Rows come night by night, so those of one stock lie far apart: its key, an index, holds every column it is asked for.
CREATE TABLE outcome (
    instrument_id INTEGER NOT NULL,
    session DATE NOT NULL,
    move FLOAT(53) NOT NULL,
    rise BOOLEAN NOT NULL,
    label SMALLINT NOT NULL,
    known_at TIMESTAMP WITH TIME ZONE NOT NULL,
    recorded_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_outcome PRIMARY KEY (instrument_id, session) INCLUDE (move, rise, label),
    CONSTRAINT ck_outcome_move CHECK (move > -1),
    CONSTRAINT ck_outcome_label CHECK (label in (-1, 0, 1)),
    CONSTRAINT fk_outcome_instrument_id_instrument FOREIGN KEY(instrument_id) REFERENCES instrument (id)
);
COMMENT ON TABLE outcome IS 'What happened to each predicted stock and session.';
COMMENT ON COLUMN outcome.instrument_id IS 'The instrument.';
COMMENT ON COLUMN outcome.session IS 'The session that was to be predicted.';
COMMENT ON COLUMN outcome.move IS 'Adjusted close (close where there is none) over the one before, minus 1; 0.01 is 1 %.';
COMMENT ON COLUMN outcome.rise IS 'Whether the move is above 0.';
COMMENT ON COLUMN outcome.label IS 'The paper''s label: 1 from +0.55 % up, -1 from -0.5 % down, 0 between.';
COMMENT ON COLUMN outcome.known_at IS 'Latest known_at of the prices it is from.';
COMMENT ON COLUMN outcome.recorded_at IS 'When the row was last changed.';

CREATE TABLE night (
    market VARCHAR NOT NULL,
    as_of DATE NOT NULL,
    target DATE NOT NULL,
    status VARCHAR NOT NULL,
    reason VARCHAR,
    run_id VARCHAR,
    source VARCHAR NOT NULL,
    known_at TIMESTAMP WITH TIME ZONE,
    fetched INTEGER,
    stored INTEGER,
    refused INTEGER,
    predictions INTEGER,
    gaps JSON,
    inputs_hash VARCHAR,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_night PRIMARY KEY (market, as_of),
    CONSTRAINT ck_night_status CHECK (status in ('running', 'complete', 'complete_with_gaps', 'refused')),
    CONSTRAINT ck_night_dates CHECK (as_of < target),
    CONSTRAINT ck_night_counts CHECK (fetched >= 0 and stored >= 0 and refused >= 0 and predictions >= 0),
    CONSTRAINT fk_night_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
);
COMMENT ON TABLE night IS 'One row per market and night: how it ended and what it did.';
COMMENT ON COLUMN night.market IS 'Name of the market.';
COMMENT ON COLUMN night.as_of IS 'Last closed session: the last one seen.';
COMMENT ON COLUMN night.target IS 'The session after it: the one predicted.';
COMMENT ON COLUMN night.status IS '''running'', ''complete'', ''complete_with_gaps'' or ''refused''.';
COMMENT ON COLUMN night.reason IS 'Why it was refused; missing otherwise.';
COMMENT ON COLUMN night.run_id IS 'The model used; missing until there is one.';
COMMENT ON COLUMN night.source IS 'Where bars came from: yahoo, files, simulated.';
COMMENT ON COLUMN night.known_at IS 'Latest known_at of the prices used; missing until known.';
COMMENT ON COLUMN night.fetched IS 'Bars the source returned; missing while running.';
COMMENT ON COLUMN night.stored IS 'Bars that were new or restated; missing while running.';
COMMENT ON COLUMN night.refused IS 'Bars refused; missing while running.';
COMMENT ON COLUMN night.predictions IS 'Stocks predicted; missing while running.';
COMMENT ON COLUMN night.gaps IS 'Stocks left out, a list of {symbol, reason}; missing while running.';
COMMENT ON COLUMN night.inputs_hash IS 'SHA-256 of the windows the model read; missing until it has.';
COMMENT ON COLUMN night.started_at IS 'When the night began.';
COMMENT ON COLUMN night.finished_at IS 'When it ended; missing while running.';

CREATE TABLE attention_weight (
    run_id VARCHAR NOT NULL,
    target DATE NOT NULL,
    instrument_id INTEGER NOT NULL,
    source_id INTEGER NOT NULL,
    weight FLOAT(53) NOT NULL,
    CONSTRAINT pk_attention_weight PRIMARY KEY (run_id, target, instrument_id, source_id),
    CONSTRAINT fk_attention_weight_run_id_prediction FOREIGN KEY(run_id, target, instrument_id) REFERENCES prediction (run_id, target, instrument_id),
    CONSTRAINT ck_attention_weight_weight CHECK (weight >= 0 and weight <= 1),
    CONSTRAINT fk_attention_weight_source_id_instrument FOREIGN KEY(source_id) REFERENCES instrument (id)
);
COMMENT ON TABLE attention_weight IS 'Attention between stocks (data axis), kept for the sessions asked for.';
COMMENT ON COLUMN attention_weight.run_id IS 'The model that predicted.';
COMMENT ON COLUMN attention_weight.target IS 'Session predicted.';
COMMENT ON COLUMN attention_weight.instrument_id IS 'The stock predicted: who looks.';
COMMENT ON COLUMN attention_weight.source_id IS 'The stock it looks at.';
COMMENT ON COLUMN attention_weight.weight IS 'Share of its attention, 0 to 1; mean of the members.';

create view latest_prediction as
with newest as (
    select market, max(target) as target
    from (
        select r.market, (select max(p.target) from prediction p where p.run_id = r.id) as target
        from run r
        where r.kind = 'nightly'
    ) as by_run
    group by market
)
select
    n.market, i.symbol, i.name, i.sector, p.as_of, p.target, p.probability, p.spread, p.calibrated,
    case when p.probability > 0.5 then 'rise' else 'fall' end as call,
    p.run_id, p.known_at, p.made_at,
    p.run_id || '/' || i.symbol || '/' || cast(p.target as varchar) as receipt
from newest n
cross join run r
cross join prediction p
cross join instrument i
where r.market = n.market and r.kind = 'nightly' and p.run_id = r.id and p.target = n.target
    and i.id = p.instrument_id
    and not exists (
        select 1
        from prediction later
        join run lr on lr.id = later.run_id and lr.kind = 'nightly'
        where later.instrument_id = p.instrument_id and later.target = p.target
            and (later.made_at > p.made_at or later.made_at = p.made_at and later.run_id > p.run_id)
    );

create view prediction_history as
select
    i.market, i.symbol, p.as_of, p.target, p.probability, p.spread, p.calibrated,
    case when p.probability > 0.5 then 'rise' else 'fall' end as call,
    o.move, o.label,
    case when o.rise is null then null when (p.probability > 0.5) = o.rise then 1 else 0 end as hit,
    case when c.always_up then 'rise' when not c.always_up then 'fall' end as always_up,
    case when c.index_reversal then 'rise' when not c.index_reversal then 'fall' end as index_reversal,
    case when c.index_below_mean20 then 'rise' when not c.index_below_mean20 then 'fall' end as index_below_mean20,
    r.kind, p.run_id, p.known_at, p.made_at,
    p.run_id || '/' || i.symbol || '/' || cast(p.target as varchar) as receipt
from prediction p
join instrument i on i.id = p.instrument_id
join run r on r.id = p.run_id
left join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
left join rule_call c on c.market = i.market and c.target = p.target;

create view daily_score as
select
    d.market, d.target, d.protocol, d.predictor, d.n, d.rises, d.acc, d.mcc,
    r.nights as running_nights, r.n as running_n, r.acc as running_acc, r.acc_low as running_acc_low,
    r.acc_high as running_acc_high, r.mcc as running_mcc, r.mcc_low as running_mcc_low,
    r.mcc_high as running_mcc_high, d.scored_at
from score d
left join score r on r.market = d.market and r.target = d.target and r.span = 'running'
    and r.protocol = d.protocol and r.predictor = d.predictor
where d.span = 'night';

create view price_latest as
select
    i.market, i.symbol, p.session, p.open, p.high, p.low, p.close, p.adj_close, p.volume, p.dividend, p.split,
    p.source, p.known_at
from price p
join instrument i on i.id = p.instrument_id
where not exists (
    select 1
    from price later
    where later.instrument_id = p.instrument_id and later.session = p.session and later.known_at > p.known_at
);

create view price_restatement as
select
    i.market, i.symbol, p.session, p.close, p.adj_close, p.volume, p.source, p.known_at,
    b.close as close_before, b.adj_close as adj_close_before, b.volume as volume_before,
    b.known_at as known_at_before
from price p
join instrument i on i.id = p.instrument_id
left join price b on b.instrument_id = p.instrument_id and b.session = p.session and b.known_at = (
    select max(earlier.known_at)
    from price earlier
    where earlier.instrument_id = p.instrument_id and earlier.session = p.session
        and earlier.known_at < p.known_at
)
where coalesce(b.close, 0) > 0;

create view refused as
select i.market, i.symbol, b.session, b.source, b.reason, b.value, b.first_known_at
from refused_bar b
join instrument i on i.id = b.instrument_id;

create view night_log as
select
    market, as_of, target, status, reason, source, fetched, stored, refused, predictions, gaps, run_id,
    known_at, inputs_hash, started_at, finished_at
from night;

create view run_score as
select
    b.market, s.benchmark_id, s.predictor, s.protocol, b.test_first, b.test_last, s.days, s.n, s.seeds,
    s.configurations, s.acc_mean, s.acc_sd, s.acc, s.acc_low, s.acc_high, s.mcc_mean, s.mcc_sd, s.mcc, s.mcc_low,
    s.mcc_high, s.acc_gain, s.acc_gain_low, s.acc_gain_high, s.mcc_gain, s.mcc_gain_low, s.mcc_gain_high, s.auc,
    s.auc_low, s.auc_high, s.brier, s.same_call,
    case when s.is_rule then 1 else 0 end as is_rule,
    case when s.is_rule and s.predictor = b.best_rule then 1 else 0 end as is_best_rule,
    s.published_acc, s.published_mcc, s.run_id, b.test_read_at
from benchmark_score s
join benchmark b on b.id = s.benchmark_id;

create view benchmark_configuration as
select
    b.market, c.benchmark_id, c.predictor, c.configuration, m.settings,
    case when m.kept then 1 else 0 end as kept,
    c.seeds, c.validation_acc, c.acc_mean, c.acc_min, c.acc_max, c.mcc_mean, c.mcc_min, c.mcc_max
from (
    select
        benchmark_id, predictor, configuration, min(seed) as first_seed, count(*) as seeds,
        avg(validation_acc) as validation_acc, avg(acc) as acc_mean, min(acc) as acc_min, max(acc) as acc_max,
        avg(mcc) as mcc_mean, min(mcc) as mcc_min, max(mcc) as mcc_max
    from benchmark_member
    group by benchmark_id, predictor, configuration
) as c
join benchmark_member m on m.benchmark_id = c.benchmark_id and m.predictor = c.predictor
    and m.configuration = c.configuration and m.seed = c.first_seed
join benchmark b on b.id = c.benchmark_id;

create view backtest_summary as
select
    b.market, p.backtest_id, b.first, b.last, b.retrain_every, p.portfolio, p.days, p.annual_return,
    p.annual_volatility, p.sharpe, p.sharpe_low, p.sharpe_high, p.deflated_sharpe, b.tried, p.max_drawdown,
    p.hit_rate, p.turnover, p.break_even, d.n, d.acc, d.acc_low, d.acc_high, d.mcc, d.mcc_low, d.mcc_high,
    r.predictor as best_rule, r.acc as rule_acc, r.acc_low as rule_acc_low, r.acc_high as rule_acc_high,
    r.mcc as rule_mcc, r.mcc_low as rule_mcc_low, r.mcc_high as rule_mcc_high, b.seconds, b.finished_at
from backtest_portfolio p
join backtest b on b.id = p.backtest_id
left join backtest_score d on d.backtest_id = b.id and d.slice = 'all' and d.protocol = 'all'
    and d.predictor = 'dtml'
left join backtest_score r on r.backtest_id = b.id and r.slice = 'all' and r.protocol = 'all'
    and r.predictor = (
        select s.predictor
        from backtest_score s
        where s.backtest_id = b.id and s.slice = 'all' and s.protocol = 'all' and s.predictor <> 'dtml'
            and s.mcc is not null
        order by s.mcc desc, s.predictor
        limit 1
    );

create view attention as
select i.market, w.run_id, p.as_of, w.target, i.symbol, s.symbol as source, w.weight
from attention_weight w
join prediction p on p.run_id = w.run_id and p.target = w.target and p.instrument_id = w.instrument_id
join instrument i on i.id = w.instrument_id
join instrument s on s.id = w.source_id;

create view fetch_log as
select market, as_of, source, asked, fetched, stored, refused, restated, failures, known_at
from price_fetch;

create view alert_log as
select market, as_of, kind, message, raised_at, sent_at
from alert;

create view model as
select
    market, id as run_id, kind, model, train_first, train_last, seeds, config, code_version, data_watermark,
    checkpoint_hash, slope, intercept, created_at
from run;

create view symbol_score as
select
    c.market, c.symbol, c.kind, c.n, c.rises, c.first, c.last,
    cast(c.hits + c.passes as double precision) / c.n as acc,
    case
        when c.hits + c.alarms = 0 or c.hits + c.misses = 0 or c.passes + c.alarms = 0 or c.passes + c.misses = 0
        then 0.0
        else (cast(c.hits as double precision) * c.passes - cast(c.alarms as double precision) * c.misses)
            / sqrt(
                cast(c.hits + c.alarms as double precision) * (c.hits + c.misses)
                * cast(c.passes + c.alarms as double precision) * (c.passes + c.misses)
            )
    end as mcc,
    cast(c.rises as double precision) / c.n as up_acc
from (
    select
        i.market, i.symbol, r.kind, count(*) as n, min(p.target) as first, max(p.target) as last,
        sum(case when o.rise then 1 else 0 end) as rises,
        sum(case when p.probability > 0.5 and o.rise then 1 else 0 end) as hits,
        sum(case when p.probability > 0.5 and not o.rise then 1 else 0 end) as alarms,
        sum(case when p.probability <= 0.5 and o.rise then 1 else 0 end) as misses,
        sum(case when p.probability <= 0.5 and not o.rise then 1 else 0 end) as passes
    from instrument i
    join prediction p on p.instrument_id = i.id
    join run r on r.id = p.run_id
    join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
    group by i.market, i.symbol, r.kind
) as c;

create view calibration as
select
    r.market, r.kind, b.run_id, b.target, b.bin / 100.0 as bin_low, (b.bin + 1) / 100.0 as bin_high, b.n,
    b.probability_sum / b.n as mean_probability, cast(b.rises as double precision) / b.n as share_risen
from run r
join calibration_bin b on b.run_id = r.id;

create view coverage as
select r.market, r.kind, b.run_id, b.target, b.level, b.n, b.covered, b.called, b.right_calls
from run r
join band_count b on b.run_id = r.id;

create view disagreement as
select
    i.market, i.symbol, p.as_of, p.target, p.probability, p.spread, p.lowest, p.highest, p.rising_share,
    case when p.rising_share > 0 and p.rising_share < 1 then 0 else 1 end as unanimous, r.kind, p.run_id
from prediction p
join instrument i on i.id = p.instrument_id
join run r on r.id = p.run_id
where p.rising_share is not null;

create view band_call as
select
    i.market, i.symbol, p.as_of, p.target, b.level, p.calibrated, 1 - b.threshold as low, b.threshold as high,
    case
        when p.calibrated > b.threshold then 'rise'
        when p.calibrated < 1 - b.threshold then 'fall'
        else 'none'
    end as call,
    o.move,
    case
        when o.rise is null then null
        when p.calibrated > b.threshold and not o.rise or p.calibrated < 1 - b.threshold and o.rise then 0
        else 1
    end as covered,
    r.kind, p.run_id
from prediction p
join instrument i on i.id = p.instrument_id
join run r on r.id = p.run_id
join band b on b.run_id = p.run_id
left join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
where p.calibrated is not null;

create view explanation_log as
select
    market, run_id, as_of, made_at, stocks, days, members, shuffles, epochs, distance, distance_p,
    case when told_apart then 1 else 0 end as told_apart, agreement, agreement_low, agreement_high, top, drivers,
    drivers_chance, drivers_importance, seconds
from explanation;

create view translation_job as
select
    t.id, t.model, m.source_language, m.target_language, t.text, t.status, t.priority, t.queued_at, t.finished_at,
    t.translation, t.score, t.attempts, t.reason
from translation_text t
left join translation_model m on m.name = t.model;

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
);

create view translation_score_log as
select
    s.model, m.source_language, m.target_language, s.test, s.test_hash, s.sentences, s.bleu, s.bleu_low, s.bleu_high,
    s.chrf, s.signature, s.search, s.against, s.difference, s.p, s.scored_at
from translation_score s
left join translation_model m on m.name = s.model;

create view translation_training as
select
    t.model, m.source_language, m.target_language, t.step, t.epoch, t.tokens, t.train_loss, t.validation_loss,
    t.validation_bleu, t.learning_rate, t.tokens_per_second, t.at
from translation_progress t
left join translation_model m on m.name = t.model;
