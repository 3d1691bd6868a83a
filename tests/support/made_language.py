"""Generate parallel text of two invented languages, `xa` and `xb`.

`python -m tests.support.made_language FOLDER` writes the corpus of the demonstration in
flows/translating/demo.

Words alone do not suffice to translate: xa does not inflect, xb inflects and puts the verb last. In
xb, adjectives and articles agree with the gender of their noun, the object's article has a case,
verbs inflect for tense and number, and a negation has two parts. Adjectives precede the noun;
adverbs and subordinate clauses precede everything. Some verbs have a prefix that is separate in a
main clause. Each sentence of xa has one translation.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from translation.data.corpus import Pair
from translation.errors import UsageError

LANGUAGES = ("xa", "xb")  # codes of no language in ISO 639
TRAIN = 4000  # pairs
VALIDATION = 200
TEST = 200

Word = TypeVar("Word")


def _words(table: str) -> list[tuple[str, ...]]:
    return [tuple(entry.split("/")) for entry in table.split()]


# Each entry is the word of xa, the stem of xb, and a noun's gender (o, i, u), a verb's prefix if it
# has one, or a pronoun's number.
NOUNS = _words("""
    bano/dorsk/o lume/velt/i sarto/prin/u tiko/gram/o meral/hust/u poska/lind/i veno/tarm/o
    gulda/skir/u nirra/blef/i fanto/morg/o ruvel/snit/u kesto/jarl/i dalmo/brut/o
    wira/fenk/u zolpa/trest/i hando/kvam/o molir/strop/u teska/wern/i borru/plig/o
    lasen/krond/i pirgo/flam/u sunda/brem/i xerro/tilk/o gavel/rund/u
""")
ADJECTIVES = _words(
    "rumi/gelt zale/stark niko/blauw fera/smol tavi/lang obri/frem pelu/dunk seri/warm"
)
VERBS = _words("""
    mapa/sevr/ roda/klim/ tenu/wask/ vila/spel/ garo/trok/ ludi/frag/ sapo/mint/ keru/halv/
    nodi/gang/ab peli/stel/um fari/nem/ab zuno/bring/or birta/rov/um
""")
ADVERBS = _words("oggi/dagens spesu/ofte mora/straks lento/traag")
CONJUNCTIONS = _words("kare/omdat sebi/wenn dumo/terwyl")
PRONOUNS = _words("mi/jok/one tu/dek/one lora/sien/many nola/wiej/many")
NUMBERS = _words("due/twen tris/drin kata/fjor")
# A particle before the verb in xa, and an ending in xb.
TENSES = [
    ("", "a"),
    ("ta", "ode"),
    ("vo", "ush"),
]


@dataclass(frozen=True)
class Phrase:
    """The same words in both languages; `many` says whether they are a plural."""

    xa: str
    xb: str
    many: bool


class SentenceGenerator:
    """A generator of sentences in both languages, from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def sentence(self) -> Pair:
        """Return a main clause, three times in ten with a subordinate one.

        The subordinate clause follows the main one in xa, and precedes it in xb.
        """
        xa, xb = self.clause(main=True)
        if not self.happens(0.3):
            return xa, xb
        conjunction_xa, conjunction_xb = self.one_of(CONJUNCTIONS)
        subordinate_xa, subordinate_xb = self.clause(main=False)
        return f"{xa} {conjunction_xa} {subordinate_xa}", f"{conjunction_xb} {subordinate_xb} {xb}"

    def clause(self, *, main: bool) -> Pair:
        """Return a clause, its words in the order of each language.

        In xa these are subject, verb, object, adverb; in xb adverb, subject, object, verb. The
        prefix of a verb is a word of its own in a `main` clause of xb.
        """
        subject = self.subject()
        thing = self.noun_phrase(is_object=True)
        verb_xa, stem, prefix = self.one_of(VERBS)
        particle, tense = self.one_of(TENSES)
        adverb_xa, adverb_xb = self.one_of(ADVERBS) if self.happens(0.3) else ("", "")
        not_xa, not_first, not_last = ("ne", "ik", "pas") if self.happens(0.25) else ("", "", "")
        verb_xb = stem + tense + ("n" if subject.many else "t")
        if not main:
            verb_xb = prefix + verb_xb
            prefix = ""
        xa = (subject.xa, not_xa, particle, verb_xa, thing.xa, adverb_xa)
        xb = (adverb_xb, subject.xb, prefix, not_first, thing.xb, verb_xb, not_last)
        return _sentence(xa), _sentence(xb)

    def subject(self) -> Phrase:
        """Return a pronoun or a noun phrase."""
        if not self.happens(0.3):
            return self.noun_phrase(is_object=False)
        xa, xb, number = self.one_of(PRONOUNS)
        return Phrase(xa=xa, xb=xb, many=number == "many")

    def noun_phrase(self, *, is_object: bool) -> Phrase:
        """Return a noun with its article, and perhaps a number and an adjective.

        In xa the adjective follows the noun, in xb it precedes it. In xb article and adjective
        agree with the noun's gender and number, and the article of an object has a case.
        """
        noun_xa, noun_xb, gender = self.one_of(NOUNS)
        many = self.happens(0.4)
        number_xa, number_xb = self.one_of(NUMBERS) if many and self.happens(0.5) else ("", "")
        adjective_xa, adjective_xb = self.one_of(ADJECTIVES) if self.happens(0.4) else ("", "")
        is_definite = self.happens(0.6)
        ending = gender + ("s" if many else "")
        article_xa = "la" if is_definite else "un"
        article_xb = ("d" if is_definite else "en") + ending + ("m" if is_object else "")
        if adjective_xb:
            adjective_xb += ending
        if many:
            noun_xa += "ri"
            noun_xb += "er"
        xa = (article_xa, number_xa, noun_xa, adjective_xa)
        xb = (article_xb, number_xb, adjective_xb, noun_xb)
        return Phrase(xa=_sentence(xa), xb=_sentence(xb), many=many)

    def one_of(self, words: Sequence[Word]) -> Word:
        """Return one of `words`, all equally likely."""
        return words[int(self.random.integers(len(words)))]

    def happens(self, chance: float) -> bool:
        """Return True with probability `chance`, 0 to 1."""
        return bool(self.random.random() < chance)


def _sentence(words: Sequence[str]) -> str:
    return " ".join(word for word in words if word)


def made_pairs(count: int, seed: int) -> list[Pair]:
    """Return `count` different sentences of xa with their translations into xb.

    The same seed gives the same pairs.
    """
    if count < 0:
        raise UsageError(f"cannot make {count} sentences: ask for 0 or more")
    generator = SentenceGenerator(seed)
    pairs: dict[str, str] = {}
    while len(pairs) < count:
        source, target = generator.sentence()
        pairs[source] = target
    return list(pairs.items())


def demo_corpus(seed: int) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Return pairs for training, validation and test, which share no sentence of xa."""
    pairs = made_pairs(TRAIN + VALIDATION + TEST, seed)
    return pairs[:TRAIN], pairs[TRAIN : TRAIN + VALIDATION], pairs[TRAIN + VALIDATION :]


def write_corpus(folder: Path, seed: int = 0) -> None:
    """Write the pairs for training, validation and test as tables of two columns."""
    for name, pairs in zip(("train", "validation", "test"), demo_corpus(seed), strict=True):
        lines = (f"{source}\t{target}\n" for source, target in pairs)
        (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    write_corpus(Path(sys.argv[1]))
