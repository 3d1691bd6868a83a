"""Translation models, their training and their scores are stored once; the
views say what is there.
"""

from datetime import timedelta

import pandas as pd

from db.engine import reading, transaction
from db.read import read
from db.rows import translations
from tests.support.translation_rows import NOW, model, score

LATER = NOW + timedelta(hours=1)


def test_a_test_measured_again_replaces_its_score_and_another_search_or_rival_adds_one(engine):
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


def test_scores_go_with_the_weights_that_they_are_of_and_those_of_other_models_stay(engine):
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
