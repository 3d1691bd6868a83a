"""Translation: models, their training, texts to translate, scores, and views of them.

Frozen: db/schema.py and db/views.py say what holds today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

TEXT = sa.String()
REAL = sa.Float(53)
MOMENT = sa.DateTime(timezone=True)

TRANSLATION_JOB = """
create view translation_job as
select
    t.id, t.model, m.source_language, m.target_language, t.text, t.status, t.priority, t.queued_at, t.finished_at,
    t.translation, t.score, t.attempts, t.reason
from translation_text t
left join translation_model m on m.name = t.model
"""

TRANSLATION_MODEL_LOG = """
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
)
"""

TRANSLATION_SCORE_LOG = """
create view translation_score_log as
select
    s.model, m.source_language, m.target_language, s.test, s.test_hash, s.sentences, s.bleu, s.bleu_low, s.bleu_high,
    s.chrf, s.signature, s.search, s.against, s.difference, s.p, s.scored_at
from translation_score s
left join translation_model m on m.name = s.model
"""

TRANSLATION_TRAINING = """
create view translation_training as
select
    t.model, m.source_language, m.target_language, t.step, t.epoch, t.tokens, t.train_loss, t.validation_loss,
    t.validation_bleu, t.learning_rate, t.tokens_per_second, t.at
from translation_progress t
left join translation_model m on m.name = t.model
"""

VIEWS = {
    "translation_job": TRANSLATION_JOB,
    "translation_model_log": TRANSLATION_MODEL_LOG,
    "translation_score_log": TRANSLATION_SCORE_LOG,
    "translation_training": TRANSLATION_TRAINING,
}
TABLES = ("translation_model", "translation_progress", "translation_text", "translation_score")

# A moment with a fraction, in UTC, as the store writes it: SQLite's current_timestamp has none.
NOW = {"sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now')", "postgresql": "now()"}


def upgrade() -> None:
    create_translation_model()
    create_translation_progress()
    create_translation_text()
    create_translation_score()
    for text in VIEWS.values():
        op.execute(text)


def downgrade() -> None:
    for view in VIEWS:
        op.execute(f"drop view {view}")
    for table in TABLES:
        op.drop_table(table)


def create_translation_model() -> None:
    op.create_table(
        "translation_model",
        sa.Column("name", TEXT, nullable=False, comment="Name of the model."),
        sa.Column("kind", TEXT, nullable=False, comment="Its architecture: transformer, rnn and the like."),
        sa.Column("size", TEXT, nullable=False, comment="Preset of its size: tiny, small, base, big."),
        sa.Column("source_language", TEXT, nullable=False, comment="Language it reads, such as en."),
        sa.Column("target_language", TEXT, nullable=False, comment="Language it writes, such as de."),
        sa.Column("parameters", sa.BigInteger, nullable=False, comment="Weights that were trained."),
        sa.Column("vocabulary", sa.Integer, nullable=False, comment="Pieces of its tokenizer, special ones too."),
        sa.Column("pairs", sa.Integer, nullable=False, comment="Pairs of sentences trained on."),
        sa.Column("steps", sa.Integer, nullable=False, comment="Updates of the weights."),
        sa.Column("epochs", REAL, nullable=False, comment="Passes over the pairs, in parts too."),
        sa.Column("config", sa.JSON, nullable=False, comment="Every setting of data, model and training."),
        sa.Column("seed", sa.BigInteger, nullable=False, comment="Seed of the weights, the order and the dropout."),
        sa.Column("code_version", TEXT, nullable=False, comment="Version of the code that trained."),
        sa.Column("folder", TEXT, nullable=False, comment="Folder of the weights and the tokenizer."),
        sa.Column("checkpoint_hash", TEXT, nullable=False, comment="SHA-256 of the weights."),
        sa.Column("tokenizer_hash", TEXT, nullable=False, comment="SHA-256 of the tokenizer."),
        sa.Column("corpus_hash", TEXT, nullable=False, comment="SHA-256 of the pairs trained on."),
        sa.Column("receipt", TEXT, nullable=False, comment="What names the model and all it was made of."),
        sa.Column(
            "validation_loss", REAL, comment="Loss per target token on the validation pairs, in nats; missing without."
        ),
        sa.Column("validation_bleu", REAL, comment="BLEU on the validation pairs, 0 to 100; missing without."),
        sa.Column("created_at", MOMENT, nullable=False, comment="When training ended."),
        sa.CheckConstraint(
            "parameters > 0 and vocabulary > 0 and pairs > 0 and steps >= 0 and epochs >= 0",
            name=op.f("ck_translation_model_counts"),
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_translation_model")),
        comment="Trained translation models, one row per name.",
        sqlite_with_rowid=False,
    )


def create_translation_progress() -> None:
    op.create_table(
        "translation_progress",
        sa.Column("model", TEXT, nullable=False, comment="Name of the model, which may not be stored yet."),
        sa.Column("step", sa.Integer, autoincrement=False, nullable=False, comment="Updates of the weights so far."),
        sa.Column("epoch", REAL, nullable=False, comment="Passes over the pairs so far, in parts too."),
        sa.Column("tokens", sa.BigInteger, nullable=False, comment="Target tokens seen so far."),
        sa.Column("train_loss", REAL, nullable=False, comment="Loss per target token since the row before, in nats."),
        sa.Column(
            "validation_loss", REAL, comment="Loss per target token on the validation pairs; missing if not measured."
        ),
        sa.Column("validation_bleu", REAL, comment="BLEU on the validation pairs, 0 to 100; missing if not measured."),
        sa.Column("learning_rate", REAL, nullable=False, comment="Learning rate of the step."),
        sa.Column("tokens_per_second", REAL, nullable=False, comment="Target tokens a second since the row before."),
        sa.Column("at", MOMENT, nullable=False, comment="When it was noted."),
        sa.CheckConstraint("step >= 0 and epoch >= 0 and tokens >= 0", name=op.f("ck_translation_progress_counts")),
        sa.PrimaryKeyConstraint("model", "step", name=op.f("pk_translation_progress")),
        comment="How the training of a translation model goes, while it runs and afterwards.",
        sqlite_with_rowid=False,
    )


def create_translation_text() -> None:
    op.create_table(
        "translation_text",
        sa.Column("id", sa.Integer, nullable=False, comment="Number given by the store, never given twice."),
        sa.Column("model", TEXT, nullable=False, comment="Name of the model, which may not be stored yet."),
        sa.Column("text", TEXT, nullable=False, comment="What is to be translated."),
        sa.Column(
            "status", TEXT, nullable=False, server_default="queued", comment="'queued', 'taken', 'done' or 'failed'."
        ),
        sa.Column(
            "priority", sa.Integer, nullable=False, server_default=sa.text("0"), comment="Higher ones are taken first."
        ),
        sa.Column(
            "queued_at",
            MOMENT,
            nullable=False,
            server_default=sa.text(NOW[op.get_bind().dialect.name]),
            comment="When it was queued.",
        ),
        sa.Column("taken_by", TEXT, comment="The worker that took it last; missing before the first."),
        sa.Column("taken_until", MOMENT, comment="When its lease ends; missing unless it is taken."),
        sa.Column(
            "attempts", sa.Integer, nullable=False, server_default=sa.text("0"), comment="How often it was taken."
        ),
        sa.Column("finished_at", MOMENT, comment="When it was done or failed; missing until then."),
        sa.Column("translation", TEXT, comment="The translation; missing until it is done."),
        sa.Column(
            "score", REAL, comment="Log probability over the length penalty, at most 0; missing until it is done."
        ),
        sa.Column(
            "attention",
            sa.JSON,
            comment="Weights of the source's pieces for each piece written; missing if not asked for.",
        ),
        sa.Column("reason", TEXT, comment="Why it failed, or what is odd about the text; missing otherwise."),
        sa.CheckConstraint("attempts >= 0", name=op.f("ck_translation_text_attempts")),
        sa.CheckConstraint(
            "(status <> 'done' or translation is not null) and (status <> 'failed' or reason is not null)",
            name=op.f("ck_translation_text_end"),
        ),
        sa.CheckConstraint(
            "status <> 'taken' or taken_by is not null and taken_until is not null",
            name=op.f("ck_translation_text_lease"),
        ),
        sa.CheckConstraint("status in ('queued', 'taken', 'done', 'failed')", name=op.f("ck_translation_text_status")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_translation_text")),
        comment="The queue of texts to translate, and their translations.",
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_translation_text_waiting", "translation_text", ["status", "model", sa.text("priority desc"), "id"]
    )


def create_translation_score() -> None:
    op.create_table(
        "translation_score",
        sa.Column("id", sa.Integer, nullable=False, comment="Number given by the store."),
        sa.Column("model", TEXT, nullable=False, comment="Name of the model, which may not be stored yet."),
        sa.Column("test", TEXT, nullable=False, comment="Name of the test set."),
        sa.Column("test_hash", TEXT, nullable=False, comment="SHA-256 of the test set's pairs."),
        sa.Column("sentences", sa.Integer, nullable=False, comment="Sentences of it."),
        sa.Column("bleu", REAL, nullable=False, comment="BLEU of the whole set, 0 to 100."),
        sa.Column("bleu_low", REAL, comment="Lower end of its bootstrapped 95 % interval; missing if not measured."),
        sa.Column("bleu_high", REAL, comment="Upper end of that interval; missing if not measured."),
        sa.Column("chrf", REAL, nullable=False, comment="chrF of the whole set, 0 to 100."),
        sa.Column("signature", TEXT, nullable=False, comment="How sacreBLEU measured, in its own words."),
        sa.Column("search", sa.JSON, nullable=False, comment="Settings of the search: beams, length penalty."),
        sa.Column(
            "search_text", TEXT, nullable=False, comment="The same as text with sorted keys: a rerun is known by it."
        ),
        sa.Column("against", TEXT, comment="The model it is compared with; missing without a comparison."),
        sa.Column("difference", REAL, comment="BLEU above that of the other model; missing without a comparison."),
        sa.Column("p", REAL, comment="p-value of the difference; missing without a comparison."),
        sa.Column("scored_at", MOMENT, nullable=False, comment="When it was measured."),
        sa.CheckConstraint(
            "against is not null or difference is null and p is null", name=op.f("ck_translation_score_against")
        ),
        sa.CheckConstraint("bleu >= 0 and chrf >= 0 and p >= 0 and p <= 1", name=op.f("ck_translation_score_ranges")),
        sa.CheckConstraint("sentences > 0", name=op.f("ck_translation_score_sentences")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_translation_score")),
        sa.UniqueConstraint(
            "model",
            "test_hash",
            "search_text",
            "against",
            name=op.f("uq_translation_score_model_test_hash_search_text_against"),
        ),
        comment="Scores of translation models on test sets, alone and against another model.",
    )
    alone = sa.text("against is null")
    op.create_index(
        "ix_translation_score_alone",
        "translation_score",
        ["model", "test_hash", "search_text"],
        unique=True,
        sqlite_where=alone,
        postgresql_where=alone,
    )
