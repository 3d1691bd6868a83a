"""Backtests: what was run, its folds, what they scored and would have earned."""

from sqlalchemy import JSON, Boolean, CheckConstraint, Date, ForeignKey, Index, Integer, String

from db.tables.columns import REAL, UtcTimestamp, belongs_to, key, optional, required, table, with_interval

_FEW = "missing with too few days"


backtest = table(
    "backtest",
    key("id", String, "Name of the backtest, such as sp500-2018-01-02-1a2b3c4d."),
    required("market", String, "Name of the market."),
    required("first", Date, "First session predicted."),
    required("last", Date, "Last session predicted."),
    required("retrain_every", Integer, "Sessions predicted by each model, 1 or more."),
    required("config", JSON, "Every setting: experiment, universe, strategies, costs."),
    required("seeds", JSON, "List of the seeds of each fold's ensemble."),
    required("code_version", String, "Version of the code that began it."),
    required("data_watermark", UtcTimestamp, "Latest known_at of the prices used."),
    required("list_is_snapshot", Boolean, "Whether today's constituents stand for the past."),
    optional("list_as_of", Date, "Day of the list of constituents; missing when not known."),
    required("device", String, "What the trainings ran on, such as cpu."),
    required("created_at", UtcTimestamp, "When it was begun."),
    optional("finished_at", UtcTimestamp, "When its figures were stored; missing until then."),
    optional("seconds", REAL, "Time it took in all, in seconds; missing until finished."),
    optional("stocks", Integer, "Stocks predicted at least once; missing until finished."),
    optional("constituent_days", Integer, "Days of membership, summed over the stocks; missing until finished."),
    optional("without_price", Integer, "Those of them without a price; missing until finished."),
    optional("tried", Integer, "Portfolios tried on this market so far, these included; missing until finished."),
    optional(
        "expected_best", REAL, "Annual Sharpe ratio of the best of so many tries without skill; missing until then."
    ),
    CheckConstraint("first <= last", name="span"),
    CheckConstraint(
        "retrain_every >= 1 and seconds >= 0 and stocks >= 0"
        " and without_price >= 0 and without_price <= constituent_days"
        " and tried >= 1",
        name="counts",
    ),
    Index(None, "market", "created_at"),
    comment="Backtests: walks through history, each fold trained on what was known then.",
    with_rowid=True,
)

backtest_fold = table(
    "backtest_fold",
    belongs_to("backtest", "The backtest."),
    key("number", Integer, "1 for the first fold."),
    required("run_id", ForeignKey("run.id"), "The model trained for it."),
    required("as_of", Date, "Session at whose close it was trained."),
    required("first", Date, "First session predicted, the one after as_of."),
    required("last", Date, "Last session predicted."),
    required("predictions", Integer, "Stock-days predicted."),
    required("refused", JSON, "Nights the nightly job would have refused: a mapping of as_of to the reason."),
    optional("seconds", REAL, "Time of its training and predictions, in seconds; missing when not measured."),
    CheckConstraint("as_of < first and first <= last", name="span"),
    CheckConstraint("number >= 1 and predictions >= 0 and seconds >= 0", name="counts"),
    Index(None, "run_id"),
    comment="Folds of a backtest: one row a model, with the sessions it predicted.",
)

backtest_score = table(
    "backtest_score",
    belongs_to("backtest", "The backtest."),
    key("slice", String, "What was scored: 'all', 'fold', 'year' or 'symbol'."),
    key("value", String, "Number of the fold, year or symbol; empty for 'all'."),
    key("protocol", String, "'paper': labelled stock-days alone; 'all': every one."),
    key("predictor", String, "'dtml', or the name of a naive rule."),
    required("n", Integer, "Stock-days scored."),
    required("days", Integer, "Sessions scored."),
    required("rises", Integer, "Stock-days that rose."),
    *with_interval("acc", "Share of correct directions, 0 to 1; missing when n is 0"),
    *with_interval("mcc", "Matthews correlation, -1 to 1; missing when n is 0"),
    *with_interval("model_gain", "The model's mcc less this rule's on the same stock-days; missing elsewhere"),
    CheckConstraint("slice in ('all', 'fold', 'year', 'symbol') and (slice = 'all') = (value = '')", name="slice"),
    CheckConstraint("protocol in ('paper', 'all')", name="protocol"),
    CheckConstraint("days >= 0 and rises >= 0 and rises <= n", name="counts"),
    CheckConstraint("acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1", name="ranges"),
    comment="Figures of a backtest: the model beside the naive rules, in all and per fold, year and stock.",
)

backtest_return = table(
    "backtest_return",
    belongs_to("backtest", "The backtest."),
    key("portfolio", String, "Name of the portfolio, such as 'long, next open'."),
    key("session", Date, "Session in which its positions were taken."),
    required("gross", REAL, "Return of the positions before costs; 0.01 is 1 % of equity."),
    required("turnover", REAL, "Value bought and sold, as a share of equity; 0 or more."),
    required("cost", REAL, "Commission and spread, as a share of equity; 0 or more."),
    required("borrow", REAL, "Fee for stocks sold short, as a share of equity; 0 or more."),
    required("net", REAL, "gross less cost and borrow."),
    CheckConstraint("turnover >= 0 and cost >= 0 and borrow >= 0", name="ranges"),
    comment="What each portfolio of a backtest would have earned, a row a session.",
)

backtest_portfolio = table(
    "backtest_portfolio",
    belongs_to("backtest", "The backtest."),
    key("portfolio", String, "Name of the portfolio, such as 'long, next open'."),
    optional("strategy", JSON(none_as_null=True), "Its form, fill, limits, costs; missing for a yardstick."),
    required("days", Integer, "Sessions held."),
    optional("annual_return", REAL, f"Compound net return a year, 0.01 is 1 %; {_FEW}."),
    optional("annual_volatility", REAL, f"Standard deviation of the net return, a year; {_FEW}."),
    *with_interval("sharpe", f"Annual Sharpe ratio of the net return, no risk-free rate; {_FEW}"),
    *with_interval("index_gain", "The Sharpe ratio less the index's on the same sessions; missing without it"),
    optional(
        "deflated_sharpe",
        REAL,
        "Probability that the true Sharpe ratio is above the best that chance gives of all that was tried,"
        " 0 to 1 (Bailey and Lopez de Prado, 2014); missing for a yardstick or with too few days.",
    ),
    optional("max_drawdown", REAL, f"Largest fall of net equity from a peak, -0.01 is 1 %; {_FEW}."),
    optional("hit_rate", REAL, f"Share of sessions with a net return above 0, 0 to 1; {_FEW}."),
    optional("turnover", REAL, f"Mean a session of the value traded, as a share of equity; {_FEW}."),
    optional("break_even", REAL, "Cost at which net is 0, in basis points of value traded; missing untraded."),
    required("settled", Integer, "Positions sold at the last price before a move that nothing explains."),
    required("unbooked", REAL, "What these moves would have added, as shares of equity; 0.01 is 1 %."),
    CheckConstraint(
        "days >= 0 and annual_volatility >= 0 and turnover >= 0 and max_drawdown <= 0 and settled >= 0", name="figures"
    ),
    CheckConstraint("deflated_sharpe >= 0 and deflated_sharpe <= 1 and hit_rate >= 0 and hit_rate <= 1", name="shares"),
    comment="Figures of each portfolio of a backtest, the index and the equal-weight universe among them.",
)
