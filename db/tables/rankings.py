"""The order of a day's stocks: walks through history, and what the rankers of each night said and were worth."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Boolean, CheckConstraint, Column, Date, ForeignKey, Index, Integer, String, Table

from db.tables.columns import REAL, UtcTimestamp, instrument_id, metadata, target


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


def _figures() -> list[Column[Any]]:
    """Return what a ranking is measured by."""
    return [
        *_with_interval("rank_ic", "Mean over days of Spearman's correlation of score and return; 0 is no skill"),
        Column("icir", REAL, comment="Mean daily rank IC over its standard deviation; missing below 2 days."),
        Column("t", REAL, comment="Mean daily rank IC over its Newey-West standard error; missing below 2 days."),
        *_with_interval("auc", "Share of same-day pairs (above, below the median) in the right order; 0.5 is no skill"),
        *_with_interval("acc", "Share of stocks called rightly above or below the day's median; 0.5 is no skill"),
        *_with_interval("mcc", "Matthews correlation of those calls, -1 to 1; 0 is no skill"),
        *_with_interval("decile_spread", "Mean return a day of the best tenth less that of the worst, 0.01 is 1 %"),
    ]


def _in_range() -> CheckConstraint:
    known = "rank_ic >= -1 and rank_ic <= 1 and auc >= 0 and auc <= 1"
    return CheckConstraint(f"{known} and acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1", name="ranges")


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
    *_figures(),
    CheckConstraint("days >= 0 and n >= 0 and year >= 0", name="counts"),
    _in_range(),
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

ranker = Table(
    "ranker",
    metadata,
    Column("id", String, primary_key=True, comment="Name of the training, such as kospi200-2026-05-29-1a2b3c4d."),
    Column("market", String, nullable=False, comment="Name of the market."),
    Column("leg", String, nullable=False, comment="Return whose order they learned, such as next_close."),
    Column("chosen", String, nullable=False, comment="The predictor whose order the market's nights show."),
    Column("config", JSON, nullable=False, comment="Every setting of every ranker, and the names of the features."),
    Column("code_version", String, nullable=False, comment="Version of the code that trained."),
    Column("data_watermark", UtcTimestamp, nullable=False, comment="Latest known_at of the prices trained on."),
    Column("checkpoint_path", String, nullable=False, comment="File of what was learned."),
    Column("checkpoint_hash", String, nullable=False, comment="SHA-256 of the checkpoint."),
    Column("train_last", Date, nullable=False, comment="Session as of which they were trained."),
    Column("created_at", UtcTimestamp, nullable=False, comment="When training ended."),
    Index(None, "market", "train_last"),
    comment="Rankers of the nights: models that order the stocks of a day, trained together.",
)

stock_rank = Table(
    "stock_rank",
    metadata,
    Column("ranker_id", ForeignKey("ranker.id"), primary_key=True, comment="The rankers that were asked."),
    Column("predictor", String, primary_key=True, comment="'ridge', 'boosting', their 'blend', or 'dtml'."),
    target(),
    instrument_id(),
    Column("as_of", Date, nullable=False, comment="Last session seen; always before target."),
    Column("score", REAL, nullable=False, comment="What orders the stocks of the day; its size means nothing."),
    Column("place", Integer, nullable=False, comment="Place in the order of the day, 1 is the best."),
    Column("probability", REAL, comment="Probability of a return above the day's median, 0 to 1; missing for dtml."),
    Column("known_at", UtcTimestamp, nullable=False, comment="Latest known_at of the prices they saw."),
    Column("made_at", UtcTimestamp, nullable=False, comment="When it was computed."),
    CheckConstraint("place >= 1 and probability >= 0 and probability <= 1", name="ranges"),
    CheckConstraint("as_of < target", name="dates"),
    Index(None, "target", "predictor"),
    comment="The order of each night's stocks, never rewritten: one row per ranker, session predicted and stock.",
    sqlite_with_rowid=False,
)

rank_score = Table(
    "rank_score",
    metadata,
    Column("market", String, primary_key=True, comment="Name of the market."),
    target(),
    Column("span", String, primary_key=True, comment="'night' for that session, 'running' for all up to it."),
    _leg(),
    Column("predictor", String, primary_key=True, comment="Name of a ranker, or of a one-line rule."),
    Column("is_rule", Boolean, nullable=False, comment="Whether it is a one-line rule, which trains nothing."),
    Column("days", Integer, nullable=False, comment="Sessions scored."),
    Column("n", Integer, nullable=False, comment="Stock-days scored."),
    *_figures(),
    Column("scored_at", UtcTimestamp, nullable=False, comment="When the row was last changed."),
    CheckConstraint("span in ('night', 'running')", name="span"),
    CheckConstraint("days >= 0 and n >= 0", name="counts"),
    _in_range(),
    comment="How well the rankers of the nights, and one-line rules, ordered the stocks of each session.",
    sqlite_with_rowid=False,
)
