"""The order of a day's stocks: walks through history, and what the rankers of each night said and were worth."""

from typing import Any

from sqlalchemy import JSON, Boolean, CheckConstraint, Column, Date, Index, Integer, String

from db.tables.columns import REAL, UtcTimestamp, belongs_to, key, optional, required, table, target, with_interval

_NONE = "missing without a day"


def _leg() -> Column[Any]:
    return key(
        "leg", String, "Return scored: next_close, overnight, intraday, open_to_open, second_close or five_days."
    )


def _figures() -> list[Column[Any]]:
    """Return what a ranking is measured by."""
    return [
        *with_interval(
            "rank_ic", f"Mean over days of Spearman's correlation of score and return; 0 is no skill; {_NONE}"
        ),
        optional("icir", REAL, "Mean daily rank IC over its standard deviation; missing below 2 days."),
        optional("t", REAL, "Mean daily rank IC over its Newey-West standard error; missing below 2 days."),
        *with_interval("auc", f"Share of same-day pairs (above, below the median) in order; 0.5 is no skill; {_NONE}"),
        *with_interval(
            "acc", f"Share of stocks called rightly above or below the day's median; 0.5 is no skill; {_NONE}"
        ),
        *with_interval("mcc", f"Matthews correlation of those calls, -1 to 1; 0 is no skill; {_NONE}"),
        *with_interval("decile_spread", f"Mean return a day of the best tenth less the worst, 0.01 is 1 %; {_NONE}"),
    ]


def _in_range() -> CheckConstraint:
    known = "rank_ic >= -1 and rank_ic <= 1 and auc >= 0 and auc <= 1"
    return CheckConstraint(f"{known} and acc >= 0 and acc <= 1 and mcc >= -1 and mcc <= 1", name="ranges")


ranking = table(
    "ranking",
    key("id", String, "Name of the walk, such as kospi200-2022-01-03-1a2b3c4d."),
    required("market", String, "Name of the market."),
    required("leg", String, "Return that the models were trained to order."),
    required("first", Date, "First close after which stocks were ordered."),
    required("last", Date, "Last such close."),
    required("config", JSON, "Every setting of every model, and the names of the features."),
    required("stocks", Integer, "Stocks ordered at least once."),
    required("folds", Integer, "Trainings of each model."),
    required("best_rule", String, "The rule with the best rank IC on the days before `first`."),
    required("code_version", String, "Version of the code that ran it."),
    required("data_watermark", UtcTimestamp, "Latest known_at of the prices used."),
    required("seconds", REAL, "Time of all trainings and scores, in seconds."),
    required("read_at", UtcTimestamp, "When the days were scored: once."),
    CheckConstraint("first <= last", name="span"),
    CheckConstraint("stocks >= 1 and folds >= 1 and seconds >= 0", name="counts"),
    comment="Rankings: walks through history in which models and rules ordered the stocks of each day.",
    with_rowid=True,
)

ranking_score = table(
    "ranking_score",
    belongs_to("ranking", "The walk."),
    key("predictor", String, "Name of the model or of the rule."),
    _leg(),
    key("slice", String, "What was scored: 'all', 'year', 'sector' or 'move', a third of a day's stocks."),
    key("value", String, "Year, sector, or 'small', 'middle', 'large' by the distance of the return from the median."),
    required("is_rule", Boolean, "Whether it is a one-line rule, which trains nothing."),
    required("days", Integer, "Days scored."),
    required("n", Integer, "Stock-days scored."),
    *_figures(),
    CheckConstraint("days >= 0 and n >= 0", name="counts"),
    CheckConstraint("slice in ('all', 'year', 'sector', 'move') and (slice = 'all') = (value = '')", name="slice"),
    _in_range(),
    comment="How well each model and rule ordered the stocks of a day: one row per return scored, and part of it.",
)

ranking_difference = table(
    "ranking_difference",
    belongs_to("ranking", "The walk."),
    key("predictor", String, "Name of a model or rule."),
    key("other", String, "Name of the one that it is compared with."),
    _leg(),
    *with_interval("gain", f"Mean rank IC of the first less that of the other, on the same stock-days; {_NONE}"),
    comment="Paired differences between models and rules, on the same days.",
)

ranker = table(
    "ranker",
    key("id", String, "Name of the training, such as kospi200-2026-05-29-1a2b3c4d."),
    required("market", String, "Name of the market."),
    required("leg", String, "Return whose order they learned, such as next_close."),
    required("chosen", String, "The predictor whose order the market's nights show."),
    required("config", JSON, "Every setting of every ranker, and the names of the features."),
    required("code_version", String, "Version of the code that trained."),
    required("data_watermark", UtcTimestamp, "Latest known_at of the prices trained on."),
    required("checkpoint_path", String, "File of what was learned."),
    required("checkpoint_hash", String, "SHA-256 of the checkpoint."),
    required("train_last", Date, "Session as of which they were trained."),
    required("created_at", UtcTimestamp, "When training ended."),
    Index(None, "market", "train_last"),
    comment="Rankers of the nights: models that order the stocks of a day, trained together.",
    with_rowid=True,
)

stock_rank = table(
    "stock_rank",
    belongs_to("ranker", "The rankers that were asked."),
    key("predictor", String, "'ridge', 'boosting', 'blend', 'dtml', 'own', 'dtml_relative' or 'blend_relative'."),
    target(),
    belongs_to("instrument", "The instrument."),
    required("as_of", Date, "Last session seen; always before target."),
    required("score", REAL, "What orders the stocks of the day; its size means nothing."),
    required("place", Integer, "Place in the order of the day, 1 is the best."),
    optional("probability", REAL, "Probability of a return above the day's median, 0 to 1; missing for dtml."),
    required("known_at", UtcTimestamp, "Latest known_at of the prices they saw."),
    required("made_at", UtcTimestamp, "When it was computed."),
    CheckConstraint("place >= 1 and probability >= 0 and probability <= 1", name="ranges"),
    CheckConstraint("as_of < target", name="dates"),
    Index(None, "instrument_id", "target"),
    Index(None, "target", "predictor"),
    comment="The order of each night's stocks, never rewritten: one row per ranker, session predicted and stock.",
)

rank_score = table(
    "rank_score",
    key("market", String, "Name of the market."),
    target(),
    key("span", String, "'night' for that session, 'running' for all up to it."),
    _leg(),
    key("predictor", String, "Name of a ranker, or of a one-line rule."),
    required("is_rule", Boolean, "Whether it is a one-line rule, which trains nothing."),
    required("days", Integer, "Sessions scored."),
    required("n", Integer, "Stock-days scored."),
    *_figures(),
    required("scored_at", UtcTimestamp, "When the row was last changed."),
    CheckConstraint("span in ('night', 'running')", name="span"),
    CheckConstraint("days >= 0 and n >= 0", name="counts"),
    _in_range(),
    comment="How well the rankers of the nights, and one-line rules, ordered the stocks of each session.",
)
