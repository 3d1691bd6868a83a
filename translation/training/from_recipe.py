"""Train the model of a recipe: prepare its corpus, build its network, train, and save."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from translation.cards import Card
from translation.data.corpus_cache import NOTES, CachedCorpus, cache_corpus
from translation.data.language_id import LanguageIdentifier, piece_counts
from translation.data.languages import SAMPLE, UNICODE_FORM, BleuTokenizer, tokenizer_of
from translation.decoding.beam_search import GREEDY, search
from translation.decoding.incremental import Ensemble
from translation.errors import UsageError
from translation.models import WEIGHTS, Model, build_network, incremental_decoder, save_model
from translation.recipes import Recipe
from translation.scoring import bleu_metric
from translation.training.arithmetic import bfloat16_gain, faster_format, slower_format_warning
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
from translation.translate import MAX_PIECES, beginning_of


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
    first seed, in rank 0 alone. `on_message` gets lines about the progress, in every process; among
    them are the checks of other seeds. Returns the model in rank 0, and None in every other
    process. Raises UsageError for a recipe or a corpus that cannot be used, and TranslationError if
    the training fails.
    """
    cached = _cache_once(recipe, work, device, process_group)
    places = range(min(len(cached.validation), SAMPLE))
    targets = [cached.validation.target[place].tolist() for place in places]
    references = [cached.target.decode(target) for target in targets]
    bleu_tokenizer = tokenizer_of(recipe.target_language, references)
    on_message(
        f"{cached.training.summary()}; {cached.source.size:,} subwords of {UNICODE_FORM} text, "
        f"size {cached.size}, BLEU with tok:{bleu_tokenizer}"
    )
    values = {
        **recipe.network_for(cached.size),
        "source_vocabulary": cached.source.size,
        "target_vocabulary": cached.target.size,
    }
    learned = values.get("learned_positions", 0)
    longest = max(
        MAX_PIECES,
        cached.training.source.lengths.max(),
        cached.training.target.lengths.max(),
        cached.validation.source.lengths.max(),
        cached.validation.target.lengths.max(),
    )
    positions = int(longest) + GREEDY.extra + 1  # of the longest translation, with BEGIN
    if 0 < learned < positions:
        raise UsageError(
            f"{recipe.name}: network.learned_positions is {learned}, but the longest sentence and "
            f"its translation may need {positions}: set it to {positions} or more, or to 0 for "
            "sinusoidal positions"
        )
    # With a seed or more for each process, each trains its own, and none waits for another before
    # the end. With fewer seeds, all processes train each seed together.
    is_separate = recipe.seeds >= process_group.world_size
    group = SINGLE_PROCESS if is_separate else process_group
    training = _SeedTraining(
        recipe=recipe,
        cached=cached,
        values=values,
        config=_auto_resolved(recipe.training_for(cached.size), device, process_group, on_message),
        work=work,
        device=device,
        group=group,
        bleu_tokenizer=bleu_tokenizer,
    )
    seeds_here = range(recipe.seeds)
    if is_separate:
        seeds_here = seeds_here[process_group.rank :: process_group.world_size]
    trained: dict[int, _TrainedSeed] = {}
    for number in seeds_here:
        trained[number] = training(number, len(seeds_here), on_check, on_message)
    if is_separate:
        process_group.broadcast(0.0)  # wait until every process has trained its seeds
    if process_group.rank > 0:
        return None
    networks: list[nn.Module] = []  # of all seeds, in order
    for number in range(recipe.seeds):
        if number in trained:
            networks.append(trained[number].network)
        else:
            networks.append(training.load_finished(number))
    # Rank 0 always trains seed 0.
    model = _model(training, networks, trained[0].progress, process_group.world_size)
    return replace(model, card=save_model(models / recipe.name, model))


class _TrainedSeed(NamedTuple):
    network: nn.Module
    progress: Progress


@dataclass(frozen=True)
class _SeedTraining:
    """The training of the networks of a recipe: each call trains that of one seed.

    A seed is named by its number, from 0 on. The first stores its state in `work` itself, the
    others in folders below it.
    """

    recipe: Recipe
    cached: CachedCorpus
    values: Mapping[str, Any]  # the network's configuration
    config: TrainingConfig
    work: Path
    device: torch.device
    group: ProcessGroup
    bleu_tokenizer: BleuTokenizer  # of the BLEU on the validation set

    @cached_property
    def bleu(self) -> ValidationBleu:
        """Return a function that computes the BLEU, 0 to 100, of a network's greedy translations.

        It takes a network and a process group, and translates the validation set. The processes of
        the group share the sentences, so all must call it, and all get the result.
        """
        cached = self.cached
        metric = bleu_metric(self.bleu_tokenizer)
        pairs = [cached.validation[place] for place in range(len(cached.validation))]
        sources = [source.tolist() for source, _ in pairs]
        longest_translation = max(len(source) for source in sources) + GREEDY.extra
        references = [cached.target.decode(target.tolist()) for _, target in pairs]

        def bleu(network: nn.Module, process_group: ProcessGroup) -> float:
            # Each process fills the rows of its own sources. The others stay 0, which is PAD, so
            # that the sum over all processes is the whole table.
            tokens = torch.zeros(len(sources), longest_translation, dtype=torch.int64)
            places = range(process_group.rank, len(sources), process_group.world_size)
            was_training = network.training

            def name_of(index: int) -> str:
                """Return how an error names a sentence, whose line is not known any more."""
                text = cached.source.decode(sources[places[index]])
                return f"the validation sentence {beginning_of(text)}"

            hypotheses = search(
                incremental_decoder(network.eval()),
                [sources[place] for place in places],
                GREEDY,
                name_of=name_of,
                device=self.device,
            )
            network.train(was_training)
            for place, (best,) in zip(places, hypotheses, strict=True):
                tokens[place, : len(best.tokens)] = torch.tensor(best.tokens)
            rows = process_group.all_reduce(tokens).tolist()
            # `decode` leaves PAD out.
            translations = [cached.target.decode(row) for row in rows]
            return float(metric.corpus_score(translations, [references]).score)

        return bleu

    def __call__(
        self,
        number: int,
        seeds_here: int,
        on_check: Callable[[Check], object],
        on_message: Callable[[str], object],
    ) -> _TrainedSeed:
        """Train the network of a seed, and return it with its progress.

        If the recipe has several seeds, the weights are saved too, for the process that joins the
        networks (`load_finished`). The minutes of this process are divided by `seeds_here`, the
        number of seeds that it trains. The checks of the first seed go to `on_check`, those of
        other seeds to `on_message`, as text.
        """
        minutes = self.config.minutes
        if minutes is not None:
            minutes = minutes / seeds_here
        config = replace(self.config, seed=self.config.seed + number, minutes=minutes)

        def report_as_message(check: Check) -> None:
            on_message(f"seed {number}: {check}")

        report = on_check if number == 0 else report_as_message
        deciding_bleu = self.bleu if self.recipe.decide_by == "bleu" else None
        folder = self._folder(number)
        folder.mkdir(exist_ok=True)
        context = TrainingContext(
            folder=folder,
            key=self.recipe.key(self.cached.size, self.cached.corpus_hash, number),
            device=self.device,
            process_group=self.group,
            on_check=report,
            on_message=on_message,
            bleu=deciding_bleu,
        )
        torch.manual_seed(config.seed % SEEDS)  # of the initial weights
        try:
            network = build_network(self.recipe.kind, self.values)
        except UsageError as error:  # the recipe was tried with another size
            size = self.cached.size
            raise UsageError(f"{self.recipe.name}, [network] with size {size}: {error}") from error
        progress = train_network(
            network,
            width=self.values["d_model"],
            training=self.cached.training,
            validation=self.cached.validation,
            config=config,
            context=context,
        )
        if self.recipe.seeds > 1 and self.group.rank == 0:  # only rank 0 has the best weights
            save_weights(folder / WEIGHTS, network.state_dict())
        return _TrainedSeed(network, progress)

    def load_finished(self, number: int) -> nn.Module:
        """Return the network of a seed that another process has trained, for evaluation.

        Its weights are read from the file that `__call__` saved in that process.
        """
        network = build_network(self.recipe.kind, self.values)
        weights, _ = read_tensors(self._folder(number) / WEIGHTS)
        load_weights(network, weights)
        return network.to(self.device).eval()

    def _folder(self, number: int) -> Path:
        return self.work / f"seed-{number}" if number else self.work


def _model(
    training: _SeedTraining, networks: Sequence[nn.Module], progress: Progress, processes: int
) -> Model:
    """Return the model of the networks of all seeds, an ensemble if there are several.

    Its card has the `progress` of the first seed and the number of `processes`.
    """
    recipe = training.recipe
    cached = training.cached
    network = networks[0] if len(networks) == 1 else Ensemble(networks).eval()
    validation = cached.validation
    batch_tokens = training.config.batch_tokens
    losses = [
        validation_loss(network_of_seed, validation, batch_tokens, training.device)
        for network_of_seed in networks
    ]
    bleus = [training.bleu(network_of_seed, SINGLE_PROCESS) for network_of_seed in networks]
    bleu = bleus[0] if len(networks) == 1 else training.bleu(network, SINGLE_PROCESS)
    source_counts, target_counts = piece_counts(cached.training, cached.source, cached.target)
    return Model(
        card=Card(
            name=recipe.name,
            kind=recipe.kind,
            size=cached.size,
            source_language=recipe.source_language,
            target_language=recipe.target_language,
            network=training.values,
            tokenizer_hashes=(cached.source.digest, cached.target.digest),
            weights_hash="",
            made={
                "pairs": len(cached.training),
                "dropped": cached.training.dropped,
                "corpus_hash": cached.corpus_hash,
                "tests": {
                    name: {
                        "source": str(corpus.source),
                        "target": None if corpus.target is None else str(corpus.target),
                        "columns": list(corpus.columns),
                    }
                    for name, corpus in recipe.tests.items()
                },
                "rules": asdict(recipe.rules),
                "decide_by": recipe.decide_by,
                "validation_loss": sum(losses) / len(losses),
                "validation_bleu_by_seed": bleus,
                "validation_bleu": bleu,
                "training": asdict(training.config),
                "progress": asdict(progress),
                "seeds": recipe.seeds,
                "processes": processes,
                "unicode_form": UNICODE_FORM,
                "bleu_tokenizer": training.bleu_tokenizer,
            },
        ),
        network=network,
        source=cached.source,
        target=cached.target,
        language_id=LanguageIdentifier(source=source_counts, target=target_counts),
    )


def _auto_resolved(
    config: TrainingConfig,
    device: torch.device,
    process_group: ProcessGroup,
    on_message: Callable[[str], object],
) -> TrainingConfig:
    """Return the settings with a number format in place of each "auto".

    The settings are `precision` and `muon_precision`, the formats float32 and bfloat16. "auto"
    becomes bfloat16 if that is faster by `WORTH_ROUNDING` on the machine of rank 0, else float32,
    in all processes. `on_message` gets that format if `precision` was "auto", and a warning for
    each setting in use that names the slower one. CUDA mixes both formats whatever the settings
    are: "auto" becomes float32 without a measurement, and the only message says that the formats
    are mixed.
    """
    on_cuda = device.type == "cuda"
    # On CUDA nothing is measured: a gain of 0 turns "auto" into float32, which is not used there.
    gain = 0.0 if on_cuda else process_group.broadcast(bfloat16_gain())
    faster = faster_format(gain)
    if on_cuda:
        on_message("multiplies in bfloat16 and float32, mixed")
    else:
        if config.precision == "auto":
            on_message(
                f"multiplies in {faster}: bfloat16 is {gain:.1f} times as fast as float32 here"
            )
        settings = ["precision"]
        if config.optimiser == "muon":
            settings.append("muon_precision")
        for setting in settings:
            warning = slower_format_warning(setting, getattr(config, setting), gain)
            if warning:
                on_message(warning)
    precision = config.precision
    if precision == "auto":
        precision = faster
    muon_precision = config.muon_precision
    if muon_precision == "auto":
        muon_precision = faster
    return replace(config, precision=precision, muon_precision=muon_precision)


def _cache_once(
    recipe: Recipe, work: Path, device: torch.device, process_group: ProcessGroup
) -> CachedCorpus:
    if process_group.rank > 0:
        process_group.broadcast(0.0)  # wait until rank 0 has written it
        if not (work / NOTES).exists():
            raise UsageError(
                f"the machines of this training run do not share {work}: put it on a disk that "
                "all of them use, and set the same DTML_DATA, or --to, on all"
            )

    def choose(unsized_recipe: Recipe) -> str:
        return choose_size(unsized_recipe, device, process_group.world_size)

    # Only rank 0 writes here: the others find the files written.
    cached = cache_corpus(recipe, work, choose)
    if process_group.rank == 0:
        process_group.broadcast(0.0)  # let the others go on
    return cached
