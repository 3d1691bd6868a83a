"""Search with beams for the best translation by a network that decodes position by position; one
beam is greedy search.

The beams of a sentence hold unfinished translations, which are extended together. One whose end is
among the best of a step is set aside as finished while the others continue, so a translation that
ends late can still win.
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
from translation.errors import TranslationError, UsageError
from translation.out_of_memory import is_out_of_memory

MAX_DONE = (
    1 / 8
    # share of sentences that are done but stay in a batch: to drop them copies the state of all
    # others
)
BLOCK = 128  # tokens; the width at which `best_tokens` was fastest on a vocabulary of 10,000


@dataclass(frozen=True)
class Search:
    """Settings of a search, by default those of Wu et al. (2016) and section 6.1 of Vaswani et al.,
    but 5 beams.

    It ends when as many translations have ended as there are beams, or none can be better than
    those. `exact` waits for the second alone, which with a large `alpha` comes with the limit of
    tokens. Raises UsageError for a number out of its range.
    """

    beams: int = 5  # unfinished translations of a sentence
    alpha: float = 0.6  # of the length penalty; 0 for none
    best: int = 1  # translations to return of a sentence, at most `beams`
    extra: int = 50  # limit of tokens beyond the length of the source, END not counted
    exact: bool = False
    with_attention: bool = False
    batch_tokens: int = 8192  # source positions of a batch, padding included, times beams

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise UsageError(f"a search needs at least 1 beam, not {self.beams}")
        if not 1 <= self.best <= self.beams:
            raise UsageError(f"best must be between 1 and the {self.beams} beams, not {self.best}")
        if not (math.isfinite(self.alpha) and self.alpha >= 0):
            raise UsageError(f"alpha must be finite and not negative, not {self.alpha}")
        if self.extra < 0:
            raise UsageError(f"extra must not be negative, not {self.extra}")
        if self.batch_tokens < 1:
            raise UsageError(f"a batch needs at least 1 token, not {self.batch_tokens}")

    def penalty(self, length: int) -> float:
        """Return ((5 + length) / 6)^alpha, where `length` counts END (eq. 14 of
        Wu et al., 2016).
        """
        return float(((5 + length) / 6) ** self.alpha)


GREEDY = Search(beams=1, alpha=0.0)


@dataclass(frozen=True)
class Hypothesis:
    """A translation; `log_probability` is the network's, with END, and `score` is that divided by
    the penalty.

    `attention` on request is `[len(tokens) + 1, source positions]` in float32: the weights of each
    token and, in the last row, of END; the last source position is END too. Rows sum to 1, except
    with structured attention.
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
    """Translate `sources`, token numbers without END; return the `how.best` best of each, in order,
    the best first.

    There are fewer if no more have a probability above 0, and one, without tokens, for an empty
    source. A translation is cut at `how.extra` tokens more than its source. `report` gets the
    number of sentences done since its last call; `device` is the network's. If memory runs out, the
    batch is halved. Raises TranslationError if the network's scores are NaN, or memory does not
    suffice for one sentence.
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
            beams = _begin(decoder, begun, how, device)
            while beams.sentences:
                for sentence in beams.advance(decoder):
                    found[sentence.number] = sentence.answer()
                    if report:
                        report(1)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            unfinished = [number for number in batch if not found[number]]
            if len(unfinished) == 1:
                way_out = "fewer beams" if how.beams > 1 else "another device"
                alone = f"one sentence of {len(sources[unfinished[0]])} pieces"
                raise TranslationError(f"out of memory with {alone}: use {way_out}") from error
            waiting.extendleft(
                [unfinished[len(unfinished) // 2 :], unfinished[: len(unfinished) // 2]]
            )
    return found


def _by_length(lengths: Sequence[int], how: Search) -> Iterator[list[int]]:
    """Yield the numbers of sentences that are not empty, the longest first, in
    batches as large as `how` allows.
    """
    order = sorted(
        (number for number, length in enumerate(lengths) if length),
        key=lambda number: -lengths[number],
    )
    while order:
        count = max(1, how.batch_tokens // ((lengths[order[0]] + 1) * how.beams))
        yield order[:count]
        order = order[count:]


def best_tokens(scores: Tensor, so_far: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the highest of `scores` `[sentences, beams, vocabulary]` + `so_far` `[sentences,
    beams]`, one a beam.

    Returns sums, beams and tokens, each `[sentences, beams]`, the highest sum first. They lie in
    the blocks of the vocabulary with the highest maxima: to sort these alone takes a third of the
    time of `topk` over all.
    """
    beams, vocabulary = scores.shape[1:]
    whole = vocabulary // BLOCK
    maxima = scores[..., : whole * BLOCK].unflatten(-1, (whole, BLOCK)).amax(dim=-1)
    if whole * BLOCK < vocabulary:
        maxima = torch.cat(
            [maxima, scores[..., whole * BLOCK :].amax(dim=-1, keepdim=True)], dim=-1
        )
    block = (maxima + so_far.unsqueeze(-1)).flatten(1).topk(beams).indices
    beam, first = block // maxima.shape[-1], block % maxima.shape[-1] * BLOCK
    # [sentences, blocks, BLOCK]
    token = first.unsqueeze(-1) + torch.arange(BLOCK, device=scores.device)
    place = beam.unsqueeze(-1) * vocabulary + token.clamp(max=vocabulary - 1)
    sums = scores.flatten(1).gather(1, place.flatten(1)).view_as(token) + so_far.gather(
        1, beam
    ).unsqueeze(-1)
    top, chosen = sums.masked_fill(token >= vocabulary, -math.inf).flatten(1).topk(beams)
    # With more beams than tokens, some of them lie outside of the vocabulary, with a sum of -inf.
    return (
        top,
        beam.gather(1, chosen // BLOCK),
        token.flatten(1).gather(1, chosen).clamp(max=vocabulary - 1),
    )


class _Sentence:
    """A sentence in translation; `finished` holds its complete hypotheses, the best first."""

    def __init__(self, number: int, source: Sequence[int], how: Search) -> None:
        self.number, self.source, self.how = number, source, how
        self.limit = len(source) + how.extra
        self.furthest = how.penalty(self.limit + 1)
        self.finished: list[Hypothesis] = []
        self.done = False  # its rows may stay in the batch

    def is_done(self, length: int, log_probability: float) -> bool:
        """Return whether `length` tokens are the limit, enough have ended, or none unfinished can
        be among the best.

        The most probable of these has `log_probability`, which further tokens only lower: no score
        can exceed it divided by the highest penalty. A single beam stops at its end.
        """
        if length == self.limit or log_probability == -math.inf:
            return True
        if len(self.finished) < self.how.best:
            return False
        if len(self.finished) >= self.how.beams and not self.how.exact:
            return True
        return (
            self.how.beams == 1
            or log_probability / self.furthest <= self.finished[self.how.best - 1].score
        )

    def answer(self) -> list[Hypothesis]:
        """Return the best hypotheses; raises TranslationError if there is none."""
        if not self.finished:
            raise TranslationError(
                "the network's scores are not numbers or give every token probability 0: its "
                "weights are damaged or its "
                "training diverged; use another checkpoint or train again"
            )
        return self.finished[: self.how.best]


def _begin(
    decoder: IncrementalDecoder, begun: list[_Sentence], how: Search, device: torch.device | str
) -> "_Beams":
    """Start a batch; the beams of a sentence are equal at first, so only one
    has a probability above 0.
    """
    shape, longest = (len(begun), how.beams), max(len(each.source) for each in begun)
    rows = [[*each.source, END, *[PAD] * (longest - len(each.source))] for each in begun]
    limit = longest + how.extra
    state = decoder.start(torch.tensor(rows, device=device), how.beams, limit + 1)
    tokens = torch.full((*shape, limit + 2), PAD, device=device)
    tokens[..., 0] = BEGIN
    so_far = torch.full(shape, -math.inf, device=device)
    so_far[:, 0] = 0.0
    attention = (
        torch.zeros(*shape, limit + 1, longest + 1, device=device) if how.with_attention else None
    )
    return _Beams(how, state, begun, tokens, so_far, attention)


@dataclass
class _Beams:
    """The unfinished translations `[sentences, beams]` of a batch, some of
    whose sentences may be done.
    """

    how: Search
    state: Any
    sentences: list[_Sentence]
    tokens: Tensor  # [sentences, beams, limit + 2]: BEGIN and what followed
    so_far: Tensor  # [sentences, beams]: log probabilities; -inf for a beam without a translation
    attention: Tensor | None  # [sentences, beams, limit + 1, source positions]
    length: int = 0  # tokens after BEGIN
    # for scores; to allocate it at each step can cost more than to fill it
    buffer: Tensor | None = None

    def advance(self, decoder: IncrementalDecoder) -> list[_Sentence]:
        """Decode one position; return the sentences that are done by it."""
        shown = self.attention is not None
        logits, weights = decoder.step(
            self.state, self.tokens[..., self.length], need_weights=shown
        )
        if weights is None:
            self.attention = None  # not asked for, or the network has no attention
        elif self.attention is not None:
            self.attention[:, :, self.length] = weights
        if self.buffer is None:
            self.buffer = torch.empty_like(logits)
        scores = torch.log_softmax(logits, dim=-1, out=self.buffer[: len(logits)])
        ends = scores[..., END] + self.so_far
        scores[..., : END + 1] = -math.inf  # PAD, UNKNOWN and BEGIN are never output
        going, origin, token = best_tokens(scores, self.so_far)
        self._finish(ends, going)
        running = [
            each
            for each in zip(self.sentences, going[:, 0].tolist(), strict=True)
            if not each[0].done
        ]
        gone = [sentence for sentence, best in running if sentence.is_done(self.length, best)]
        for sentence in gone:
            sentence.done = True
        rows = [row for row, sentence in enumerate(self.sentences) if not sentence.done]
        if len(self.sentences) - len(rows) > MAX_DONE * len(self.sentences) or not rows:
            kept = torch.tensor(rows, dtype=torch.long, device=ends.device)
            self._keep(kept)
            going, origin, token = going[kept], origin[kept], token[kept]
        if self.sentences:
            self._extend(going, origin, token)
        return gone

    def _finish(self, ends: Tensor, going: Tensor) -> None:
        """Set aside the beams whose END is among the best of this step, and all
        beams at the limit.
        """
        # `ends` are the log probabilities of ending, `going` those of continuing.
        among = torch.cat([ends, going], dim=-1).topk(self.how.beams).indices
        chosen = torch.zeros(
            ends.shape[0], 2 * self.how.beams, dtype=torch.bool, device=ends.device
        )
        ending = chosen.scatter(1, among, value=True)[:, : self.how.beams] & (ends > -math.inf)
        limits = torch.tensor([sentence.limit for sentence in self.sentences], device=ends.device)
        ending |= (limits == self.length).unsqueeze(-1) & (self.so_far > -math.inf)
        ending &= torch.tensor(
            [not sentence.done for sentence in self.sentences], device=ends.device
        ).unsqueeze(-1)
        rows, beams = ending.nonzero(as_tuple=True)
        said, sums = (
            self.tokens[rows, beams, 1 : self.length + 1].tolist(),
            ends[rows, beams].tolist(),
        )
        for row, beam, tokens, total in zip(rows.tolist(), beams.tolist(), said, sums, strict=True):
            shown = self._shown(row, beam)
            score = total / self.how.penalty(self.length + 1)
            self.sentences[row].finished.append(Hypothesis(tuple(tokens), score, total, shown))
        for row in set(rows.tolist()):
            self.sentences[row].finished.sort(key=lambda each: -each.score)

    def _shown(self, row: int, beam: int) -> Tensor | None:
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
        """Continue each beam from its `origin` with its `token`; all are `[sentences, beams]`."""
        self.length += 1
        if self.how.beams > 1:  # a single one continues itself
            rows = torch.arange(len(origin), device=origin.device).unsqueeze(-1)
            self.tokens = self.tokens[rows, origin]
            self.attention = None if self.attention is None else self.attention[rows, origin]
            self.state.reorder(origin)
        self.tokens[..., self.length] = token
        self.so_far = going
