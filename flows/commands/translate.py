"""The `dtml translate` commands: train a model, translate, score, translate the queued texts."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from db.engine import open_reader, open_reader_or_new, open_store, reading, transaction
from db.read import read
from db.rows import translations as stored_translations
from dtml.pages.figures import counted, figure
from flows.commands.answers import Answer, answering, show
from flows.commands.options import DeviceOption
from flows.console import ConsoleTable, Part, say
from flows.service.tasks import as_flow
from flows.settings import tell
from flows.translating import folder
from flows.translating.queue import in_words, nothing_to_do
from translation.cards import Card, receipt, recipe_of
from translation.data.corpus import lines_in, lines_of
from translation.data.languages import BleuTokenizer
from translation.errors import UsageError

if TYPE_CHECKING:
    from translation.decoding.beam_search import Search
    from translation.models import Model
    from translation.recipes import Recipe
    from translation.scoring import Score


def model_row(card: Card, scores: Any) -> dict[str, Any]:
    """Return the row of a model in the list of models, from its card and all scores, by time."""
    # Without scores of a comparison with another model.
    scores_alone = scores[(scores["model"] == card.name) & scores["against"].isna()]
    newest = scores_alone.drop_duplicates("test", keep="last")
    # sacreBLEU's signature names the tokenizer, such as tok:13a.
    tokenizers = newest["signature"].str.extract(r"(tok:[^|]+)", expand=False)
    figures = [
        f"{test} {bleu:.1f} {tokenizer}"
        for test, bleu, tokenizer in zip(newest["test"], newest["bleu"], tokenizers, strict=True)
    ]
    return {
        "model": card.name,
        "languages": card.languages,
        "size": f"{card.size} {card.kind}",
        "pairs": card.made["pairs"],
        "validation BLEU": card.made["validation_bleu"],
        "tokenizer": card.made["bleu_tokenizer"],
        "tests": ", ".join(figures),
        "recipe": recipe_of(card),
        "receipt": receipt(card),
    }


commands = typer.Typer()
translations = typer.Typer(help="Train and run translation models that use DTML's Transformer.")
commands.add_typer(translations, name="translate")

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", help="A model that `dtml translate models` lists; by default the only one."
    ),
]
Beams = Annotated[int, typer.Option(min=1, help="Width of the beam search; 1 is greedy.")]
Alpha = Annotated[
    float, typer.Option(min=0.0, max=100.0, help="Length penalty; 0 prefers short translations.")
]
PROCESSES = "Processes that share each update; at most one per GPU or core."
PAGE = "Write a page that shows which source pieces each translated piece attended to."
TOKENIZER = "sacreBLEU's tokenizer for the BLEU; by default the one that suits the references."
COLUMNS = "Columns of the source and the target in a TSV file, counted from 0."


@translations.command()
@answering("json")
def train(
    config: Annotated[
        Path, typer.Argument(help="A TOML file that names the corpora and the settings.")
    ],
    processes: Annotated[int, typer.Option(min=1, help=PROCESSES)] = 1,
    device: DeviceOption = "auto",
) -> Answer:
    """Train a model on the corpora named in a TOML file; run again after an interruption to resume.

    Example: dtml translate train multi30k.toml --processes 4
    """
    from translation.recipes import read_recipe
    from translation.training.distributed import launch_processes

    recipe = read_recipe(config)
    # RANK is set in a process that this command has launched itself, or that torchrun has.
    if processes > 1 and "RANK" not in os.environ:
        program = [sys.executable, "-c", "from flows.cli import main; main()"]
        sys.exit(launch_processes([*program, *sys.argv[1:]], processes))
    _, answer = _trained(recipe, device)
    return answer


def _trained(recipe: "Recipe", device: str) -> "tuple[Model, Answer]":
    """Train and score a model, and say so; a process that shares another's work ends here."""
    from flows.translating.models import assist, device_for, train_and_score

    # Only the first of torchrun's processes stores the model.
    if int(os.environ.get("RANK", "0")) > 0:
        assist(recipe, device_for(recipe, device))
        raise typer.Exit
    model, scores = as_flow("translate-train", recipe.name, lambda: train_and_score(recipe, device))
    card = model.card
    bleu, tokenizer = card.made["validation_bleu"], card.made["bleu_tokenizer"]
    document = {
        "model": card.name,
        "receipt": receipt(card),
        "recipe": recipe_of(card),
        "validation_bleu": bleu,
        "validation_tokenizer": tokenizer,
        "scores": {test: asdict(test_score) for test, test_score in scores.items()},
    }
    parts = (
        f"{card.name}: {card.size} {card.kind}, {card.languages}, "
        f"{card.made['progress']['step']} steps, validation BLEU {bleu:.1f} tok:{tokenizer}",
        recipe_of(card),
        *score_lines(scores),
        f"model     {folder.models_folder() / card.name}",
        f'use it    dtml translate text "..." --model {card.name}',
    )
    return model, Answer(parts, document)


def score_lines(scores: Mapping[str, "Score"]) -> Iterator[str]:
    """Yield a line for each test set, and the signature that says how BLEU was counted."""
    for test, each in scores.items():
        yield (
            f"{test}: BLEU {each.bleu:.1f} [{each.low:.1f}, {each.high:.1f}] "
            f"tok:{each.tokenizer}, chrF {each.chrf:.1f}, {counted(each.sentences, 'sentence')}"
        )
    yield from sorted({each.signature for each in scores.values()})


def opened(
    name: str | None, device: str, beams: int, alpha: float, **search: Any
) -> "tuple[Model, Search]":
    """Return a model, and how it searches for translations."""
    from dtml.devices import choose_device
    from flows.translating.models import open_model
    from translation.decoding.beam_search import Search

    return open_model(name, choose_device(device)), Search(beams=beams, alpha=alpha, **search)


@translations.command()
@answering("json")
def text(
    texts: Annotated[
        list[str],
        typer.Argument(help="Texts to translate; - reads standard input, one text per line."),
    ],
    name: ModelOption = None,
    beams: Beams = 5,
    alpha: Alpha = 0.6,
    best: Annotated[
        int, typer.Option(min=1, help="Number of translations per text, printed with their scores.")
    ] = 1,
    attention: Annotated[Path | None, typer.Option("--attention-page", help=PAGE)] = None,
    device: DeviceOption = "auto",
) -> Answer:
    """Translate texts and print one line for each.

    Example: dtml translate text "A dog runs through the snow." --model multi30k-en-de
    """
    from translation.translate import translate

    beams = max(beams, best)  # a search finds no more translations than it has beams
    model, how = opened(name, device, beams, alpha, best=best, with_attention=attention is not None)
    sources: list[str] = []
    for argument in texts:
        is_input = argument == "-"
        sources += lines_in(sys.stdin.buffer, "standard input") if is_input else [argument]
    results = translate(model, sources, how)
    if attention is not None:
        from flows.translating.alignment_page import write_alignments

        write_alignments(attention, model.card, sources, results)
        tell(f"attention page  {attention}")
    documents = [
        {
            "text": source,
            "translation": result.text,
            "score": result.score,
            "best": [{"text": translation, "score": score} for translation, score in result.best],
        }
        for source, result in zip(sources, results, strict=True)
    ]
    lines = []
    for result in results:
        for found, score in result.best:
            line = " ".join(found.splitlines())
            lines.append(f"{score:8.3f}  {line}" if best > 1 else line)
    return Answer(lines, documents)


@translations.command()
@answering()
def file(
    source: Annotated[
        Path, typer.Argument(help="A text file, plain or gzipped, with one sentence per line.")
    ],
    to: Annotated[Path, typer.Option("--to", help="File for the translations, one per line.")],
    name: ModelOption = None,
    beams: Beams = 5,
    alpha: Alpha = 0.6,
    device: DeviceOption = "auto",
) -> Answer:
    """Translate a file line by line; run again after an interruption to resume at the next line.

    Example: dtml translate file captions.en.txt --to captions.de.txt --model multi30k-en-de
    """
    from flows.translating.files import translate_lines

    model, how = opened(name, device, beams, alpha)
    lines = translate_lines(model, source, to, how, receipt(model.card))
    return Answer([f"{counted(lines, 'line')} translated into {to}"])


@translations.command()
@answering("json")
def score(
    test: Annotated[
        str,
        typer.Argument(help="A test set of the model's recipe, a file of sources, or a TSV file."),
    ],
    references: Annotated[
        Path | None, typer.Option(help="File of reference translations, one per line.")
    ] = None,
    columns: Annotated[tuple[int, int], typer.Option(help=COLUMNS)] = (0, 1),
    name: ModelOption = None,
    against: Annotated[
        str | None, typer.Option(help="Another model to compare with on the same test.")
    ] = None,
    tokenizer: Annotated[BleuTokenizer | None, typer.Option(help=TOKENIZER)] = None,
    beams: Beams = 5,
    alpha: Alpha = 0.6,
    device: DeviceOption = "auto",
) -> Answer:
    """Score a model on a test set with sacreBLEU and chrF, and compare it with another model.

    Example: dtml translate score flickr2016 --model multi30k-en-de --against multi30k-rnn
    """
    from flows.translating.models import named_test, score_on

    model, how = opened(name, device, beams, alpha)
    other = None if against is None else opened(against, device, beams, alpha)[0]
    if other is not None and other.card.languages != model.card.languages:
        raise UsageError(
            f"{against} translates {other.card.languages}, but {model.card.name} translates "
            f"{model.card.languages}: compare models of the same languages"
        )
    corpus = named_test(model.card, test, references, columns)
    test_score, comparison = score_on(model, corpus, how, open_store(), other, tokenizer)
    document = {
        "score": asdict(test_score),
        "against": against,
        "compared": None if comparison is None else asdict(comparison),
    }
    parts = [*score_lines({corpus.name: test_score})]
    if comparison is not None:
        parts.append(
            f"minus {against}: {comparison.difference:+.1f} "
            f"[{comparison.low:+.1f}, {comparison.high:+.1f}], p = {comparison.p:.3f}"
        )
    return Answer(parts, document)


@translations.command()
@answering()
def queue(
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to queue.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="Queue each line of a text file, plain or gzipped.")
    ] = None,
    name: ModelOption = None,
    priority: Annotated[
        int, typer.Option(help="Texts of higher priority are translated first.")
    ] = 0,
) -> Answer:
    """Queue texts for a worker; an INSERT into the table translation_text does the same.

    Example: dtml translate queue "A man rides a bike." --model multi30k-en-de
    """
    texts_to_queue = [*(texts or ()), *(lines_of(file) if file is not None else ())]
    if not texts_to_queue:
        raise UsageError("there is nothing to queue: give texts, or with --file a file of them")
    model = folder.chosen(name).name
    with transaction(open_store()) as conn:
        ids = stored_translations.queue_texts(conn, model, texts_to_queue, priority)
    return Answer([f"{counted(len(ids), 'text')} queued for {model}: {ids[0]} to {ids[-1]}"])


@translations.command()
@answering()
def work(
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="Translate only texts for this model; can be repeated."),
    ] = None,
    beams: Beams = 5,
    alpha: Alpha = 0.6,
    attention: Annotated[
        bool, typer.Option("--attention", help="Store the attention of each translation.")
    ] = False,
    device: DeviceOption = "auto",
) -> Answer:
    """Translate queued texts until none is left. `dtml serve` does this every five minutes.

    Example: dtml translate work
    """
    for model in models or ():
        folder.chosen(model)  # only for the error about an unknown model
    counts = nothing_to_do(open_store(), models or None)
    if counts is None:
        from flows.translating.worker import work_queue
        from translation.decoding.beam_search import Search

        how = Search(beams=beams, alpha=alpha, with_attention=attention)
        counts = as_flow(
            "translate-queue",
            "translations",
            lambda: work_queue(models or (), how, device, attended=True),
        )
    return Answer([in_words(counts)])


@translations.command()
@answering("json")
def jobs(
    name: ModelOption = None,
    status: Annotated[
        Literal["queued", "taken", "done", "failed"] | None,
        typer.Option(help="List only texts with this status."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of texts to list, newest first.")] = 20,
) -> Answer:
    """List the queue: the number of texts queued, taken, done and failed, and the newest texts.

    Example: dtml translate jobs --status failed
    """
    with reading(open_reader()) as conn:
        counts = stored_translations.queue_counts(conn)
        newest = stored_translations.newest(conn, name, status, limit)
    parts: list[Part] = [
        ConsoleTable(counts),
        ConsoleTable(newest, None, {"score": figure}, prose=("text", "translation", "reason")),
    ]
    if counts.empty:
        parts = ["The queue is empty: `dtml translate queue TEXT --model NAME` adds to it."]
    return Answer(parts, {"counts": counts, "texts": newest})


@translations.command()
@answering("json")
def models() -> Answer:
    """List the models with their languages, sizes, scores, recipes and receipts.

    Example: dtml translate models
    """
    import pandas as pd

    cards = folder.cards()
    if not cards:
        return Answer(["There is no model yet: `dtml translate demo` trains one in a minute."], [])
    with reading(open_reader_or_new()) as conn:
        scores = read(conn, "translation_score", order="model, scored_at, id")
    rows = [model_row(card, scores) for card in cards]
    formats = {"validation BLEU": "{:.1f}".format}
    return Answer(
        [ConsoleTable(pd.DataFrame(rows), None, formats, prose=("tests", "recipe"))], rows
    )


@translations.command()
def demo(device: DeviceOption = "auto") -> None:
    """Train a tiny model on an invented language pair in about a minute, and translate with it.

    Example: dtml translate demo
    """
    from flows.translating.models import DEMO
    from translation.decoding.beam_search import Search
    from translation.recipes import read_recipe
    from translation.translate import translate

    recipe = read_recipe(DEMO)
    model, answer = _trained(recipe, device)
    show(answer)
    unseen_pairs = list(recipe.tests["test"].pairs())[:5]
    sources = [source for source, _ in unseen_pairs]
    results = translate(model, sources, Search())
    for (source, expected), result in zip(unseen_pairs, results, strict=True):
        say(f"{source}\n  {result.text}")
        if result.text != expected:
            say(f"  correct: {expected}")
