"""Time a training against JoeyNMT 2.3, with the same network and the same pairs.

The unit is target tokens a second of processor time.

`python -m benchmarks.translation_joeynmt [--rounds 5] [--updates 4] [--batch-tokens 4096]`, in an
environment that has JoeyNMT: it is not among the extras, as it holds back what we need. Make one
beside ours:

    python3 -m venv joeynmt && joeynmt/bin/pip install torch==2.13.0 joeynmt==2.3.0 jaxtyping
    safetensors \
        importlib_metadata
    PYTHONPATH=. joeynmt/bin/python -m benchmarks.translation_joeynmt

JoeyNMT draws pairs at random until their longest, times their number, reaches `--batch-tokens`;
ours come by length. Both count padding. One thread; the ways take turns, and a first round is not
counted.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import cycle
from typing import Any

import torch

from benchmarks.translation_training_speed import RATE, SIZE, SMOOTHING, examples_to_learn
from translation.data.batches import Batch, Indices, batch_indices, batch_of
from translation.data.corpus import Examples
from translation.data.tokenizer import BEGIN, END, PAD, UNKNOWN
from translation.training.distributed import SINGLE_PROCESS
from translation.training.dropout import use_fast_dropout
from translation.training.step import TrainingStep

DROPOUT = 0.2
Update = Callable[[Batch], object]


def of_joeynmt() -> Update:
    """Return a function that updates JoeyNMT's own model as `TrainManager` does, on a CPU."""
    from joeynmt.batch import Batch as JoeyBatch
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    vocabulary = _vocabulary(Vocabulary)
    stack = {
        "type": "transformer",
        "num_heads": SIZE.heads,
        "hidden_size": SIZE.d_model,
        "ff_size": SIZE.d_ff,
        "dropout": DROPOUT,
        "embeddings": {"embedding_dim": SIZE.d_model, "scale": True},
        "layer_norm": "pre",
    }
    config = {
        "encoder": stack | {"num_layers": SIZE.encoder_layers},
        "decoder": stack | {"num_layers": SIZE.decoder_layers},
        "tied_embeddings": True,
        "tied_softmax": True,
    }
    model = build_model(config, vocabulary, vocabulary)
    model.loss_function = ("crossentropy", SMOOTHING)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98))
    model.train()

    def update(batch: Batch) -> None:
        target = torch.cat([batch.target_input[:, :1], batch.target_output], dim=1)
        lengths = (batch.source != PAD).sum(dim=1)
        rows = torch.arange(len(target))
        joey_batch = JoeyBatch(
            batch.source, lengths, None, target, None, rows, torch.device("cpu"), PAD, END
        )
        joey_batch.sort_by_src_length()
        loss, *_ = model(return_type="loss", **vars(joey_batch))
        joey_batch.normalize(loss, normalization="tokens").backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        model.zero_grad()

    return update


def _vocabulary(vocabulary_class: Any) -> Any:
    """Return JoeyNMT's vocabulary of as many words as ours has pieces.

    Its own constructor searches for each word among all before it, which takes minutes.
    """
    special = {PAD: "<pad>", UNKNOWN: "<unk>", BEGIN: "<s>", END: "</s>"}
    words = [special.get(number, f"w{number}") for number in range(SIZE.source_vocabulary)]
    vocabulary = vocabulary_class.__new__(vocabulary_class)
    vocabulary.specials = words[:4]
    vocabulary.lang_tags = []
    vocabulary.sep_index = None
    vocabulary._itos = words
    vocabulary._stoi = {word: number for number, word in enumerate(words)}
    vocabulary.pad_index = PAD
    vocabulary.bos_index = BEGIN
    vocabulary.eos_index = END
    vocabulary.unk_index = UNKNOWN
    return vocabulary


def of_ours() -> Update:
    """Return a function that updates our network."""
    network = SIZE.build().train()
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = DROPOUT
    use_fast_dropout(network)
    optimiser = torch.optim.Adam(network.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    step = TrainingStep(network, [optimiser], SMOOTHING, 1.0, torch.device("cpu"), SINGLE_PROCESS)

    def update(batch: Batch) -> None:
        step([(0, batch)], RATE)

    return update


def drawn_as_joeynmt_does(examples: Examples, tokens: int) -> Iterator[Indices]:
    """Yield batches as JoeyNMT's `TokenBatchSampler` does.

    It draws sentences at random until the length of the longest, times their number, is `tokens`.
    """
    source_lengths = torch.from_numpy(examples.source.lengths)
    target_lengths = torch.from_numpy(examples.target.lengths)
    lengths = torch.maximum(source_lengths, target_lengths) + 1
    generator = torch.Generator().manual_seed(0)
    batch: list[int] = []
    for place in torch.randperm(len(examples), generator=generator).tolist():
        batch.append(place)
        if int(lengths[batch].max()) * len(batch) >= tokens:
            yield torch.tensor(batch).numpy()
            batch = []


def main() -> None:
    """Print the rate of each way, and its ratio to JoeyNMT's on JoeyNMT's batches."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    options = parser.parse_args()
    if find_spec("joeynmt") is None:
        print("JoeyNMT is not installed here: see the head of this file")
        return
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    torch.set_num_threads(1)
    examples = examples_to_learn(None)
    their_rows = list(drawn_as_joeynmt_does(examples, options.batch_tokens))
    generator = torch.Generator().manual_seed(0)
    our_rows = batch_indices(examples, options.batch_tokens, generator)
    batches = {
        "its": (batch_of(examples, rows) for rows in cycle(their_rows)),
        "own": (batch_of(examples, rows) for rows in cycle(our_rows)),
    }
    joeynmt = of_joeynmt()
    ours = of_ours()
    ways = [
        ("JoeyNMT", "its", joeynmt),
        ("JoeyNMT", "own", joeynmt),
        ("ours", "its", ours),
        ("ours", "own", ours),
    ]
    rates: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds + 1):
        for name, kind, update in ways:
            start = time.process_time()
            tokens = 0
            for _ in range(options.updates):
                batch = next(batches[kind])
                update(batch)
                tokens += batch.tokens
            rate = tokens / (time.process_time() - start)
            rates.setdefault((name, kind), []).append(rate)
    medians = {way: statistics.median(way_rates[1:]) for way, way_rates in rates.items()}
    their_rate = medians["JoeyNMT", "its"]
    for (name, kind), rate in medians.items():
        order = {"its": "at random", "own": "by length"}[kind]
        print(
            f"{name:<16}{order:<12}{rate:>8,.0f} tokens/s  x {rate / their_rate:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
