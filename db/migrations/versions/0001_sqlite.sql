CREATE TABLE backtest (
    id VARCHAR NOT NULL,
    market VARCHAR NOT NULL,
    first DATE NOT NULL,
    last DATE NOT NULL,
    retrain_every INTEGER NOT NULL,
    config JSON NOT NULL,
    seeds JSON NOT NULL,
    code_version VARCHAR NOT NULL,
    data_watermark DATETIME NOT NULL,
    list_is_snapshot BOOLEAN NOT NULL,
    list_as_of DATE,
    device VARCHAR NOT NULL,
    created_at DATETIME NOT NULL,
    finished_at DATETIME,
    seconds FLOAT,
    stocks INTEGER,
    member_days INTEGER,
    without_price INTEGER,
    tried INTEGER,
    CONSTRAINT pk_backtest PRIMARY KEY (id),
    CONSTRAINT ck_backtest_span CHECK (first <= last),
    CONSTRAINT ck_backtest_counts CHECK (retrain_every >= 1 and seconds >= 0 and stocks >= 0 and without_price >= 0 and without_price <= member_days and tried >= 1)
);
CREATE INDEX ix_backtest_market_created_at ON backtest (market, created_at);

CREATE TABLE benchmark (
    id VARCHAR NOT NULL,
    market VARCHAR NOT NULL,
    title VARCHAR NOT NULL,
    config JSON NOT NULL,
    code_version VARCHAR NOT NULL,
    data_watermark DATETIME NOT NULL,
    stocks INTEGER NOT NULL,
    train_first DATE NOT NULL,
    train_last DATE NOT NULL,
    validation_first DATE NOT NULL,
    validation_last DATE NOT NULL,
    test_first DATE NOT NULL,
    test_last DATE NOT NULL,
    best_rule VARCHAR NOT NULL,
    seconds FLOAT,
    device VARCHAR NOT NULL,
    test_read_at DATETIME NOT NULL,
    CONSTRAINT pk_benchmark PRIMARY KEY (id),
    CONSTRAINT ck_benchmark_spans CHECK (train_first <= train_last and train_last < validation_first and validation_first <= validation_last and validation_last < test_first and test_first <= test_last),
    CONSTRAINT ck_benchmark_counts CHECK (stocks >= 1 and seconds >= 0)
);

CREATE TABLE rule_call (
    market VARCHAR NOT NULL,
    target DATE NOT NULL,
    as_of DATE NOT NULL,
    always_up BOOLEAN NOT NULL,
    index_reversal BOOLEAN,
    index_below_mean20 BOOLEAN,
    CONSTRAINT pk_rule_call PRIMARY KEY (market, target),
    CONSTRAINT ck_rule_call_dates CHECK (as_of < target)
)
 WITHOUT ROWID;

CREATE TABLE price_fetch (
    market VARCHAR NOT NULL,
    known_at DATETIME NOT NULL,
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
)
 WITHOUT ROWID;

CREATE TABLE alert (
    market VARCHAR NOT NULL,
    as_of DATE NOT NULL,
    kind VARCHAR NOT NULL,
    message VARCHAR NOT NULL,
    raised_at DATETIME NOT NULL,
    sent_at DATETIME,
    CONSTRAINT pk_alert PRIMARY KEY (market, as_of, kind),
    CONSTRAINT ck_alert_kind CHECK (kind in ('refused', 'late', 'below_rule'))
)
 WITHOUT ROWID;

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
    epochs FLOAT NOT NULL,
    config JSON NOT NULL,
    seed BIGINT NOT NULL,
    code_version VARCHAR NOT NULL,
    folder VARCHAR NOT NULL,
    checkpoint_hash VARCHAR NOT NULL,
    tokenizer_hash VARCHAR NOT NULL,
    corpus_hash VARCHAR NOT NULL,
    receipt VARCHAR NOT NULL,
    validation_loss FLOAT,
    validation_bleu FLOAT,
    created_at DATETIME NOT NULL,
    CONSTRAINT pk_translation_model PRIMARY KEY (name),
    CONSTRAINT ck_translation_model_counts CHECK (parameters > 0 and vocabulary > 0 and pairs > 0 and steps >= 0 and epochs >= 0)
)
 WITHOUT ROWID;

CREATE TABLE translation_progress (
    model VARCHAR NOT NULL,
    step INTEGER NOT NULL,
    epoch FLOAT NOT NULL,
    tokens BIGINT NOT NULL,
    train_loss FLOAT NOT NULL,
    validation_loss FLOAT,
    validation_bleu FLOAT,
    learning_rate FLOAT NOT NULL,
    tokens_per_second FLOAT NOT NULL,
    at DATETIME NOT NULL,
    CONSTRAINT pk_translation_progress PRIMARY KEY (model, step),
    CONSTRAINT ck_translation_progress_counts CHECK (step >= 0 and epoch >= 0 and tokens >= 0)
)
 WITHOUT ROWID;

CREATE TABLE translation_text (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    model VARCHAR NOT NULL,
    text VARCHAR NOT NULL,
    status VARCHAR DEFAULT 'queued' NOT NULL,
    priority INTEGER DEFAULT 0 NOT NULL,
    queued_at DATETIME DEFAULT (strftime('%Y-%m-%d %H:%M:%f000', 'now')) NOT NULL,
    taken_by VARCHAR,
    taken_until DATETIME,
    attempts INTEGER DEFAULT 0 NOT NULL,
    finished_at DATETIME,
    translation VARCHAR,
    score FLOAT,
    attention JSON,
    reason VARCHAR,
    CONSTRAINT ck_translation_text_status CHECK (status in ('queued', 'taken', 'done', 'failed')),
    CONSTRAINT ck_translation_text_attempts CHECK (attempts >= 0),
    CONSTRAINT ck_translation_text_lease CHECK (status <> 'taken' or taken_by is not null and taken_until is not null),
    CONSTRAINT ck_translation_text_length CHECK (length(text) <= 20000),
    CONSTRAINT ck_translation_text_end CHECK ((status <> 'done' or translation is not null) and (status <> 'failed' or reason is not null))
);
CREATE INDEX ix_translation_text_waiting ON translation_text (status, model, priority DESC, id);

CREATE TABLE translation_score (
    id INTEGER NOT NULL,
    model VARCHAR NOT NULL,
    test VARCHAR NOT NULL,
    test_hash VARCHAR NOT NULL,
    sentences INTEGER NOT NULL,
    bleu FLOAT NOT NULL,
    bleu_low FLOAT,
    bleu_high FLOAT,
    chrf FLOAT NOT NULL,
    signature VARCHAR NOT NULL,
    search JSON NOT NULL,
    search_text VARCHAR NOT NULL,
    against VARCHAR,
    difference FLOAT,
    p FLOAT,
    scored_at DATETIME NOT NULL,
    CONSTRAINT pk_translation_score PRIMARY KEY (id),
    CONSTRAINT ck_translation_score_sentences CHECK (sentences > 0),
    CONSTRAINT ck_translation_score_ranges CHECK (bleu >= 0 and chrf >= 0 and p >= 0 and p <= 1),
    CONSTRAINT ck_translation_score_against CHECK (against is not null or difference is null and p is null),
    CONSTRAINT uq_translation_score_model_test_hash_search_text_against UNIQUE (model, test_hash, search_text, against)
);
CREATE UNIQUE INDEX ix_translation_score_alone ON translation_score (model, test_hash, search_text) WHERE against is null;

CREATE TABLE instrument (
    id INTEGER NOT NULL,
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

CREATE TABLE run (
    id VARCHAR NOT NULL,
    market VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    config JSON NOT NULL,
    seeds JSON NOT NULL,
    code_version VARCHAR NOT NULL,
    data_watermark DATETIME NOT NULL,
    checkpoint_path VARCHAR,
    checkpoint_hash VARCHAR,
    losses JSON NOT NULL,
    slope FLOAT,
    intercept FLOAT,
    train_first DATE NOT NULL,
    train_last DATE NOT NULL,
    created_at DATETIME NOT NULL,
    CONSTRAINT pk_run PRIMARY KEY (id),
    CONSTRAINT ck_run_kind CHECK (kind in ('nightly', 'backtest', 'paper')),
    CONSTRAINT ck_run_span CHECK (train_first <= train_last)
);
CREATE INDEX ix_run_market_train_last ON run (market, train_last);

CREATE TABLE score (
    market VARCHAR NOT NULL,
    target DATE NOT NULL,
    span VARCHAR NOT NULL,
    protocol VARCHAR NOT NULL,
    predictor VARCHAR NOT NULL,
    n INTEGER NOT NULL,
    nights INTEGER NOT NULL,
    rises INTEGER NOT NULL,
    acc FLOAT,
    acc_low FLOAT,
    acc_high FLOAT,
    mcc FLOAT,
    mcc_low FLOAT,
    mcc_high FLOAT,
    scored_at DATETIME NOT NULL,
    CONSTRAINT pk_score PRIMARY KEY (market, target, span, protocol, predictor),
    CONSTRAINT ck_score_span CHECK (span in ('night', 'running')),
    CONSTRAINT ck_score_protocol CHECK (protocol in ('paper', 'all')),
    CONSTRAINT ck_score_counts CHECK (nights >= 0 and rises >= 0 and rises <= n),
    CONSTRAINT ck_score_ranges CHECK (acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1)
)
 WITHOUT ROWID;

CREATE TABLE backtest_fold (
    backtest_id VARCHAR NOT NULL,
    number INTEGER NOT NULL,
    run_id VARCHAR NOT NULL,
    as_of DATE NOT NULL,
    first DATE NOT NULL,
    last DATE NOT NULL,
    predictions INTEGER NOT NULL,
    refused JSON NOT NULL,
    seconds FLOAT,
    CONSTRAINT pk_backtest_fold PRIMARY KEY (backtest_id, number),
    CONSTRAINT ck_backtest_fold_span CHECK (as_of < first and first <= last),
    CONSTRAINT ck_backtest_fold_counts CHECK (number >= 1 and predictions >= 0 and seconds >= 0),
    CONSTRAINT fk_backtest_fold_backtest_id_backtest FOREIGN KEY(backtest_id) REFERENCES backtest (id),
    CONSTRAINT fk_backtest_fold_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
)
 WITHOUT ROWID;
CREATE INDEX ix_backtest_fold_run_id ON backtest_fold (run_id);

CREATE TABLE backtest_score (
    backtest_id VARCHAR NOT NULL,
    slice VARCHAR NOT NULL,
    value VARCHAR NOT NULL,
    protocol VARCHAR NOT NULL,
    predictor VARCHAR NOT NULL,
    n INTEGER NOT NULL,
    days INTEGER NOT NULL,
    rises INTEGER NOT NULL,
    acc FLOAT,
    acc_low FLOAT,
    acc_high FLOAT,
    mcc FLOAT,
    mcc_low FLOAT,
    mcc_high FLOAT,
    CONSTRAINT pk_backtest_score PRIMARY KEY (backtest_id, slice, value, protocol, predictor),
    CONSTRAINT ck_backtest_score_slice CHECK (slice in ('all', 'fold', 'year', 'symbol') and (slice = 'all') = (value = '')),
    CONSTRAINT ck_backtest_score_protocol CHECK (protocol in ('paper', 'all')),
    CONSTRAINT ck_backtest_score_counts CHECK (days >= 0 and rises >= 0 and rises <= n),
    CONSTRAINT ck_backtest_score_ranges CHECK (acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1),
    CONSTRAINT fk_backtest_score_backtest_id_backtest FOREIGN KEY(backtest_id) REFERENCES backtest (id)
)
 WITHOUT ROWID;

CREATE TABLE backtest_return (
    backtest_id VARCHAR NOT NULL,
    portfolio VARCHAR NOT NULL,
    session DATE NOT NULL,
    gross FLOAT NOT NULL,
    turnover FLOAT NOT NULL,
    cost FLOAT NOT NULL,
    borrow FLOAT NOT NULL,
    net FLOAT NOT NULL,
    CONSTRAINT pk_backtest_return PRIMARY KEY (backtest_id, portfolio, session),
    CONSTRAINT ck_backtest_return_ranges CHECK (turnover >= 0 and cost >= 0 and borrow >= 0),
    CONSTRAINT fk_backtest_return_backtest_id_backtest FOREIGN KEY(backtest_id) REFERENCES backtest (id)
)
 WITHOUT ROWID;

CREATE TABLE backtest_portfolio (
    backtest_id VARCHAR NOT NULL,
    portfolio VARCHAR NOT NULL,
    strategy JSON,
    days INTEGER NOT NULL,
    annual_return FLOAT,
    annual_volatility FLOAT,
    sharpe FLOAT,
    sharpe_low FLOAT,
    sharpe_high FLOAT,
    deflated_sharpe FLOAT,
    max_drawdown FLOAT,
    hit_rate FLOAT,
    turnover FLOAT,
    break_even FLOAT,
    CONSTRAINT pk_backtest_portfolio PRIMARY KEY (backtest_id, portfolio),
    CONSTRAINT ck_backtest_portfolio_figures CHECK (days >= 0 and annual_volatility >= 0 and turnover >= 0 and max_drawdown <= 0),
    CONSTRAINT ck_backtest_portfolio_shares CHECK (deflated_sharpe >= 0 and deflated_sharpe <= 1 and hit_rate >= 0 and hit_rate <= 1),
    CONSTRAINT fk_backtest_portfolio_backtest_id_backtest FOREIGN KEY(backtest_id) REFERENCES backtest (id)
)
 WITHOUT ROWID;

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
    acc_mean FLOAT,
    acc_sd FLOAT,
    mcc_mean FLOAT,
    mcc_sd FLOAT,
    acc FLOAT,
    acc_low FLOAT,
    acc_high FLOAT,
    mcc FLOAT,
    mcc_low FLOAT,
    mcc_high FLOAT,
    acc_gain FLOAT,
    acc_gain_low FLOAT,
    acc_gain_high FLOAT,
    mcc_gain FLOAT,
    mcc_gain_low FLOAT,
    mcc_gain_high FLOAT,
    brier FLOAT,
    brier_low FLOAT,
    brier_high FLOAT,
    calibration_slope FLOAT,
    calibration_intercept FLOAT,
    auc FLOAT,
    auc_low FLOAT,
    auc_high FLOAT,
    same_call FLOAT,
    published_acc FLOAT,
    published_acc_sd FLOAT,
    published_mcc FLOAT,
    published_mcc_sd FLOAT,
    CONSTRAINT pk_benchmark_score PRIMARY KEY (benchmark_id, predictor, protocol),
    CONSTRAINT ck_benchmark_score_protocol CHECK (protocol in ('paper', 'all')),
    CONSTRAINT ck_benchmark_score_counts CHECK (days >= 0 and rises >= 0 and rises <= n and seeds >= 0 and configurations >= 0),
    CONSTRAINT ck_benchmark_score_ranges CHECK (acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1 and brier >= 0 and brier <= 1 and auc >= 0 and auc <= 1),
    CONSTRAINT fk_benchmark_score_benchmark_id_benchmark FOREIGN KEY(benchmark_id) REFERENCES benchmark (id),
    CONSTRAINT fk_benchmark_score_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
)
 WITHOUT ROWID;

CREATE TABLE benchmark_member (
    benchmark_id VARCHAR NOT NULL,
    predictor VARCHAR NOT NULL,
    configuration INTEGER NOT NULL,
    seed INTEGER NOT NULL,
    settings JSON NOT NULL,
    kept BOOLEAN NOT NULL,
    best_epoch INTEGER,
    validation_acc FLOAT,
    validation_loss FLOAT,
    acc FLOAT,
    mcc FLOAT,
    CONSTRAINT pk_benchmark_member PRIMARY KEY (benchmark_id, predictor, configuration, seed),
    CONSTRAINT ck_benchmark_member_ranges CHECK (acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1),
    CONSTRAINT ck_benchmark_member_validation CHECK (validation_acc >= 0 and validation_acc <= 1),
    CONSTRAINT fk_benchmark_member_benchmark_id_benchmark FOREIGN KEY(benchmark_id) REFERENCES benchmark (id)
)
 WITHOUT ROWID;

CREATE TABLE band (
    run_id VARCHAR NOT NULL,
    level FLOAT NOT NULL,
    threshold FLOAT NOT NULL,
    days INTEGER NOT NULL,
    n INTEGER NOT NULL,
    CONSTRAINT pk_band PRIMARY KEY (run_id, level),
    CONSTRAINT ck_band_ranges CHECK (level > 0 and level < 1 and threshold >= 0.5 and threshold <= 1),
    CONSTRAINT fk_band_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
)
 WITHOUT ROWID;

CREATE TABLE calibration_bin (
    run_id VARCHAR NOT NULL,
    target DATE NOT NULL,
    bin INTEGER NOT NULL,
    n INTEGER NOT NULL,
    probability_sum FLOAT NOT NULL,
    rises INTEGER NOT NULL,
    CONSTRAINT pk_calibration_bin PRIMARY KEY (run_id, target, bin),
    CONSTRAINT ck_calibration_bin_counts CHECK (bin >= 0 and bin <= 99 and n > 0 and rises >= 0 and rises <= n),
    CONSTRAINT fk_calibration_bin_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
)
 WITHOUT ROWID;

CREATE TABLE band_count (
    run_id VARCHAR NOT NULL,
    target DATE NOT NULL,
    level FLOAT NOT NULL,
    n INTEGER NOT NULL,
    covered INTEGER NOT NULL,
    called INTEGER NOT NULL,
    right_calls INTEGER NOT NULL,
    CONSTRAINT pk_band_count PRIMARY KEY (run_id, target, level),
    CONSTRAINT ck_band_count_counts CHECK (n > 0 and called <= n and right_calls <= called and covered = n - called + right_calls),
    CONSTRAINT fk_band_count_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
)
 WITHOUT ROWID;

CREATE TABLE explanation (
    run_id VARCHAR NOT NULL,
    market VARCHAR NOT NULL,
    as_of DATE NOT NULL,
    made_at DATETIME NOT NULL,
    stocks INTEGER NOT NULL,
    days INTEGER NOT NULL,
    members INTEGER NOT NULL,
    shuffles INTEGER NOT NULL,
    epochs INTEGER NOT NULL,
    distance FLOAT NOT NULL,
    distance_p FLOAT NOT NULL,
    told_apart BOOLEAN NOT NULL,
    agreement FLOAT,
    agreement_low FLOAT,
    agreement_high FLOAT,
    top INTEGER NOT NULL,
    drivers FLOAT,
    drivers_chance FLOAT,
    drivers_importance FLOAT,
    seconds FLOAT NOT NULL,
    CONSTRAINT pk_explanation PRIMARY KEY (run_id),
    CONSTRAINT ck_explanation_ranges CHECK (distance_p > 0 and distance_p <= 1 and agreement >= -1 and agreement <= 1),
    CONSTRAINT fk_explanation_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
)
 WITHOUT ROWID;

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
)
 WITHOUT ROWID;

CREATE TABLE price (
    instrument_id INTEGER NOT NULL,
    session DATE NOT NULL,
    known_at DATETIME NOT NULL,
    open FLOAT,
    high FLOAT,
    low FLOAT,
    close FLOAT NOT NULL,
    adj_close FLOAT,
    volume FLOAT,
    dividend FLOAT,
    split FLOAT,
    source VARCHAR NOT NULL,
    CONSTRAINT pk_price PRIMARY KEY (instrument_id, session, known_at),
    CONSTRAINT ck_price_prices CHECK (open > 0 and high > 0 and low > 0 and close > 0 and adj_close > 0),
    CONSTRAINT ck_price_amounts CHECK (volume >= 0 and dividend >= 0 and split > 0),
    CONSTRAINT fk_price_instrument_id_instrument FOREIGN KEY(instrument_id) REFERENCES instrument (id)
)
 WITHOUT ROWID;

CREATE TABLE refused_bar (
    instrument_id INTEGER NOT NULL,
    session DATE NOT NULL,
    source VARCHAR NOT NULL,
    reason VARCHAR NOT NULL,
    value VARCHAR NOT NULL,
    first_known_at DATETIME NOT NULL,
    CONSTRAINT pk_refused_bar PRIMARY KEY (instrument_id, session, source, reason),
    CONSTRAINT fk_refused_bar_instrument_id_instrument FOREIGN KEY(instrument_id) REFERENCES instrument (id)
)
 WITHOUT ROWID;

CREATE TABLE prediction (
    run_id VARCHAR NOT NULL,
    target DATE NOT NULL,
    instrument_id INTEGER NOT NULL,
    as_of DATE NOT NULL,
    probability FLOAT NOT NULL,
    spread FLOAT,
    known_at DATETIME NOT NULL,
    made_at DATETIME NOT NULL,
    calibrated FLOAT,
    lowest FLOAT,
    highest FLOAT,
    rising_share FLOAT,
    CONSTRAINT pk_prediction PRIMARY KEY (run_id, target, instrument_id),
    CONSTRAINT ck_prediction_probability CHECK (probability >= 0 and probability <= 1),
    CONSTRAINT ck_prediction_spread CHECK (spread >= 0 and spread <= 1),
    CONSTRAINT ck_prediction_dates CHECK (as_of < target),
    CONSTRAINT fk_prediction_run_id_run FOREIGN KEY(run_id) REFERENCES run (id),
    CONSTRAINT fk_prediction_instrument_id_instrument FOREIGN KEY(instrument_id) REFERENCES instrument (id)
)
 WITHOUT ROWID;
CREATE INDEX ix_prediction_target ON prediction (target);
CREATE INDEX ix_prediction_as_of ON prediction (as_of);
CREATE INDEX ix_prediction_instrument_id_target ON prediction (instrument_id, target);

CREATE TABLE outcome (
    instrument_id INTEGER NOT NULL,
    session DATE NOT NULL,
    move FLOAT NOT NULL,
    rise BOOLEAN NOT NULL,
    label SMALLINT NOT NULL,
    known_at DATETIME NOT NULL,
    recorded_at DATETIME NOT NULL,
    CONSTRAINT pk_outcome PRIMARY KEY (instrument_id, session),
    CONSTRAINT ck_outcome_move CHECK (move > -1),
    CONSTRAINT ck_outcome_label CHECK (label in (-1, 0, 1)),
    CONSTRAINT fk_outcome_instrument_id_instrument FOREIGN KEY(instrument_id) REFERENCES instrument (id)
)
 WITHOUT ROWID;

CREATE TABLE night (
    market VARCHAR NOT NULL,
    as_of DATE NOT NULL,
    target DATE NOT NULL,
    status VARCHAR NOT NULL,
    reason VARCHAR,
    run_id VARCHAR,
    source VARCHAR NOT NULL,
    known_at DATETIME,
    fetched INTEGER,
    stored INTEGER,
    refused INTEGER,
    predictions INTEGER,
    gaps JSON,
    inputs_hash VARCHAR,
    started_at DATETIME NOT NULL,
    finished_at DATETIME,
    CONSTRAINT pk_night PRIMARY KEY (market, as_of),
    CONSTRAINT ck_night_status CHECK (status in ('running', 'complete', 'complete_with_gaps', 'refused')),
    CONSTRAINT ck_night_dates CHECK (as_of < target),
    CONSTRAINT ck_night_counts CHECK (fetched >= 0 and stored >= 0 and refused >= 0 and predictions >= 0),
    CONSTRAINT fk_night_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
)
 WITHOUT ROWID;

CREATE TABLE attention_weight (
    run_id VARCHAR NOT NULL,
    target DATE NOT NULL,
    instrument_id INTEGER NOT NULL,
    source_id INTEGER NOT NULL,
    weight FLOAT NOT NULL,
    CONSTRAINT pk_attention_weight PRIMARY KEY (run_id, target, instrument_id, source_id),
    CONSTRAINT fk_attention_weight_run_id_prediction FOREIGN KEY(run_id, target, instrument_id) REFERENCES prediction (run_id, target, instrument_id),
    CONSTRAINT ck_attention_weight_weight CHECK (weight >= 0 and weight <= 1),
    CONSTRAINT fk_attention_weight_source_id_instrument FOREIGN KEY(source_id) REFERENCES instrument (id)
)
 WITHOUT ROWID;

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
