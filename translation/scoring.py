"""Score translations: BLEU and chrF of sacreBLEU, with intervals and comparisons by bootstrap.

The bootstrap is that of Koehn (2004). BLEU is cased, on detokenised, composed text; the tokenizer
is 13a, or single characters (`translation.data.languages`), as the signature says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from translation.data.languages import BleuTokenizer, composed, tokenizer_of
from translation.errors import UsageError

ORDER = 4  # longest n-gram
INTERVAL = (2.5, 97.5)  # percentiles

# The counts from which BLEU is computed, of each sentence or corpus: [..., 2 + 2 * ORDER]. The last
# axis has the lengths of hypothesis and reference, and for each length of n-gram first the number
# that matched, then the number in the hypothesis.
Statistics = NDArray[Any]
Texts = Sequence[str]


@dataclass(frozen=True)
class Score:
    """BLEU and chrF of a corpus, 0 to 100."""

    bleu: float
    low: float  # the ends of BLEU's 95 % interval
    high: float
    chrf: float
    tokenizer: str  # sacreBLEU's, of the BLEU, such as 13a or char
    signature: str  # sacreBLEU's, of the BLEU, which names the tokenizer too
    sentences: int
    resamples: int
    seed: int


@dataclass(frozen=True)
class Comparison:
    """The BLEU of a first system less that of a second, in points, and the p-value of `compare`."""

    difference: float
    low: float  # the ends of its 95 % interval
    high: float
    p: float


def score(
    hypotheses: Texts,
    references: Texts,
    *,
    tokenizer: BleuTokenizer | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Score:
    """Score translations against one reference each.

    `tokenizer` is by default `tokenizer_of` the references. The 95 % interval is of `resamples`
    corpora of sentences drawn with replacement. Raises UsageError if the tokenizer is not
    installed.
    """
    outputs = [composed(text) for text in hypotheses]
    expected = [composed(text) for text in references]
    chosen = tokenizer or tokenizer_of(expected)
    statistics = _statistics(outputs, expected, chosen)
    metric = bleu_metric(chosen)
    bleu = metric.corpus_score(outputs, [expected])
    chrf = CHRF().corpus_score(outputs, [expected])
    resampled_bleu = _bleu(_resampled(statistics, resamples, seed))
    low, high = np.percentile(resampled_bleu, INTERVAL)
    return Score(
        bleu=bleu.score,
        low=float(low),
        high=float(high),
        chrf=chrf.score,
        tokenizer=chosen,
        signature=metric.get_signature().format(),
        sentences=len(statistics),
        resamples=resamples,
        seed=seed,
    )


def compare(
    first: Texts,
    second: Texts,
    references: Texts,
    *,
    tokenizer: BleuTokenizer | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Compare two systems' translations of the same sentences by paired bootstrap (Koehn, 2004).

    `p` is two-sided: the share of resampled differences at least as far from their mean as the
    observed one from 0, with one added to both counts. Raises UsageError as `score`.
    """
    expected = [composed(text) for text in references]
    chosen = tokenizer or tokenizer_of(expected)
    first_statistics = _statistics([composed(text) for text in first], expected, chosen)
    second_statistics = _statistics([composed(text) for text in second], expected, chosen)
    difference = _corpus_bleu(first_statistics) - _corpus_bleu(second_statistics)
    first_resampled = _bleu(_resampled(first_statistics, resamples, seed))
    second_resampled = _bleu(_resampled(second_statistics, resamples, seed))
    differences = first_resampled - second_resampled
    low, high = np.percentile(differences, INTERVAL)
    as_far = np.abs(differences - differences.mean()) >= abs(difference)
    return Comparison(
        difference=difference,
        low=float(low),
        high=float(high),
        p=(int(as_far.sum()) + 1) / (resamples + 1),
    )


def bleu_metric(tokenizer: BleuTokenizer, *, of_sentences: bool = False) -> BLEU:
    """Return sacreBLEU's metric BLEU with a tokenizer, `of_sentences` with an effective order.

    Raises UsageError for a tokenizer whose dictionary is not installed.
    """
    try:
        return BLEU(tokenize=tokenizer, effective_order=of_sentences)
    except RuntimeError as error:
        extra, _, _ = tokenizer.partition("-")
        raise UsageError(
            f"the tokenizer {tokenizer} needs a dictionary: pip install 'sacrebleu[{extra}]', or "
            "choose the tokenizer char"
        ) from error


def _statistics(hypotheses: Texts, references: Texts, tokenizer: BleuTokenizer) -> Statistics:
    """Return the statistics of each sentence of composed texts, `[sentences, 2 + 2 * ORDER]`."""
    metric = bleu_metric(tokenizer, of_sentences=True)  # only its counts are used
    rows: list[list[int]] = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        sentence = metric.sentence_score(hypothesis, [reference])
        rows.append([sentence.sys_len, sentence.ref_len, *sentence.counts, *sentence.totals])
    return np.array(rows, dtype=float)


def _resampled(statistics: Statistics, resamples: int, seed: int) -> Statistics:
    """Return the sums over corpora drawn with replacement, the same for every system."""
    random = np.random.default_rng(seed)
    count = len(statistics)
    resampled: list[Statistics] = []
    for _ in range(resamples):
        sample = random.integers(count, size=count)
        times_drawn = np.bincount(sample, minlength=count)
        resampled.append(times_drawn @ statistics)
    return np.array(resampled)


def _corpus_bleu(statistics: Statistics) -> float:
    return float(_bleu(statistics.sum(axis=0)))


def _bleu(statistics: Statistics) -> NDArray[Any]:
    """Compute BLEU, 0 to 100, of each corpus from its statistics `[..., 2 + 2 * ORDER]`."""
    scores: list[float] = []
    for row in statistics.reshape(-1, 2 + 2 * ORDER).astype(int).tolist():
        bleu = BLEU.compute_bleu(
            correct=row[2 : 2 + ORDER],
            total=row[2 + ORDER :],
            sys_len=row[0],
            ref_len=row[1],
            smooth_method="exp",
        )
        scores.append(bleu.score)
    return np.reshape(scores, statistics.shape[:-1])
