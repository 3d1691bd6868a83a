"""Classify texts by LSTMs: film reviews with padding before or after them, and names by letters.

`python -m benchmarks.text_classification [--epochs 4] [--seeds 2]`: on the shared reviews, four
layers of LSTM (the "LSTM-4" of the lecture notes) read every review brought to the length of the
longest, with padding before or after it, and either read the padding too or stop at the last token
(masked). Then one layer reads names letter by letter and predicts the language; a name is in only
one part, and the rule beside it always predicts the commonest language. Epochs are chosen on the
validation part, for names among four times as many; the test part is read once. Intervals resample
texts.
"""

import argparse
import csv
import gzip
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.shared_data import SHARED
from translation.data.tokenizer import PAD, Tokenizer
from translation.seq2seq import RecurrentClassifier, RecurrentConfig

REVIEWS = SHARED / "nsmc"
NAMES = SHARED / "names" / "names.csv.gz"
PIECES = 4000
WIDTH = 64
BATCH = 64
RATE = 2e-3
CLIP = 1.0
# The share of the training reviews for validation; of the names, for validation and the test each.
SHARE = 0.1
FIRST_LETTER = 1  # 0 is padding
HEADING = (
    "| network | padding | train % | test % [95 %] | epoch | minutes |\n| --- | --- | ---: | "
    "--- | ---: | ---: |"
)


@dataclass(frozen=True)
class Part:
    """Texts brought to one length `[texts, positions]`, and the class of each."""

    tokens: Tensor
    classes: Tensor

    def batches(self, generator: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield tokens and classes, in random order with a generator."""
        count = len(self.tokens)
        if generator is None:
            order = torch.arange(count)
        else:
            order = torch.randperm(count, generator=generator)
        for rows in order.split(BATCH):
            yield self.tokens[rows], self.classes[rows]


def padded(rows: Sequence[Sequence[int]], longest: int, side: str) -> Tensor:
    """Return rows of tokens brought to one length, with PAD before or after them."""
    tokens = torch.full((len(rows), longest), PAD)
    for place, row in enumerate(rows):
        if row:
            start = longest - len(row) if side == "before" else 0
            tokens[place, start : start + len(row)] = torch.tensor(row)
    return tokens


@torch.no_grad()
def right(network: nn.Module, part: Part) -> Tensor:
    """Return for each text of a part, in order, whether the network predicts its class."""
    network.eval()
    predicted = torch.cat([network(tokens).argmax(dim=-1) for tokens, _ in part.batches(None)])
    network.train()
    return predicted == part.classes


@dataclass(frozen=True)
class Trained:
    """The accuracy on the training part, what is right in the test part, and the epoch chosen."""

    train_accuracy: float
    test_hits: Tensor
    epoch: int


def train(network: RecurrentClassifier, parts: dict[str, Part], epochs: int, seed: int) -> Trained:
    """Train a network, choose its epoch by the validation part, and read the test part once."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
    best_accuracy = -1.0
    best_epoch = 0
    best_weights = network.state_dict()
    for epoch in range(1, epochs + 1):
        for tokens, classes in parts["train"].batches(generator):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(tokens), classes).backward()
            nn.utils.clip_grad_norm_(network.parameters(), CLIP)
            optimiser.step()
        accuracy = right(network, parts["validation"]).float().mean().item()
        if accuracy > best_accuracy:
            best_accuracy = accuracy
            best_epoch = epoch
            weights = network.state_dict()
            best_weights = {name: value.clone() for name, value in weights.items()}
    network.load_state_dict(best_weights)
    return Trained(
        train_accuracy=right(network, parts["train"]).float().mean().item(),
        test_hits=right(network, parts["test"]),
        epoch=best_epoch,
    )


def interval(hits: Tensor) -> str:
    """Return the accuracy of `hits` `[seeds, texts]` in percent, with its 95 % interval.

    The interval is that of resampled texts.
    """
    by_text = hits.float().mean(dim=0).numpy()
    samples = np.random.default_rng(0).choice(by_text, (1000, len(by_text)))
    low, high = np.percentile(100 * samples.mean(axis=1), (2.5, 97.5))
    return f"{100 * by_text.mean():.1f} [{low:.1f}, {high:.1f}]"


def read_reviews(name: str) -> list[tuple[str, int]]:
    """Return the reviews of a file, each with its class."""
    with gzip.open(REVIEWS / name, "rt", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["document"], int(row["label"])) for row in rows]


def reviews(epochs: int, seeds: int) -> None:
    """Print the table of padding."""
    learned = read_reviews("train.tsv.gz")
    test = read_reviews("test.tsv.gz")
    random.Random(0).shuffle(learned)  # noqa: S311
    validation_size = int(SHARE * len(learned))
    texts = {
        "train": learned[validation_size:],
        "validation": learned[:validation_size],
        "test": test,
    }
    tokenizer = Tokenizer.train((text for text, _ in texts["train"]), PIECES)
    rows = {name: tokenizer.encode_all([text for text, _ in part]) for name, part in texts.items()}
    longest = max(len(row) for part in rows.values() for row in part)
    lengths = sorted(len(row) for row in rows["train"])
    print(
        f"{len(rows['train']):,} reviews to train on, {len(rows['test']):,} to test; "
        f"{tokenizer.size:,} pieces, {lengths[len(lengths) // 2]} in half of the reviews, "
        f"{longest} in the longest"
    )
    print(HEADING)
    config = RecurrentConfig(tokenizer.size, tokenizer.size, WIDTH, layers=4, dropout=0.2)
    classes = {name: torch.tensor([label for _, label in part]) for name, part in texts.items()}
    for masked in (False, True):
        for side in ("before", "after"):
            parts = {
                name: Part(tokens=padded(rows[name], longest, side), classes=classes[name])
                for name in texts
            }
            _print_row(
                "masked" if masked else "reads padding",
                side,
                config,
                2,
                parts,
                epochs,
                seeds,
                masked=masked,
            )


def names(epochs: int, seeds: int) -> None:
    """Print the table of names."""
    with gzip.open(NAMES, "rt", encoding="utf-8", newline="") as file:
        pairs = sorted({(row["name"], row["language"]) for row in csv.DictReader(file)})
    languages_of_name = Counter(name for name, _ in pairs)
    unique = [(name, language) for name, language in pairs if languages_of_name[name] == 1]
    random.Random(0).shuffle(unique)  # noqa: S311
    languages = sorted({language for _, language in unique})
    alphabet = sorted(set().union(*(name for name, _ in unique)))
    letters = {letter: number for number, letter in enumerate(alphabet, FIRST_LETTER)}
    longest = max(len(name) for name, _ in unique)
    size = int(SHARE * len(unique))
    pairs_of_part = {
        "test": unique[:size],
        "validation": unique[size : 2 * size],
        "train": unique[2 * size :],
    }
    parts = {}
    for part, part_pairs in pairs_of_part.items():
        rows = [[letters[letter] for letter in name] for name, _ in part_pairs]
        classes = [languages.index(language) for _, language in part_pairs]
        parts[part] = Part(tokens=padded(rows, longest, "after"), classes=torch.tensor(classes))
    [(commonest, _)] = Counter(parts["train"].classes.tolist()).most_common(1)
    print(
        f"\n{len(unique):,} names of one language each, {len(languages)} languages, "
        f"{len(letters)} letters"
    )
    print(HEADING)
    rule = (parts["test"].classes == commonest).unsqueeze(0)
    print(f"| always {languages[commonest]} | - | - | {interval(rule)} | - | - |")
    config = RecurrentConfig(len(letters) + 1, len(letters) + 1, 2 * WIDTH, layers=1, dropout=0.2)
    _print_row(
        "masked, by letters", "after", config, len(languages), parts, epochs, seeds, masked=True
    )


def _print_row(
    name: str,
    side: str,
    config: RecurrentConfig,
    classes: int,
    parts: dict[str, Part],
    epochs: int,
    seeds: int,
    *,
    masked: bool,
) -> None:
    """Train a network of each seed, and print a row of the table."""
    start = time.monotonic()
    results = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        network = RecurrentClassifier(config, classes, masked=masked)
        results.append(train(network, parts, epochs, seed))
    accuracy = 100 * statistics.mean(result.train_accuracy for result in results)
    hits = torch.stack([result.test_hits for result in results])
    chosen_epochs = ", ".join(str(result.epoch) for result in results)
    minutes = (time.monotonic() - start) / 60
    print(
        f"| {name} | {side} | {accuracy:.1f} | {interval(hits)} | {chosen_epochs} | "
        f"{minutes:.0f} |",
        flush=True,
    )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    if not REVIEWS.is_dir():
        print(f"no shared data at {SHARED}: nothing to classify")
        return
    names(4 * options.epochs, options.seeds)
    reviews(options.epochs, options.seeds)


if __name__ == "__main__":
    main()
