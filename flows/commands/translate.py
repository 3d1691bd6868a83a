"""The `dtml translate` commands: train a model, translate, score, translate the queued texts."""

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from db.engine import open_reader, open_reader_or_new, open_store, reading, transaction
from db.read import read
from db.rows import translations as stored_translations
from dtml.pages.figures import counted, figure
from flows.commands.options import AsJson, DeviceOption
from flows.console import print_frame, print_json
from flows.service.prefect_server import require_server
from flows.settings import err, make_data_folder, out
from flows.translating import folder
from flows.translating.queue import in_words, nothing_to_do
from translation.cards import Card, bleu_tokenizer, receipt, recipe_of
from translation.data.corpus import lines_in, lines_of
from translation.data.languages import BleuTokenizer
from translation.errors import UsageError

if TYPE_CHECKING:
    from translation.models import Model
    from translation.recipes import Recipe
    from translation.scoring import Score
    from translation.translate import Translation


def model_row(card: Card, scores: Any) -> dict[str, Any]:
    """Return the row of a model in the list of models, from its card and all stored scores.

    `scores` is the frame that `db.rows.translations.scores` returns.
    """
    # Without scores of a comparison with another model.
    scores_alone = scores[(scores["model"] == card.name) & scores["against"].isna()]
    newest = scores_alone.drop_duplicates("test", keep="last")  # the rows are in order of time
    figures = [
        f"{row.test} {row.bleu:.1f} {_tokenizer_in(row.signature)}" for row in newest.itertuples()
    ]
    return {
        "model": card.name,
        "languages": card.languages,
        "size": f"{card.size} {card.kind}",
        "pairs": card.made["pairs"],
        "validation BLEU": card.made["validation_bleu"],
        "tokenizer": bleu_tokenizer(card),
        "tests": ", ".join(figures),
        "recipe": recipe_of(card),
        "receipt": receipt(card),
    }


def _tokenizer_in(signature: str) -> str:
    """Return the part of sacreBLEU's signature that names the tokenizer, such as tok:13a."""
    parts = [part for part in signature.split("|") if part.startswith("tok:")]
    return parts[0] if parts else "tok:?"


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
TOKENIZER = "sacreBLEU's tokenizer for the BLEU; by default the one that suits the language."
COLUMNS = "Columns of the source and the target in a TSV file, counted from 0."

log = logging.getLogger(__name__)


@translations.command()
def train(
    config: Annotated[
        Path, typer.Argument(help="A TOML file that names the corpora and the settings.")
    ],
    processes: Annotated[int, typer.Option(min=1, help=PROCESSES)] = 1,
    device: DeviceOption = "auto",
    as_json: AsJson = False,
) -> None:
    """Train a model on the corpora named in a TOML file; run again after an interruption to resume.

    Example: dtml translate train multi30k.toml --processes 4
    """
    from translation.recipes import read_recipe
    from translation.training.distributed import launch_processes

    recipe = read_recipe(config)
    # RANK is set in a process that this command has launched itself, or that torchrun has.
    if processes == 1 or "RANK" in os.environ:
        _train(recipe, device, as_json=as_json)
        return
    command = [sys.executable, "-c", "from flows.cli import main; main()"]
    arguments = ["translate", "train", str(config), "--device", device]
    if as_json:
        arguments.append("--json")
    sys.exit(launch_processes([*command, *arguments], processes))


def _train(recipe: "Recipe", device: str, *, as_json: bool = False) -> "Model | None":
    """Train and score a model as a flow, print the result, and return the model.

    Returns None in a process that only shares the work of another.
    """
    from dtml.inference import choose_device
    from flows.translating.models import assist

    make_data_folder()
    # Only the first of torchrun's processes runs the flow and stores the model.
    if int(os.environ.get("RANK", "0")) > 0:
        assist(recipe, choose_device(device).type)
        return None
    require_server()
    from flows.translating.flow import train_translator

    model, scores = train_translator(recipe, device, attended=True)
    if as_json:
        print_json(
            {
                "model": model.card.name,
                "receipt": receipt(model.card),
                "recipe": recipe_of(model.card),
                "validation_bleu": model.card.made["validation_bleu"],
                "validation_tokenizer": bleu_tokenizer(model.card),
                "scores": {test: asdict(test_score) for test, test_score in scores.items()},
            }
        )
    else:
        steps = model.card.made["progress"]["step"]
        bleu = model.card.made["validation_bleu"]
        out.print(
            f"{model.card.name}: {model.card.size} {model.card.kind}, {model.card.languages}, "
            f"{steps} steps, validation BLEU {bleu:.1f} tok:{bleu_tokenizer(model.card)}"
        )
        out.print(recipe_of(model.card), markup=False, soft_wrap=True)
        print_scores(scores)
        out.print(
            f"model     {folder.models_folder() / model.card.name}", markup=False, soft_wrap=True
        )
        out.print(f'use it    dtml translate text "..." --model {model.card.name}', markup=False)
    return model


def print_scores(scores: Mapping[str, "Score"]) -> None:
    """Print a line for each test set, and the signature that says how BLEU was counted."""
    for test, test_score in scores.items():
        sentences = counted(test_score.sentences, "sentence")
        out.print(
            f"{test}: BLEU {test_score.bleu:.1f} [{test_score.low:.1f}, {test_score.high:.1f}] "
            f"tok:{test_score.tokenizer}, chrF {test_score.chrf:.1f}, {sentences}",
            markup=False,
        )
    signatures = {test_score.signature for test_score in scores.values()}
    for signature in sorted(signatures):
        out.print(signature, markup=False)


@translations.command()
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
    as_json: AsJson = False,
) -> None:
    """Translate texts and print one line for each.

    Example: dtml translate text "A dog runs through the snow." --model multi30k-en-de
    """
    from dtml.inference import choose_device
    from flows.translating.models import open_model
    from translation.decoding.beam_search import Search
    from translation.translate import translate

    model = open_model(name, choose_device(device))
    how = Search(
        beams=max(beams, best),  # a search finds no more translations than it has beams
        alpha=alpha,
        best=best,
        with_attention=attention is not None,
    )
    sources: list[str] = []
    for argument in texts:
        if argument == "-":
            sources.extend(lines_in(sys.stdin.buffer, "standard input"))
        else:
            sources.append(argument)
    results = translate(model, sources, how)
    if attention is not None:
        from flows.translating.alignment_page import write_alignments

        write_alignments(attention, model.card, sources, results)
        err.print(f"attention page  {attention}", markup=False, soft_wrap=True)
    if as_json:
        documents = [
            _document(source, result) for source, result in zip(sources, results, strict=True)
        ]
        print_json(documents)
        return
    for source, result in zip(sources, results, strict=True):
        if result.warning is not None:
            beginning = source if len(source) < 60 else f"{source[:57]}..."
            log.warning("%s: %s", beginning, result.warning)
        for translation, score in result.best:
            line = " ".join(translation.splitlines())
            # Not by `out.print`: Rich would take some translations for markup.
            if best != 1:
                out.file.write(f"{score:8.3f}  {line}\n")
            else:
                out.file.write(f"{line}\n")


def _document(source: str, result: "Translation") -> dict[str, Any]:
    best = [{"text": translation, "score": score} for translation, score in result.best]
    return {
        "text": source,
        "translation": result.text,
        "score": result.score,
        "best": best,
        "warning": result.warning,
    }


@translations.command()
def file(
    source: Annotated[
        Path, typer.Argument(help="A text file, plain or gzipped, with one sentence per line.")
    ],
    to: Annotated[Path, typer.Option("--to", help="File for the translations, one per line.")],
    name: ModelOption = None,
    beams: Beams = 5,
    alpha: Alpha = 0.6,
    device: DeviceOption = "auto",
) -> None:
    """Translate a file line by line; run again after an interruption to resume at the next line.

    Example: dtml translate file captions.en.txt --to captions.de.txt --model multi30k-en-de
    """
    from dtml.inference import choose_device
    from flows.translating.files import translate_lines
    from flows.translating.models import open_model
    from translation.decoding.beam_search import Search

    model = open_model(name, choose_device(device))
    how = Search(beams=beams, alpha=alpha)
    lines = translate_lines(model, source, to, how, receipt(model.card))
    out.print(f"{counted(lines, 'line')} translated into {to}", markup=False, soft_wrap=True)


@translations.command()
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
    as_json: AsJson = False,
) -> None:
    """Score a model on a test set with sacreBLEU and chrF, and compare it with another model.

    Example: dtml translate score flickr2016 --model multi30k-en-de --against multi30k-rnn
    """
    from dtml.inference import choose_device
    from flows.translating.models import named_test, open_model, score_on
    from translation.decoding.beam_search import Search

    place = choose_device(device)
    model = open_model(name, place)
    other = None
    if against is not None:
        other = open_model(against, place)
    if other is not None and other.card.languages != model.card.languages:
        raise UsageError(
            f"{against} translates {other.card.languages}, but {model.card.name} translates "
            f"{model.card.languages}: compare models of the same languages"
        )
    make_data_folder()
    corpus = named_test(model.card, test, references, columns)
    how = Search(beams=beams, alpha=alpha)
    test_score, comparison = score_on(model, corpus, how, open_store(), other, tokenizer)
    if as_json:
        document = {
            "score": asdict(test_score),
            "against": against,
            "compared": None if comparison is None else asdict(comparison),
        }
        print_json(document)
        return
    print_scores({corpus.name: test_score})
    if comparison is not None:
        out.print(
            f"minus {against}: {comparison.difference:+.1f} "
            f"[{comparison.low:+.1f}, {comparison.high:+.1f}], p = {comparison.p:.3f}",
            markup=False,
        )


@translations.command()
def queue(
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to queue.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="Queue each line of a text file, plain or gzipped.")
    ] = None,
    name: ModelOption = None,
    priority: Annotated[
        int, typer.Option(help="Texts of higher priority are translated first.")
    ] = 0,
) -> None:
    """Queue texts for a worker; an INSERT into the table translation_text does the same.

    Example: dtml translate queue "A man rides a bike." --model multi30k-en-de
    """
    texts_to_queue = list(texts or ())
    if file is not None:
        texts_to_queue.extend(lines_of(file))
    if not texts_to_queue and file is not None:
        raise UsageError(f"{file} is empty: name a file with a text on each line, or give texts")
    if not texts_to_queue:
        raise UsageError("there is nothing to queue: give texts, or a file with --file")
    model = folder.chosen(name).name
    make_data_folder()
    with transaction(open_store()) as conn:
        ids = stored_translations.queue_texts(conn, model, texts_to_queue, priority)
    out.print(
        f"{counted(len(ids), 'text')} queued for {model}: {ids[0]} to {ids[-1]}",
        markup=False,
    )


@translations.command()
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
) -> None:
    """Translate queued texts until none is left. `dtml serve` does this every five minutes.

    Example: dtml translate work
    """
    for model in models or ():
        folder.chosen(model)  # only for the error about an unknown model
    make_data_folder()
    # If there is nothing to do, these are the counts to print, and no Prefect server is started,
    # which would take 20 seconds of a core. If there is something to do, this is None.
    counts: Any = nothing_to_do(open_store(), models or None)
    if counts is None:
        require_server()
        from flows.translating.flow import translate_queue

        # Prefect returns the data of the state in which the flow ends: the counts.
        counts = translate_queue(
            models=list(models or ()),
            beams=beams,
            alpha=alpha,
            device=device,
            attention=attention,
            attended=True,
        )
    out.print(in_words(counts), markup=False)


@translations.command()
def jobs(
    name: ModelOption = None,
    status: Annotated[
        Literal["queued", "taken", "done", "failed"] | None,
        typer.Option(help="List only texts with this status."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of texts to list, newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the queue: the number of texts queued, taken, done and failed, and the newest texts.

    Example: dtml translate jobs --status failed
    """
    engine = open_reader()
    with reading(engine) as conn:
        counts = stored_translations.queue_counts(conn)
        newest = stored_translations.newest(conn, name, status, limit)
    if as_json:
        print_json({"counts": counts, "texts": newest})
        return
    if counts.empty:
        out.print(
            "The queue is empty: `dtml translate queue TEXT --model NAME` adds to it.", markup=False
        )
        return
    print_frame(counts, importance=("model", "status", "n"))
    texts = ("text", "translation", "reason")
    importance = ("id", "status", "text", "translation", "model", "queued_at", "reason", "score")
    print_frame(newest, importance=importance, formats={"score": figure}, prose=texts)


@translations.command()
def models(as_json: AsJson = False) -> None:
    """List the models with their languages, sizes, scores, recipes and receipts.

    Example: dtml translate models
    """
    with reading(open_reader_or_new()) as conn:
        scores = read(conn, "translation_score", order="model, scored_at, id")
    rows = [model_row(card, scores) for card in folder.cards()]
    if as_json:
        print_json(rows)
    elif rows:
        import pandas as pd

        print_frame(
            pd.DataFrame(rows),
            importance=("model", "languages", "validation BLEU", "size", "tests", "pairs"),
            formats={"validation BLEU": "{:.1f}".format},
            prose=("tests", "recipe"),
        )
    else:
        out.print("There is no model yet: `dtml translate demo` trains one in a minute.")


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
    model = _train(recipe, device)
    if model is None:  # torchrun started this process to share the work of another
        return
    unseen_pairs = list(recipe.tests["test"].pairs())[:5]
    sources = [source for source, _ in unseen_pairs]
    results = translate(model, sources, Search())
    for (source, expected), result in zip(unseen_pairs, results, strict=True):
        lines = f"{source}\n  {result.text}"
        if result.text != expected:
            lines += f"\n  correct: {expected}"
        out.print(lines, markup=False)
