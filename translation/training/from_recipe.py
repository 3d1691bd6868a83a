"""Train the model of a recipe: prepare its corpus, build its network, train, and save."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import torch
from torch import nn

from translation.cards import Card
from translation.data.corpus_cache import FILE, CachedCorpus, cache_corpus
from translation.data.languages import SAMPLE, UNICODE_FORM, BleuTokenizer, tokenizer_of
from translation.decoding.beam_search import GREEDY, IncrementalDecoder, search
from translation.decoding.ensemble import Ensemble
from translation.errors import UsageError
from translation.models import Model, Network, build_network, save_model
from translation.recipes import Recipe
from translation.scoring import bleu_metric
from translation.training.checkpoints import Progress
from translation.training.distributed import SINGLE_PROCESS, ProcessGroup
from translation.training.loop import (
    SEEDS,
    Check,
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
    """Prepare the corpus, train, and save the model to the folder of its name in `models`; rank 0
    has it.

    Resumes from `work`. Several seeds are trained one after the other, each in an equal part of the
    minutes. `on_check` gets the checks of the first seed in rank 0, `on_message` lines in every
    process. Raises UsageError for an unusable recipe or corpus, TranslationError if the training
    fails.
    """
    cached = _cache_once(recipe, work, device, process_group)
    validation = cached.validation
    places = range(min(len(validation), SAMPLE))
    references = [cached.target.decode(validation.target[place].tolist()) for place in places]
    bleu_tokenizer = tokenizer_of(references)
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
        validation.source.lengths.max(),
        validation.target.lengths.max(),
    )
    positions = int(longest) + GREEDY.extra + 1  # of the longest translation, with BEGIN
    if 0 < learned < positions:
        raise UsageError(
            f"{recipe.name}: network.learned_positions is {learned}, but the longest sentence and "
            f"its translation may need {positions}: set it to {positions} or more, or to 0 for "
            "sinusoidal positions"
        )
    config = recipe.training_for(cached.size)
    minutes = None if config.minutes is None else config.minutes / recipe.seeds
    bleu = validation_bleu(cached, bleu_tokenizer, device)
    networks: list[Network] = []
    progress: list[Progress] = []
    for number in range(recipe.seeds):
        seed = config.seed + number

        def report_as_message(check: Check, number: int = number) -> None:
            on_message(f"seed {number}: {check}")

        folder = work / f"seed-{number}" if number else work
        folder.mkdir(exist_ok=True)
        torch.manual_seed(seed % SEEDS)  # of the initial weights
        try:
            network = build_network(recipe.kind, values)
        except UsageError as error:  # the recipe was tried with another size
            raise UsageError(
                f"{recipe.name}, [network] with size {cached.size}: {error}"
            ) from error
        progress.append(
            train_network(
                network,
                width=values["d_model"],
                training=cached.training,
                validation=validation,
                config=replace(config, seed=seed, minutes=minutes),
                context=TrainingContext(
                    folder=folder,
                    key=recipe.key(cached.size, cached.corpus_hash, number),
                    device=device,
                    process_group=process_group,
                    on_check=report_as_message if number else on_check,
                    on_message=on_message,
                    bleu=bleu if recipe.decide_by == "bleu" else None,
                ),
            )
        )
        networks.append(network)
    if process_group.rank > 0:  # only rank 0 has the best weights
        return None
    together = networks[0] if len(networks) == 1 else Ensemble(networks).eval()
    losses = [validation_loss(each, validation, config.batch_tokens, device) for each in networks]
    bleus = [bleu(each, SINGLE_PROCESS) for each in networks]
    model = Model(
        card=Card(
            name=recipe.name,
            kind=recipe.kind,
            size=cached.size,
            source_language=recipe.source_language,
            target_language=recipe.target_language,
            network=values,
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
                "validation_bleu": bleus[0] if len(bleus) == 1 else bleu(together, SINGLE_PROCESS),
                "training": asdict(config),
                "progress": asdict(progress[0]),
                "seeds": recipe.seeds,
                "processes": process_group.world_size,
                "unicode_form": UNICODE_FORM,
                "bleu_tokenizer": bleu_tokenizer,
            },
        ),
        network=together,
        source=cached.source,
        target=cached.target,
    )
    return replace(model, card=save_model(models / recipe.name, model))


def validation_bleu(
    cached: CachedCorpus, bleu_tokenizer: BleuTokenizer, device: torch.device
) -> ValidationBleu:
    """Return a function of a network and a group: the BLEU, 0 to 100, of greedy translations.

    The processes share the validation set: all must call it, and all get the result.
    """
    metric = bleu_metric(bleu_tokenizer)
    pairs = [cached.validation[place] for place in range(len(cached.validation))]
    sources = [source.tolist() for source, _ in pairs]
    longest_translation = max(len(source) for source in sources) + GREEDY.extra
    references = [cached.target.decode(target.tolist()) for _, target in pairs]

    def bleu(network: nn.Module, process_group: ProcessGroup) -> float:
        # Each process fills the rows of its own sources. The others stay 0, which is PAD, so that
        # the sum over all processes is the whole table.
        tokens = torch.zeros(len(sources), longest_translation, dtype=torch.int64)
        places = range(process_group.rank, len(sources), process_group.world_size)
        was_training = network.training

        hypotheses = search(
            cast(IncrementalDecoder, network.eval()),
            [sources[place] for place in places],
            GREEDY,
            device=device,
        )
        network.train(was_training)
        for place, (best,) in zip(places, hypotheses, strict=True):
            tokens[place, : len(best.tokens)] = torch.tensor(best.tokens)
        rows = process_group.all_reduce(tokens).tolist()
        translations = [cached.target.decode(row) for row in rows]  # `decode` leaves PAD out
        return float(metric.corpus_score(translations, [references]).score)

    return bleu


def _cache_once(
    recipe: Recipe, work: Path, device: torch.device, process_group: ProcessGroup
) -> CachedCorpus:
    if process_group.rank > 0:
        process_group.broadcast(0.0)  # wait until rank 0 has written it
        if not (work / FILE).exists():
            raise UsageError(
                f"the machines of this training run do not share {work}: put it on a disk that "
                "all of them use, and set the same DTML_DATA on all"
            )

    def choose(unsized_recipe: Recipe) -> str:
        return choose_size(unsized_recipe, device, process_group.world_size)

    # Only rank 0 writes here: the others find the files written.
    cached = cache_corpus(recipe, work, choose)
    if process_group.rank == 0:
        process_group.broadcast(0.0)  # let the others go on
    return cached
