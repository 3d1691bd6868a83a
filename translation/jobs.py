"""The two things that are asked for: a model of a recipe, and the translation of texts."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU
from torch import nn

from translation.data.corpus_cache import NOTES, Prepared, prepare
from translation.data.language_id import Direction, piece_counts
from translation.data.tokenizer import PAD
from translation.decoding.beam_search import Hypothesis, Search, search
from translation.errors import UsageError
from translation.models import Card, Model, network_of, save_model, stepper_of
from translation.recipes import Recipe
from translation.scoring import is_unspaced, tokenizer_of
from translation.training.checkpoints import Progress
from translation.training.distributed import ALONE, Group
from translation.training.loop import SEEDS, Check, Sitting, train_network, validation_loss

GREEDY = Search(beams=1, alpha=0.0)
LONGEST = 150  # pieces that are translated at once: longer texts are cut at the ends of sentences
SENTENCE_END = re.compile("(?<=[.!?\u2026])\\s+|(?<=[\u3002\uff01\uff1f])\\s*")


@dataclass(frozen=True)
class Trained:
    """A model, and how far its training came."""

    model: Model
    progress: Progress


@dataclass(frozen=True)
class Watch:
    """What a training tells: each check, and words about what is done."""

    on_check: Callable[[Check], object] = lambda _: None
    say: Callable[[str], object] = lambda _: None


def train_model(
    recipe: Recipe, models: Path, *, work: Path, device: torch.device, group: Group, watch: Watch
) -> Trained | None:
    """Prepare the corpus, train, and write the model to the folder of its name in `models`.

    What the training goes on from after an interruption lies in `work`. None to all of a group but the first, which
    has the model. Raises TranslationError and UsageError.
    """
    prepared = _prepared_once(recipe, work, group)
    watch.say(f"{prepared.training.summary()}; {prepared.source.size:,} subwords, size {prepared.size}")
    values, config = _network_values(recipe, prepared), recipe.training_for(prepared.size)
    torch.manual_seed(config.seed % SEEDS)
    network = network_of(recipe.kind, values)
    sitting = Sitting(
        folder=work,
        key=recipe.key(prepared.size, prepared.corpus_hash),
        device=device,
        group=group,
        on_check=watch.on_check,
        bleu=_judge(prepared, recipe.target_language, device, group) if recipe.decide_by == "bleu" else None,
    )
    progress = train_network(network, values["d_model"], prepared.training, prepared.validation, config, sitting)
    if group.rank > 0:
        return None
    figures = {
        "validation_loss": validation_loss(network, prepared.validation, config.batch_tokens, device),
        "validation_bleu": _judge(prepared, recipe.target_language, device, ALONE)(network),
    }
    card = _card(recipe, prepared, values, figures | {"training": asdict(config), "progress": asdict(progress)})
    direction = Direction.fit(*piece_counts(prepared.training, prepared.source, prepared.target))
    model = Model(card, network, prepared.source, prepared.target, direction)
    return Trained(replace(model, card=save_model(models / recipe.name, model)), progress)


def _prepared_once(recipe: Recipe, work: Path, group: Group) -> Prepared:
    """The corpus made ready; the first of a group writes what the others read."""
    if group.rank > 0:
        group.agree(0.0)
        if not (work / NOTES).exists():
            raise UsageError(f"the machines of this training do not share {work}: give all the same DTML_DATA")
    prepared = prepare(recipe, work)
    if group.rank == 0:
        group.agree(0.0)
    return prepared


def _network_values(recipe: Recipe, prepared: Prepared) -> dict[str, Any]:
    """The network's configuration, whole."""
    sizes = {"source_vocabulary": prepared.source.size, "target_vocabulary": prepared.target.size}
    values = recipe.network_for(prepared.size) | sizes
    _refuse_positions(recipe.name, prepared, values.get("learned_positions", 0))
    return values


def _card(recipe: Recipe, prepared: Prepared, values: Mapping[str, Any], made: Mapping[str, Any]) -> Card:
    tests = {
        name: {"source": str(each.source), "target": each.target and str(each.target), "columns": list(each.columns)}
        for name, each in recipe.tests.items()
    }
    learned = {
        "pairs": len(prepared.training),
        "dropped": prepared.training.dropped,
        "corpus_hash": prepared.corpus_hash,
        "tests": tests,
        "rules": asdict(recipe.rules),
        "decide_by": recipe.decide_by,
    }
    return Card(
        name=recipe.name,
        kind=recipe.kind,
        size=prepared.size,
        source_language=recipe.source_language,
        target_language=recipe.target_language,
        network=values,
        tokenizer_hashes=(prepared.source.digest, prepared.target.digest),
        weights_hash="",
        made=learned | dict(made),
    )


def _refuse_positions(name: str, prepared: Prepared, learned: int) -> None:
    """A learned position that there is not has no embedding, in the training or in a search."""
    lengths = [
        x.max() for each in (prepared.training, prepared.validation) for x in (each.source_lengths, each.target_lengths)
    ]
    needed = max(LONGEST, *map(int, lengths)) + GREEDY.extra + 1
    if 0 < learned < needed:
        raise UsageError(
            f"{name}: network.learned_positions is {learned}, but the longest sentence and its translation may need "
            f"{needed}: raise it, or set 0 for sinusoids"
        )


def _judge(prepared: Prepared, language: str, device: torch.device, group: Group) -> Callable[[nn.Module], float]:
    """BLEU of greedy translations of the validation set, of which each of a group translates its share."""
    metric = BLEU(tokenize=tokenizer_of(language))
    pairs = [prepared.validation[place] for place in range(len(prepared.validation))]
    sources = [source.tolist() for source, _ in pairs]
    widest = max(map(len, sources)) + GREEDY.extra
    expected = [prepared.target.decode(target.tolist()) for _, target in pairs]

    def judged(network: nn.Module) -> float:
        was = network.training
        tokens = torch.zeros(len(sources), widest, dtype=torch.int64)
        mine = range(group.rank, len(sources), group.size)
        found = search(stepper_of(network.eval()), [sources[each] for each in mine], GREEDY, device=device)
        network.train(was)
        for each, best in zip(mine, found, strict=True):
            tokens[each, : len(best[0].tokens)] = torch.tensor(best[0].tokens)
        rows = group.total(tokens).tolist()
        said = [prepared.target.decode([token for token in row if token != PAD]) for row in rows]
        return float(metric.corpus_score(said, [expected]).score)

    return judged


@dataclass(frozen=True)
class Translation:
    """A text in the other language, the n best where they were asked for, and what is odd about the text.

    `score` is the log probability of the pieces divided by the length penalty, 0 for an empty text. `attention` on
    request is of each part of the text: its source pieces, its target pieces, and the weights between them.
    """

    text: str
    score: float
    best: tuple[tuple[str, float], ...]
    attention: tuple[tuple[list[str], list[str], torch.Tensor], ...]
    warning: str | None = None


def translate(
    model: Model,
    texts: Sequence[str],
    how: Search,
    *,
    report: Callable[[int], object] | None = None,
) -> list[Translation]:
    """Translate texts of any length, in their order; longer ones than `LONGEST` pieces part by part.

    An empty text is translated by an empty one. The n best of a text of several parts are those of its parts, paired
    by rank.
    """
    parts = [_parts(model, text) for text in texts]
    rows = [row for each in parts for row in each]
    found = iter(search(model.stepper, rows, how, report=report, device=model.device))
    return [_joined(model, each, [next(found) for _ in each]) for each in parts]


def _parts(model: Model, text: str) -> list[list[int]]:
    """The pieces of a text, cut at the ends of sentences, or anywhere, where they are too many."""
    whole = model.source.encode(text)
    if len(whole) <= LONGEST:
        return [whole]
    rows: list[list[int]] = [[]]
    for row in model.source.encode_all(SENTENCE_END.split(text)):
        if rows[-1] and len(rows[-1]) + len(row) > LONGEST:
            rows.append([])
        rows[-1] += row
    return [row[start : start + LONGEST] for row in rows for start in range(0, len(row), LONGEST)]


def _joined(model: Model, rows: list[list[int]], found: list[list[Hypothesis]]) -> Translation:
    count, space = min(map(len, found)), "" if is_unspaced(model.card.target_language) else " "
    best = [
        (
            space.join(model.target.decode(part[rank].tokens) for part in found).strip(),
            sum(part[rank].score for part in found),
        )
        for rank in range(count)
    ]
    attention = tuple(
        ([*model.source.pieces(row), "</s>"], [*model.target.pieces(part[0].tokens), "</s>"], part[0].attention)
        for row, part in zip(rows, found, strict=True)
        if part[0].attention is not None
    )
    wrong = any(model.direction.reads_like_target(row) for row in rows)
    card = model.card
    warning = f"it reads like {card.target_language}, but the model translates {card.languages}" if wrong else None
    return Translation(best[0][0], best[0][1], tuple(best), attention, warning)
