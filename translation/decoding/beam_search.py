"""Beam search over every network that translates position by position; a greedy search is that of one beam.

The beams of a sentence hold unfinished translations, which are extended together. One that may end among the best of a
step is set aside as finished while the others go on, so a translation that ends late can still win.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from translation.data.tokenizer import BEGIN, END, PAD
from translation.decoding.incremental import IncrementalDecoder
from translation.errors import TranslationError
from translation.out_of_memory import is_out_of_memory

MOST_LEFT = 1 / 8  # of the sentences of a batch: only then are the others brought together, as all memory is copied
BLOCK = 128  # tokens; of widths tried on 10,000 tokens the one at which `best_tokens` was quickest


@dataclass(frozen=True)
class Search:
    """How to search; the defaults are those of Wu et al. (2016) and of section 6.1 of Vaswani et al., with 5 beams.

    Raises `ValueError` for a number out of its range.
    """

    beams: int = 5  # unfinished translations of a sentence, from 1 on
    alpha: float = 0.6  # of the length penalty; 0 for none
    best: int = 1  # translations returned of a sentence, at most `beams`
    extra: int = 50  # tokens that a translation may be longer than its source, neither counted with END
    with_attention: bool = False
    batch_tokens: int = 8192  # source positions of a batch, padding with it, times beams

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise ValueError(f"a search needs at least 1 beam, not {self.beams}")
        if not 1 <= self.best <= self.beams:
            raise ValueError(f"of {self.beams} beams between 1 and {self.beams} are the best, not {self.best}")
        if not (math.isfinite(self.alpha) and self.alpha >= 0):
            raise ValueError(f"alpha must be finite and not negative, not {self.alpha}")
        if self.extra < 0:
            raise ValueError(f"extra must not be negative, not {self.extra}")
        if self.batch_tokens < 1:
            raise ValueError(f"a batch needs at least 1 token, not {self.batch_tokens}")

    def penalty(self, length: int) -> float:
        """((5 + length) / 6)^alpha, where `length` counts END (eq. 14 of Wu et al., 2016)."""
        return float(((5 + length) / 6) ** self.alpha)


GREEDY = Search(beams=1, alpha=0.0)


@dataclass(frozen=True)
class Hypothesis:
    """A translation; `log_probability` is the network's, END's with it, and `score` that divided by the penalty.

    `attention` on request is `[len(tokens) + 1, source positions]` in float32: whence each token came and, in the last
    row, END; the last source position is END's. Rows sum to 1, but for structured attention.
    """

    tokens: tuple[int, ...]  # without BEGIN and END
    score: float
    log_probability: float
    attention: Tensor | None = field(default=None, compare=False)


@torch.no_grad()
def search(
    decoder: IncrementalDecoder,
    sources: Sequence[Sequence[int]],
    how: Search,
    *,
    report: Callable[[int], object] | None = None,
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """Translate `sources`, token numbers without END: in their order the `how.best` best of each, the best first.

    There are fewer where the network has no more to say, and one, without tokens, for an empty source. A translation
    is at most `how.extra` tokens longer than its source: what gets there ends there. `report` is told how many
    sentences were done since it was last called; `device` is where the network is. A batch that finds no memory is
    searched by halves. Raises `TranslationError` when the network's scores are no numbers, and when the memory does
    not suffice for one sentence.
    """
    nothing = Hypothesis((), 0.0, 0.0, torch.ones(1, 1) if how.with_attention else None)
    found = [[] if source else [nothing] for source in sources]
    if report and (empty := sum(not source for source in sources)):
        report(empty)
    waiting = deque(_by_length([len(source) for source in sources], how))
    while waiting:
        batch = waiting.popleft()
        begun = [_Sentence(number, sources[number], how) for number in batch]
        try:
            for sentence in _done(decoder, begun, how, device):
                found[sentence.number] = sentence.answer()
                if report:
                    report(1)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            left = [number for number in batch if not found[number]]
            if len(left) == 1:
                way_out = "fewer beams" if how.beams > 1 else "another device"
                alone = f"one sentence of {len(sources[left[0]])} pieces"
                raise TranslationError(f"out of memory with {alone}: take {way_out}") from error
            waiting.extendleft([left[len(left) // 2 :], left[: len(left) // 2]])
    return found


def _done(
    decoder: IncrementalDecoder, sentences: list["_Sentence"], how: Search, device: torch.device | str
) -> Iterator["_Sentence"]:
    """The sentences of a batch, as they are done."""
    beams = _begin(decoder, sentences, how, device)
    while beams.sentences:
        yield from beams.advance(decoder)


def _by_length(lengths: Sequence[int], how: Search) -> Iterator[list[int]]:
    """Numbers of the sentences that are not empty, the longest first, in batches as large as `how` allows."""
    order = sorted((number for number, length in enumerate(lengths) if length), key=lambda number: -lengths[number])
    while order:
        count = max(1, how.batch_tokens // ((lengths[order[0]] + 1) * how.beams))
        yield order[:count]
        order = order[count:]


def best_tokens(scores: Tensor, so_far: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The highest of `scores` `[sentences, beams, vocabulary]` + `so_far` `[sentences, beams]`, as many as beams.

    Returns sums, beams and tokens, each `[sentences, beams]`, the highest sum first. The best lie in those blocks of
    the vocabulary that have the highest maxima: to sort them alone takes a third of the time of `topk` over all.
    """
    beams, vocabulary = scores.shape[1:]
    whole = vocabulary // BLOCK
    maxima = scores[..., : whole * BLOCK].unflatten(-1, (whole, BLOCK)).amax(dim=-1)
    if whole * BLOCK < vocabulary:
        maxima = torch.cat([maxima, scores[..., whole * BLOCK :].amax(dim=-1, keepdim=True)], dim=-1)
    block = (maxima + so_far.unsqueeze(-1)).flatten(1).topk(beams).indices
    beam, first = block // maxima.shape[-1], block % maxima.shape[-1] * BLOCK
    token = first.unsqueeze(-1) + torch.arange(BLOCK, device=scores.device)  # [sentences, blocks, BLOCK]
    place = beam.unsqueeze(-1) * vocabulary + token.clamp(max=vocabulary - 1)
    sums = scores.flatten(1).gather(1, place.flatten(1)).view_as(token) + so_far.gather(1, beam).unsqueeze(-1)
    top, chosen = sums.masked_fill(token >= vocabulary, -math.inf).flatten(1).topk(beams)
    # With more beams than tokens some of the best are none, and lie outside of the vocabulary.
    return top, beam.gather(1, chosen // BLOCK), token.flatten(1).gather(1, chosen).clamp(max=vocabulary - 1)


class _Sentence:
    """One that is being translated; `finished` are its hypotheses that have ended, the best first."""

    def __init__(self, number: int, source: Sequence[int], how: Search) -> None:
        self.number, self.source, self.how = number, source, how
        self.limit = len(source) + how.extra
        self.furthest = how.penalty(self.limit + 1)
        self.finished: list[Hypothesis] = []
        self.left = False  # it is done, and only its rows are there still

    def is_done(self, length: int, log_probability: float) -> bool:
        """Whether it is at its limit with `length` tokens, or none that goes on can still be returned.

        The most probable of those has this `log_probability`. None can get a score above that divided by the highest
        penalty, as further tokens never add to it. A single beam stops where it ends.
        """
        if length == self.limit or log_probability == -math.inf:
            return True
        if len(self.finished) < self.how.best:
            return False
        return self.how.beams == 1 or log_probability / self.furthest <= self.finished[self.how.best - 1].score

    def answer(self) -> list[Hypothesis]:
        """The best of what has ended."""
        if not self.finished:
            raise TranslationError(
                "the network's scores are no numbers or leave nothing to say: its weights are damaged or its training "
                "diverged; take another checkpoint or train anew"
            )
        return self.finished[: self.how.best]


def _begin(
    decoder: IncrementalDecoder, sentences: list[_Sentence], how: Search, device: torch.device | str
) -> "_Beams":
    """All beams of a sentence are equal at first, so only one of them counts."""
    shape, longest = (len(sentences), how.beams), max(len(each.source) for each in sentences)
    rows = [[*each.source, END, *[PAD] * (longest - len(each.source))] for each in sentences]
    limit = longest + how.extra
    state = decoder.start(torch.tensor(rows, device=device), how.beams, limit + 1)
    tokens = torch.full((*shape, limit + 2), PAD, device=device)
    tokens[..., 0] = BEGIN
    so_far = torch.full(shape, -math.inf, device=device)
    so_far[:, 0] = 0.0
    attention = torch.zeros(*shape, limit + 1, longest + 1, device=device) if how.with_attention else None
    return _Beams(how, state, sentences, tokens, so_far, attention)


@dataclass
class _Beams:
    """Translations under way, `[sentences, beams]`, of a batch; some of its sentences may be done."""

    how: Search
    state: Any
    sentences: list[_Sentence]
    tokens: Tensor  # [sentences, beams, limit + 2]: BEGIN and what followed
    so_far: Tensor  # [sentences, beams]: log probabilities; -inf for a beam without a translation
    attention: Tensor | None  # [sentences, beams, limit + 1, source positions]
    length: int = 0  # tokens after BEGIN
    room: Tensor | None = None  # for scores; to take it anew at each step can cost more than to fill it

    def advance(self, decoder: IncrementalDecoder) -> list[_Sentence]:
        """Go one position on; the sentences that are done with it, which leave."""
        shown = self.attention is not None
        logits, weights = decoder.step(self.state, self.tokens[..., self.length], need_weights=shown)
        if weights is None:
            self.attention = None  # not asked for, or the network has none
        elif self.attention is not None:
            self.attention[:, :, self.length] = weights
        scores = self._log_probabilities(logits)
        ends = scores[..., END] + self.so_far
        scores[..., : END + 1] = -math.inf  # PAD, UNKNOWN and BEGIN are never said
        going, origin, token = best_tokens(scores, self.so_far)
        self._finish(ends, going)
        top = going[:, 0].tolist()
        under_way = [each for each in zip(self.sentences, top, strict=True) if not each[0].left]
        gone = [sentence for sentence, best in under_way if sentence.is_done(self.length, best)]
        for sentence in gone:
            sentence.left = True
        rows = [row for row, sentence in enumerate(self.sentences) if not sentence.left]
        if len(self.sentences) - len(rows) > MOST_LEFT * len(self.sentences) or not rows:
            kept = torch.tensor(rows, dtype=torch.long, device=ends.device)
            self._keep(kept)
            going, origin, token = going[kept], origin[kept], token[kept]
        if self.sentences:
            self._extend(going, origin, token)
        return gone

    def _log_probabilities(self, logits: Tensor) -> Tensor:
        if self.room is None:
            self.room = torch.empty_like(logits)
        return torch.log_softmax(logits, dim=-1, out=self.room[: len(logits)])

    def _finish(self, ends: Tensor, going: Tensor) -> None:
        """Set aside the beams whose END is among the best of this step, and all beams at the limit.

        `ends` are the log probabilities of ending, `going` those of going on.
        """
        among = torch.cat([ends, going], dim=-1).topk(self.how.beams).indices
        chosen = torch.zeros(ends.shape[0], 2 * self.how.beams, dtype=torch.bool, device=ends.device)
        ending = chosen.scatter(1, among, value=True)[:, : self.how.beams] & (ends > -math.inf)
        limits = torch.tensor([sentence.limit for sentence in self.sentences], device=ends.device)
        ending |= (limits == self.length).unsqueeze(-1) & (self.so_far > -math.inf)
        ending &= torch.tensor([not sentence.left for sentence in self.sentences], device=ends.device).unsqueeze(-1)
        rows, beams = ending.nonzero(as_tuple=True)
        said, sums = self.tokens[rows, beams, 1 : self.length + 1].tolist(), ends[rows, beams].tolist()
        for row, beam, tokens, total in zip(rows.tolist(), beams.tolist(), said, sums, strict=True):
            shown = self._shown(row, beam)
            score = total / self.how.penalty(self.length + 1)
            self.sentences[row].finished.append(Hypothesis(tuple(tokens), score, total, shown))
        for row in set(rows.tolist()):
            self.sentences[row].finished.sort(key=lambda each: -each.score)

    def _shown(self, row: int, beam: int) -> Tensor | None:
        """The attention of a beam, without padding; a copy, as the rest goes on."""
        if self.attention is None:
            return None
        positions = len(self.sentences[row].source) + 1
        return self.attention[row, beam, : self.length + 1, :positions].float().cpu().clone()

    def _keep(self, kept: Tensor) -> None:
        self.sentences = [self.sentences[row] for row in kept.tolist()]
        if self.sentences:
            self.state.keep(kept)
            self.tokens = self.tokens[kept]
            self.attention = None if self.attention is None else self.attention[kept]

    def _extend(self, going: Tensor, origin: Tensor, token: Tensor) -> None:
        """Let each beam go on from its `origin` with its `token`; all are `[sentences, beams]`."""
        self.length += 1
        if self.how.beams > 1:  # a single one goes on from itself
            rows = torch.arange(len(origin), device=origin.device).unsqueeze(-1)
            self.tokens = self.tokens[rows, origin]
            self.attention = None if self.attention is None else self.attention[rows, origin]
            self.state.reorder(origin)
        self.tokens[..., self.length] = token
        self.so_far = going
