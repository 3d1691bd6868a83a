"""Laws of corpora: lines stay matched, what is wrong is named with its place,
what is dropped is counted.
"""

import gzip
import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from translation.data.corpus import (
    Corpus,
    Pair,
    Rules,
    check_languages,
    clean,
    lines_in,
)
from translation.data.tokenizer import Tokenizer
from translation.errors import TranslationError, UsageError

PAIRS = [(f"a dog runs {number}", f"ein Hund läuft {number}") for number in range(30)]
Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, content: str | bytes) -> Path:
        file, data = tmp_path / name, content.encode() if isinstance(content, str) else content
        file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return file

    return written


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train((text for pair in PAIRS for text in pair), 400)


def read(source: Path, target: Path | None = None, columns: tuple[int, int] = (0, 1)) -> list[Pair]:
    return list(Corpus(source, target, columns, name="made").pairs())


@pytest.mark.parametrize("kind", ["", ".gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False], ids=["last line ended", "last line open"])
def test_line_n_translates_line_n(write: Write, kind: str, end: str, last: bool) -> None:
    sides = (end.join(side) + end * last for side in zip(*PAIRS, strict=True))
    source, target = (
        write(f"{name}{kind}", text) for name, text in zip(("a", "b"), sides, strict=True)
    )
    assert read(source, target) == PAIRS
    table = write(
        f"t{kind}", end.join(f"7\t{target}\t{source}" for source, target in PAIRS) + end * last
    )
    assert read(table, columns=(2, 1)) == PAIRS


def test_only_a_newline_ends_a_line(write: Write) -> None:
    odd = "one\u2028still one\u0085and\x0band\x0cand\x1cand\rone"
    assert read(write("a", f"{odd}\ntwo\n"), write("b", "eins\nzwei\n")) == [
        (odd, "eins"),
        ("two", "zwei"),
    ]


def test_a_byte_order_mark_is_no_text(write: Write) -> None:
    assert read(write("a", "\ufeffone\n\ufefftwo\n"), write("b", "eins\nzwei\n"))[0] == (
        "one",
        "eins",
    )


def test_gzip_is_known_by_its_content(write: Write) -> None:
    source = write("a.txt", gzip.compress(b"one\n"))
    assert read(source, write("b.gz", "eins\n")) == [("one", "eins")]


def test_an_empty_line_keeps_its_place(write: Write) -> None:
    assert read(write("a", "one\n\nthree\n"), write("b", "eins\n\ndrei\n"))[1:] == [
        ("", ""),
        ("three", "drei"),
    ]


@pytest.mark.parametrize(("sources", "targets"), [(1200, 1199), (3, 1200), (0, 2), (2, 0)])
def test_unequal_files_are_named_with_their_counts(
    write: Write, sources: int, targets: int
) -> None:
    source, target = (
        write("train.en.txt.gz", "a\n" * sources),
        write("train.de.txt.gz", "b\n" * targets),
    )
    message = rf"train\.en\.txt\.gz .*{sources:,} lines,.*train\.de\.txt\.gz .*{targets:,}: "
    with pytest.raises(UsageError, match=message):
        read(source, target)


def test_what_is_not_utf8_is_named_with_its_place(write: Write) -> None:
    source = write("latin.txt", b"fine\n" * 16 + b"Stra\xdfe\n" + b"fine\n")
    with pytest.raises(UsageError, match=r"latin\.txt .*UTF-8 .*line 17, byte 5 \(0xdf\)"):
        read(source, write("b", "b\n" * 18))
    source = write("marked.txt", b"\xef\xbb\xbfStra\xdfe\n")
    with pytest.raises(UsageError, match=r"marked\.txt .*UTF-8 .*line 1, byte 8 \(0xdf\)"):
        read(source, write("b", "b\n"))


@pytest.mark.parametrize("broken", [slice(0, -9), slice(0, 30), slice(0, 5)])
def test_a_cut_gzip_file_is_named(write: Write, tmp_path: Path, broken: slice) -> None:
    whole = gzip.compress("".join(f"line {number}\n" for number in range(5000)).encode())
    source = tmp_path / "cut.gz"
    source.write_bytes(whole[broken])
    with pytest.raises(TranslationError, match=r"cut\.gz .*damaged or cut") as raised:
        read(source, write("b", "b\n" * 5000))
    assert "\n" not in str(raised.value)


def test_a_damaged_gzip_file_is_named(write: Write, tmp_path: Path) -> None:
    content = bytearray(gzip.compress(np.random.default_rng(0).bytes(5000).hex().encode()))
    content[1000:1100] = bytes(100)
    (tmp_path / "bad.gz").write_bytes(content)
    with pytest.raises(TranslationError, match=r"bad.gz"):
        read(tmp_path / "bad.gz", write("b", "b\n"))


def test_missing_files_and_folders_are_named(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none.txt does not exist"):
        read(tmp_path / "none.txt", write("b", "b\n"))
    with pytest.raises(TranslationError, match="cannot be read"):
        read(tmp_path)


def test_an_empty_corpus_is_refused(write: Write) -> None:
    for files in (
        (write("a", ""), write("b", "")),
        (write("t", ""),),
        (write("a.gz", ""), write("b.gz", "")),
    ):
        with pytest.raises(UsageError, match="empty: name"):
            read(*files)


def test_a_row_without_the_columns_is_named(write: Write) -> None:
    table = write("pairs.tsv", "one\teins\ntwo\n")
    with pytest.raises(UsageError, match=r"pairs\.tsv .*1 column .*line 2,.*columns 0 and 1"):
        read(table)
    with pytest.raises(UsageError, match=r"tabs,.*second file .*--references"):
        read(write("a.en", "one\n"))
    with pytest.raises(UsageError, match="two different numbers"):
        read(table, columns=(1, 1))


def test_pairs_are_read_one_by_one(write: Write) -> None:
    pairs = Corpus(
        write("a", "one\n" * 9), write("b", b"eins\n" * 3 + b"\xff\n"), name="made"
    ).pairs()
    assert [next(pairs) for _ in range(3)] == [("one", "eins")] * 3
    with pytest.raises(UsageError, match="line 4"):
        next(pairs)


def test_examples_hold_the_pieces_of_each_pair(tokenizer: Tokenizer) -> None:
    examples = clean(PAIRS, tokenizer, tokenizer, Rules())
    assert len(examples) == len(PAIRS)
    for index, (source, target) in enumerate(PAIRS):
        found = [side.tolist() for side in examples[index]]
        assert found == [tokenizer.encode(source), tokenizer.encode(target)]
        assert [len(side) for side in found] == [
            examples.source.lengths[index],
            examples.target.lengths[index],
        ]
    np.testing.assert_array_equal(examples[-1][0], examples[len(PAIRS) - 1][0])
    with pytest.raises(IndexError):
        examples[len(PAIRS)]
    assert examples.source.tokens.dtype == np.int32


def test_what_is_dropped_is_counted_by_reason(tokenizer: Tokenizer) -> None:
    odd = [
        ("", "ein Hund"),
        ("a dog", " "),
        ("a", "ein Hund läuft " * 8),
        ("dog " * 99, "Hund " * 99),
        PAIRS[3],
    ]
    same = [("Berlin 1234", "Berlin 1234 ")]
    examples = clean(
        [*PAIRS, *odd, *same], tokenizer, tokenizer, Rules(longest=60, ratio=3.0, drop_same=True)
    )
    expected = {
        "empty": 2,
        "lengths too different": 1,
        "too long": 1,
        "repeated": 1,
        "same on both sides": 1,
    }
    assert examples.dropped == expected
    assert re.match(
        "30 of 36 pairs .*: 2 empty, 1 lengths .*, 1 repeated, 1 same .*, 1 too long$",
        examples.summary(),
    )
    lenient = clean(
        [*PAIRS, *odd[2:], *same], tokenizer, tokenizer, Rules(1000, 1000.0, drop_repeated=False)
    )
    assert (len(lenient), lenient.dropped) == (34, {})
    assert re.fullmatch("34 of 34 pairs[^;]*", lenient.summary())


def test_bounds_are_the_last_that_pass(tokenizer: Tokenizer) -> None:
    pair = ("a dog runs", "a dog")
    longer, shorter = (len(tokenizer.encode(text)) for text in pair)
    ratio = (longer + 1) / (shorter + 1)
    assert len(clean([pair], tokenizer, tokenizer, Rules(longest=longer, ratio=ratio))) == 1
    for rules in (Rules(longest=longer - 1), Rules(ratio=ratio - 0.01)):
        with pytest.raises(
            UsageError,
            match=r"no pair .*corpus.*: raise (longest|ratio) \(now \d",
        ):
            clean([pair, pair[::-1]], tokenizer, tokenizer, rules)


@pytest.mark.parametrize("rules", [{"longest": 0}, {"ratio": 0.5}])
def test_rules_that_keep_nothing_are_refused(rules: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="1 or more"):
        Rules(**rules)  # type: ignore[arg-type]


@pytest.mark.parametrize("pairs", [[], [("", "")]])
def test_no_example_is_a_mistake(tokenizer: Tokenizer, pairs: list[Pair]) -> None:
    with pytest.raises(UsageError, match=r"no pair .*\[validation\] .*both sides"):
        clean(pairs, tokenizer, tokenizer, Rules(), "[validation]")


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (
            "train.de.txt.gz",
            "train.en.txt.gz",
            r"train\.de\.txt\.gz says de,.*source.* en: swap",
        ),
        ("val.DE", "val.txt", r"val\.DE says de,.*source.* en: "),
        (
            "a.txt",
            "train.en.txt",
            r"train\.en\.txt says en,.*target.* de: swap",
        ),
        ("train.en.txt.gz", "train.de.txt.gz", None),
        ("europarl.en-de.en", "europarl.en-de.de", None),
        ("en.de.en", "en.de.de", None),
        ("garden.txt", "deen.txt", None),
        ("train.fr.txt", "train.ko.txt", None),
        ("both.de.tsv", None, None),
    ],
)
def test_files_named_for_the_other_language_are_refused(
    source: str, target: str | None, message: str | None
) -> None:
    corpus = Corpus(Path(source), None if target is None else Path(target), name="made")
    if message is None:
        check_languages(corpus, "en", "de")
    else:
        with pytest.raises(UsageError, match=message):
            check_languages(corpus, "en", "de")


def test_only_line_feeds_end_the_lines_of_a_stream() -> None:
    inside = ["one", "t\u2028wo", "th\x0cree", "fo\x85ur", "fi\rve\x1c", "", "seven"]
    given = io.BytesIO(("\ufeff" + "\n".join(inside) + "\r\n").encode())
    assert list(lines_in(given, "standard input")) == inside
    with pytest.raises(UsageError, match=r"standard input.* line 2"):
        list(lines_in(io.BytesIO(b"one\n\xff\n"), "standard input"))
