"""Time the training of a translator against a plain loop around `nn.Transformer`.

`python -m benchmarks.translation_training_speed [--rounds 5] [--updates 4] [--threads 1 4] [--clock
wall]`: prints the gain of each difference between both. Both networks have the size that suits
Multi30k, whose sentences they learn where the shared data is beside the checkout; elsewhere they
learn as many invented ones. The plain loop is a textbook's: shuffled batches of as many sentences
as ours have on average, padded to their longest, scores of every position, `F.cross_entropy`, an
Adam that is not fused; by default `nn.Transformer` drops out attention weights too. The ways take
turns; medians of rounds, in target tokens a second, without padding. First the loss and its
gradients must be the same for both networks with the same weights. On a machine that has other
work, one thread and `--clock processor` give the ratio by processor time. With `--device cuda` all
ways run on a GPU, with bfloat16 products and the product's kernel of attention, or with
`--torch-attention` the one that torch chooses; a time then includes that the GPU has ended.
"""

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.made_language import made_pairs
from benchmarks.shared_data import SHARED
from translation.data.batches import Batch, batch_indices, batch_of
from translation.data.corpus import Corpus, Examples, Rules, clean
from translation.data.tokenizer import PAD, Tokenizer
from translation.training.distributed import SINGLE_PROCESS
from translation.training.dropout import use_fast_dropout
from translation.training.loop import TrainingConfig
from translation.training.step import TrainingStep, batch_loss, smoothed_loss
from translation.transformer import (
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    prepare_cuda,
    sinusoids,
)

VOCABULARY = 10_000
MADE_VOCABULARY = 600
MADE_PAIRS = 29_000
SIZE = TransformerConfig(
    VOCABULARY, VOCABULARY, d_model=128, heads=4, d_ff=256, encoder_layers=4, decoder_layers=4
)
CONFIG = TrainingConfig(batch_tokens=4096)
SMOOTHING = CONFIG.label_smoothing
RATE = 1e-4
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


class Plain(nn.Module):
    """The Transformer of torch's own layers, with tied embeddings.

    Like ours it has no LayerNorm after the last layer.
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
        """Return the state of each target position, `[sentences, target positions, d_model]`."""
        is_later = nn.Transformer.generate_square_subsequent_mask(
            target.shape[1], device=target.device, dtype=torch.bool
        )
        is_padding = source == PAD
        decoded: Tensor = self.stack(
            self.embed(source),
            self.embed(target),
            tgt_mask=is_later,
            src_key_padding_mask=is_padding,
            tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=is_padding,
            tgt_is_causal=True,
        )
        return decoded

    def embed(self, tokens: Tensor) -> Tensor:
        """Embed tokens and their positions."""
        width = self.tokens.embedding_dim
        positions = sinusoids(torch.arange(tokens.shape[1], device=tokens.device), width)
        embedded: Tensor = self.dropout(self.tokens(tokens) * width**0.5 + positions)
        return embedded


def loss_everywhere(network: Plain, batch: Batch) -> Tensor:
    """Return the loss from scores of every position, padding too."""
    scores = network(batch.source, batch.target_input) @ network.tokens.weight.T
    return functional.cross_entropy(
        scores.flatten(0, 1),
        batch.target_output.flatten(),
        ignore_index=PAD,
        label_smoothing=SMOOTHING,
    )


def loss_of_real(network: Plain, batch: Batch) -> Tensor:
    """Return the loss from scores of only the positions that have a token."""
    is_real = batch.target_output != PAD
    scores = network(batch.source, batch.target_input)[is_real] @ network.tokens.weight.T
    targets = batch.target_output[is_real]
    return functional.cross_entropy(scores, targets, label_smoothing=SMOOTHING)


def loss_inside(network: Plain, batch: Batch) -> Tensor:
    """Return the loss of those positions with the output layer inside the loss."""
    is_real = batch.target_output != PAD
    decoded = network(batch.source, batch.target_input)[is_real]
    targets = batch.target_output[is_real]
    return smoothed_loss(decoded, network.tokens.weight, targets, SMOOTHING) / len(decoded)


@dataclass(frozen=True)
class Way:
    """A way to train; `update` learns from a batch, `bucketed` is for batches by length."""

    name: str
    bucketed: bool
    update: Callable[[Batch], object]


def ways(device: torch.device) -> list[Way]:
    """Return the ways from the plain loop to ours, one difference at a time."""
    config = replace(SIZE, dropout=0.3)
    network = config.build().train().to(device)
    use_fast_dropout(network)
    optimiser = torch.optim.Adam(network.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    update = TrainingStep(
        network,
        [optimiser],
        CONFIG.label_smoothing,
        CONFIG.clip,
        device,
        SINGLE_PROCESS,
    )

    def ours(batch: Batch) -> None:
        update([(0, batch)], RATE)

    plainly = partial(_plainly, config, device)
    return [
        Way("the plain loop", bucketed=False, update=plainly(loss_everywhere)),
        Way("and batches by length", bucketed=True, update=plainly(loss_everywhere)),
        Way("and scores of real positions", bucketed=True, update=plainly(loss_of_real)),
        Way("and the output layer in the loss", bucketed=True, update=plainly(loss_inside)),
        Way("and a fused Adam", bucketed=True, update=plainly(loss_inside, fused=True)),
        Way("ours", bucketed=True, update=ours),
    ]


def _plainly(
    config: TransformerConfig,
    device: torch.device,
    loss: Callable[[Plain, Batch], Tensor],
    *,
    fused: bool = False,
) -> Callable[[Batch], None]:
    """Return the update of a plain network by a loss; `fused` is an option of its Adam."""
    network = Plain(config).train().to(device)
    on_gpu = device.type == "cuda"
    optimiser = torch.optim.Adam(
        network.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9, fused=fused
    )

    def update(batch: Batch) -> None:
        optimiser.zero_grad()
        batch_there = Batch(batch.source.to(device), batch.target_output.to(device))
        with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
            found = loss(network, batch_there)
        found.backward()
        optimiser.step()

    return update


def check_losses(batch: Batch) -> None:
    """Check that every way has the same loss, and the same gradient of the embeddings.

    All ways start with the same weights, and without dropout.
    """
    torch.manual_seed(0)
    config = replace(SIZE, dropout=0.0)
    plain = Plain(config)
    ours = config.build()
    copy_weights(plain, ours)
    losses: list[Tensor] = []
    gradients: list[Tensor | None] = []
    for loss_of in (loss_everywhere, loss_of_real, loss_inside):
        network = copy.deepcopy(plain).train()
        loss = loss_of(network, batch)
        loss.backward()
        losses.append(loss.detach())
        gradients.append(network.tokens.weight.grad)
    ours.train()
    our_loss = batch_loss(ours, batch, SMOOTHING, torch.device("cpu")) / batch.tokens
    our_loss.backward()
    losses.append(our_loss.detach())
    gradients.append(ours.embed_target.tokens.weight.grad)
    for loss, gradient in zip(losses[1:], gradients[1:], strict=True):
        torch.testing.assert_close(loss, losses[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-3, atol=1e-6)
    print(f"the same weights, the same loss: {', '.join(f'{loss:.5f}' for loss in losses)} nats")


@torch.no_grad()
def copy_weights(plain: Plain, ours: Transformer) -> None:
    """Give our network the weights of torch's."""
    ours.embed_target.tokens.weight.copy_(plain.tokens.weight)
    for theirs, our_layer in zip(plain.stack.encoder.layers, ours.encoder, strict=True):
        _copy_attention(theirs.self_attn, our_layer.attention)
        _copy_feed_forward(theirs, our_layer)
        _copy_norm(theirs.norm1, our_layer.around_attention)
        _copy_norm(theirs.norm2, our_layer.around_feed_forward)
    for theirs, our_layer in zip(plain.stack.decoder.layers, ours.decoder, strict=True):
        _copy_attention(theirs.self_attn, our_layer.attention)
        _copy_attention(theirs.multihead_attn, our_layer.memory_attention)
        _copy_feed_forward(theirs, our_layer)
        _copy_norm(theirs.norm1, our_layer.around_attention)
        _copy_norm(theirs.norm2, our_layer.around_memory_attention)
        _copy_norm(theirs.norm3, our_layer.around_feed_forward)


def _copy_attention(theirs: nn.MultiheadAttention, ours: MultiHeadAttention) -> None:
    ours.project_qkv.weight.copy_(theirs.in_proj_weight)
    ours.project_qkv.bias.copy_(theirs.in_proj_bias)
    ours.project_output.load_state_dict(theirs.out_proj.state_dict())


def _copy_feed_forward(theirs: nn.Module, ours: nn.Module) -> None:
    ours.feed_forward.expand.load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward.contract.load_state_dict(theirs.linear2.state_dict())


def _copy_norm(norm: nn.Module, residual: nn.Module) -> None:
    residual.layer_norm.load_state_dict(norm.state_dict())


def examples_to_learn(tokenizer: Path | None) -> Examples:
    """Return Multi30k's training pairs, or made ones; `tokenizer` saves the time to train one."""
    folder = SHARED / "translation" / "multi30k"
    if folder.is_dir():
        corpus = Corpus(folder / "train.en.txt.gz", folder / "train.de.txt.gz", name="Multi30k")
        pairs = list(corpus.pairs())
        size = VOCABULARY
        origin = "of Multi30k"
    else:
        pairs = made_pairs(MADE_PAIRS, 0)
        size = MADE_VOCABULARY
        origin = "made, as the shared data is not there"
    if tokenizer:
        pieces = Tokenizer(tokenizer.read_bytes())
    else:
        pieces = Tokenizer.train(chain.from_iterable(pairs), size)
    print(f"{len(pairs):,} pairs {origin}")
    return clean(pairs, pieces, pieces, Rules())


def orders(examples: Examples) -> dict[bool, Iterator[Batch]]:
    """Return endless batches by length (`True`) and shuffled ones (`False`).

    Both have as many sentences a batch on average.
    """
    generator = torch.Generator().manual_seed(0)
    bucketed = batch_indices(examples, CONFIG.batch_tokens, generator)
    sentences = round(len(examples) / len(bucketed))
    permutation = torch.randperm(len(examples), generator=generator)
    shuffled = [rows.numpy() for rows in permutation.split(sentences)]
    return {
        True: _endless_batches("by length", examples, bucketed),
        False: _endless_batches("shuffled", examples, shuffled),
    }


def _endless_batches(
    name: str, examples: Examples, rows_of_batches: Sequence[Any]
) -> Iterator[Batch]:
    """Print the share of real positions in a sample of batches; return all of them, endlessly."""
    sample = [batch_of(examples, rows) for rows in rows_of_batches[:50]]
    tokens = sum(batch.tokens for batch in sample)
    positions = sum(batch.target_output.numel() for batch in sample)
    print(
        f"{name}: {len(examples) / len(rows_of_batches):.0f} sentences a batch, "
        f"{tokens / positions:.0%} of target positions real"
    )
    return (batch_of(examples, rows) for rows in cycle(rows_of_batches))


def measure(
    examples: Examples,
    device: torch.device,
    rounds: int,
    updates: int,
    clock: Callable[[], float],
) -> dict[str, float]:
    """Return the target tokens a second of each way, the median of rounds but the first one."""
    batches = orders(examples)
    trained = ways(device)
    rates: dict[str, list[float]] = {way.name: [] for way in trained}
    for _ in range(rounds + 1):
        for way in trained:
            start = clock()
            tokens = 0
            for _ in range(updates):
                batch = next(batches[way.bucketed])
                way.update(batch)
                tokens += batch.tokens
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            rates[way.name].append(tokens / (clock() - start))
    return {name: statistics.median(way_rates[1:]) for name, way_rates in rates.items()}


def main() -> None:
    """Print the rate of each way, and its ratios to the one before and to the plain loop."""
    from translation.environment import prepare_torch

    prepare_torch()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, os.cpu_count() or 1}))
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--torch-attention", action="store_true", help="on a GPU, let torch choose the kernel"
    )
    parser.add_argument("--tokenizer", type=Path, help="one that a training has kept")
    options = parser.parse_args()
    if options.device == "cuda" and not options.torch_attention:
        prepare_cuda()
    examples = examples_to_learn(options.tokenizer)
    small_batches = batch_indices(examples, CONFIG.batch_tokens // 4, None)
    check_losses(batch_of(examples, small_batches[20]))
    before = torch.get_num_threads()
    for threads in options.threads:
        torch.set_num_threads(threads)
        print(
            f"{options.device}, {threads} threads, medians of {options.rounds} rounds of "
            f"{options.updates} updates, {options.clock} time"
        )
        rates = measure(
            examples,
            torch.device(options.device),
            options.rounds,
            options.updates,
            CLOCKS[options.clock],
        )
        plain_rate = rates["the plain loop"]
        last_rate = plain_rate
        for name, rate in rates.items():
            print(
                f"{name:<34}{rate:>8,.0f} tokens/s  x {rate / last_rate:.2f}  "
                f"in all {rate / plain_rate:.2f}",
                flush=True,
            )
            last_rate = rate
    torch.set_num_threads(before)


if __name__ == "__main__":
    main()
