"""Score translations: BLEU and chrF of sacreBLEU, with intervals and comparisons by bootstrap
(Koehn, 2004).

BLEU is cased, on detokenised text. The tokenizer is sacreBLEU's 13a, or single characters for
Chinese, Japanese and Korean; the signature says which.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from translation.errors import UsageError

BY_CHARACTER = ("ja", "ko", "zh")
UNSPACED = ("ja", "zh")  # no space between sentences
ORDER = 4  # longest n-gram
INTERVAL = (2.5, 97.5)  # percentiles

# [..., 2 + 2 * ORDER]: lengths of hypothesis and reference, n-grams matched, n-grams of the
# hypothesis
Statistics = NDArray[Any]
Texts = Sequence[str]


@dataclass(frozen=True)
class Score:
    """BLEU and chrF of a corpus, 0 to 100, the ends of BLEU's 95 % interval,
    and sacreBLEU's signature of the BLEU.
    """

    bleu: float
    low: float
    high: float
    chrf: float
    signature: str
    sentences: int
    resamples: int
    seed: int


@dataclass(frozen=True)
class Comparison:
    """The difference in BLEU of a first and a second system, the ends of its 95
    % interval, and its p-value.
    """

    difference: float
    low: float
    high: float
    p: float


def score(
    hypotheses: Texts, references: Texts, *, language: str, resamples: int = 1000, seed: int = 0
) -> Score:
    """Score translations into `language`, a code as en or pt-BR, against one reference each.

    The BLEU is sacreBLEU's own. The interval is that of `resamples` corpora of sentences drawn with
    replacement.
    """
    measured = _statistics(hypotheses, references, language)
    metric = BLEU(tokenize=tokenizer_of(language))
    bleu = metric.corpus_score(list(hypotheses), [list(references)]).score
    low, high = np.percentile(_bleu(_resampled(measured, resamples, seed)), INTERVAL)
    chrf = CHRF().corpus_score(list(hypotheses), [list(references)]).score
    return Score(
        bleu,
        float(low),
        float(high),
        chrf,
        metric.get_signature().format(),
        len(measured),
        resamples,
        seed,
    )


def compare(
    first: Texts,
    second: Texts,
    references: Texts,
    *,
    language: str,
    resamples: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Compare two systems' translations of the same sentences by paired bootstrap (Koehn, 2004).

    Both are scored on the same resampled corpora. `p` is two-sided: the share of resampled
    differences at least as far from their mean as the observed difference is from 0, with one added
    to both counts.
    """
    measured = [_statistics(system, references, language) for system in (first, second)]
    better, worse = (float(_bleu(each.sum(axis=0))) for each in measured)
    drawn = [_bleu(_resampled(each, resamples, seed)) for each in measured]
    differences = drawn[0] - drawn[1]
    low, high = np.percentile(differences, INTERVAL)
    as_far = np.abs(differences - differences.mean()) >= abs(better - worse)
    return Comparison(
        better - worse, float(low), float(high), (int(as_far.sum()) + 1) / (resamples + 1)
    )


def tokenizer_of(language: str) -> str:
    """Return the name of sacreBLEU's tokenizer for a target language; a region,
    as in pt-BR, is ignored.
    """
    return "char" if _code(language) in BY_CHARACTER else "13a"


def is_unspaced(language: str) -> bool:
    """Return whether sentences of the language follow each other without a space."""
    return _code(language) in UNSPACED


def _code(language: str) -> str:
    return language.lower().replace("_", "-").split("-")[0]


def _statistics(hypotheses: Texts, references: Texts, language: str) -> Statistics:
    """Count what BLEU needs of each sentence, `[sentences, 2 + 2 * ORDER]`."""
    if len(hypotheses) != len(references):
        counts = f"{len(hypotheses)} translations but {len(references)} references"
        raise UsageError(f"{counts}: give one line each, in the same order")
    if not references:
        raise UsageError(
            "there are no sentences to score: give at least one translation and its reference"
        )
    # The effective order changes no count; sacreBLEU warns without it on single sentences.
    metric = BLEU(tokenize=tokenizer_of(language), effective_order=True)
    found = [
        metric.sentence_score(*pair)
        for pair in zip(hypotheses, ([each] for each in references), strict=True)
    ]
    return np.array(
        [[each.sys_len, each.ref_len, *each.counts, *each.totals] for each in found], dtype=float
    )


def _resampled(measured: Statistics, resamples: int, seed: int) -> Statistics:
    """Sum over corpora drawn with replacement, `[resamples, 2 + 2 * ORDER]`; a
    seed draws the same for all systems.
    """
    if resamples < 1:
        raise UsageError(
            f"{resamples} resamples give no interval: ask for 1 or more, 1000 is usual"
        )
    random, count = np.random.default_rng(seed), len(measured)
    draws = (
        np.bincount(random.integers(count, size=count), minlength=count) for _ in range(resamples)
    )
    return np.array([times @ measured for times in draws])


def _bleu(sums: Statistics) -> NDArray[Any]:
    """Compute BLEU, 0 to 100, of each row of sums `[..., 2 + 2 * ORDER]`."""
    rows = sums.reshape(-1, 2 + 2 * ORDER).astype(int).tolist()
    found = [
        BLEU.compute_bleu(row[2 : 2 + ORDER], row[2 + ORDER :], row[0], row[1], "exp").score
        for row in rows
    ]
    return np.reshape(found, sums.shape[:-1])
