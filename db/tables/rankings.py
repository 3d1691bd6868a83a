"""Rankings: walks through history in which models and one-line rules ordered the stocks of each day."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Boolean, CheckConstraint, Column, Date, ForeignKey, Integer, String, Table

from db.tables.columns import REAL, UtcTimestamp, metadata


def _ranking() -> Column[Any]:
    return Column("ranking_id", ForeignKey("ranking.id"), primary_key=True, comment="The walk.")


def _leg() -> Column[Any]:
    return Column(
        "leg",
        String,
        primary_key=True,
        comment="Return scored: next_close, overnight, intraday, open_to_open, second_close or five_days.",
    )


def _with_interval(name: str, meaning: str, otherwise: str = "missing without a day") -> list[Column[Any]]:
    """Return a figure and the ends of its interval."""
    return [
        Column(name, REAL, comment=f"{meaning}; {otherwise}."),
        Column(f"{name}_low", REAL, comment="Lower end of its 95 % interval by blocks of days; missing below 20 days."),
        Column(f"{name}_high", REAL, comment="Upper end of that interval; missing below 20 days."),
    ]


ranking = Table(
    "ranking",
    metadata,
    Column("id", String, primary_key=True, comment="Name of the walk, such as kospi200-2022-01-03-1a2b3c4d."),
    Column("market", String, nullable=False, comment="Name of the market."),
    Column("leg", String, nullable=False, comment="Return that the models were trained to order."),
    Column("first", Date, nullable=False, comment="First close after which stocks were ordered."),
    Column("last", Date, nullable=False, comment="Last such close."),
    Column("config", JSON, nullable=False, comment="Every setting of every model, and the names of the features."),
    Column("stocks", Integer, nullable=False, comment="Stocks ordered at least once."),
    Column("folds", Integer, nullable=False, comment="Trainings of each model."),
    Column("best_rule", String, nullable=False, comment="The rule with the best rank IC on the days before `first`."),
    Column("code_version", String, nullable=False, comment="Version of the code that ran it."),
    Column("data_watermark", UtcTimestamp, nullable=False, comment="Latest known_at of the prices used."),
    Column("seconds", REAL, nullable=False, comment="Time of all trainings and scores, in seconds."),
    Column("read_at", UtcTimestamp, nullable=False, comment="When the days were scored: once."),
    CheckConstraint("first <= last", name="span"),
    CheckConstraint("stocks >= 1 and folds >= 1 and seconds >= 0", name="counts"),
    comment="Rankings: walks through history in which models and rules ordered the stocks of each day.",
)

ranking_score = Table(
    "ranking_score",
    metadata,
    _ranking(),
    Column("predictor", String, primary_key=True, comment="Name of the model or of the rule."),
    _leg(),
    Column("year", Integer, primary_key=True, autoincrement=False, comment="Year scored; 0 for all days."),
    Column("is_rule", Boolean, nullable=False, comment="Whether it is a one-line rule, which trains nothing."),
    Column("days", Integer, nullable=False, comment="Days scored."),
    Column("n", Integer, nullable=False, comment="Stock-days scored."),
    *_with_interval("rank_ic", "Mean over days of Spearman's correlation of score and return, -1 to 1; 0 is no skill"),
    Column("icir", REAL, comment="Mean daily rank IC over its standard deviation; missing below 2 days."),
    Column("t", REAL, comment="Mean daily rank IC over its Newey-West standard error; missing below 2 days."),
    *_with_interval("auc", "Share of same-day pairs (above, below the median) in the right order; 0.5 is no skill"),
    *_with_interval("acc", "Share of stocks called rightly above or below the day's median; 0.5 is no skill"),
    *_with_interval("mcc", "Matthews correlation of those calls, -1 to 1; 0 is no skill"),
    *_with_interval("decile_spread", "Mean return a day of the best tenth less that of the worst, 0.01 is 1 %"),
    CheckConstraint("days >= 0 and n >= 0 and year >= 0", name="counts"),
    CheckConstraint(
        "rank_ic >= -1 and rank_ic <= 1 and auc >= 0 and auc <= 1 and acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1",
        name="ranges",
    ),
    comment="How well each model and rule ordered the stocks of a day: one row per return scored, and year.",
    sqlite_with_rowid=False,
)

ranking_difference = Table(
    "ranking_difference",
    metadata,
    _ranking(),
    Column("predictor", String, primary_key=True, comment="Name of a model or rule."),
    Column("other", String, primary_key=True, comment="Name of the one that it is compared with."),
    _leg(),
    *_with_interval("gain", "Mean rank IC of the first less that of the other, on the stock-days that both scored"),
    comment="Paired differences between models and rules, on the same days.",
    sqlite_with_rowid=False,
)
