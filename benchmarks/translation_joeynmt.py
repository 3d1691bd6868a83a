"""Time a training against JoeyNMT 2.3: the same network, the same pairs, target tokens a second of
processor time.

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
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.translation_training_speed import RATE, SIZE, SMOOTHING, examples_to_learn
from translation.data.batches import Batch, Indices, batch_indices, batch_of
from translation.data.corpus import Examples
from translation.data.tokenizer import BEGIN, END, PAD, UNKNOWN
from translation.training.cpu_layers import use_fast_dropout, use_rounded_products
from translation.training.distributed import SINGLE_PROCESS
from translation.training.step import TrainingStep

DROPOUT = 0.2
Update = Callable[[Batch], object]


def of_joeynmt() -> Update:
    """Return a function that updates JoeyNMT's own model as `TrainManager` does, on a CPU."""
    from joeynmt.batch import Batch as JoeyBatch
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    words = {PAD: "<pad>", UNKNOWN: "<unk>", BEGIN: "<s>", END: "</s>"}
    special = {"unk": UNKNOWN, "pad": PAD, "bos": BEGIN, "eos": END}
    named = {
        f"{name}_{kind}": value
        for name, number in special.items()
        for kind, value in (("token", words[number]), ("id", number))
    }
    how = SimpleNamespace(**named, sep_token=None, sep_id=None, lang_tags=[])
    known = [words.get(number, f"w{number}") for number in range(SIZE.source_vocabulary)]
    vocabulary = _InOrder.of(Vocabulary, known, how)
    stack = {
        "type": "transformer",
        "num_heads": SIZE.heads,
        "hidden_size": SIZE.d_model,
        "ff_size": SIZE.d_ff,
    }
    stack |= {
        "dropout": DROPOUT,
        "embeddings": {"embedding_dim": SIZE.d_model, "scale": True},
        "layer_norm": "pre",
    }
    layers = {"encoder": SIZE.encoder_layers, "decoder": SIZE.decoder_layers}
    config = {name: stack | {"num_layers": count} for name, count in layers.items()}
    model = build_model(
        config | {"tied_embeddings": True, "tied_softmax": True}, vocabulary, vocabulary
    )
    model.loss_function = ("crossentropy", SMOOTHING)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98))
    model.train()

    def update(batch: Batch) -> None:
        target = torch.cat([batch.target_input[:, :1], batch.target_output], dim=1)
        lengths = (batch.source != PAD).sum(dim=1)
        rows = torch.arange(len(target))
        given = JoeyBatch(
            batch.source, lengths, None, target, None, rows, torch.device("cpu"), PAD, END
        )
        given.sort_by_src_length()
        loss, *_ = model(return_type="loss", **vars(given))
        given.normalize(loss, normalization="tokens").backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        model.zero_grad()

    return update


class _InOrder:
    """Make JoeyNMT's vocabulary without its search for each word among all
    before it, which takes minutes.
    """

    @staticmethod
    def of(kind: Any, known: list[str], how: SimpleNamespace) -> Any:
        made = kind.__new__(kind)
        made.specials, made.lang_tags, made.sep_index = known[:4], [], None
        made._itos, made._stoi = known, {word: number for number, word in enumerate(known)}
        made.pad_index, made.bos_index, made.eos_index, made.unk_index = (
            how.pad_id,
            how.bos_id,
            how.eos_id,
            how.unk_id,
        )
        return made


def of_ours(products: torch.dtype) -> Update:
    """Return a function that updates our network, with matrix products in the type `products`."""
    network = SIZE.build().train()
    for each in network.modules():
        if isinstance(each, torch.nn.Dropout):
            each.p = DROPOUT
    use_fast_dropout(network)
    if products == torch.bfloat16:
        use_rounded_products(network)
    optimiser = torch.optim.Adam(network.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    step = TrainingStep(
        network, [optimiser], SMOOTHING, 1.0, torch.device("cpu"), SINGLE_PROCESS, products
    )
    return lambda batch: step([(0, batch)], RATE)


def drawn_as_joeynmt_does(examples: Examples, tokens: int) -> Iterator[Indices]:
    """Yield batches as its `TokenBatchSampler` does: at random, until the
    longest times their number is `tokens`.
    """
    longest = (
        torch.maximum(
            torch.from_numpy(examples.source.lengths), torch.from_numpy(examples.target.lengths)
        )
        + 1
    )
    batch: list[int] = []
    for place in torch.randperm(len(examples), generator=torch.Generator().manual_seed(0)).tolist():
        batch.append(place)
        if int(longest[batch].max()) * len(batch) >= tokens:
            yield torch.tensor(batch).numpy()
            batch = []


def main() -> None:
    """Print the pace of each way, and its ratio to JoeyNMT's on JoeyNMT's batches."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--updates", type=int, default=4)
    asked.add_argument("--batch-tokens", type=int, default=4096)
    options = asked.parse_args()
    if find_spec("joeynmt") is None:
        print("JoeyNMT is not installed here: see the head of this file")
        return
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    torch.set_num_threads(1)
    examples = examples_to_learn(None)
    own = batch_indices(examples, options.batch_tokens, torch.Generator().manual_seed(0))
    drawn = {"its": list(drawn_as_joeynmt_does(examples, options.batch_tokens)), "own": own}
    batches = {
        name: (batch_of(examples, each) for each in cycle(rows)) for name, rows in drawn.items()
    }
    joeynmt, ours, rounded = of_joeynmt(), of_ours(torch.float32), of_ours(torch.bfloat16)
    ways = [
        ("JoeyNMT", "its", joeynmt),
        ("JoeyNMT", "own", joeynmt),
        ("ours", "its", ours),
        ("ours", "own", ours),
    ]
    ways += [("ours, bfloat16", "its", rounded), ("ours, bfloat16", "own", rounded)]
    rates: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds + 1):
        for name, kind, update in ways:
            begun, tokens = time.process_time(), 0
            for _ in range(options.updates):
                update(batch := next(batches[kind]))
                tokens += batch.tokens
            rates.setdefault((name, kind), []).append(tokens / (time.process_time() - begun))
    paces = {way: statistics.median(each[1:]) for way, each in rates.items()}
    for (name, kind), pace in paces.items():
        told = {"its": "at random", "own": "by length"}[kind]
        print(
            f"{name:<16}{told:<12}{pace:>8,.0f} tokens/s  x {pace / paces['JoeyNMT', 'its']:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
