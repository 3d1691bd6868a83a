"""Backtests: folds, figures, returns, portfolios; attention kept for the sessions asked for.

Frozen: db/schema.py and db/views.py say what holds today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TEXT = sa.String()
REAL = sa.Float(53)
MOMENT = sa.DateTime(timezone=True)

BACKTEST_SUMMARY = """
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
    )
"""

ATTENTION = """
create view attention as
select i.market, w.run_id, p.as_of, w.target, i.symbol, s.symbol as source, w.weight
from attention_weight w
join prediction p on p.run_id = w.run_id and p.target = w.target and p.instrument_id = w.instrument_id
join instrument i on i.id = w.instrument_id
join instrument s on s.id = w.source_id
"""

TABLES = ("attention_weight", "backtest_portfolio", "backtest_return", "backtest_score", "backtest_fold", "backtest")


def upgrade() -> None:
    _say_of_train_last("Session as of which it was trained: the last one it could see.")
    _create_backtest()
    _create_folds()
    _create_scores()
    _create_returns()
    _create_portfolios()
    _create_attention()
    op.execute(BACKTEST_SUMMARY)
    op.execute(ATTENTION)


def downgrade() -> None:
    op.execute("drop view attention")
    op.execute("drop view backtest_summary")
    for table in TABLES:
        op.drop_table(table)
    _say_of_train_last("Last session trained or validated on.")


def _say_of_train_last(comment: str) -> None:
    if op.get_bind().dialect.name != "sqlite":  # which keeps no comments
        op.alter_column("run", "train_last", existing_type=sa.Date(), existing_nullable=False, comment=comment)


def _create_backtest() -> None:
    op.create_table(
        "backtest",
        sa.Column("id", TEXT, nullable=False, comment="Name of the backtest, such as sp500-2018-01-02-1a2b3c4d."),
        sa.Column("market", TEXT, nullable=False, comment="Name of the market."),
        sa.Column("first", sa.Date, nullable=False, comment="First session predicted."),
        sa.Column("last", sa.Date, nullable=False, comment="Last session predicted."),
        sa.Column("retrain_every", sa.Integer, nullable=False, comment="Sessions predicted by each model, 1 or more."),
        sa.Column("config", sa.JSON, nullable=False, comment="Every setting: experiment, universe, strategies, costs."),
        sa.Column("seeds", sa.JSON, nullable=False, comment="List of seeds, one per member of each fold's ensemble."),
        sa.Column("code_version", TEXT, nullable=False, comment="Version of the code that began it."),
        sa.Column("data_watermark", MOMENT, nullable=False, comment="Latest known_at of the prices used."),
        sa.Column(
            "list_is_snapshot", sa.Boolean, nullable=False, comment="Whether today's constituents stand for the past."
        ),
        sa.Column("list_as_of", sa.Date, comment="Day of the list of constituents; missing when not known."),
        sa.Column("device", TEXT, nullable=False, comment="What the trainings ran on, such as cpu."),
        sa.Column("created_at", MOMENT, nullable=False, comment="When it was begun."),
        sa.Column("finished_at", MOMENT, comment="When its figures were stored; missing until then."),
        sa.Column("seconds", REAL, comment="Time it took in all, in seconds; missing until finished."),
        sa.Column("stocks", sa.Integer, comment="Stocks predicted at least once; missing until finished."),
        sa.Column(
            "member_days", sa.Integer, comment="Days of membership, summed over the stocks; missing until finished."
        ),
        sa.Column("without_price", sa.Integer, comment="Those of them without a price; missing until finished."),
        sa.Column(
            "tried",
            sa.Integer,
            comment="Portfolios that followed predictions on this market so far, these included; missing until"
            " finished.",
        ),
        sa.CheckConstraint("first <= last", name=op.f("ck_backtest_span")),
        sa.CheckConstraint(
            "retrain_every >= 1 and seconds >= 0 and stocks >= 0 and without_price >= 0 and without_price <="
            " member_days and tried >= 1",
            name=op.f("ck_backtest_counts"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_backtest")),
        comment="Backtests: walks through history, each fold trained on what was known then.",
    )
    op.create_index(op.f("ix_backtest_market_created_at"), "backtest", ["market", "created_at"])


def _create_folds() -> None:
    op.create_table(
        "backtest_fold",
        sa.Column("backtest_id", TEXT, nullable=False, comment="The backtest."),
        sa.Column("number", sa.Integer, nullable=False, comment="1 for the first fold."),
        sa.Column("run_id", TEXT, nullable=False, comment="The model trained for it."),
        sa.Column("as_of", sa.Date, nullable=False, comment="Session at whose close it was trained."),
        sa.Column("first", sa.Date, nullable=False, comment="First session predicted, the one after as_of."),
        sa.Column("last", sa.Date, nullable=False, comment="Last session predicted."),
        sa.Column("predictions", sa.Integer, nullable=False, comment="Stock-days predicted."),
        sa.Column(
            "refused",
            sa.JSON,
            nullable=False,
            comment="Nights the nightly job would have refused: a mapping of as_of to the reason.",
        ),
        sa.Column(
            "seconds", REAL, comment="Time of its training and predictions, in seconds; missing when not measured."
        ),
        sa.CheckConstraint("as_of < first and first <= last", name=op.f("ck_backtest_fold_span")),
        sa.CheckConstraint("number >= 1 and predictions >= 0 and seconds >= 0", name=op.f("ck_backtest_fold_counts")),
        sa.ForeignKeyConstraint(["backtest_id"], ["backtest.id"], name=op.f("fk_backtest_fold_backtest_id_backtest")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_backtest_fold_run_id_run")),
        sa.PrimaryKeyConstraint("backtest_id", "number", name=op.f("pk_backtest_fold")),
        comment="Folds of a backtest: one row a model, with the sessions it predicted.",
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_backtest_fold_run_id"), "backtest_fold", ["run_id"])


def _create_scores() -> None:
    op.create_table(
        "backtest_score",
        sa.Column("backtest_id", TEXT, nullable=False, comment="The backtest."),
        sa.Column("slice", TEXT, nullable=False, comment="What was scored: 'all', 'fold', 'year' or 'symbol'."),
        sa.Column("value", TEXT, nullable=False, comment="Number of the fold, year or symbol; empty for 'all'."),
        sa.Column("protocol", TEXT, nullable=False, comment="'paper': labelled stock-days alone; 'all': every one."),
        sa.Column("predictor", TEXT, nullable=False, comment="'dtml', or the name of a naive rule."),
        sa.Column("n", sa.Integer, nullable=False, comment="Stock-days scored."),
        sa.Column("days", sa.Integer, nullable=False, comment="Sessions scored."),
        sa.Column("rises", sa.Integer, nullable=False, comment="Stock-days that rose."),
        sa.Column("acc", REAL, comment="Share of right calls, 0 to 1; missing when n is 0."),
        sa.Column("acc_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing with too few days."),
        sa.Column("acc_high", REAL, comment="Upper end of that interval; missing with too few days."),
        sa.Column("mcc", REAL, comment="Matthews correlation, -1 to 1; missing when n is 0."),
        sa.Column("mcc_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing with too few days."),
        sa.Column("mcc_high", REAL, comment="Upper end of that interval; missing with too few days."),
        sa.CheckConstraint(
            "slice in ('all', 'fold', 'year', 'symbol') and (slice = 'all') = (value = '')",
            name=op.f("ck_backtest_score_slice"),
        ),
        sa.CheckConstraint("protocol in ('paper', 'all')", name=op.f("ck_backtest_score_protocol")),
        sa.CheckConstraint("days >= 0 and rises >= 0 and rises <= n", name=op.f("ck_backtest_score_counts")),
        sa.CheckConstraint("acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1", name=op.f("ck_backtest_score_ranges")),
        sa.ForeignKeyConstraint(["backtest_id"], ["backtest.id"], name=op.f("fk_backtest_score_backtest_id_backtest")),
        sa.PrimaryKeyConstraint(
            "backtest_id", "slice", "value", "protocol", "predictor", name=op.f("pk_backtest_score")
        ),
        comment="Figures of a backtest: the model beside the naive rules, in all and per fold, year and stock.",
        sqlite_with_rowid=False,
    )


def _create_returns() -> None:
    op.create_table(
        "backtest_return",
        sa.Column("backtest_id", TEXT, nullable=False, comment="The backtest."),
        sa.Column("portfolio", TEXT, nullable=False, comment="Name of the portfolio, such as 'long, next open'."),
        sa.Column("session", sa.Date, nullable=False, comment="Session in which its positions were taken."),
        sa.Column(
            "gross", REAL, nullable=False, comment="Return of the positions before costs; 0.01 is 1 % of equity."
        ),
        sa.Column("turnover", REAL, nullable=False, comment="Value bought and sold, as a share of equity; 0 or more."),
        sa.Column("cost", REAL, nullable=False, comment="Commission and spread, as a share of equity; 0 or more."),
        sa.Column(
            "borrow", REAL, nullable=False, comment="Fee for stocks sold short, as a share of equity; 0 or more."
        ),
        sa.Column("net", REAL, nullable=False, comment="gross less cost and borrow."),
        sa.CheckConstraint("turnover >= 0 and cost >= 0 and borrow >= 0", name=op.f("ck_backtest_return_ranges")),
        sa.ForeignKeyConstraint(["backtest_id"], ["backtest.id"], name=op.f("fk_backtest_return_backtest_id_backtest")),
        sa.PrimaryKeyConstraint("backtest_id", "portfolio", "session", name=op.f("pk_backtest_return")),
        comment="What each portfolio of a backtest would have earned, a row a session.",
        sqlite_with_rowid=False,
    )


def _create_portfolios() -> None:
    op.create_table(
        "backtest_portfolio",
        sa.Column("backtest_id", TEXT, nullable=False, comment="The backtest."),
        sa.Column("portfolio", TEXT, nullable=False, comment="Name of the portfolio, such as 'long, next open'."),
        sa.Column("strategy", sa.JSON, comment="Its form, fill, limits, costs; missing for a yardstick."),
        sa.Column("days", sa.Integer, nullable=False, comment="Sessions held."),
        sa.Column("annual_return", REAL, comment="Compound net return a year, 0.01 is 1 %; missing with too few days."),
        sa.Column(
            "annual_volatility",
            REAL,
            comment="Standard deviation of the net return, a year; missing with too few days.",
        ),
        sa.Column(
            "sharpe",
            REAL,
            comment="Annual Sharpe ratio of the net return, no risk-free rate; missing with too few days.",
        ),
        sa.Column(
            "sharpe_low", REAL, comment="Lower end of its day-resampled 95 % interval; missing with too few days."
        ),
        sa.Column("sharpe_high", REAL, comment="Upper end of that interval; missing with too few days."),
        sa.Column(
            "deflated_sharpe",
            REAL,
            comment="Probability that the true Sharpe ratio is above the best that chance gives of all that was tried,"
            " 0 to 1 (Bailey and Lopez de Prado, 2014); missing for a yardstick or with too few days.",
        ),
        sa.Column(
            "max_drawdown",
            REAL,
            comment="Largest fall of net equity from a peak, -0.01 is 1 %; missing with too few days.",
        ),
        sa.Column(
            "hit_rate", REAL, comment="Share of sessions with a net return above 0, 0 to 1; missing with too few days."
        ),
        sa.Column(
            "turnover",
            REAL,
            comment="Mean a session of the value traded, as a share of equity; missing with too few days.",
        ),
        sa.Column(
            "break_even", REAL, comment="Cost at which net is 0, in basis points of value traded; missing untraded."
        ),
        sa.CheckConstraint(
            "days >= 0 and annual_volatility >= 0 and turnover >= 0 and max_drawdown <= 0",
            name=op.f("ck_backtest_portfolio_figures"),
        ),
        sa.CheckConstraint(
            "deflated_sharpe >= 0 and deflated_sharpe <= 1 and hit_rate >= 0 and hit_rate <= 1",
            name=op.f("ck_backtest_portfolio_shares"),
        ),
        sa.ForeignKeyConstraint(
            ["backtest_id"], ["backtest.id"], name=op.f("fk_backtest_portfolio_backtest_id_backtest")
        ),
        sa.PrimaryKeyConstraint("backtest_id", "portfolio", name=op.f("pk_backtest_portfolio")),
        comment="Figures of each portfolio of a backtest, the index and the equal-weight universe among them.",
        sqlite_with_rowid=False,
    )


def _create_attention() -> None:
    op.create_table(
        "attention_weight",
        sa.Column("run_id", TEXT, nullable=False, comment="The model that predicted."),
        sa.Column("target", sa.Date, nullable=False, comment="Session predicted."),
        sa.Column("instrument_id", sa.Integer, nullable=False, comment="The stock predicted: who looks."),
        sa.Column("source_id", sa.Integer, nullable=False, comment="The stock it looks at."),
        sa.Column("weight", REAL, nullable=False, comment="Share of its attention, 0 to 1; mean of the members."),
        sa.CheckConstraint("weight >= 0 and weight <= 1", name=op.f("ck_attention_weight_weight")),
        sa.ForeignKeyConstraint(
            ["run_id", "target", "instrument_id"],
            ["prediction.run_id", "prediction.target", "prediction.instrument_id"],
            name=op.f("fk_attention_weight_run_id_prediction"),
        ),
        sa.ForeignKeyConstraint(
            ["source_id"], ["instrument.id"], name=op.f("fk_attention_weight_source_id_instrument")
        ),
        sa.PrimaryKeyConstraint("run_id", "target", "instrument_id", "source_id", name=op.f("pk_attention_weight")),
        comment="Attention between stocks (data axis), kept for the sessions asked for.",
        sqlite_with_rowid=False,
    )
