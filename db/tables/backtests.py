"""Backtests: what was run, its folds, what they scored and would have earned."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
)

from db.tables.columns import REAL, UtcTimestamp, metadata

_FEW = "missing with too few days"


def _backtest() -> Column[Any]:
    return Column("backtest_id", ForeignKey("backtest.id"), primary_key=True, comment="The backtest.")


backtest = Table(
    "backtest",
    metadata,
    Column("id", String, primary_key=True, comment="Name of the backtest, such as sp500-2018-01-02-1a2b3c4d."),
    Column("market", String, nullable=False, comment="Name of the market."),
    Column("first", Date, nullable=False, comment="First session predicted."),
    Column("last", Date, nullable=False, comment="Last session predicted."),
    Column("retrain_every", Integer, nullable=False, comment="Sessions predicted by each model, 1 or more."),
    Column("config", JSON, nullable=False, comment="Every setting: experiment, universe, strategies, costs."),
    Column("seeds", JSON, nullable=False, comment="List of the seeds of each fold's ensemble."),
    Column("code_version", String, nullable=False, comment="Version of the code that began it."),
    Column("data_watermark", UtcTimestamp, nullable=False, comment="Latest known_at of the prices used."),
    Column("list_is_snapshot", Boolean, nullable=False, comment="Whether today's constituents stand for the past."),
    Column("list_as_of", Date, comment="Day of the list of constituents; missing when not known."),
    Column("device", String, nullable=False, comment="What the trainings ran on, such as cpu."),
    Column("created_at", UtcTimestamp, nullable=False, comment="When it was begun."),
    Column("finished_at", UtcTimestamp, comment="When its figures were stored; missing until then."),
    Column("seconds", REAL, comment="Time it took in all, in seconds; missing until finished."),
    Column("stocks", Integer, comment="Stocks predicted at least once; missing until finished."),
    Column("constituent_days", Integer, comment="Days of membership, summed over the stocks; missing until finished."),
    Column("without_price", Integer, comment="Those of them without a price; missing until finished."),
    Column(
        "tried",
        Integer,
        comment="Portfolios that followed predictions on this market so far, these included; missing until finished.",
    ),
    Column(
        "expected_best",
        REAL,
        comment="The Sharpe ratio a year that the best of so many tries would have without skill; missing until then.",
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
)

backtest_fold = Table(
    "backtest_fold",
    metadata,
    _backtest(),
    Column("number", Integer, primary_key=True, autoincrement=False, comment="1 for the first fold."),
    Column("run_id", ForeignKey("run.id"), nullable=False, comment="The model trained for it."),
    Column("as_of", Date, nullable=False, comment="Session at whose close it was trained."),
    Column("first", Date, nullable=False, comment="First session predicted, the one after as_of."),
    Column("last", Date, nullable=False, comment="Last session predicted."),
    Column("predictions", Integer, nullable=False, comment="Stock-days predicted."),
    Column(
        "refused",
        JSON,
        nullable=False,
        comment="Nights the nightly job would have refused: a mapping of as_of to the reason.",
    ),
    Column("seconds", REAL, comment="Time of its training and predictions, in seconds; missing when not measured."),
    CheckConstraint("as_of < first and first <= last", name="span"),
    CheckConstraint("number >= 1 and predictions >= 0 and seconds >= 0", name="counts"),
    Index(None, "run_id"),
    comment="Folds of a backtest: one row a model, with the sessions it predicted.",
    sqlite_with_rowid=False,
)

backtest_score = Table(
    "backtest_score",
    metadata,
    _backtest(),
    Column("slice", String, primary_key=True, comment="What was scored: 'all', 'fold', 'year' or 'symbol'."),
    Column("value", String, primary_key=True, comment="Number of the fold, year or symbol; empty for 'all'."),
    Column("protocol", String, primary_key=True, comment="'paper': labelled stock-days alone; 'all': every one."),
    Column("predictor", String, primary_key=True, comment="'dtml', or the name of a naive rule."),
    Column("n", Integer, nullable=False, comment="Stock-days scored."),
    Column("days", Integer, nullable=False, comment="Sessions scored."),
    Column("rises", Integer, nullable=False, comment="Stock-days that rose."),
    Column("acc", REAL, comment="Share of correct directions, 0 to 1; missing when n is 0."),
    Column("acc_low", REAL, comment=f"Lower end of its day-resampled 95 % interval; {_FEW}."),
    Column("acc_high", REAL, comment=f"Upper end of that interval; {_FEW}."),
    Column("mcc", REAL, comment="Matthews correlation, -1 to 1; missing when n is 0."),
    Column("mcc_low", REAL, comment=f"Lower end of its day-resampled 95 % interval; {_FEW}."),
    Column("mcc_high", REAL, comment=f"Upper end of that interval; {_FEW}."),
    Column("model_gain", REAL, comment="The model's mcc less this rule's on the same stock-days; missing elsewhere."),
    Column("model_gain_low", REAL, comment=f"Lower end of its day-resampled 95 % interval; {_FEW}."),
    Column("model_gain_high", REAL, comment=f"Upper end of that interval; {_FEW}."),
    CheckConstraint("slice in ('all', 'fold', 'year', 'symbol') and (slice = 'all') = (value = '')", name="slice"),
    CheckConstraint("protocol in ('paper', 'all')", name="protocol"),
    CheckConstraint("days >= 0 and rises >= 0 and rises <= n", name="counts"),
    CheckConstraint("acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1", name="ranges"),
    comment="Figures of a backtest: the model beside the naive rules, in all and per fold, year and stock.",
    sqlite_with_rowid=False,
)

backtest_return = Table(
    "backtest_return",
    metadata,
    _backtest(),
    Column("portfolio", String, primary_key=True, comment="Name of the portfolio, such as 'long, next open'."),
    Column("session", Date, primary_key=True, comment="Session in which its positions were taken."),
    Column("gross", REAL, nullable=False, comment="Return of the positions before costs; 0.01 is 1 % of equity."),
    Column("turnover", REAL, nullable=False, comment="Value bought and sold, as a share of equity; 0 or more."),
    Column("cost", REAL, nullable=False, comment="Commission and spread, as a share of equity; 0 or more."),
    Column("borrow", REAL, nullable=False, comment="Fee for stocks sold short, as a share of equity; 0 or more."),
    Column("net", REAL, nullable=False, comment="gross less cost and borrow."),
    CheckConstraint("turnover >= 0 and cost >= 0 and borrow >= 0", name="ranges"),
    comment="What each portfolio of a backtest would have earned, a row a session.",
    sqlite_with_rowid=False,
)

backtest_portfolio = Table(
    "backtest_portfolio",
    metadata,
    _backtest(),
    Column("portfolio", String, primary_key=True, comment="Name of the portfolio, such as 'long, next open'."),
    Column("strategy", JSON(none_as_null=True), comment="Its form, fill, limits, costs; missing for a yardstick."),
    Column("days", Integer, nullable=False, comment="Sessions held."),
    Column("annual_return", REAL, comment=f"Compound net return a year, 0.01 is 1 %; {_FEW}."),
    Column("annual_volatility", REAL, comment=f"Standard deviation of the net return, a year; {_FEW}."),
    Column("sharpe", REAL, comment=f"Annual Sharpe ratio of the net return, no risk-free rate; {_FEW}."),
    Column("sharpe_low", REAL, comment=f"Lower end of its day-resampled 95 % interval; {_FEW}."),
    Column("sharpe_high", REAL, comment=f"Upper end of that interval; {_FEW}."),
    Column("index_gain", REAL, comment="The Sharpe ratio less the index's on the same sessions; missing without it."),
    Column("index_gain_low", REAL, comment=f"Lower end of its day-resampled 95 % interval; {_FEW}."),
    Column("index_gain_high", REAL, comment=f"Upper end of that interval; {_FEW}."),
    Column(
        "deflated_sharpe",
        REAL,
        comment="Probability that the true Sharpe ratio is above the best that chance gives of all that was tried,"
        " 0 to 1 (Bailey and Lopez de Prado, 2014); missing for a yardstick or with too few days.",
    ),
    Column("max_drawdown", REAL, comment=f"Largest fall of net equity from a peak, -0.01 is 1 %; {_FEW}."),
    Column("hit_rate", REAL, comment=f"Share of sessions with a net return above 0, 0 to 1; {_FEW}."),
    Column("turnover", REAL, comment=f"Mean a session of the value traded, as a share of equity; {_FEW}."),
    Column("break_even", REAL, comment="Cost at which net is 0, in basis points of value traded; missing untraded."),
    Column(
        "settled",
        Integer,
        nullable=False,
        comment="Positions sold at the last price before a move that nothing explains, such as one of a rejected bar.",
    ),
    Column(
        "unbooked",
        REAL,
        nullable=False,
        comment="What these moves would have added, the sum of shares of the equity at each; 0.01 is 1 %.",
    ),
    CheckConstraint(
        "days >= 0 and annual_volatility >= 0 and turnover >= 0 and max_drawdown <= 0 and settled >= 0", name="figures"
    ),
    CheckConstraint("deflated_sharpe >= 0 and deflated_sharpe <= 1 and hit_rate >= 0 and hit_rate <= 1", name="shares"),
    comment="Figures of each portfolio of a backtest, the index and the equal-weight universe among them.",
    sqlite_with_rowid=False,
)
