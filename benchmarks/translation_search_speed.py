"""Time search with a key-value cache against search that computes the whole prefix at each step.

`python -m benchmarks.translation_search_speed [--threads 1] [--sentences 48] [--rounds 3]`: the
other ways decode the prefix again, or make full passes with the source. They have a random
Transformer of a size that suits Multi30k, sources as long as its sentences, and translations that
end after 15, 24 and 60 steps. All three run in the same search and batches and must translate the
same. Prints medians of rounds in which they take turns. The cost of the exact stop of the search,
which `stops_of` returns, needs trained weights: see `benchmarks.translation_engines`.
"""

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from translation.data.tokenizer import END
from translation.decoding import beam_search as decoding
from translation.decoding.beam_search import Hypothesis, Search, search
from translation.decoding.incremental import IncrementalDecoder, IncrementalTransformer
from translation.transformer import Transformer, TransformerConfig, Weights

SIZE = TransformerConfig(
    10_000, 10_000, d_model=128, heads=4, d_ff=256, encoder_layers=4, decoder_layers=4
)
STEPS = (15, 24, 60)
CERTAIN = 1e9  # far above and below every score


@dataclass
class Prefixes:
    """The tokens of translations, and the memory of their sources, without any cache."""

    # [sentences, source positions, d_model]; for Passes the source's tokens, without d_model
    memory: Tensor
    memory_mask: Tensor
    tokens: Tensor  # [sentences, beams, positions]

    def reorder(self, origin: Tensor) -> None:
        """See `KeyValueCache`."""
        self.tokens = self.tokens[torch.arange(len(origin)).unsqueeze(-1), origin]

    def keep(self, sentences: Tensor) -> None:
        """See `KeyValueCache`."""
        self.memory = self.memory[sentences]
        self.memory_mask = self.memory_mask[sentences]
        self.tokens = self.tokens[sentences]


class Anew:
    """The Transformer, which decodes the whole prefix of every beam at each step.

    It encodes the source only once.
    """

    def __init__(self, network: Transformer) -> None:
        self.network = network

    def start(self, source: Tensor, beams: int, limit: int) -> Prefixes:  # noqa: ARG002
        """See `IncrementalDecoder`."""
        return Prefixes(*self.network.encode(source), source.new_zeros(len(source), beams, 0))

    def step(
        self, state: Prefixes, tokens: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """See `IncrementalDecoder`; only the last position gets scores."""
        state.tokens = torch.cat([state.tokens, tokens.unsqueeze(-1)], dim=-1)
        beams, positions = state.tokens.shape[1:]
        memory = state.memory.repeat_interleave(beams, 0)
        memory_mask = state.memory_mask.repeat_interleave(beams, 0)
        mask = torch.ones(positions, positions, dtype=torch.bool).tril()
        x = self.network.embed_target(state.tokens.flatten(0, 1), torch.arange(positions))
        weights = None
        for layer in self.network.decoder:
            x, weights = layer(x, mask, memory, memory_mask, need_weights=need_weights)
        scores = self.network.logits(self.network.decoder_norm(x[:, -1]))
        return scores.unflatten(0, (-1, beams)), weights


class Passes(Anew):
    """The Transformer as in training: a whole pass at each step, and scores of every position."""

    def start(self, source: Tensor, beams: int, limit: int) -> Prefixes:  # noqa: ARG002
        """See `IncrementalDecoder`."""
        return Prefixes(source, source, source.new_zeros(len(source), beams, 0))

    def step(
        self, state: Prefixes, tokens: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """See `IncrementalDecoder`."""
        state.tokens = torch.cat([state.tokens, tokens.unsqueeze(-1)], dim=-1)
        beams = tokens.shape[-1]
        source = state.memory.repeat_interleave(beams, 0)
        prefix = state.tokens.flatten(0, 1)
        decoded, weights = self.network(source, prefix, need_weights=need_weights)
        scores = self.network.logits(decoded)[:, -1]
        return scores.unflatten(0, (-1, beams)), weights


class Ending:
    """A network whose translations end after exactly so many steps."""

    def __init__(self, decoder: IncrementalDecoder, steps: int) -> None:
        self.decoder = decoder
        self.steps = steps
        self.left = steps

    def start(self, source: Tensor, beams: int, limit: int) -> Any:
        """See `IncrementalDecoder`."""
        self.left = self.steps
        return self.decoder.start(source, beams, limit)

    def step(
        self, state: Any, tokens: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """See `IncrementalDecoder`."""
        scores, weights = self.decoder.step(state, tokens, need_weights=need_weights)
        self.left -= 1
        scores[..., END] = -CERTAIN if self.left else CERTAIN
        return scores, weights


@dataclass(frozen=True)
class Stops:
    """The steps a sentence of two stops of a search, and how often both translate the same.

    The exact one stops once no unfinished translation can be better, the hasty one once as many
    translations have ended as there are beams.
    """

    exact: float
    hasty: float
    same: float  # share of the sentences with the same translation by both stops


class _Watched(decoding._Sentence):
    """A sentence that records the result of a hasty stop, and is searched on."""

    hasty: tuple[int, tuple[int, ...]] | None = None
    steps: int = 0

    def should_stop(self, length: int, log_probability: float) -> bool:
        """Return whether the exact stop ends the search, after recording the hasty one."""
        self.steps += 1
        done = super().should_stop(length, log_probability)
        stops_hastily = done or len(self.finished) >= self.how.beams
        if self.hasty is None and self.finished and stops_hastily:
            self.hasty = (self.steps, self.finished[0].tokens)
        return done


def stops_of(decoder: IncrementalDecoder, sources: Sequence[Sequence[int]], how: Search) -> Stops:
    """Return both stops of one search: they do not depend on the machine's speed."""
    watched: dict[int, _Watched] = {}

    def watch(number: int, source: Sequence[int], how: Search) -> _Watched:
        return watched.setdefault(number, _Watched(number, source, how))

    with patch.object(decoding, "_Sentence", watch):
        hypotheses = search(decoder, sources, replace(how, exact=True))
    exact_steps = [sentence.steps for sentence in watched.values()]
    hasty_steps = []
    same = 0
    for number, sentence in watched.items():
        if sentence.hasty is not None:
            steps, tokens = sentence.hasty
            hasty_steps.append(steps)
            same += tokens == hypotheses[number][0].tokens
    return Stops(
        exact=sum(exact_steps) / len(watched),
        hasty=sum(hasty_steps) / len(hasty_steps),
        same=same / len(watched),
    )


def main() -> None:
    """Print the sentences a second each way, and how many times faster the cache makes them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sentences", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    network = _network()
    sources = _sources(options.sentences)
    print(
        f"{options.sentences} sentences, threads {options.threads}, medians of "
        f"{options.rounds} rounds"
    )
    print("search   steps  passes/s   anew/s   kept/s  times passes  times anew")
    for beams in (1, 5):
        for steps in STEPS:
            passes, anew, cached = _rates(
                network, sources, Search(beams=beams), steps, options.rounds
            )
            name = "greedy" if beams == 1 else f"beam {beams}"
            print(
                f"{name:<8}{steps:>6}{passes:>10.1f}{anew:>9.1f}"
                f"{cached:>9.1f}{cached / passes:>14.1f}{cached / anew:>12.1f}",
                flush=True,
            )
    torch.set_num_threads(before)


def _network() -> Transformer:
    torch.manual_seed(0)
    network = SIZE.build().eval()
    for parameter in network.parameters():
        # With its first weights the network would repeat its input token for ever.
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=SIZE.d_model**-0.5)
    return network


def _sources(count: int) -> list[list[int]]:
    """Return random rows of tokens as long as Multi30k's sentences: 14, with a deviation of 4."""
    generator = random.Random(0)  # noqa: S311
    lengths = [max(4, round(generator.gauss(14, 4))) for _ in range(count)]
    return [
        [generator.randrange(END + 1, SIZE.source_vocabulary) for _ in range(length)]
        for length in lengths
    ]


def _rates(
    network: Transformer, sources: list[list[int]], how: Search, steps: int, rounds: int
) -> list[float]:
    """Return the sentences a second by whole passes, of whole prefixes, and with the cache.

    Raises AssertionError unless all translate the same.
    """
    decoders: tuple[IncrementalDecoder, ...] = (
        Passes(network),
        Anew(network),
        IncrementalTransformer(network),
    )
    seconds: list[list[float]] = [[] for _ in decoders]
    for _ in range(rounds):
        translations = []
        for decoder_seconds, decoder in zip(seconds, decoders, strict=True):
            start = time.perf_counter()
            results = search(Ending(decoder, steps), sources, how)
            decoder_seconds.append(time.perf_counter() - start)
            translations.append([_tokens(hypotheses) for hypotheses in results])
        if any(translation != translations[0] for translation in translations):
            raise AssertionError(f"{how.beams} beams, {steps} steps: the ways do not say the same")
    return [len(sources) / statistics.median(decoder_seconds) for decoder_seconds in seconds]


def _tokens(hypotheses: list[Hypothesis]) -> list[tuple[int, ...]]:
    return [hypothesis.tokens for hypothesis in hypotheses]


if __name__ == "__main__":
    main()
