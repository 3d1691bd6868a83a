"""Classify texts by LSTMs: film reviews padded before and after the text, and names by their
characters.

`python -m benchmarks.text_classification [--epochs 4] [--seeds 2]`: on the shared reviews, four
layers of LSTM (the "LSTM-4" of the lecture notes) read every review brought to the length of the
longest, with padding before or after it, and either read the padding too or stop at the last token
(masked). Then one layer reads names letter by letter and tells the language; a name is in one part
alone, and the rule beside it always says the commonest language. Epochs are chosen on validation,
of the names among four times as many; the test part is read once. Intervals resample texts.
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
PIECES, WIDTH, BATCH, RATE, CLIP = 4000, 64, 64, 2e-3, 1.0
# of the training reviews, for validation; of the names, for validation and for the test each
SHARE = 0.1
LETTERS_FROM = 1  # 0 is padding


@dataclass(frozen=True)
class Part:
    """Texts brought to one length `[texts, positions]`, and the class of each."""

    tokens: Tensor
    classes: Tensor

    def batches(self, generator: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield tokens and classes, in random order with a generator."""
        count = len(self.tokens)
        order = (
            torch.arange(count) if generator is None else torch.randperm(count, generator=generator)
        )
        for rows in order.split(BATCH):
            yield self.tokens[rows], self.classes[rows]


def padded(rows: Sequence[Sequence[int]], longest: int, side: str) -> Tensor:
    """Return rows of tokens brought to one length, with PAD before or after them."""
    filled = torch.full((len(rows), longest), PAD)
    for place, row in enumerate(rows):
        if row:
            at = slice(longest - len(row), longest) if side == "before" else slice(0, len(row))
            filled[place, at] = torch.tensor(row)
    return filled


@torch.no_grad()
def right(network: nn.Module, part: Part) -> Tensor:
    """Return for each text of a part, in order, whether its class was found."""
    network.eval()
    found = torch.cat([network(tokens).argmax(dim=-1) for tokens, _ in part.batches(None)])
    network.train()
    return found == part.classes


def train(
    network: RecurrentClassifier, parts: dict[str, Part], epochs: int, seed: int
) -> tuple[float, Tensor, int]:
    """Train, and return the accuracy on the training part, what was right in
    the test part, and the epoch chosen.
    """
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
    best = (-1.0, 0, network.state_dict())
    for epoch in range(1, epochs + 1):
        for tokens, classes in parts["train"].batches(generator):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(tokens), classes).backward()
            nn.utils.clip_grad_norm_(network.parameters(), CLIP)
            optimiser.step()
        accuracy = right(network, parts["validation"]).float().mean().item()
        if accuracy > best[0]:
            best = (
                accuracy,
                epoch,
                {name: value.clone() for name, value in network.state_dict().items()},
            )
    network.load_state_dict(best[2])
    return (
        right(network, parts["train"]).float().mean().item(),
        right(network, parts["test"]),
        best[1],
    )


def interval(hits: Tensor) -> str:
    """Return the accuracy in percent with its 95 % interval of resampled texts;
    `hits` is `[seeds, texts]`.
    """
    by_text = hits.float().mean(dim=0).numpy()
    drawn = np.random.default_rng(0).choice(by_text, (1000, len(by_text))).mean(axis=1)
    low, high = np.percentile(100 * drawn, (2.5, 97.5))
    return f"{100 * by_text.mean():.1f} [{low:.1f}, {high:.1f}]"


def read_reviews(name: str) -> list[tuple[str, int]]:
    """Return the reviews of a file, each with its class."""
    with gzip.open(REVIEWS / name, "rt", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["document"], int(row["label"])) for row in rows]


def reviews(epochs: int, seeds: int) -> None:
    """Print the table of padding."""
    learned, test = read_reviews("train.tsv.gz"), read_reviews("test.tsv.gz")
    random.Random(0).shuffle(learned)  # noqa: S311
    held = int(SHARE * len(learned))
    texts = {"train": learned[held:], "validation": learned[:held], "test": test}
    tokenizer = Tokenizer.train((text for text, _ in texts["train"]), PIECES)
    rows = {name: tokenizer.encode_all([text for text, _ in part]) for name, part in texts.items()}
    longest = max(len(row) for part in rows.values() for row in part)
    lengths = sorted(len(row) for row in rows["train"])
    print(
        f"{len(rows['train']):,} reviews to train on, {len(rows['test']):,} to test; "
        f"{tokenizer.size:,} pieces,",
        end="",
    )
    print(f" {lengths[len(lengths) // 2]} in half of the reviews, {longest} in the longest")
    print(
        "| network | padding | train % | test % [95 %] | epoch | minutes |\n| --- | --- | ---: | "
        "--- | ---: | ---: |"
    )
    for masked in (False, True):
        for side in ("before", "after"):
            parts = {
                name: Part(
                    padded(rows[name], longest, side), torch.tensor([label for _, label in part])
                )
                for name, part in texts.items()
            }
            config = RecurrentConfig(tokenizer.size, tokenizer.size, WIDTH, layers=4, dropout=0.2)
            _row(
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
    times = Counter(name for name, _ in pairs)
    once = [pair for pair in pairs if times[pair[0]] == 1]
    random.Random(0).shuffle(once)  # noqa: S311
    languages = sorted({language for _, language in once})
    letters = {
        letter: at
        for at, letter in enumerate(sorted({x for name, _ in once for x in name}), LETTERS_FROM)
    }
    longest, held = max(len(name) for name, _ in once), int(SHARE * len(once))
    cut = {"test": once[:held], "validation": once[held : 2 * held], "train": once[2 * held :]}
    parts = {
        name: Part(
            padded([[letters[x] for x in text] for text, _ in part], longest, "after"),
            torch.tensor([languages.index(language) for _, language in part]),
        )
        for name, part in cut.items()
    }
    commonest = Counter(parts["train"].classes.tolist()).most_common(1)[0][0]
    print(
        f"\n{len(once):,} names of one language each, {len(languages)} languages, "
        f"{len(letters)} letters"
    )
    print(
        "| network | padding | train % | test % [95 %] | epoch | minutes |\n| --- | --- | ---: | "
        "--- | ---: | ---: |"
    )
    rule = (parts["test"].classes == commonest).unsqueeze(0)
    print(f"| always {languages[commonest]} | - | - | {interval(rule)} | - | - |")
    config = RecurrentConfig(len(letters) + 1, len(letters) + 1, 2 * WIDTH, layers=1, dropout=0.2)
    _row("masked, by letters", "after", config, len(languages), parts, epochs, seeds, masked=True)


def _row(
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
    begun, found = time.monotonic(), []
    for seed in range(seeds):
        torch.manual_seed(seed)
        found.append(
            train(RecurrentClassifier(config, classes, masked=masked), parts, epochs, seed)
        )
    accuracy = 100 * statistics.mean(each[0] for each in found)
    hits, chosen = (
        torch.stack([each[1] for each in found]),
        ", ".join(str(each[2]) for each in found),
    )
    minutes = (time.monotonic() - begun) / 60
    print(
        f"| {name} | {side} | {accuracy:.1f} | {interval(hits)} | {chosen} | {minutes:.0f} |",
        flush=True,
    )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()
    if not REVIEWS.is_dir():
        print(f"no shared data at {SHARED}: nothing to classify")
        return
    names(4 * asked.epochs, asked.seeds)
    reviews(asked.epochs, asked.seeds)


if __name__ == "__main__":
    main()
