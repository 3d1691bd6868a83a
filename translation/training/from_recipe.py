"""Train the model of a recipe: prepare its corpus, build its network, train, and save."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU
from torch import nn

from translation.cards import Card
from translation.data.corpus_cache import NOTES, CachedCorpus, cache_corpus
from translation.data.language_id import LanguageIdentifier, piece_counts
from translation.data.tokenizer import PAD
from translation.decoding.beam_search import GREEDY, search
from translation.decoding.ensemble import Ensemble
from translation.errors import UsageError
from translation.models import WEIGHTS, Model, build_network, incremental_decoder, save_model
from translation.recipes import Recipe
from translation.scoring import tokenizer_of
from translation.training.arithmetic import bfloat16_gain, faster_format, slower_words
from translation.training.checkpoints import Progress, load_weights, read_tensors, save_weights
from translation.training.distributed import SINGLE_PROCESS, ProcessGroup
from translation.training.loop import (
    SEEDS,
    Check,
    TrainingConfig,
    TrainingContext,
    ValidationBleu,
    train_network,
    validation_loss,
)
from translation.training.pace import choose_size
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

    An interrupted training resumes from its state in `work`. `on_check` gets each check of the
    first seed, `on_message` those of others and lines about what is done. Returns None in every
    process but rank 0. Raises TranslationError and UsageError.
    """
    cached = _cache_once(recipe, work, device, process_group)
    on_message(f"{cached.training.summary()}; {cached.source.size:,} subwords, size {cached.size}")
    sizes = {"source_vocabulary": cached.source.size, "target_vocabulary": cached.target.size}
    values = recipe.network_for(cached.size) | sizes
    _refuse_positions(recipe.name, cached, values.get("learned_positions", 0))
    # With a seed or more for each process, none waits for another before the end.
    apart = recipe.seeds >= process_group.world_size
    training = _SeedTraining(
        recipe=recipe,
        cached=cached,
        values=values,
        config=_with_formats(recipe.training_for(cached.size), device, process_group, on_message),
        work=work,
        device=device,
        group=SINGLE_PROCESS if apart else process_group,
    )
    mine = range(recipe.seeds)[
        process_group.rank if apart else 0 :: process_group.world_size if apart else 1
    ]
    done = {number: training(number, len(mine), on_check, on_message) for number in mine}
    if apart:
        process_group.broadcast(0.0)
    if process_group.rank > 0:
        return None
    networks = [
        done[number][0] if number in done else training.finished(number)
        for number in range(recipe.seeds)
    ]
    losses = [
        validation_loss(each, cached.validation, training.config.batch_tokens, device)
        for each in networks
    ]
    bleus = [training.bleu(each, SINGLE_PROCESS) for each in networks]
    network = networks[0] if len(networks) == 1 else Ensemble(networks).eval()
    figures: dict[str, Any] = {
        "validation_loss": sum(losses) / len(losses),
        "validation_bleu_by_seed": bleus,
    }
    figures["validation_bleu"] = (
        bleus[0] if len(networks) == 1 else training.bleu(network, SINGLE_PROCESS)
    )
    made = {
        "training": asdict(training.config),
        "progress": asdict(done[0][1]),
        "seeds": recipe.seeds,
    }
    card = _card(recipe, cached, values, figures | made | {"processes": process_group.world_size})
    language_id = LanguageIdentifier(*piece_counts(cached.training, cached.source, cached.target))
    model = Model(card, network, cached.source, cached.target, language_id)
    return replace(model, card=save_model(models / recipe.name, model))


@dataclass(frozen=True)
class _SeedTraining:
    """The training of one network of a recipe; the first keeps its state in
    `work` itself, the others below it.
    """

    recipe: Recipe
    cached: CachedCorpus
    values: Mapping[str, Any]  # the network's configuration
    config: TrainingConfig
    work: Path
    device: torch.device
    group: ProcessGroup

    @cached_property
    def bleu(self) -> ValidationBleu:
        return _validation_bleu(self.cached, self.recipe.target_language, self.device)

    def __call__(
        self,
        number: int,
        of: int,
        on_check: Callable[[Check], object],
        on_message: Callable[[str], object],
    ) -> tuple[nn.Module, Progress]:
        """Train a seed, one `of` so many that share the minutes of this
        process, and keep its weights for others.
        """
        minutes = self.config.minutes and self.config.minutes / of
        config = replace(self.config, seed=self.config.seed + number, minutes=minutes)

        def said(check: Check) -> None:
            on_message(f"seed {number}: {check}")

        self._folder(number).mkdir(exist_ok=True)
        key = self.recipe.key(self.cached.size, self.cached.corpus_hash, number)
        deciding = self.bleu if self.recipe.decide_by == "bleu" else None
        told = on_check if number == 0 else said
        place = (self._folder(number), key, self.device, self.group)
        context = TrainingContext(*place, told, on_message, deciding)
        torch.manual_seed(config.seed % SEEDS)
        network = build_network(self.recipe.kind, self.values)
        examples = self.cached.training, self.cached.validation
        progress = train_network(network, self.values["d_model"], *examples, config, context)
        if self.recipe.seeds > 1 and self.group.rank == 0:
            save_weights(self._folder(number) / WEIGHTS, network.state_dict())
        return network, progress

    def finished(self, number: int) -> nn.Module:
        """Return the network of a seed that another process has trained."""
        network = build_network(self.recipe.kind, self.values)
        load_weights(network, read_tensors(self._folder(number) / WEIGHTS)[0])
        return network.to(self.device).eval()

    def _folder(self, number: int) -> Path:
        return self.work / f"seed-{number}" if number else self.work


def _with_formats(
    config: TrainingConfig,
    device: torch.device,
    process_group: ProcessGroup,
    on_message: Callable[[str], object],
) -> TrainingConfig:
    """Return the settings with the number formats that the first process found to be faster.

    All processes take the same. Says what was taken, or by how much a named format is slower.
    """
    on_cuda = device.type == "cuda"  # which mixes both formats, whatever is asked for
    gain = 0.0 if on_cuda else process_group.broadcast(bfloat16_gain())
    faster = faster_format(gain)
    if on_cuda:
        on_message("multiplies in bfloat16 and float32, mixed")
    elif config.precision == "auto":
        on_message(f"multiplies in {faster}: bfloat16 is {gain:.1f} times as fast as float32 here")
    elif warning := slower_words(config.precision, gain):
        on_message(warning)
    return replace(
        config,
        precision=faster if config.precision == "auto" else config.precision,
        muon_precision=faster if config.muon_precision == "auto" else config.muon_precision,
    )


def _cache_once(
    recipe: Recipe, work: Path, device: torch.device, process_group: ProcessGroup
) -> CachedCorpus:
    """Return the cached corpus, which rank 0 writes and all others read."""
    if process_group.rank > 0:
        process_group.broadcast(0.0)
        if not (work / NOTES).exists():
            raise UsageError(
                f"the machines of this training run do not share {work}: set the same DTML_DATA "
                "on all"
            )
    choose = partial(choose_size, device=device, processes=process_group.world_size)
    cached = cache_corpus(recipe, work, choose)
    if process_group.rank == 0:
        process_group.broadcast(0.0)
    return cached


def _card(
    recipe: Recipe, cached: CachedCorpus, values: Mapping[str, Any], made: Mapping[str, Any]
) -> Card:
    tests = {
        name: {
            "source": str(each.source),
            "target": each.target and str(each.target),
            "columns": list(each.columns),
        }
        for name, each in recipe.tests.items()
    }
    pairs = cached.training
    learned = {
        "pairs": len(pairs),
        "dropped": pairs.dropped,
        "corpus_hash": cached.corpus_hash,
        "tests": tests,
    }
    learned |= {"rules": asdict(recipe.rules), "decide_by": recipe.decide_by} | dict(made)
    languages, hashes = (
        (recipe.source_language, recipe.target_language),
        (cached.source.digest, cached.target.digest),
    )
    return Card(
        recipe.name,
        recipe.kind,
        cached.size,
        *languages,
        values,
        hashes,
        weights_hash="",
        made=learned,
    )


def _refuse_positions(name: str, cached: CachedCorpus, learned: int) -> None:
    """Raise UsageError if there are fewer learned positions than a sentence, in
    training or search, may need.
    """
    sides = (
        side for each in (cached.training, cached.validation) for side in (each.source, each.target)
    )
    needed = max(MAX_PIECES, *(int(side.lengths.max()) for side in sides)) + GREEDY.extra + 1
    if 0 < learned < needed:
        may = (
            f"the longest sentence and its translation may need {needed}: raise it, or "
            "set 0 for sinusoidal "
            "positions"
        )
        raise UsageError(f"{name}: network.learned_positions is {learned}, but {may}")


def _validation_bleu(cached: CachedCorpus, language: str, device: torch.device) -> ValidationBleu:
    """Return a function from a network to the BLEU, 0 to 100, of its greedy
    translations; a group shares the work.
    """
    metric = BLEU(tokenize=tokenizer_of(language))
    pairs = [cached.validation[place] for place in range(len(cached.validation))]
    sources = [source.tolist() for source, _ in pairs]
    widest = max(map(len, sources)) + GREEDY.extra
    expected = [cached.target.decode(target.tolist()) for _, target in pairs]

    def bleu(network: nn.Module, process_group: ProcessGroup) -> float:
        was = network.training
        tokens = torch.zeros(len(sources), widest, dtype=torch.int64)
        mine = range(process_group.rank, len(sources), process_group.world_size)
        found = search(
            incremental_decoder(network.eval()),
            [sources[each] for each in mine],
            GREEDY,
            device=device,
        )
        network.train(was)
        for each, best in zip(mine, found, strict=True):
            tokens[each, : len(best[0].tokens)] = torch.tensor(best[0].tokens)
        rows = process_group.all_reduce(tokens).tolist()
        said = [cached.target.decode([token for token in row if token != PAD]) for row in rows]
        return float(metric.corpus_score(said, [expected]).score)

    return bleu
