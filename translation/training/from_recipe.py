"""Train the model of a recipe: corpus, network, training, and the folder that holds the result."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU
from torch import nn

from translation.data.corpus_cache import NOTES, Prepared, prepare
from translation.data.language_id import Direction, piece_counts
from translation.data.tokenizer import PAD
from translation.decoding.beam_search import GREEDY, search
from translation.errors import UsageError
from translation.models import Card, Model, network_of, save_model, stepper_of
from translation.recipes import Recipe
from translation.scoring import tokenizer_of
from translation.training.checkpoints import Progress
from translation.training.distributed import ALONE, Group
from translation.training.loop import SEEDS, Check, Sitting, train_network, validation_loss
from translation.translate import LONGEST


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
