"""Translation: models, how their training went, texts to translate, scores on test sets.

A user queues a text with a plain INSERT of its model and words.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, Column, Index, Integer, String, Table, UniqueConstraint, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from db.tables.columns import REAL, UtcTimestamp, metadata

LONGEST_TEXT = 20_000  # characters, about ten pages: others that are taken with it wait for its translation


class _Now(FunctionElement[datetime]):
    """The moment of an INSERT, in UTC, written as UtcTimestamp writes it."""

    type = UtcTimestamp()
    inherit_cache = True


# SQLite's own current_timestamp has no fraction: a copy in PostgreSQL, which has one, would differ from it.
@compiles(_Now, "sqlite")
def _now_of_sqlite(_element: _Now, _compiler: object, **_options: object) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"


@compiles(_Now, "postgresql")
def _now_of_postgresql(_element: _Now, _compiler: object, **_options: object) -> str:
    return "now()"


def _model(**options: Any) -> Column[Any]:
    return Column("model", String, comment="Name of the model, which may not be stored yet.", **options)


translation_model = Table(
    "translation_model",
    metadata,
    Column("name", String, primary_key=True, comment="Name of the model."),
    Column("kind", String, nullable=False, comment="Its architecture: transformer, rnn and the like."),
    Column("size", String, nullable=False, comment="Preset of its size: tiny, small, base, big."),
    Column("source_language", String, nullable=False, comment="Language it reads, such as en."),
    Column("target_language", String, nullable=False, comment="Language it writes, such as de."),
    Column("parameters", BigInteger, nullable=False, comment="Weights that were trained."),
    Column("vocabulary", Integer, nullable=False, comment="Pieces of its tokenizer, special ones too."),
    Column("pairs", Integer, nullable=False, comment="Pairs of sentences trained on."),
    Column("steps", Integer, nullable=False, comment="Updates of the weights."),
    Column("epochs", REAL, nullable=False, comment="Passes over the pairs, in parts too."),
    Column("config", JSON, nullable=False, comment="Every setting of data, model and training."),
    Column("seed", BigInteger, nullable=False, comment="Seed of the weights, the order and the dropout."),
    Column("code_version", String, nullable=False, comment="Version of the code that trained."),
    Column("folder", String, nullable=False, comment="Folder of the weights and the tokenizer."),
    Column("checkpoint_hash", String, nullable=False, comment="SHA-256 of the weights."),
    Column("tokenizer_hash", String, nullable=False, comment="SHA-256 of the tokenizer."),
    Column("corpus_hash", String, nullable=False, comment="SHA-256 of the pairs trained on."),
    Column("receipt", String, nullable=False, comment="What names the model and all it was made of."),
    Column("validation_loss", REAL, comment="Loss per target token on the validation pairs, in nats; missing without."),
    Column("validation_bleu", REAL, comment="BLEU on the validation pairs, 0 to 100; missing without."),
    Column("created_at", UtcTimestamp, nullable=False, comment="When training ended."),
    CheckConstraint("parameters > 0 and vocabulary > 0 and pairs > 0 and steps >= 0 and epochs >= 0", name="counts"),
    comment="Trained translation models, one row per name.",
    sqlite_with_rowid=False,
)

translation_progress = Table(
    "translation_progress",
    metadata,
    _model(primary_key=True),
    Column("step", Integer, primary_key=True, autoincrement=False, comment="Updates of the weights so far."),
    Column("epoch", REAL, nullable=False, comment="Passes over the pairs so far, in parts too."),
    Column("tokens", BigInteger, nullable=False, comment="Target tokens seen so far."),
    Column("train_loss", REAL, nullable=False, comment="Loss per target token since the row before, in nats."),
    Column("validation_loss", REAL, comment="Loss per target token on the validation pairs; missing if not measured."),
    Column("validation_bleu", REAL, comment="BLEU on the validation pairs, 0 to 100; missing if not measured."),
    Column("learning_rate", REAL, nullable=False, comment="Learning rate of the step."),
    Column("tokens_per_second", REAL, nullable=False, comment="Target tokens a second since the row before."),
    Column("at", UtcTimestamp, nullable=False, comment="When it was noted."),
    CheckConstraint("step >= 0 and epoch >= 0 and tokens >= 0", name="counts"),
    comment="How the training of a translation model goes, while it runs and afterwards.",
    sqlite_with_rowid=False,
)

translation_text = Table(
    "translation_text",
    metadata,
    Column("id", Integer, primary_key=True, comment="Number given by the store, never given twice."),
    _model(nullable=False),
    Column("text", String, nullable=False, comment="What is to be translated."),
    Column("status", String, nullable=False, server_default="queued", comment="'queued', 'taken', 'done' or 'failed'."),
    Column("priority", Integer, nullable=False, server_default=text("0"), comment="Higher ones are taken first."),
    Column("queued_at", UtcTimestamp, nullable=False, server_default=_Now(), comment="When it was queued."),
    Column("taken_by", String, comment="The worker that took it last; missing before the first."),
    Column("taken_until", UtcTimestamp, comment="When its lease ends; missing unless it is taken."),
    Column("attempts", Integer, nullable=False, server_default=text("0"), comment="How often it was taken."),
    Column("finished_at", UtcTimestamp, comment="When it was done or failed; missing until then."),
    Column("translation", String, comment="The translation; missing until it is done."),
    Column("score", REAL, comment="Log probability over the length penalty, at most 0; missing until it is done."),
    Column(
        "attention",
        JSON(none_as_null=True),
        comment="Weights of the source's pieces for each piece written; missing if not asked for.",
    ),
    Column("reason", String, comment="Why it failed, or what is odd about the text; missing otherwise."),
    CheckConstraint("status in ('queued', 'taken', 'done', 'failed')", name="status"),
    CheckConstraint("attempts >= 0", name="attempts"),
    CheckConstraint("status <> 'taken' or taken_by is not null and taken_until is not null", name="lease"),
    CheckConstraint(f"length(text) <= {LONGEST_TEXT}", name="length"),
    CheckConstraint(
        "(status <> 'done' or translation is not null) and (status <> 'failed' or reason is not null)", name="end"
    ),
    comment="The queue of texts to translate, and their translations.",
    sqlite_autoincrement=True,
)
Index(
    "ix_translation_text_waiting",
    translation_text.c.status,
    translation_text.c.model,
    translation_text.c.priority.desc(),
    translation_text.c.id,
)

translation_score = Table(
    "translation_score",
    metadata,
    Column("id", Integer, primary_key=True, comment="Number given by the store."),
    _model(nullable=False),
    Column("test", String, nullable=False, comment="Name of the test set."),
    Column("test_hash", String, nullable=False, comment="SHA-256 of the test set's pairs."),
    Column("sentences", Integer, nullable=False, comment="Sentences of it."),
    Column("bleu", REAL, nullable=False, comment="BLEU of the whole set, 0 to 100."),
    Column("bleu_low", REAL, comment="Lower end of its bootstrapped 95 % interval; missing if not measured."),
    Column("bleu_high", REAL, comment="Upper end of that interval; missing if not measured."),
    Column("chrf", REAL, nullable=False, comment="chrF of the whole set, 0 to 100."),
    Column("signature", String, nullable=False, comment="How sacreBLEU measured, in its own words."),
    Column("search", JSON, nullable=False, comment="Settings of the search: beams, length penalty."),
    Column("search_text", String, nullable=False, comment="The same as text with sorted keys: a rerun is known by it."),
    Column("against", String, comment="The model it is compared with; missing without a comparison."),
    Column("difference", REAL, comment="BLEU above that of the other model; missing without a comparison."),
    Column("p", REAL, comment="p-value of the difference; missing without a comparison."),
    Column("scored_at", UtcTimestamp, nullable=False, comment="When it was measured."),
    CheckConstraint("sentences > 0", name="sentences"),
    CheckConstraint("bleu >= 0 and chrf >= 0 and p >= 0 and p <= 1", name="ranges"),
    CheckConstraint("against is not null or difference is null and p is null", name="against"),
    UniqueConstraint("model", "test_hash", "search_text", "against"),
    # In the constraint above, one missing value does not equal another.
    Index(
        "ix_translation_score_alone",
        "model",
        "test_hash",
        "search_text",
        unique=True,
        sqlite_where=text("against is null"),
        postgresql_where=text("against is null"),
    ),
    comment="Scores of translation models on test sets, alone and against another model.",
)
