"""Search with beams for the best translation by a network that decodes position by position.

At each step, ending a translation competes with the ways to extend all beams of its sentence. Ended
ones are set aside while the others continue. One beam is greedy search.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from translation.data.tokenizer import BEGIN, END, PAD
from translation.errors import TranslationError, UsageError
from translation.out_of_memory import is_out_of_memory
from translation.transformer import Weights

# The share of a batch's sentences that may be done before these are dropped: dropping some copies
# the state of all others.
MAX_DONE = 1 / 8
# Tokens of a block of the vocabulary in `best_tokens`, which was fastest at this width with a
# vocabulary of 10,000.
BLOCK = 128


class IncrementalDecoder(Protocol):
    """The interface of a network that decodes position by position."""

    def start(self, source: Tensor, beams: int, limit: int) -> Any:
        """Encode `source`, and return the state from which decoding starts.

        `source` is `[sentences, source positions]` tokens, padded with 0. The state has room for
        `limit` steps of `beams` beams, and the methods `reorder` and `keep` of
        `translation.transformer.KeyValueCache`.
        """

    def step(
        self, state: Any, tokens: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """Append tokens `[sentences, beams]`; return scores of the next ones, and attention.

        The scores are `[sentences, beams, target vocabulary]`; the attention is `[sentences, beams,
        source positions]`, None unless requested or if the network has none.
        """


@dataclass(frozen=True)
class Search:
    """Settings of a search, by default of Wu et al. (2016) and section 6.1 of Vaswani et al., 5
    beams.

    A sentence ends when as many translations are finished as there are beams, or no unfinished one
    can become one of the `best`; with `exact` and several beams only the latter. Raises UsageError
    for a number out of its range.
    """

    beams: int = 5  # unfinished translations of a sentence
    alpha: float = 0.6  # of the length penalty; 0 for none
    best: int = 1  # translations to return for a sentence, at most `beams`
    extra: int = 50  # limit of tokens beyond the length of the source, END not counted
    exact: bool = False
    with_attention: bool = False
    batch_tokens: int = 8192  # source positions of a batch, padding included, times beams

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise UsageError(f"beams must be 1 or more, got {self.beams}")
        if not 1 <= self.best <= self.beams:
            raise UsageError(
                f"best must be 1 to {self.beams}, the number of beams, got {self.best}"
            )
        if not (math.isfinite(self.alpha) and self.alpha >= 0):
            raise UsageError(f"alpha must be a finite number of 0 or more, got {self.alpha}")

    def penalty(self, length: int) -> float:
        """Return ((5 + length) / 6)^alpha (eq. 14 of Wu et al., 2016); `length` counts END."""
        return float(((5 + length) / 6) ** self.alpha)


GREEDY = Search(beams=1, alpha=0.0)


@dataclass(frozen=True)
class Hypothesis:
    """A translation, its log probability with END, and its `score`: that divided by the penalty.

    `attention`, if requested, is float32 `[len(tokens) + 1, source positions]`; END is last on both
    axes. Rows sum to 1, except with structured attention.
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
    """Translate `sources`, token numbers without END; return the `how.best` best of each.

    The best comes first. There are fewer if no more have a probability above 0; an empty source has
    one, without tokens. A translation has at most `how.extra` tokens more than its source. `report`
    gets the number of sentences done since its last call. A batch is halved if memory runs out.
    Raises TranslationError if no translation of a source has a probability above 0, as with NaN, or
    if memory does not suffice for one sentence.
    """
    # The hypotheses of each source; an empty list is one that is still to be translated.
    of_empty = Hypothesis((), 0.0, 0.0, torch.ones(1, 1) if how.with_attention else None)
    hypotheses = [[] if source else [of_empty] for source in sources]
    empty_sources = sum(not source for source in sources)
    if report and empty_sources:
        report(empty_sources)
    waiting = deque(_by_length([len(source) for source in sources], how))
    while waiting:
        batch = waiting.popleft()
        sentences = [_Sentence(number, sources[number], how) for number in batch]
        try:
            for sentence in _finished(decoder, sentences, how, device):
                hypotheses[sentence.number] = sentence.answer()
                if report:
                    report(1)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(batch) == 1:
                way_out = "a device with more memory"
                if how.beams > 1:
                    way_out = f"fewer than {how.beams} beams, or {way_out}"
                pieces = len(sources[batch[0]])
                raise TranslationError(
                    f"out of memory with a sentence of {pieces} pieces alone: shorten it, or use "
                    f"{way_out}"
                ) from error
            unfinished = [number for number in batch if not hypotheses[number]]
            half = len(unfinished) // 2
            parts = unfinished[:half], unfinished[half:]
            waiting.extendleft(part for part in reversed(parts) if part)
    return hypotheses


def _by_length(lengths: Sequence[int], how: Search) -> Iterator[list[int]]:
    """Yield batches of sentences' numbers, as large as `how` allows, the longest first."""
    not_empty = [number for number, length in enumerate(lengths) if length]
    waiting = sorted(not_empty, key=lambda number: -lengths[number])
    while waiting:
        longest = lengths[waiting[0]] + 1
        count = max(1, how.batch_tokens // (longest * how.beams))
        yield waiting[:count]
        waiting = waiting[count:]


class Continuations(NamedTuple):
    """The best ways to continue each sentence's beams, best first, `[sentences, beams]`."""

    log_probabilities: Tensor
    beams: Tensor  # the beam that each continues
    tokens: Tensor  # the token that it adds


def best_tokens(scores: Tensor, so_far: Tensor) -> Continuations:
    """Return the continuations, as many as beams, of highest token score plus the beam's `so_far`.

    `scores` are log probabilities `[sentences, beams, vocabulary]`. Only the blocks of the highest
    maxima are sorted: a third of the time of `topk`.
    """
    beams, vocabulary = scores.shape[1:]
    maxima = _block_maxima(scores)
    blocks = maxima.shape[-1]  # of one beam
    block_sums = maxima + so_far.unsqueeze(-1)
    # The chosen blocks, numbered through all beams of the sentence: [sentences, beams].
    chosen_blocks = block_sums.flatten(1).topk(beams).indices
    block_beams = chosen_blocks // blocks  # the beam of each chosen block
    first_tokens = chosen_blocks % blocks * BLOCK
    # The tokens, their places and the sums are [sentences, chosen blocks, BLOCK].
    tokens = first_tokens.unsqueeze(-1) + torch.arange(BLOCK, device=scores.device)
    is_outside = tokens >= vocabulary
    tokens = tokens.clamp(max=vocabulary - 1)
    # The places of the tokens in the flattened scores of their sentence.
    places = block_beams.unsqueeze(-1) * vocabulary + tokens
    token_scores = scores.flatten(1).gather(1, places.flatten(1))
    beam_scores = so_far.gather(1, block_beams)
    sums = token_scores.view_as(tokens) + beam_scores.unsqueeze(-1)
    # The last block may reach beyond the vocabulary. If there are more beams than tokens, such
    # places are still chosen, with the log probability -inf.
    sums = sums.masked_fill(is_outside, -math.inf)
    best_sums, chosen = sums.flatten(1).topk(beams)
    return Continuations(
        log_probabilities=best_sums,
        beams=block_beams.gather(1, chosen // BLOCK),
        tokens=tokens.flatten(1).gather(1, chosen),
    )


def _block_maxima(scores: Tensor) -> Tensor:
    """Return the highest score in each `BLOCK` of the vocabulary, `[sentences, beams, blocks]`."""
    vocabulary = scores.shape[-1]
    whole_blocks = vocabulary // BLOCK
    rest = whole_blocks * BLOCK
    scores_by_block = scores[..., :rest].unflatten(-1, (whole_blocks, BLOCK))
    maxima: Tensor = scores_by_block.amax(dim=-1)
    if rest == vocabulary:
        return maxima
    maximum_of_rest = scores[..., rest:].amax(dim=-1, keepdim=True)
    return torch.cat([maxima, maximum_of_rest], dim=-1)


class _Sentence:
    """A sentence that is being translated; `finished` has its hypotheses, the best first."""

    def __init__(self, number: int, source: Sequence[int], how: Search) -> None:
        self.number = number
        self.source = source
        self.how = how
        self.limit = len(source) + how.extra
        self.highest_penalty = how.penalty(self.limit + 1)
        self.finished: list[Hypothesis] = []
        self.done = False  # a sentence that is done may stay in the batch for some steps

    def should_stop(self, length: int, log_probability: float) -> bool:
        """Return whether no unfinished translation of `length` tokens needs to be continued.

        That is so at the limit of tokens, if none is unfinished, if as many are finished as there
        are beams (unless `exact`), or if no unfinished one can become one of the `best`: no score
        can exceed their highest `log_probability` over the highest penalty. With one beam the first
        finished translation is the last.
        """
        if length == self.limit or log_probability == -math.inf:
            return True
        if len(self.finished) < self.how.best:
            return False
        if len(self.finished) >= self.how.beams and not self.how.exact:
            return True
        if self.how.beams == 1:
            return True
        score_to_beat = self.finished[self.how.best - 1].score
        return log_probability / self.highest_penalty <= score_to_beat

    def answer(self) -> list[Hypothesis]:
        """Return the best hypotheses; raises TranslationError if there is none."""
        if not self.finished:
            raise TranslationError(
                "there is no translation, because the network's scores are not numbers or give "
                "every token probability 0: train the model again with a lower training.peak (the "
                "highest learning rate), and delete the folder of the saved training state if the "
                "next run names it"
            )
        return self.finished[: self.how.best]


def _finished(
    decoder: IncrementalDecoder,
    sentences: list[_Sentence],
    how: Search,
    device: torch.device | str,
) -> Iterator[_Sentence]:
    """Yield each sentence once it is translated; the memory of a batch ends with this generator."""
    beams = _begin(decoder, sentences, how, device)
    while beams.sentences:
        yield from beams.advance(decoder)


def _begin(
    decoder: IncrementalDecoder,
    sentences: list[_Sentence],
    how: Search,
    device: torch.device | str,
) -> "_Beams":
    shape = (len(sentences), how.beams)
    longest = max(len(sentence.source) for sentence in sentences)
    limit = longest + how.extra
    rows = [
        [*sentence.source, END, *[PAD] * (longest - len(sentence.source))] for sentence in sentences
    ]
    state = decoder.start(torch.tensor(rows, device=device), how.beams, limit + 1)
    tokens = torch.full((*shape, limit + 2), PAD, device=device)
    tokens[..., 0] = BEGIN
    # The beams of a sentence are equal at first: only one of them has a probability above 0.
    so_far = torch.full(shape, -math.inf, device=device)
    so_far[:, 0] = 0.0
    attention = None
    if how.with_attention:
        attention = torch.zeros(*shape, limit + 1, longest + 1, device=device)
    return _Beams(
        how=how,
        state=state,
        sentences=sentences,
        tokens=tokens,
        so_far=so_far,
        attention=attention,
    )


@dataclass
class _Beams:
    """The unfinished translations of a batch of sentences, some of which may be done."""

    how: Search
    state: Any  # that of the decoder: see `IncrementalDecoder.start`
    sentences: list[_Sentence]
    # [sentences, beams, limit + 2]: BEGIN and what followed. The last place, of the END after
    # `limit` tokens, is never filled.
    tokens: Tensor
    so_far: Tensor  # [sentences, beams]: log probabilities; -inf for a beam without a translation
    attention: Tensor | None  # [sentences, beams, limit + 1, source positions]
    length: int = 0  # tokens after BEGIN
    # Memory for the log probabilities of a step: allocating it can take longer than filling it.
    buffer: Tensor | None = None

    def advance(self, decoder: IncrementalDecoder) -> list[_Sentence]:
        """Decode one position, extend beams, set ended ones aside; return the sentences done."""
        scores = self._log_probabilities(decoder)
        end_scores = scores[..., END] + self.so_far
        # END is dealt with apart; PAD, UNKNOWN and BEGIN, the tokens below it, are never output.
        scores[..., : END + 1] = -math.inf
        continuations = best_tokens(scores, self.so_far)
        self._finish(end_scores, continuations.log_probabilities)
        newly_done: list[_Sentence] = []
        best_scores = continuations.log_probabilities[:, 0].tolist()  # of each sentence
        for sentence, best_score in zip(self.sentences, best_scores, strict=True):
            if not sentence.done and sentence.should_stop(self.length, best_score):
                sentence.done = True
                newly_done.append(sentence)
        rows = [row for row, sentence in enumerate(self.sentences) if not sentence.done]
        done_count = len(self.sentences) - len(rows)
        # Without rows the batch has ended, whatever MAX_DONE is.
        if done_count > MAX_DONE * len(self.sentences) or not rows:
            remaining = torch.tensor(rows, dtype=torch.long, device=end_scores.device)
            self._keep(remaining)
            continuations = Continuations(*(each[remaining] for each in continuations))
        if self.sentences:
            self.length += 1
            if self.how.beams > 1:  # a single beam continues itself
                origin = continuations.beams
                # [sentences, 1]: each sentence takes the beams of its own row.
                own_row = torch.arange(len(origin), device=origin.device).unsqueeze(-1)
                self.tokens = self.tokens[own_row, origin]
                if self.attention is not None:
                    self.attention = self.attention[own_row, origin]
                self.state.reorder(origin)
            self.tokens[..., self.length] = continuations.tokens
            self.so_far = continuations.log_probabilities
        return newly_done

    def _log_probabilities(self, decoder: IncrementalDecoder) -> Tensor:
        """Return the log probabilities of the next token; store attention.

        They are `[sentences, beams, vocabulary]`, and overwritten at the next step.
        """
        logits, weights = decoder.step(
            self.state,
            self.tokens[..., self.length],
            need_weights=self.attention is not None,
        )
        if weights is None:
            self.attention = None  # not requested, or the network has no attention
        elif self.attention is not None:
            self.attention[:, :, self.length] = weights
        if self.buffer is None:
            self.buffer = torch.empty_like(logits)
        # Sentences are dropped from a batch, never added: the first step's buffer suffices.
        return torch.log_softmax(logits, dim=-1, out=self.buffer[: len(logits)])

    def _finish(self, end_scores: Tensor, continued_scores: Tensor) -> None:
        """Set aside the beams whose END is among the best of this step, and all at the limit.

        Both are log probabilities `[sentences, beams]`: with END, and of the best continuations.
        """
        limits = torch.tensor(
            [sentence.limit for sentence in self.sentences],
            device=end_scores.device,
        )
        # A beam with -inf has no translation that could end.
        at_limit = (limits == self.length).unsqueeze(-1) & (self.so_far > -math.inf)
        # Of a sentence's ends and continuations together, as many as it has beams.
        count = self.how.beams
        both_ways = torch.cat([end_scores, continued_scores], dim=-1)
        best = both_ways.topk(count).indices
        is_best = torch.zeros_like(both_ways, dtype=torch.bool)
        is_best = is_best.scatter(1, best, value=True)
        ending = (is_best[:, :count] & (end_scores > -math.inf)) | at_limit
        rows, beams = ending.nonzero(as_tuple=True)
        token_lists = self.tokens[rows, beams, 1 : self.length + 1].tolist()
        ended_beams = zip(
            rows.tolist(),
            beams.tolist(),
            token_lists,
            end_scores[rows, beams].tolist(),
            strict=True,
        )
        for row, beam, tokens, log_probability in ended_beams:
            if self.sentences[row].done:
                continue
            attention = None
            if self.attention is not None:
                positions = len(self.sentences[row].source) + 1
                weights = self.attention[row, beam, : self.length + 1, :positions]
                attention = weights.float().cpu().clone()
            hypothesis = Hypothesis(
                tokens=tuple(tokens),
                score=log_probability / self.how.penalty(self.length + 1),
                log_probability=log_probability,
                attention=attention,
            )
            self.sentences[row].finished.append(hypothesis)
        for row in set(rows.tolist()):
            self.sentences[row].finished.sort(key=lambda hypothesis: -hypothesis.score)

    def _keep(self, rows: Tensor) -> None:
        self.sentences = [self.sentences[row] for row in rows.tolist()]
        if self.sentences:  # without any, the batch has ended and its tensors are not used again
            self.state.keep(rows)
            self.tokens = self.tokens[rows]
            if self.attention is not None:
                self.attention = self.attention[rows]
            # `so_far` still has the dropped sentences: `advance` replaces it next.
