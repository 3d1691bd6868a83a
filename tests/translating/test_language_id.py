"""Laws of direction: a text in the target language is noticed, one in the
source language is left in peace.
"""

import json

import numpy as np
import pytest

from tests.support.places import SHARED
from translation.data.corpus import Corpus, Pair, Rules, clean
from translation.data.language_id import MIN_PIECES, LanguageIdentifier, piece_counts
from translation.data.tokenizer import BEGIN, END, PAD, Tokenizer
from translation.errors import TranslationError

DATA = SHARED / "translation"
WORDS = (
    "Hund Katze Mann Frau läuft schläft große kleine der die eine auf unter Tisch Haus",
    "dog cat man woman runs sleeps big small the that a on under table house",
)


def made_pairs(count: int, seed: int) -> list[Pair]:
    draw = np.random.default_rng(seed)
    german, english = (words.split() for words in WORDS)
    chosen = [draw.integers(0, len(german), int(draw.integers(8, 20))) for _ in range(count)]
    return [
        (" ".join(german[word] for word in row), " ".join(english[word] for word in row))
        for row in chosen
    ]


def tokenizers(pairs: list[Pair], size: int, *, joint: bool) -> tuple[Tokenizer, Tokenizer]:
    if joint:
        both = Tokenizer.train((text for pair in pairs for text in pair), size)
        return both, both
    return Tokenizer.train((pair[0] for pair in pairs), size), Tokenizer.train(
        (pair[1] for pair in pairs), size
    )


def fitted(pairs: list[Pair], size: int, *, joint: bool) -> tuple[LanguageIdentifier, Tokenizer]:
    source, target = tokenizers(pairs, size, joint=joint)
    return LanguageIdentifier(
        *piece_counts(clean(pairs, source, target, Rules()), source, target)
    ), source


def share(
    direction: LanguageIdentifier, tokenizer: Tokenizer, texts: list[str], *, whole: bool
) -> float:
    """The share that reads like the target language; of `whole` sentences those
    with enough pieces alone.
    """
    rows = [row for row in tokenizer.encode_all(texts) if len(row) >= MIN_PIECES or not whole]
    return sum(direction.reads_like_target(row) for row in rows) / len(rows)


@pytest.mark.parametrize("joint", [True, False], ids=["one vocabulary", "two vocabularies"])
def test_the_other_language_is_noticed_and_the_own_is_not(joint: bool) -> None:
    direction, tokenizer = fitted(made_pairs(300, 0), 400, joint=joint)
    test = made_pairs(200, 1)
    assert share(direction, tokenizer, [source for source, _ in test], whole=False) == 0.0
    assert share(direction, tokenizer, [target for _, target in test], whole=True) == 1.0


def test_few_pieces_are_no_evidence() -> None:
    direction, tokenizer = fitted(made_pairs(300, 0), 400, joint=True)
    tokens = tokenizer.encode("the dog runs under the big table on that house")
    assert direction.reads_like_target(tokens)
    assert not direction.reads_like_target(tokens[: MIN_PIECES - 1])
    assert not direction.reads_like_target([BEGIN, *tokens[: MIN_PIECES - 1], END, PAD])
    assert direction.reads_like_target([BEGIN, *tokens, END, PAD])
    assert not direction.reads_like_target([])


def test_half_a_sentence_of_each_language_is_no_mistake() -> None:
    direction, tokenizer = fitted(made_pairs(300, 0), 400, joint=True)
    for text in (
        "der Hund läuft unter the big table that runs",
        "die kleine Frau schläft on the big house a cat runs",
    ):
        assert not direction.reads_like_target(tokenizer.encode(text))


def test_one_language_on_both_sides_accuses_nobody() -> None:
    counts = np.arange(50)
    direction = LanguageIdentifier(counts, counts)
    assert not direction.reads_like_target(list(range(4, 50)))


def test_counts_are_those_of_the_texts() -> None:
    pairs = made_pairs(50, 0)
    source, target = tokenizers(pairs, 320, joint=False)
    first, second = piece_counts(clean(pairs, source, target, Rules()), source, target)
    for counts, side in ((first, 0), (second, 1)):
        tokens = [token for pair in pairs for token in source.encode(pair[side])]
        assert counts.tolist() == np.bincount(tokens, minlength=source.size).tolist()


def test_it_goes_through_json_unchanged() -> None:
    direction, _ = fitted(made_pairs(100, 0), 320, joint=False)
    again = LanguageIdentifier.from_json(json.loads(json.dumps(direction.to_json())))
    np.testing.assert_array_equal(again.evidence, direction.evidence)


@pytest.mark.parametrize(
    "card",
    [
        {},
        {"source": [1, 2]},
        {"source": [1, 2], "target": [1]},
        {"source": ["a"], "target": ["b"]},
        {"source": [], "target": []},
        {"source": [1, -1], "target": [1, 1]},
        {"source": 3, "target": 3},
    ],
)
def test_damaged_counts_are_one_line(card: dict[str, object]) -> None:
    with pytest.raises(TranslationError, match=r"counts .*damaged"):
        LanguageIdentifier.from_json(card)


@pytest.mark.soak
@pytest.mark.skipif(not DATA.is_dir(), reason="shared data is not beside this clone")
@pytest.mark.parametrize("joint", [True, False], ids=["one vocabulary", "two vocabularies"])
@pytest.mark.parametrize(
    ("name", "source", "target", "tests", "size"),
    [
        (
            "multi30k",
            "en",
            "de",
            ["multi30k/test_2016_flickr", "multi30k/test_2017_flickr"],
            10_000,
        ),
        (
            "tatoeba_ko_en",
            "ko",
            "en",
            ["tatoeba_ko_en/test", "tatoeba_ko_en/val", "jhe_ko_en/test"],
            4_000,
        ),
    ],
)
def test_real_sentences_are_told_apart(
    name: str, source: str, target: str, tests: list[str], size: int, *, joint: bool
) -> None:
    def read(split: str) -> list[Pair]:
        files = (DATA / f"{split}.{language}.txt.gz" for language in (source, target))
        return list(Corpus(*files, name=split).pairs())

    direction, tokenizer = fitted(read(f"{name}/train"), size, joint=joint)
    test = [pair for split in tests for pair in read(split)]
    assert share(direction, tokenizer, [pair[0] for pair in test], whole=True) < 0.005
    assert share(direction, tokenizer, [pair[1] for pair in test], whole=True) > 0.95
