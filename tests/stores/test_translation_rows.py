"""Translation models, their training and their scores are stored once; the
views say what is there.
"""

from datetime import timedelta

import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from db import tables
from db.connection.user_sql import select
from db.engine import reading, transaction
from db.errors import StoreError
from db.read import read
from db.rows import translations
from db.save import save
from tests.support.translation_rows import NOW, model, progress, score, seen

LATER = NOW + timedelta(hours=1)
STORED_MODELS = sa.select(tables.translation_model).order_by(tables.translation_model.c.name)


def test_a_model_is_stored_once_and_trained_again_takes_its_place(engine: Engine) -> None:
    again = model(config={"layers": 6}, validation_bleu=39.5, created_at=LATER)
    with transaction(engine) as conn:
        assert [translations.save_model(conn, each) for each in (model(), model(), again)] == [
            1,
            0,
            0,
        ]
        translations.save_model(conn, model("de-en"))
    with reading(engine) as conn:
        stored = [dict(each) for each in conn.execute(STORED_MODELS).mappings()]
    assert stored == [model("de-en"), again]


def test_the_progress_of_a_model_can_be_forgotten(engine: Engine) -> None:
    with transaction(engine) as conn:
        save(conn, "translation_progress", [progress(100), progress(200)])
        save(conn, "translation_progress", progress(100, model="other"))
        assert translations.forget_progress(conn, "en-de") == 2
        assert read(conn, "translation_progress")["model"].tolist() == ["other"]


def test_a_test_measured_again_replaces_its_score_and_another_search_or_rival_adds_one(
    engine: Engine,
) -> None:
    rival = {"against": "rnn", "difference": 2.5, "p": 0.01}
    same = {"length_penalty": 0.6, "beams": 5}
    with transaction(engine) as conn:
        assert translations.save_score(conn, score()) == 1
        assert translations.save_score(conn, score(**rival)) == 1
        assert translations.save_score(conn, score(search=same | {"beams": 1})) == 1
        assert translations.save_score(conn, score(search=same, bleu=35.0, bleu_low=None)) == 0
        assert translations.save_score(conn, score(**rival | {"p": 0.5})) == 0
        translations.save_score(conn, score(model="rnn", bleu=1.0))
    with reading(engine) as conn:
        scores = read(conn, "translation_score", order="model, scored_at, id")
        kept = scores[scores["model"] == "en-de"]
        assert kept["bleu"].tolist() == [35.0, 34.5, 34.5]
        assert kept["bleu_low"].isna().tolist() == [True, False, False]
        assert kept["p"].fillna(-1).tolist() == [-1, 0.5, -1]
        assert [each["beams"] for each in kept["search"]] == [5, 5, 1]
        assert len(scores) == 4


def test_scores_go_with_the_weights_that_they_are_of_and_those_of_other_models_stay(
    engine: Engine,
) -> None:
    with transaction(engine) as conn:
        assert (
            translations.save_model(conn, model())
            == translations.save_model(conn, model("de-en"))
            == 1
        )
        for name, at in (("en-de", LATER), ("de-en", NOW), ("en-de", NOW)):
            translations.save_score(conn, score(model=name, test_hash=f"{at}", scored_at=at))
        assert translations.save_model(conn, model(created_at=LATER)) == 0
        kept = read(conn, "translation_score", order="model, scored_at, id")
        assert kept[["model", "scored_at"]].to_numpy().tolist() == [
            ["de-en", pd.Timestamp(NOW)],
            ["en-de", pd.Timestamp(NOW)],
            ["en-de", pd.Timestamp(LATER)],
        ]
        assert (
            translations.save_model(conn, model(checkpoint_hash="others", tokenizer_hash="others"))
            == 0
        )
        assert read(conn, "translation_score", order="model, scored_at, id")["model"].tolist() == [
            "de-en"
        ]


@pytest.mark.parametrize("against", [None, "rnn"])
def test_the_store_itself_keeps_no_score_twice(engine: Engine, against: str | None) -> None:
    row = score(against=against, search_text="{}")
    with transaction(engine) as conn:
        conn.execute(sa.insert(tables.translation_score), [row])
    with pytest.raises(StoreError, match=r"(?i)unique"), transaction(engine) as conn:
        conn.execute(sa.insert(tables.translation_score), [row])


def test_the_views_name_languages_when_the_model_is_stored_and_its_newest_score(
    engine: Engine,
) -> None:
    with transaction(engine) as conn:
        translations.queue_texts(conn, "en-de", ["A dog."])
        save(conn, "translation_progress", [progress(100)])
        for name in ("translation_job", "translation_training"):
            assert [each["source_language"] for each in seen(conn, name)] == [None]
        translations.save_model(conn, model())
        assert [each["test_bleu"] for each in seen(conn, "translation_model_log")] == [None]
        translations.save_score(conn, score(test="new", test_hash="new", bleu=1.0, scored_at=LATER))
        translations.save_score(conn, score(bleu=2.0))
        for name in (
            "translation_job",
            "translation_training",
            "translation_score_log",
            "translation_model_log",
        ):
            assert {
                (each["source_language"], each["target_language"]) for each in seen(conn, name)
            } == {("en", "de")}
        assert [
            (each["test"], each["test_bleu"]) for each in seen(conn, "translation_model_log")
        ] == [("new", 1.0)]
        assert {each["search"]["beams"] for each in seen(conn, "translation_score_log")} == {5}


def test_a_user_reads_translations_in_sql(engine: Engine, reader: Engine) -> None:
    with transaction(engine) as conn:
        translations.save_model(conn, model())
        ids = translations.queue_texts(conn, "en-de", ["A dog.", "A cat."])
    translations.take_texts(engine, "worker", None, 1)
    with transaction(engine) as conn:
        translations.finish_texts(
            conn, "worker", [{"id": ids[0], "translation": "Ein Hund.", "score": -0.5}]
        )
    sql = (
        "select text, translation from translation_job where target_language = 'de' and status "
        "= 'done'"
    )
    assert select(reader, sql).to_dict("records") == [
        {"text": "A dog.", "translation": "Ein Hund."}
    ]
