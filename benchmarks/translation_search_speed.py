"""Time search with a key-value cache, against decoding the prefix again and against full passes at
each step.

`python -m benchmarks.translation_search_speed [--threads 1] [--sentences 48] [--rounds 3]`: a
random Transformer of a size that suits Multi30k, sources as long as its sentences, translations
that end after 15, 24 and 60 steps. All three run in the same search and batches and must translate
the same. Prints medians of rounds in which they take turns. What the exact stop of the search
costs, `stops_of` tells of trained weights: see `benchmarks.translation_engines`.
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
    """Translations of which the tokens alone are kept, and of the source what
    is said at the class that uses it.
    """

    # [sentences, source positions, d_model], or the source's tokens [sentences, source positions]
    memory: Tensor
    memory_mask: Tensor
    tokens: Tensor  # [sentences, beams, positions]

    def reorder(self, origin: Tensor) -> None:
        """See `KeyValueCache`."""
        self.tokens = self.tokens[torch.arange(len(origin)).unsqueeze(-1), origin]

    def keep(self, sentences: Tensor) -> None:
        """See `KeyValueCache`."""
        self.memory, self.memory_mask = self.memory[sentences], self.memory_mask[sentences]
        self.tokens = self.tokens[sentences]


class Anew:
    """The Transformer, given the whole prefix of every beam at each step; the
    source is read once even so.
    """

    def __init__(self, network: Transformer) -> None:
        self.network = network

    def start(self, source: Tensor, beams: int, limit: int) -> Prefixes:  # noqa: ARG002
        """See `IncrementalDecoder`."""
        return Prefixes(*self.network.encode(source), source.new_zeros(len(source), beams, 0))

    def step(
        self, state: Prefixes, tokens: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """See `IncrementalDecoder`; only the last position is asked what comes next."""
        state.tokens = torch.cat([state.tokens, tokens.unsqueeze(-1)], dim=-1)
        beams, positions = state.tokens.shape[1:]
        memory, memory_mask = (
            each.repeat_interleave(beams, 0) for each in (state.memory, state.memory_mask)
        )
        mask = torch.ones(positions, positions, dtype=torch.bool).tril()
        x, weights = (
            self.network.embed_target(state.tokens.flatten(0, 1), torch.arange(positions)),
            None,
        )
        for layer in self.network.decoder:
            x, weights = layer(x, mask, memory, memory_mask, need_weights=need_weights)
        scores = self.network.logits(self.network.decoder_norm(x[:, -1]))
        return scores.unflatten(0, (-1, beams)), weights


class Passes(Anew):
    """The Transformer as it is trained, a whole pass at each step: source,
    prefix, and scores of every position.
    """

    def start(self, source: Tensor, beams: int, limit: int) -> Prefixes:  # noqa: ARG002
        """See `IncrementalDecoder`."""
        return Prefixes(source, source, source.new_zeros(len(source), beams, 0))

    def step(
        self, state: Prefixes, tokens: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """See `IncrementalDecoder`."""
        state.tokens = torch.cat([state.tokens, tokens.unsqueeze(-1)], dim=-1)
        beams = tokens.shape[-1]
        source, prefix = state.memory.repeat_interleave(beams, 0), state.tokens.flatten(0, 1)
        decoded, weights = self.network(source, prefix, need_weights=need_weights)
        return self.network.logits(decoded)[:, -1].unflatten(0, (-1, beams)), weights


class Ending:
    """A network that ends after so many steps, and not before."""

    def __init__(self, decoder: IncrementalDecoder, steps: int) -> None:
        self.decoder, self.left, self.steps = decoder, steps, steps

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
    """Steps a sentence until none that goes on can be better, and until as many
    have ended as there are beams.
    """

    exact: float
    hasty: float
    same: float  # share of the sentences of which both stops give the same translation


class _Watched(decoding._Sentence):
    """Notes what a hasty stop would have given, and goes on."""

    hasty: tuple[int, tuple[int, ...]] | None = None
    steps: int = 0

    def is_done(self, length: int, log_probability: float) -> bool:
        """As ever."""
        self.steps += 1
        done = super().is_done(length, log_probability)
        if self.finished and self.hasty is None and (done or len(self.finished) >= self.how.beams):
            self.hasty = (self.steps, self.finished[0].tokens)
        return done


def stops_of(decoder: IncrementalDecoder, sources: Sequence[Sequence[int]], how: Search) -> Stops:
    """Return both stops of one search, which no machine's pace changes."""
    watched: dict[int, _Watched] = {}

    def watch(number: int, source: Sequence[int], how: Search) -> _Watched:
        return watched.setdefault(number, _Watched(number, source, how))

    with patch.object(decoding, "_Sentence", watch):
        found = search(decoder, sources, replace(how, exact=True))
    hasty = [each.hasty for each in watched.values() if each.hasty is not None]
    same = [
        each.hasty is not None and each.hasty[1] == found[number][0].tokens
        for number, each in watched.items()
    ]
    exact = sum(each.steps for each in watched.values()) / len(watched)
    return Stops(exact, sum(steps for steps, _ in hasty) / len(hasty), sum(same) / len(same))


def main() -> None:
    """Print a table: sentences a second each way, and how many times faster the
    kept keys and values are.
    """
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--threads", type=int, default=1)
    asked.add_argument("--sentences", type=int, default=48)
    asked.add_argument("--rounds", type=int, default=3)
    options = asked.parse_args()
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    network, sources = _network(), _sources(options.sentences)
    print(
        f"{options.sentences} sentences, threads {options.threads}, medians of "
        f"{options.rounds} rounds"
    )
    print("search   steps  passes/s   anew/s   kept/s  times passes  times anew")
    for beams in (1, 5):
        for steps in STEPS:
            passes, anew, kept = _rates(
                network, sources, Search(beams=beams), steps, options.rounds
            )
            print(
                f"{'greedy' if beams == 1 else f'beam {beams}':<8}{steps:>6}"
                f"{passes:>10.1f}{anew:>9.1f}",
                end="",
            )
            print(f"{kept:>9.1f}{kept / passes:>14.1f}{kept / anew:>12.1f}", flush=True)
    torch.set_num_threads(before)


def _network() -> Transformer:
    torch.manual_seed(0)
    network = SIZE.build().eval()
    for parameter in network.parameters():
        if parameter.dim() > 1:  # as built it would say the token it was given, for ever
            nn.init.normal_(parameter, std=SIZE.d_model**-0.5)
    return network


def _sources(count: int) -> list[list[int]]:
    """As long as Multi30k's sentences in pieces: 14 with a standard deviation of 4."""
    draw = random.Random(0)  # noqa: S311
    lengths = [max(4, round(draw.gauss(14, 4))) for _ in range(count)]
    return [
        [draw.randrange(END + 1, SIZE.source_vocabulary) for _ in range(length)]
        for length in lengths
    ]


def _rates(
    network: Transformer, sources: list[list[int]], how: Search, steps: int, rounds: int
) -> list[float]:
    """Sentences a second by whole passes, anew and with what was kept; all must say the same."""
    decoders: tuple[IncrementalDecoder, ...] = (
        Passes(network),
        Anew(network),
        IncrementalTransformer(network),
    )
    seconds: list[list[float]] = [[] for _ in decoders]
    for _ in range(rounds):
        said = []
        for took, decoder in zip(seconds, decoders, strict=True):
            begun = time.perf_counter()
            found = search(Ending(decoder, steps), sources, how)
            took.append(time.perf_counter() - begun)
            said.append([_tokens(each) for each in found])
        if any(each != said[0] for each in said):
            raise AssertionError(f"{how.beams} beams, {steps} steps: the ways do not say the same")
    return [len(sources) / statistics.median(took) for took in seconds]


def _tokens(hypotheses: list[Hypothesis]) -> list[tuple[int, ...]]:
    return [each.tokens for each in hypotheses]


if __name__ == "__main__":
    main()
