"""Make a pair of made-up languages to try translation with: a corpus as files, trained in under a minute."""

from collections.abc import Sequence
from pathlib import Path

from translation.data.corpus import Corpus, Pair
from translation.data.synthetic import LANGUAGES, demo_corpus
from translation.recipes import Recipe

SEED = 0
SHOWN = 5  # translations
NETWORK = {"d_model": 64, "heads": 4, "d_ff": 128, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.1}
TRAINING = {
    "batch_tokens": 2048, "accumulate": 1, "updates": 450, "warmup": 150, "peak": 0.006, "check_every": 50,
    "average": 3,
}  # fmt: skip


def demo_recipe(folder: Path) -> tuple[Recipe, list[Pair]]:
    """Write the corpus into a folder; return how to train from it, and some pairs that no training sees."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("train", "validation", "test")
    train, validation, test = (
        _written(folder / f"{name}.tsv", pairs, name) for name, pairs in zip(names, demo_corpus(SEED), strict=True)
    )
    recipe = Recipe(
        name="demo",
        source_language=LANGUAGES[0],
        target_language=LANGUAGES[1],
        train=train,
        validation=validation,
        tests={"test": test},
        vocabulary=600,
        size="tiny",
        network=NETWORK,
        training=TRAINING,
    )
    return recipe, list(test.pairs())[:SHOWN]


def _written(file: Path, pairs: Sequence[Pair], name: str) -> Corpus:
    file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return Corpus(file, name=name)
