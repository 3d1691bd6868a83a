"""Translation: models, how their training went, texts to translate, scores on test sets.

A user queues a text with a plain INSERT of its model and words.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, Column, Index, Integer, String, Table, UniqueConstraint, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from db.tables.columns import REAL, UtcTimestamp, key, metadata, optional, required, table

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


translation_model = table(
    "translation_model",
    key("name", String, "Name of the model."),
    required("kind", String, "Its architecture: transformer, rnn and the like."),
    required("size", String, "Preset of its size: tiny, small, base, big."),
    required("source_language", String, "Language it reads, such as en."),
    required("target_language", String, "Language it writes, such as de."),
    required("parameters", BigInteger, "Weights that were trained."),
    required("vocabulary", Integer, "Pieces of its tokenizer, special ones too."),
    required("pairs", Integer, "Pairs of sentences trained on."),
    required("steps", Integer, "Updates of the weights."),
    required("epochs", REAL, "Passes over the pairs, in parts too."),
    required("config", JSON, "Every setting of data, model and training."),
    required("seed", BigInteger, "Seed of the weights, the order and the dropout."),
    required("code_version", String, "Version of the code that trained."),
    required("folder", String, "Folder of the weights and the tokenizer."),
    required("checkpoint_hash", String, "SHA-256 of the weights."),
    required("tokenizer_hash", String, "SHA-256 of the tokenizer."),
    required("corpus_hash", String, "SHA-256 of the pairs trained on."),
    required("receipt", String, "What names the model and all it was made of."),
    optional("validation_loss", REAL, "Loss per target token on the validation pairs, in nats; missing without."),
    optional("validation_bleu", REAL, "BLEU on the validation pairs, 0 to 100; missing without."),
    required("created_at", UtcTimestamp, "When training ended."),
    CheckConstraint("parameters > 0 and vocabulary > 0 and pairs > 0 and steps >= 0 and epochs >= 0", name="counts"),
    comment="Trained translation models, one row per name.",
)

translation_progress = table(
    "translation_progress",
    _model(primary_key=True),
    key("step", Integer, "Updates of the weights so far."),
    required("epoch", REAL, "Passes over the pairs so far, in parts too."),
    required("tokens", BigInteger, "Target tokens seen so far."),
    required("train_loss", REAL, "Loss per target token since the row before, in nats."),
    optional("validation_loss", REAL, "Loss per target token on the validation pairs; missing if not measured."),
    optional("validation_bleu", REAL, "BLEU on the validation pairs, 0 to 100; missing if not measured."),
    required("learning_rate", REAL, "Learning rate of the step."),
    required("tokens_per_second", REAL, "Target tokens a second since the row before."),
    required("at", UtcTimestamp, "When it was noted."),
    CheckConstraint("step >= 0 and epoch >= 0 and tokens >= 0", name="counts"),
    comment="How the training of a translation model goes, while it runs and afterwards.",
)

translation_text = Table(
    "translation_text",
    metadata,
    Column("id", Integer, primary_key=True, comment="Number given by the store, never given twice."),
    _model(nullable=False),
    required("text", String, "What is to be translated."),
    Column("status", String, nullable=False, server_default="queued", comment="'queued', 'taken', 'done' or 'failed'."),
    Column("priority", Integer, nullable=False, server_default=text("0"), comment="Higher ones are taken first."),
    Column("queued_at", UtcTimestamp, nullable=False, server_default=_Now(), comment="When it was queued."),
    optional("taken_by", String, "The worker that took it last; missing before the first."),
    optional("taken_until", UtcTimestamp, "When its lease ends; missing unless it is taken."),
    Column("attempts", Integer, nullable=False, server_default=text("0"), comment="How often it was taken."),
    optional("finished_at", UtcTimestamp, "When it was done or failed; missing until then."),
    optional("translation", String, "The translation; missing until it is done."),
    optional("score", REAL, "Log probability over the length penalty, at most 0; missing until it is done."),
    optional(
        "attention",
        JSON(none_as_null=True),
        "Weights of the source's pieces for each one written; missing if not asked for.",
    ),
    optional("reason", String, "Why it failed, or what is odd about the text; missing otherwise."),
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

translation_score = table(
    "translation_score",
    Column("id", Integer, primary_key=True, comment="Number given by the store."),
    _model(nullable=False),
    required("test", String, "Name of the test set."),
    required("test_hash", String, "SHA-256 of the test set's pairs."),
    required("sentences", Integer, "Sentences of it."),
    required("bleu", REAL, "BLEU of the whole set, 0 to 100."),
    optional("bleu_low", REAL, "Lower end of its bootstrapped 95 % interval; missing if not measured."),
    optional("bleu_high", REAL, "Upper end of that interval; missing if not measured."),
    required("chrf", REAL, "chrF of the whole set, 0 to 100."),
    required("signature", String, "How sacreBLEU measured, in its own words."),
    required("search", JSON, "Settings of the search: beams, length penalty."),
    required("search_text", String, "The same as text with sorted keys: a rerun is known by it."),
    optional("against", String, "The model it is compared with; missing without a comparison."),
    optional("difference", REAL, "BLEU above that of the other model; missing without a comparison."),
    optional("p", REAL, "p-value of the difference; missing without a comparison."),
    required("scored_at", UtcTimestamp, "When it was measured."),
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
    with_rowid=True,
)
