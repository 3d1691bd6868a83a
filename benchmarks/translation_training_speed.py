"""Time the training of a translator against a plain loop around `nn.Transformer`, and the gain of
each difference.

`python -m benchmarks.translation_training_speed [--rounds 5] [--updates 4] [--threads 1 4] [--clock
wall]`: both networks have the size that suits Multi30k, whose sentences they learn where the shared
data is beside the checkout; elsewhere they learn as many made ones. The plain loop is a textbook's:
shuffled batches of as many sentences as ours have on average, padded to their longest, scores of
every position, `F.cross_entropy`, an Adam that is not fused; as its users get it, `nn.Transformer`
drops out attention weights too. The ways take turns; medians of rounds, in target tokens a second,
padding not counted. First the loss and its gradients must be the same for both networks with the
same weights. On a machine that has other work, one thread and `--clock processor` tell the ratio by
processor time.
"""

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.made_language import made_pairs
from benchmarks.shared_data import SHARED
from translation.data.batches import Batch, batch_indices, batch_of
from translation.data.corpus import Corpus, Examples, Rules, clean
from translation.data.tokenizer import PAD, Tokenizer
from translation.training.cpu_layers import use_fast_dropout
from translation.training.distributed import SINGLE_PROCESS
from translation.training.loop import TrainingConfig
from translation.training.loss import smoothed_loss
from translation.training.step import TrainingStep, batch_loss
from translation.transformer import MultiHeadAttention, Transformer, TransformerConfig, sinusoids

VOCABULARY, MADE_VOCABULARY, MADE = 10_000, 600, 29_000
SIZE = TransformerConfig(
    VOCABULARY, VOCABULARY, d_model=128, heads=4, d_ff=256, encoder_layers=4, decoder_layers=4
)
CONFIG = TrainingConfig(batch_tokens=4096)
SMOOTHING, RATE = CONFIG.label_smoothing, 1e-4
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


class Plain(nn.Module):
    """The Transformer of torch's own layers, with embeddings tied; like ours it
    has no LayerNorm behind the last.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.source_vocabulary, config.d_model)
        nn.init.normal_(self.tokens.weight, std=config.d_model**-0.5)
        self.dropout = nn.Dropout(config.dropout)
        self.stack = nn.Transformer(
            config.d_model,
            config.heads,
            config.encoder_layers,
            config.decoder_layers,
            config.d_ff,
            config.dropout,
            batch_first=True,
        )
        self.stack.encoder.norm = self.stack.decoder.norm = None

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return what each position leads to, `[sentences, target positions, d_model]`."""
        later = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.bool)
        padding, own = source == PAD, target == PAD
        decoded: Tensor = self.stack(
            self.embed(source),
            self.embed(target),
            tgt_mask=later,
            src_key_padding_mask=padding,
            tgt_key_padding_mask=own,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return decoded

    def embed(self, tokens: Tensor) -> Tensor:
        """Embed tokens and their positions."""
        width = self.tokens.embedding_dim
        embedded: Tensor = self.dropout(
            self.tokens(tokens) * width**0.5 + sinusoids(torch.arange(tokens.shape[1]), width)
        )
        return embedded


def loss_everywhere(network: Plain, batch: Batch) -> Tensor:
    """Score every position, padding too."""
    scores = network(batch.source, batch.target_input) @ network.tokens.weight.T
    return functional.cross_entropy(
        scores.flatten(0, 1),
        batch.target_output.flatten(),
        ignore_index=PAD,
        label_smoothing=SMOOTHING,
    )


def loss_of_real(network: Plain, batch: Batch) -> Tensor:
    """Score the positions that have a token."""
    real = batch.target_output != PAD
    scores = network(batch.source, batch.target_input)[real] @ network.tokens.weight.T
    return functional.cross_entropy(scores, batch.target_output[real], label_smoothing=SMOOTHING)


def loss_inside(network: Plain, batch: Batch) -> Tensor:
    """Score them with the output layer inside the loss."""
    real = batch.target_output != PAD
    decoded = network(batch.source, batch.target_input)[real]
    return smoothed_loss(
        decoded, network.tokens.weight, batch.target_output[real], SMOOTHING
    ) / len(decoded)


@dataclass(frozen=True)
class Way:
    """A way to train; `update` learns from a batch."""

    name: str
    bucketed: bool
    update: Callable[[Batch], object]


def ways() -> list[Way]:
    """Return the ways from the plain loop to ours, one difference at a time."""
    config = replace(SIZE, dropout=0.3)
    network = config.build().train()
    use_fast_dropout(network)
    optimiser = torch.optim.Adam(network.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    update = TrainingStep(
        network,
        [optimiser],
        CONFIG.label_smoothing,
        CONFIG.clip,
        torch.device("cpu"),
        SINGLE_PROCESS,
    )

    def ours(batch: Batch) -> None:
        update([(0, batch)], RATE)

    return [
        Way("the plain loop", bucketed=False, update=_plainly(config, loss_everywhere)),
        Way("and batches by length", bucketed=True, update=_plainly(config, loss_everywhere)),
        Way("and scores of real positions", bucketed=True, update=_plainly(config, loss_of_real)),
        Way(
            "and the output layer in the loss", bucketed=True, update=_plainly(config, loss_inside)
        ),
        Way("and a fused Adam", bucketed=True, update=_plainly(config, loss_inside, fused=True)),
        Way("ours", bucketed=True, update=ours),
    ]


def _plainly(
    config: TransformerConfig, loss: Callable[[Plain, Batch], Tensor], *, fused: bool = False
) -> Callable[[Batch], None]:
    network = Plain(config).train()
    optimiser = torch.optim.Adam(
        network.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9, fused=fused
    )

    def update(batch: Batch) -> None:
        optimiser.zero_grad()
        loss(network, batch).backward()
        optimiser.step()

    return update


def check_losses(batch: Batch) -> None:
    """Check that from the same weights, without dropout, every way finds the
    same loss and gradient of embeddings.
    """
    torch.manual_seed(0)
    plain, ours = Plain(replace(SIZE, dropout=0.0)), replace(SIZE, dropout=0.0).build()
    copy_weights(plain, ours)
    losses: list[tuple[nn.Module, nn.Parameter, Callable[[], Tensor]]] = [
        (each := copy.deepcopy(plain), each.tokens.weight, partial(loss, each, batch))
        for loss in (loss_everywhere, loss_of_real, loss_inside)
    ]
    own = ours.embed_target.tokens.weight
    losses.append(
        (ours, own, lambda: batch_loss(ours, batch, SMOOTHING, torch.device("cpu")) / batch.tokens)
    )
    found, gradients = [], []
    for network, weight, loss in losses:
        network.train()
        (each := loss()).backward()
        found.append(each.detach())
        gradients.append(weight.grad)
    for value, gradient in zip(found[1:], gradients[1:], strict=True):
        torch.testing.assert_close(value, found[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-3, atol=1e-6)
    print(f"the same weights, the same loss: {', '.join(f'{value:.5f}' for value in found)} nats")


@torch.no_grad()
def copy_weights(plain: Plain, ours: Transformer) -> None:
    """Give our network the weights of torch's."""
    ours.embed_target.tokens.weight.copy_(plain.tokens.weight)
    for one, other in zip(plain.stack.encoder.layers, ours.encoder, strict=True):
        _copy_attention(one.self_attn, other.attention)
        _copy_rest(
            one, other, [one.norm1, one.norm2], [other.around_attention, other.around_feed_forward]
        )
    for one, other in zip(plain.stack.decoder.layers, ours.decoder, strict=True):
        _copy_attention(one.self_attn, other.attention)
        _copy_attention(one.multihead_attn, other.memory_attention)
        around = [other.around_attention, other.around_memory_attention, other.around_feed_forward]
        _copy_rest(one, other, [one.norm1, one.norm2, one.norm3], around)


def _copy_attention(one: nn.MultiheadAttention, other: MultiHeadAttention) -> None:
    other.project_qkv.weight.copy_(one.in_proj_weight)
    other.project_qkv.bias.copy_(one.in_proj_bias)
    other.project_output.load_state_dict(one.out_proj.state_dict())


def _copy_rest(
    one: nn.Module, other: nn.Module, norms: list[nn.Module], around: list[nn.Module]
) -> None:
    other.feed_forward.expand.load_state_dict(one.linear1.state_dict())
    other.feed_forward.contract.load_state_dict(one.linear2.state_dict())
    for norm, residual in zip(norms, around, strict=True):
        residual.layer_norm.load_state_dict(norm.state_dict())


def examples_to_learn(tokenizer: Path | None) -> Examples:
    """Return Multi30k's training pairs, or made ones; `tokenizer` saves the time to train one."""
    corpus = SHARED / "translation" / "multi30k"
    if corpus.is_dir():
        pairs = list(
            Corpus(corpus / "train.en.txt.gz", corpus / "train.de.txt.gz", name="Multi30k").pairs()
        )
        size = VOCABULARY
    else:
        pairs, size = made_pairs(MADE, 0), MADE_VOCABULARY
    pieces = (
        Tokenizer.load(tokenizer)
        if tokenizer
        else Tokenizer.train((side for pair in pairs for side in pair), size)
    )
    print(
        f"{len(pairs):,} pairs "
        f"{'of Multi30k' if size == VOCABULARY else 'made, as the shared data is not there'}"
    )
    return clean(pairs, pieces, pieces, Rules())


def orders(examples: Examples) -> dict[bool, Iterator[Batch]]:
    """Return endless batches by length (`True`) and shuffled ones, which have
    as many sentences on average.
    """
    generator = torch.Generator().manual_seed(0)
    bucketed = batch_indices(examples, CONFIG.batch_tokens, generator)
    sentences = round(len(examples) / len(bucketed))
    shuffled = [
        each.numpy() for each in torch.randperm(len(examples), generator=generator).split(sentences)
    ]
    found = {}
    for is_bucketed, name, rows in ((True, "by length", bucketed), (False, "shuffled", shuffled)):
        sample = [batch_of(examples, each) for each in rows[:50]]
        real = sum(each.tokens for each in sample) / sum(
            each.target_output.numel() for each in sample
        )
        print(
            f"{name}: {len(examples) / len(rows):.0f} sentences a batch, {real:.0%} of target "
            "positions real"
        )
        found[is_bucketed] = (batch_of(examples, each) for each in cycle(rows))
    return found


def measure(
    examples: Examples, rounds: int, updates: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Return the target tokens a second of each way, the median of rounds; a
    first one is not counted.
    """
    batches, rates = orders(examples), dict[str, list[float]]()
    trained = ways()
    for _ in range(rounds + 1):
        for way in trained:
            begun, tokens = clock(), 0
            for _ in range(updates):
                way.update(batch := next(batches[way.bucketed]))
                tokens += batch.tokens
            rates.setdefault(way.name, []).append(tokens / (clock() - begun))
    return {name: statistics.median(each[1:]) for name, each in rates.items()}


def main() -> None:
    """Print the paces, each one's ratio to the one before, and to the plain loop."""
    from translation.environment import prepare_torch

    prepare_torch()
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--updates", type=int, default=4)
    asked.add_argument("--threads", type=int, nargs="+", default=sorted({1, os.cpu_count() or 1}))
    asked.add_argument("--clock", choices=list(CLOCKS), default="wall")
    asked.add_argument("--tokenizer", type=Path, help="one that a training has kept")
    options = asked.parse_args()
    examples = examples_to_learn(options.tokenizer)
    check_losses(batch_of(examples, batch_indices(examples, CONFIG.batch_tokens // 4, None)[20]))
    before = torch.get_num_threads()
    for threads in options.threads:
        torch.set_num_threads(threads)
        print(
            f"{threads} threads, medians of {options.rounds} rounds of {options.updates} updates, "
            f"{options.clock} time"
        )
        rates = measure(examples, options.rounds, options.updates, CLOCKS[options.clock])
        first = last = rates["the plain loop"]
        for name, rate in rates.items():
            print(
                f"{name:<34}{rate:>8,.0f} tokens/s  x {rate / last:.2f}  in all {rate / first:.2f}",
                flush=True,
            )
            last = rate
    torch.set_num_threads(before)


if __name__ == "__main__":
    main()
