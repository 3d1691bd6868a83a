"""Train the model of a recipe: prepare its corpus, build its network, train, and save."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU
from torch import nn

from translation.data.corpus_cache import NOTES, CachedCorpus, cache_corpus
from translation.data.language_id import LanguageIdentifier, piece_counts
from translation.data.tokenizer import PAD
from translation.decoding.beam_search import GREEDY, search
from translation.errors import UsageError
from translation.models import Card, Model, build_network, incremental_decoder, save_model
from translation.recipes import Recipe
from translation.scoring import tokenizer_of
from translation.training.distributed import SINGLE_PROCESS, ProcessGroup
from translation.training.loop import SEEDS, Check, TrainingContext, ValidationBleu, train_network, validation_loss
from translation.translate import MAX_PIECES


def train_model(
    recipe: Recipe,
    models: Path,
    work: Path,
    device: torch.device,
    process_group: ProcessGroup,
    on_check: Callable[[Check], object] = lambda _: None,
    on_message: Callable[[str], object] = lambda _: None,
) -> Model | None:
    """Prepare the corpus, train, and save the model to the folder of its name in `models`.

    An interrupted training resumes from its state in `work`. `on_check` gets each check, `on_message` lines about what
    is done. Returns None in every process but rank 0. Raises TranslationError and UsageError.
    """
    cached = _cache_once(recipe, work, process_group)
    on_message(f"{cached.training.summary()}; {cached.source.size:,} subwords, size {cached.size}")
    sizes = {"source_vocabulary": cached.source.size, "target_vocabulary": cached.target.size}
    values, config = recipe.network_for(cached.size) | sizes, recipe.training_for(cached.size)
    _refuse_positions(recipe.name, cached, values.get("learned_positions", 0))
    torch.manual_seed(config.seed % SEEDS)
    network = build_network(recipe.kind, values)
    bleu = _validation_bleu(cached, recipe.target_language, device)
    key, deciding = recipe.key(cached.size, cached.corpus_hash), bleu if recipe.decide_by == "bleu" else None
    context = TrainingContext(work, key, device, process_group, on_check, on_message, deciding)
    progress = train_network(network, values["d_model"], cached.training, cached.validation, config, context)
    if process_group.rank > 0:
        return None
    loss = validation_loss(network, cached.validation, config.batch_tokens, device)
    figures = {"validation_loss": loss, "validation_bleu": bleu(network, SINGLE_PROCESS)}
    made = {"training": asdict(config), "progress": asdict(progress), "processes": process_group.world_size}
    card = _card(recipe, cached, values, figures | made)
    language_id = LanguageIdentifier(*piece_counts(cached.training, cached.source, cached.target))
    model = Model(card, network, cached.source, cached.target, language_id)
    return replace(model, card=save_model(models / recipe.name, model))


def _cache_once(recipe: Recipe, work: Path, process_group: ProcessGroup) -> CachedCorpus:
    """Return the cached corpus, which rank 0 writes and all others read."""
    if process_group.rank > 0:
        process_group.broadcast(0.0)
        if not (work / NOTES).exists():
            raise UsageError(f"the machines of this training do not share {work}: give all the same DTML_DATA")

    cached = cache_corpus(recipe, work)
    if process_group.rank == 0:
        process_group.broadcast(0.0)
    return cached


def _card(recipe: Recipe, cached: CachedCorpus, values: Mapping[str, Any], made: Mapping[str, Any]) -> Card:
    tests = {
        name: {"source": str(each.source), "target": each.target and str(each.target), "columns": list(each.columns)}
        for name, each in recipe.tests.items()
    }
    pairs = cached.training
    learned = {"pairs": len(pairs), "dropped": pairs.dropped, "corpus_hash": cached.corpus_hash, "tests": tests}
    learned |= {"rules": asdict(recipe.rules), "decide_by": recipe.decide_by} | dict(made)
    languages, hashes = (recipe.source_language, recipe.target_language), (cached.source.digest, cached.target.digest)
    return Card(recipe.name, recipe.kind, cached.size, *languages, values, hashes, weights_hash="", made=learned)


def _refuse_positions(name: str, cached: CachedCorpus, learned: int) -> None:
    """Raise UsageError if there are fewer learned positions than a sentence, in training or search, may need."""
    sides = (side for each in (cached.training, cached.validation) for side in (each.source, each.target))
    needed = max(MAX_PIECES, *(int(side.lengths.max()) for side in sides)) + GREEDY.extra + 1
    if 0 < learned < needed:
        may = f"the longest sentence and its translation may need {needed}: raise it, or set 0 for sinusoids"
        raise UsageError(f"{name}: network.learned_positions is {learned}, but {may}")


def _validation_bleu(cached: CachedCorpus, language: str, device: torch.device) -> ValidationBleu:
    """Return a function from a network to the BLEU, 0 to 100, of its greedy translations; a group shares the work."""
    metric = BLEU(tokenize=tokenizer_of(language))
    pairs = [cached.validation[place] for place in range(len(cached.validation))]
    sources = [source.tolist() for source, _ in pairs]
    widest = max(map(len, sources)) + GREEDY.extra
    expected = [cached.target.decode(target.tolist()) for _, target in pairs]

    def bleu(network: nn.Module, process_group: ProcessGroup) -> float:
        was = network.training
        tokens = torch.zeros(len(sources), widest, dtype=torch.int64)
        mine = range(process_group.rank, len(sources), process_group.world_size)
        found = search(incremental_decoder(network.eval()), [sources[each] for each in mine], GREEDY, device=device)
        network.train(was)
        for each, best in zip(mine, found, strict=True):
            tokens[each, : len(best[0].tokens)] = torch.tensor(best[0].tokens)
        rows = process_group.all_reduce(tokens).tolist()
        said = [cached.target.decode([token for token in row if token != PAD]) for row in rows]
        return float(metric.corpus_score(said, [expected]).score)

    return bleu
