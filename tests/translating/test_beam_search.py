"""Laws of the search: it finds what there is to find, says its true
probability, and minds no neighbour in a batch.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.bounds import assert_close_in_float32, in_float32, in_float64
from translation.data.tokenizer import BEGIN, END
from translation.decoding.beam_search import Hypothesis, Search, best_tokens, search
from translation.decoding.incremental import IncrementalTransformer, KeyValueCache
from translation.errors import TranslationError, UsageError
from translation.seq2seq import IncrementalRnn, RecurrentConfig
from translation.transformer import Transformer, TransformerConfig, Weights

VOCABULARY = 23
SMALL = TransformerConfig(
    VOCABULARY,
    VOCABULARY,
    d_model=22,
    heads=2,
    d_ff=31,
    encoder_layers=2,
    decoder_layers=3,
    dropout=0.0,
)
SOURCES = [[7, 5, 9], [4], [11, 6, 6, 20, 8, 4, 5], [], [13, 4, 22, 9], [5, 7, 9], [9, 5, 7]]
A, B = 4, 5
Probabilities = dict[int, float]


def build_network(seed: int) -> Transformer:
    """Random, with attention so sharp that what is said depends on the source."""
    torch.manual_seed(seed)
    network = SMALL.build().double().eval()
    for parameter in network.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter)
    nn.init.normal_(network.embed_target.tokens.weight, std=0.4)
    return network


class Willing:
    """A random Transformer made loath to repeat a token, which they like to,
    and readier to end the later it is.
    """

    def __init__(self, network: Transformer) -> None:
        self.network, self.decoder = network, IncrementalTransformer(network)
        self.start = self.decoder.start

    def step(
        self, state: KeyValueCache, tokens: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        scores, weights = self.decoder.step(state, tokens, need_weights=need_weights)
        return self._biased(scores, tokens, torch.tensor(state.length - 1)), weights

    def whole(self, source: Sequence[int], said: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Log probabilities and attention of one forward pass over the tokens
        that are known to be said.
        """
        tokens = torch.tensor([BEGIN, *said])
        with torch.no_grad():
            decoded, weights = self.network(
                torch.tensor([[*source, END]]), tokens.unsqueeze(0), need_weights=True
            )
            scores = self._biased(
                self.network.logits(decoded[0]), tokens, torch.arange(len(tokens))
            )
        assert weights is not None
        return scores.log_softmax(dim=-1), weights[0]

    def _biased(self, scores: Tensor, tokens: Tensor, position: Tensor) -> Tensor:
        loath = scores.scatter_add(-1, tokens.unsqueeze(-1), torch.full_like(scores[..., :1], -6.0))
        loath[..., END] += position * 0.4 - 1
        return loath


@dataclass
class Prefixes:
    tokens: Tensor  # [sentences, beams, positions]

    def reorder(self, origin: Tensor) -> None:
        self.tokens = self.tokens[torch.arange(len(origin)).unsqueeze(-1), origin]

    def keep(self, sentences: Tensor) -> None:
        self.tokens = self.tokens[sentences]


class Table:
    """A network in which the tokens so far have written chances of what comes
    next; the rest is impossible.
    """

    def __init__(self, chances: Callable[[tuple[int, ...]], Probabilities]) -> None:
        self.chances = chances

    def start(self, source: Tensor, beams: int, limit: int) -> Prefixes:  # noqa: ARG002
        return Prefixes(source.new_zeros(len(source), beams, 0))

    def step(
        self,
        state: Prefixes,
        tokens: Tensor,
        *,
        need_weights: bool = False,  # noqa: ARG002
    ) -> tuple[Tensor, Weights]:
        state.tokens = torch.cat([state.tokens, tokens.unsqueeze(-1)], dim=-1)
        scores = torch.full((*tokens.shape, 6), -math.inf, dtype=torch.float64)
        for place in itertools.product(*map(range, tokens.shape)):
            for token, chance in self.chances(tuple(state.tokens[place][1:].tolist())).items():
                scores[place][token] = math.log(chance) if chance else -math.inf
        return scores, None


def drawn(said: tuple[int, ...]) -> Probabilities:
    """Chances of A, B, END and of tokens that are never said, which depend on all that was."""
    generator = torch.Generator().manual_seed(
        sum(token * 7**place for place, token in enumerate(said))
    )
    return dict(enumerate(torch.rand(6, generator=generator).square().tolist()))


def misleading(said: tuple[int, ...]) -> Probabilities:
    """A is likelier at first, yet what follows B is sure."""
    if not said:
        return {A: 0.6, B: 0.4}
    return {END: 0.9, A: 0.1} if said[0] == B else {END: 0.3, A: 0.3, B: 0.4}


def patient(said: tuple[int, ...]) -> Probabilities:
    """To end at once is likelier than any other translation, but not by as much
    as a longer one is favoured.
    """
    if not said:
        return {END: 0.5, A: 0.45, B: 0.05}
    return {END: 0.98, B: 0.02} if len(said) == 4 else {A: 0.98, END: 0.02}


def endless(said: tuple[int, ...]) -> Probabilities:
    return {A: 0.7, B: 0.3}


def every(
    chances: Callable[[tuple[int, ...]], Probabilities], limit: int, how: Search
) -> list[Hypothesis]:
    """All there is to say in up to `limit` tokens, the best first."""
    found = []
    for length in range(limit + 1):
        for said in itertools.product((A, B), repeat=length):
            total = 0.0
            for place, token in enumerate((*said, END)):
                expected = chances(said[:place])
                chance = expected.get(token, 0.0) / sum(expected.values())
                total += math.log(chance) if chance else -math.inf
            found.append(Hypothesis(said, total / how.penalty(length + 1), total))
    return sorted((each for each in found if each.score > -math.inf), key=lambda each: -each.score)


def said_by(found: list[list[Hypothesis]]) -> list[list[tuple[int, ...]]]:
    return [[each.tokens for each in hypotheses] for hypotheses in found]


@pytest.fixture(scope="module")
def willing() -> Willing:
    return Willing(build_network(0))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("chances", [drawn, misleading, patient])
def test_with_beams_for_all_there_is_it_finds_the_best(
    chances: Callable[[tuple[int, ...]], Probabilities], alpha: float
) -> None:
    how = Search(beams=81, alpha=alpha, best=6, extra=3, exact=True)
    expected = every(chances, 4, how)[:6]
    (found,) = search(Table(chances), [[A]], how)
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert [each.score for each in found] == in_float64([each.score for each in expected])


def test_more_beams_find_what_a_greedy_search_misses() -> None:
    greedy, beam = (
        search(Table(misleading), [[A]], Search(beams=beams, extra=4))[0][0] for beams in (1, 2)
    )
    assert greedy.tokens[0] == A
    assert beam.tokens == (B,)
    assert beam.log_probability > greedy.log_probability


def test_the_first_that_ends_as_the_likeliest_of_all_is_not_yet_the_answer() -> None:
    how = Search(beams=4, alpha=1.0, extra=5, exact=True)
    (found,) = search(Table(patient), [[A]], how)
    assert found[0].tokens == (A, A, A, A)
    assert found[0].score == in_float64(every(patient, 6, how)[0].score)
    assert search(Table(patient), [[A]], replace(how, alpha=0.0))[0][0].tokens == ()


def test_it_ends_with_as_many_translations_as_beams_unless_it_is_exact() -> None:
    steps: list[int] = []

    class Counted(Table):
        def step(self, *told: Any, **named: Any) -> Any:
            steps[-1] += 1
            return super().step(*told, **named)

    for exact in (False, True):
        steps.append(0)
        (found,) = search(
            Counted(patient), [[A]], Search(beams=2, alpha=2.0, best=2, extra=40, exact=exact)
        )
        assert len(found) == 2
    assert steps[0] < steps[1]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("extra", [0, 2])
def test_what_never_ends_is_cut_at_the_limit(beams: int, extra: int) -> None:
    sources = [[A], [A, B, A], [A, B]]
    found = search(Table(endless), sources, Search(beams=beams, best=beams, extra=extra))
    for source, hypotheses in zip(sources, found, strict=True):
        assert {len(each.tokens) for each in hypotheses} == {len(source) + extra}
        assert hypotheses[0].tokens == (A,) * (len(source) + extra)


def test_one_beam_is_a_greedy_search(willing: Willing) -> None:
    found = search(willing, SOURCES, Search(beams=1, extra=6))
    for source, (hypothesis,) in zip(SOURCES, found, strict=True):
        said: list[int] = []
        while source and len(said) < len(source) + 6:
            scores = willing.whole(source, said)[0][-1]
            scores[:END] = -math.inf
            if (token := int(scores.argmax())) == END:
                break
            said.append(token)
        assert list(hypothesis.tokens) == said
    assert len({each.tokens for (each,) in found}) > 3


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("beams", [1, 4])
def test_each_says_its_true_probability_and_attention(
    willing: Willing, beams: int, alpha: float
) -> None:
    how = Search(beams=beams, alpha=alpha, best=beams, extra=3, with_attention=True)
    for source, hypotheses in zip(SOURCES, search(willing, SOURCES, how), strict=True):
        for each in hypotheses if source else []:
            scores, attention = willing.whole(source, each.tokens)
            total = sum(
                float(row[token]) for row, token in zip(scores, (*each.tokens, END), strict=True)
            )
            assert each.log_probability == in_float32(total)
            assert each.score == each.log_probability / how.penalty(len(each.tokens) + 1)
            assert each.attention is not None
            assert_close_in_float32(each.attention, attention.float())
            assert_close_in_float32(each.attention.sum(dim=-1), torch.ones(len(each.tokens) + 1))


def test_a_network_without_attention_shows_none() -> None:
    network = RecurrentConfig(VOCABULARY, VOCABULARY, d_model=8, attention="none").build().eval()
    how = Search(beams=2, extra=3, with_attention=True)
    found = search(IncrementalRnn(network), [source for source in SOURCES if source], how)
    assert all(each.attention is None for sentence in found for each in sentence)


def test_the_best_are_sorted_and_distinct_and_say_no_special_token(willing: Willing) -> None:
    for source, hypotheses in zip(
        SOURCES, search(willing, SOURCES, Search(beams=6, best=6)), strict=True
    ):
        assert len(hypotheses) == (6 if source else 1)
        assert len({each.tokens for each in hypotheses}) == len(hypotheses)
        assert hypotheses == sorted(hypotheses, key=lambda each: -each.score)
        assert all(token > END for each in hypotheses for token in each.tokens)


@pytest.mark.parametrize("beams", [1, 4])
def test_a_sentence_minds_neither_its_neighbours_nor_their_order(
    willing: Willing, beams: int
) -> None:
    together = search(willing, SOURCES, Search(beams=beams, best=beams, extra=8))
    alone = search(willing, SOURCES, Search(beams=beams, best=beams, extra=8, batch_tokens=1))
    backwards = search(willing, SOURCES[::-1], Search(beams=beams, best=beams, extra=8))[::-1]
    assert said_by(together) == said_by(alone) == said_by(backwards)


def test_an_empty_source_is_an_empty_translation(willing: Willing) -> None:
    assert search(willing, [], Search()) == []
    assert search(willing, [[]], Search(best=2)) == [[Hypothesis((), 0.0, 0.0)]]


def test_a_source_may_be_of_600_tokens(willing: Willing) -> None:
    source = [4 + place % 19 for place in range(600)]
    found = search(willing, [source, [7, 5, 9]], Search(beams=3))
    assert said_by(found)[1:] == said_by(search(willing, [[7, 5, 9]], Search(beams=3)))
    assert len(found[0][0].tokens) <= 650


def test_every_sentence_is_reported_once(willing: Willing) -> None:
    told: list[int] = []
    search(willing, SOURCES, Search(beams=2, batch_tokens=40), report=told.append)
    assert sum(told) == len(SOURCES)
    assert min(told) > 0


@pytest.mark.parametrize("vocabulary", [5, 128, 256, 300])
@pytest.mark.parametrize("beams", [1, 4])
def test_the_best_tokens_are_those_of_a_sort_of_all(vocabulary: int, beams: int) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(7, beams, vocabulary, generator=generator)
    so_far = torch.randn(7, beams, generator=generator)
    top, beam, token = best_tokens(scores, so_far)
    expected = (scores + so_far.unsqueeze(-1)).flatten(1).topk(beams)
    assert top.equal(expected.values)
    assert (beam * vocabulary + token).equal(expected.indices)


@pytest.mark.parametrize(
    "wrong",
    [
        {"beams": 0},
        {"best": 0},
        {"best": 6},
        {"alpha": -0.1},
        {"alpha": math.nan},
    ],
)
def test_a_search_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"\d|nan"):
        Search(**wrong)  # type: ignore[arg-type]


def test_a_network_without_numbers_is_refused() -> None:
    with pytest.raises(TranslationError, match=r"no translation,.*not numbers.* train"):
        search(Table(lambda _: {A: math.nan}), [[], [A, B]], Search(beams=2))


class Short:
    """A machine whose memory suffices for so many sentences at once."""

    def __init__(self, decoder: Willing, most: int) -> None:
        self.decoder, self.most, self.step = decoder, most, decoder.step

    def start(self, source: Tensor, beams: int, limit: int) -> KeyValueCache:
        if len(source) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.decoder.start(source, beams, limit)


def test_what_finds_no_memory_is_searched_by_halves(willing: Willing) -> None:
    how, told = Search(beams=3), list[int]()
    assert said_by(search(Short(willing, 2), SOURCES, how, report=told.append)) == said_by(
        search(willing, SOURCES, how)
    )
    assert sum(told) == len(SOURCES)
    with pytest.raises(
        TranslationError,
        match=r"^out of memory.* \d+ pieces alone: ",
    ):
        search(Short(willing, 0), SOURCES, how)
