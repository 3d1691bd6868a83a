"""Laws of corpora: lines stay matched, what is wrong is named with its place, what is dropped is
counted.
"""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from translation.data.corpus import Corpus, Rules, check_languages, clean, lines_in
from translation.data.tokenizer import Tokenizer
from translation.errors import TranslationError, UsageError

PAIRS = [(f"a dog runs {number}", f"ein Hund läuft {number}") for number in range(30)]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train((text for pair in PAIRS for text in pair), 400)


def corpus_of(folder, *texts, columns=(0, 1)):
    """A corpus of these files, `first` and `second`, or of the first alone, a table."""
    files = []
    for name, text in zip(("first", "second"), texts, strict=False):
        (file := folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
        files.append(file)
    return Corpus(files[0], files[1] if len(files) > 1 else None, columns, name="made")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False], ids=["last line ended", "last line open"])
def test_line_n_translates_line_n(tmp_path, packed, end, last):
    def lines(texts):
        data = (end.join(texts) + end * last).encode()
        return gzip.compress(data) if packed else data

    sources, targets = zip(*PAIRS, strict=True)
    assert list(corpus_of(tmp_path, lines(sources), lines(targets)).pairs()) == PAIRS
    table = lines([f"7\t{target}\t{source}" for source, target in PAIRS])
    assert list(corpus_of(tmp_path, table, columns=(2, 1)).pairs()) == PAIRS


def test_only_a_newline_ends_a_line_and_an_empty_one_keeps_its_place(tmp_path):
    odd = "one\u2028still one\u0085and\x0band\x0cand\x1cand\rone"
    corpus = corpus_of(tmp_path, f"\ufeff{odd}\n\n\ufefftwo\n", "eins\n\nzwei\n")
    assert list(corpus.pairs()) == [(odd, "eins"), ("", ""), ("\ufefftwo", "zwei")]
    assert list(lines_in([f"\ufeff{odd}\r\n".encode(), b"\n"], "a stream")) == [odd, ""]


PACKED = gzip.compress(np.random.default_rng(0).bytes(5000).hex().encode())
# The files, the kind of error, and what its line says.
MISTAKES = {
    "fewer targets": (("a\n" * 1200, "b\n" * 3), UsageError, "first .*1,200 lines,.*second .*3:"),
    "no sources": (("", "b\n"), UsageError, "first .*0 lines,.*second .*1:"),
    "no line": (("", ""), UsageError, "empty: name"),
    "no row": (("",), UsageError, "empty: name"),
    "not UTF-8": (
        (b"fine\n" * 16 + b"Stra\xdfe\n", "b\n" * 17),
        UsageError,
        r"first .*UTF-8 .*line 17, byte 5 \(0xdf\)",
    ),
    "a row of one column": (
        ("one\teins\ntwo\n",),
        UsageError,
        "first, line 2, lacks columns 0 and 1.* has 1 .*--references",
    ),
    "an end cut": ((PACKED[:-9], "b\n"), TranslationError, "first .*damaged or cut"),
    "a beginning alone": ((PACKED[:5], "b\n"), TranslationError, "first .*damaged or cut"),
    "bytes changed": (
        (PACKED[:1000] + bytes(100) + PACKED[1100:], "b\n"),
        TranslationError,
        "first .*damaged or cut",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_wrong_is_a_line_with_the_file_and_the_place(tmp_path, mistake):
    texts, kind, words = MISTAKES[mistake]
    with pytest.raises(kind, match=words) as told:
        list(corpus_of(tmp_path, *texts).pairs())
    assert "\n" not in str(told.value)


def test_files_that_are_not_there_and_columns_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(UsageError, match="none does not exist"):
        list(Corpus(tmp_path / "none", name="made").pairs())
    with pytest.raises(TranslationError, match="cannot be read"):
        list(Corpus(tmp_path, name="made").pairs())
    with pytest.raises(UsageError, match="two different numbers"):
        corpus_of(tmp_path, "", columns=(1, 1))


def test_examples_hold_the_pieces_of_each_pair(tokenizer):
    examples = clean(PAIRS, tokenizer, tokenizer, Rules())
    found = [tuple(side.tolist() for side in examples[index]) for index in range(len(examples))]
    assert found == [tuple(map(tokenizer.encode, pair)) for pair in PAIRS]
    assert examples.source.lengths.tolist() == [len(source) for source, _ in found]
    with pytest.raises(IndexError):
        examples[len(PAIRS)]


def test_what_is_dropped_is_counted_by_reason(tokenizer):
    odd = [
        ("a", "ein Hund läuft " * 8),
        ("dog " * 99, "Hund " * 99),
        PAIRS[3],
        ("Berlin 1234", "Berlin 1234 "),
    ]
    rules = Rules(longest=60, ratio=3.0, drop_same=True)
    pairs = [*PAIRS, ("", "ein Hund"), ("a dog", " "), *odd]
    examples = clean(pairs, tokenizer, tokenizer, rules)
    assert examples.dropped == {
        "empty": 2,
        "lengths too different": 1,
        "too long": 1,
        "repeated": 1,
        "same on both sides": 1,
    }
    words = "30 of 36 pairs .*: 2 empty, 1 lengths .*, 1 repeated, 1 same .*, 1 too long$"
    assert re.match(words, examples.summary())
    lenient = clean([*PAIRS, *odd], tokenizer, tokenizer, Rules(1000, 1000.0, drop_repeated=False))
    assert (len(lenient), lenient.dropped) == (34, {})


def test_bounds_are_the_last_that_pass_and_are_named_where_no_pair_is_left(tokenizer):
    pair = ("a dog runs", "a dog")
    longer, shorter = (len(tokenizer.encode(text)) for text in pair)
    ratio = (longer + 1) / (shorter + 1)
    assert len(clean([pair], tokenizer, tokenizer, Rules(longest=longer, ratio=ratio))) == 1
    refused = [
        ([pair], Rules(longest=longer - 1), r"raise longest \(now \d"),
        ([pair[::-1]], Rules(ratio=ratio - 0.01), r"raise ratio \(now \d"),
        ([("", "")], Rules(), "both sides"),
        ([], Rules(), "both sides"),
    ]
    for pairs, rules, way_out in refused:
        with pytest.raises(UsageError, match=rf"no pair of \[train\] .*{way_out}"):
            clean(pairs, tokenizer, tokenizer, rules, "[train]")
    for name in ("longest", "ratio"):
        with pytest.raises(ValueError, match=name):
            Rules(**{name: 0})


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("train.de.txt.gz", "train.en.txt.gz", r"train\.de\.txt\.gz says de,.*source.* en: swap"),
        ("val.DE", "val.txt", r"val\.DE says de,.*source.* en: "),
        ("a.txt", "train.en.txt", r"train\.en\.txt says en,.*target.* de: swap"),
        ("train.en.txt.gz", "train.de.txt.gz", None),
        ("en.de.en", "en.de.de", None),
        ("garden.txt", "deen.txt", None),
        ("train.fr.txt", "train.ko.txt", None),
        ("both.de.tsv", None, None),
    ],
)
def test_files_named_for_the_other_language_are_refused(source, target, words):
    corpus = Corpus(Path(source), None if target is None else Path(target), name="made")
    if words is None:
        check_languages(corpus, "en", "de")
    else:
        with pytest.raises(UsageError, match=words):
            check_languages(corpus, "en", "de")
