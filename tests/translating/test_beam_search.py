"""Laws of the search: it finds what there is to find, says its true
probability, and minds no neighbour in a batch.
"""

import itertools
import math
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tests.support.bounds import assert_close_in_float32, in_float32, in_float64
from translation.data.tokenizer import BEGIN, END
from translation.decoding.beam_search import Hypothesis, Search, best_tokens, search
from translation.errors import TranslationError, UsageError
from translation.seq2seq import RecurrentConfig
from translation.transformer import TransformerConfig

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


def build_network(seed):
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

    def __init__(self, network):
        self.network = network
        self.start = network.start

    def step(self, state, tokens, *, need_weights=False):
        scores, weights = self.network.step(state, tokens, need_weights=need_weights)
        return self._biased(scores, tokens, torch.tensor(state.length - 1)), weights

    def whole(self, source, said):
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

    def _biased(self, scores, tokens, position):
        loath = scores.scatter_add(-1, tokens.unsqueeze(-1), torch.full_like(scores[..., :1], -6.0))
        loath[..., END] += position * 0.4 - 1
        return loath


@dataclass
class Prefixes:
    tokens: Tensor  # [sentences, beams, positions]

    def reorder(self, origin):
        self.tokens = self.tokens[torch.arange(len(origin)).unsqueeze(-1), origin]

    def keep(self, sentences):
        self.tokens = self.tokens[sentences]


class Table:
    """A network in which the tokens so far have written chances of what comes
    next; the rest is impossible.
    """

    def __init__(self, chances):
        self.chances = chances

    def start(self, source, beams, limit):  # noqa: ARG002
        return Prefixes(source.new_zeros(len(source), beams, 0))

    def step(
        self,
        state,
        tokens,
        *,
        need_weights=False,  # noqa: ARG002
    ):
        state.tokens = torch.cat([state.tokens, tokens.unsqueeze(-1)], dim=-1)
        scores = torch.full((*tokens.shape, 6), -math.inf, dtype=torch.float64)
        for place in itertools.product(*map(range, tokens.shape)):
            for token, chance in self.chances(tuple(state.tokens[place][1:].tolist())).items():
                scores[place][token] = math.log(chance) if chance else -math.inf
        return scores, None


def drawn(said, seed=0):
    """Chances of A, B, END and of tokens that are never said, which depend on all that was."""
    past = sum(token * 7**place for place, token in enumerate(said))
    generator = torch.Generator().manual_seed(1000 * seed + past)
    return dict(enumerate(torch.rand(6, generator=generator).square().tolist()))


def patient(said):
    """To end at once is likelier than any other translation, but not by as much as a longer one is
    favoured.
    """
    if not said:
        return {END: 0.5, A: 0.45, B: 0.05}
    return {END: 0.98, B: 0.02} if len(said) == 4 else {A: 0.98, END: 0.02}


def every(chances, limit, how):
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


def said_by(found):
    return [[each.tokens for each in hypotheses] for hypotheses in found]


@pytest.fixture(scope="module")
def willing():
    return Willing(build_network(0))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_with_beams_for_all_there_is_it_finds_the_best(seed, alpha):
    chances = partial(drawn, seed=seed)
    how = Search(beams=81, alpha=alpha, best=6, extra=3, exact=True)
    expected = every(chances, 4, how)[:6]
    (found,) = search(Table(chances), [[A]], how)
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert [each.score for each in found] == in_float64([each.score for each in expected])


def test_it_ends_with_as_many_translations_as_beams_unless_it_is_exact():
    steps = []

    class Counted(Table):
        def step(self, *told, **named):
            steps[-1] += 1
            return super().step(*told, **named)

    for exact in (False, True):
        steps.append(0)
        how = Search(beams=2, alpha=2.0, best=2, extra=40, exact=exact)
        assert len(search(Counted(patient), [[A]], how)[0]) == 2
    assert steps[0] < steps[1]
    (found,) = search(Table(patient), [[A]], Search(beams=4, alpha=1.0, extra=5, exact=True))
    assert found[0].tokens == (A, A, A, A)  # though one that ended before was likelier


@pytest.mark.parametrize(("beams", "extra"), [(1, 0), (1, 2), (3, 0), (3, 2)])
def test_what_never_ends_is_cut_at_the_limit(beams, extra):
    sources, how = [[A], [A, B, A], [A, B]], Search(beams=beams, best=beams, extra=extra)
    found = search(Table(lambda _: {A: 0.7, B: 0.3}), sources, how)
    for source, hypotheses in zip(sources, found, strict=True):
        assert {len(each.tokens) for each in hypotheses} == {len(source) + extra}
        assert hypotheses[0].tokens == (A,) * (len(source) + extra)


def test_one_beam_is_a_greedy_search(willing):
    found = search(willing, SOURCES, Search(beams=1, extra=6))
    for source, (hypothesis,) in zip(SOURCES, found, strict=True):
        said = []
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
def test_the_best_are_distinct_in_order_each_with_its_true_probability_and_attention(
    willing, beams, alpha
):
    how = Search(beams=beams, alpha=alpha, best=beams, extra=3, with_attention=True)
    found = search(willing, SOURCES, how)
    assert [len(each) for each in found] == [beams if source else 1 for source in SOURCES]
    for source, hypotheses in zip(SOURCES, found, strict=True):
        assert len({each.tokens for each in hypotheses}) == len(hypotheses)
        assert hypotheses == sorted(hypotheses, key=lambda each: -each.score)
        for each in hypotheses if source else []:
            assert min(each.tokens, default=A) > END
            scores, attention = willing.whole(source, each.tokens)
            said = torch.tensor([*each.tokens, END])
            assert each.log_probability == in_float32(scores.gather(1, said[:, None]).sum().item())
            assert each.score == each.log_probability / how.penalty(len(said))
            assert each.attention is not None
            assert_close_in_float32(each.attention, attention.float())


@pytest.mark.parametrize("beams", [1, 4])
def test_a_sentence_minds_neither_its_neighbours_nor_their_order(willing, beams):
    how, reported = Search(beams=beams, best=beams, extra=8), list[int]()
    together = search(willing, SOURCES, how, report=reported.append)
    alone = search(willing, SOURCES, replace(how, batch_tokens=1))
    backwards = search(willing, SOURCES[::-1], how)[::-1]
    assert said_by(together) == said_by(alone) == said_by(backwards)
    assert together[3] == [Hypothesis((), 0.0, 0.0)]  # of an empty source
    assert (sum(reported), min(reported)) == (len(SOURCES), 1)
    assert search(willing, [], how) == []


def test_a_network_without_attention_shows_none():
    network = RecurrentConfig(VOCABULARY, VOCABULARY, d_model=8, attention="none").build().eval()
    ((found,),) = search(network, SOURCES[:1], Search(with_attention=True))
    assert found.attention is None


@pytest.mark.parametrize("vocabulary", [5, 128, 256, 300])
@pytest.mark.parametrize("beams", [1, 4])
def test_the_best_tokens_are_those_of_a_sort_of_all(vocabulary, beams):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(7, beams, vocabulary, generator=generator)
    so_far = torch.randn(7, beams, generator=generator)
    top, beam, token = best_tokens(scores, so_far)
    expected = (scores + so_far.unsqueeze(-1)).flatten(1).topk(beams)
    assert top.equal(expected.values)
    assert (beam * vocabulary + token).equal(expected.indices)


@pytest.mark.parametrize(
    ("name", "value"),
    [("beams", 0), ("best", 0), ("best", 6), ("alpha", -0.1), ("alpha", math.nan)],
)
def test_a_search_that_cannot_be_is_refused(name, value):
    with pytest.raises(UsageError, match=f"{name} .*{value}"):
        replace(Search(), **{name: value})


def test_a_network_without_numbers_is_refused():
    with pytest.raises(TranslationError, match="no translation"):
        search(Table(lambda _: {A: math.nan}), [[], [A, B]], Search(beams=2))


class Short:
    """A machine whose memory suffices for so many sentences at once."""

    def __init__(self, decoder, most):
        self.decoder, self.most, self.step = decoder, most, decoder.step

    def start(self, source, beams, limit):
        if len(source) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.decoder.start(source, beams, limit)


def test_what_finds_no_memory_is_searched_by_halves(willing):
    how, reported = Search(beams=3), list[int]()
    found = search(Short(willing, 2), SOURCES, how, report=reported.append)
    assert said_by(found) == said_by(search(willing, SOURCES, how))
    assert sum(reported) == len(SOURCES)
    with pytest.raises(TranslationError, match="out of memory"):
        search(Short(willing, 0), SOURCES, how)


class Tired(Short):
    """A machine without memory for the last sentence of a batch, until a search of it alone."""

    def __init__(self, decoder):
        super().__init__(decoder, most=len(SOURCES))
        self.begun = []
        self.step = self.tired_step

    def start(self, source, beams, limit):
        self.begun.append(len(source))
        return super().start(source, beams, limit)

    def tired_step(self, state, tokens, **how):
        if len(tokens) == 1 < self.begun[-1]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.decoder.step(state, tokens, **how)


def test_the_last_of_a_batch_that_finds_no_memory_is_searched_alone(willing):
    how, tired = Search(beams=3), Tired(willing)
    assert said_by(search(tired, SOURCES, how)) == said_by(search(willing, SOURCES, how))
    assert tired.begun[-1] == 1
